"""From the names of a model to those of a file whose arrays have other names or layouts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ge2.base.errors import ArgumentError
from ge2.base.record import record
from ge2.base.source import here

# a name of the file, or names with a function of their arrays
Source = str | tuple[str | tuple[str, ...], Callable[..., Any]]
Sources = Mapping[str, Source]


@record
class Map:
    """The place of each array of a model in a file, for `ge2.io.load(..., map=...)`.

    `sources` gives for a name of the model a name of the file, or a pair of it (or of several) and
    a function of their arrays. `{i}` in both stands for one part between dots; one that the model's
    name lacks stands for every such part in the file, in order, and the function has a list of
    their arrays. Names without a source are the same in the file. `ignore` are names of the file
    that no model needs; one of `prefixes` may come before any name of the file.

    >>> from ge2 import io
    >>> names = Map({
    ...     "layers.{i}.weight": ("fc{i}.weight", np.transpose),
    ...     "layers.{i}.bias": "fc{i}.bias",
    ... })
    >>> names.source("layers.3.bias")
    'fc3.bias'
    """

    sources: Sources
    ignore: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)

    def source(self, name: str) -> Source:
        """The source of an array of the model."""
        for pattern, source in self.sources.items():
            found = expression(pattern).fullmatch(name)
            if found is not None:
                if isinstance(source, str):
                    return filled(source, found.groupdict())
                names, function = source
                if isinstance(names, str):
                    return filled(names, found.groupdict()), function
                return tuple(filled(each, found.groupdict()) for each in names), function
        return name

    def stacked(self, part: str = "{i}") -> Map:
        """The map of a model whose layers are one module, with one axis more, that a scan runs:
        `part` of the names is a position of that axis.

        >>> each = Map({"blocks.{i}.norm.{p}": "h.{i}.ln_1.{p}"})
        >>> each.stacked().source("blocks.norm.bias")
        ('h.{i}.ln_1.bias', <function ...>)
        """
        sources = {
            name.replace(f"{part}.", ""): stacked(source) if f"{part}." in name else source
            for name, source in self.sources.items()
        }
        return Map(sources, self.ignore, self.prefixes)

    def ignores(self, name: str) -> bool:
        return any(
            expression(prefix + pattern).fullmatch(name)
            for pattern in self.ignore
            for prefix in self.prefixes
        )


def stacked(source: Source) -> Source:
    names, function = source if isinstance(source, tuple) else (source, None)

    def stack(*columns: Any) -> Any:
        rows = zip(*columns, strict=True)
        return np.stack([row[0] if function is None else function(*row) for row in rows])

    return names, stack


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """The names that a pattern stands for."""
    parts = re.split(r"\{(\w+)\}", pattern)
    seen: set[str] = set()
    text = re.escape(parts[0])
    for name, after in zip(parts[1::2], parts[2::2], strict=True):
        group = f"g{name}"
        text += (f"(?P={group})" if name in seen else f"(?P<{group}>[^.]+)") + re.escape(after)
        seen.add(name)
    return re.compile(text)


def filled(pattern: str, groups: Mapping[str, str]) -> str:
    for name, part in groups.items():
        pattern = pattern.replace(f"{{{name[1:]}}}", part)
    return pattern


def as_map(given: Any) -> Map:
    """The `map` argument of `load`, as a Map."""
    if given is None or isinstance(given, Mapping):
        given = Map(given or {})
    if not isinstance(given, Map):
        what = f"map is a dict of names or a ge2.io.Map; got {given!r:.60}"
        raise ArgumentError(what, where=here(), fix="map={'layers.0.weight': 'fc1.weight'}")
    sources: Mapping[str, Any] = given.sources
    for name, source in sources.items():
        match source:
            case str() | (str() | (*_,), Callable()):
                continue
        what = f"the source of {name!r} is a name, or a pair of names and a function; got {source!r:.60}"
        raise ArgumentError(what, where=here(), fix=f"{{{name!r}: ('fc1.weight', np.transpose)}}")
    return given


def found_as(name: str, names: Collection[str], prefixes: Iterable[str]) -> list[str]:
    """The names of a file that a name of a source stands for; none if there is none such."""
    for prefix in prefixes:
        if prefix + name in names:
            return [prefix + name]
        if "{" in name:
            pattern = expression(prefix + name)
            found = [each for each in names if pattern.fullmatch(each)]
            if found:
                return sorted(found, key=numbers)
    return []


def numbers(name: str) -> list[Any]:
    """A key that sorts 10 after 9."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]
