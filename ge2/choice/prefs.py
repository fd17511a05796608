"""Preferences: what a user wants or does not want among kernels."""

from __future__ import annotations

from typing import final

from ge2.base.config import config
from ge2.base.record import record


@final
@record
class Prefs:
    """`off`: names of families, and of rules of choice, that are switched off."""

    off: frozenset[str] = frozenset()

    def refuses(self, name: str) -> str:
        """The reason why nothing of that name is chosen; "" if it may be."""
        return f"{name} is switched off" if name in self.off else ""


def prefs() -> Prefs:
    """The preferences that the settings of now express."""
    return Prefs(frozenset(config.passes_off))
