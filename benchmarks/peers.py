"""The peers, if they are installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def peer(name: str) -> ModuleType | None:
    return import_module(name) if find_spec(name) is not None else None


def installed(names: Iterable[str]) -> list[str]:
    return [name for name in names if find_spec(name) is not None]
