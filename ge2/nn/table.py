"""A model's parameters as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from ge2.base.pytrees.pytree import flatten_with_path, keystr, leaves
from ge2.nn.module import Module, options, text
from ge2.nn.values import array, described
from ge2.transforms.inspect import eval_shape

Row = tuple[str, str, str, str, str]
HEAD: Row = ("part", "of", "arrays", "parameters", "bytes")


def summary(model: Any, *args: Any, **kwargs: Any) -> str:
    """A table of the modules in a model, what arrays they hold, and how many parameters and bytes.

    With arguments, arrays or `ge2.ShapeDtypeStruct`s, also the type of `model(*args)`, which is not
    computed; without `training` unless they say otherwise, so that dropout needs no key. A model is
    any container of arrays: of a dict each array is a row.

    >>> from ge2 import nn, random
    >>> import numpy as np
    >>> model = nn.MLP.init(random.key(0), (4, 8, 2))
    >>> print(summary(model, np.ones((10, 4), np.float32)))
    part        of      arrays                      parameters  bytes
    .layers[0]  Linear  weight=f32[4,8], bias=f32[8]        40    160
    .layers[1]  Linear  weight=f32[8,2], bias=f32[2]        18     72
    total       MLP                                         58    232
    result              f32[10,2]
    """
    rows = [row(path, name, held) for path, name, held in parts("", model)]
    found = leaves(model)
    total = ("total", type(model).__name__, "", *sizes(found))
    rows += [total]
    if args or kwargs:
        flags = {name: x for name, x in kwargs.items() if isinstance(x, bool | int | str | None)}
        arrays = {name: x for name, x in kwargs.items() if name not in flags}
        result = leaves(eval_shape(called(model, flags), *args, **arrays))
        rows.append(("result", "", ", ".join(map(described, result)), "", ""))
    return table([HEAD, *rows])


def called(model: Any, flags: dict[str, Any]) -> Callable[..., Any]:
    """The model as a function of arrays alone: flags are what they are, and not traced."""
    kind: Any = type(model)
    if isinstance(model, Module) and "training" in options(kind):
        flags = {"training": False, **flags}
    return lambda *args, **arrays: model(*args, **arrays, **flags)


def parts(path: str, x: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The path, class and arrays of each module, and of each array that is in none."""
    if not isinstance(x, Module):
        found, _ = flatten_with_path(x, is_leaf=lambda y: isinstance(y, Module))
        for keys, y in found:
            at = path + keystr(keys)
            yield from parts(at, y) if isinstance(y, Module) else [(at, "", {"": y})]
        return
    held = {f.name: getattr(x, f.name) for f in fields(x) if not f.metadata.get("static")}  # type: ignore[arg-type]
    arrays = {name: y for name, y in held.items() if hasattr(y, "dtype")}
    if arrays:
        yield path or "model", type(x).__name__, arrays
    for name, y in held.items():
        if name not in arrays and y is not None:
            yield from parts(f"{path}.{name}", y)


def row(path: str, name: str, held: dict[str, Any]) -> Row:
    shown = (f"{k}={text(y)}" if k else described(y) for k, y in held.items())
    return (path, name, ", ".join(shown), *sizes(list(held.values())))


def sizes(found: list[Any]) -> tuple[str, str]:
    """The numbers of elements and of bytes of arrays."""
    counts = [(math.prod(array(x).shape), array(x).dtype.itemsize) for x in found]
    return f"{sum(n for n, _ in counts):,}", f"{sum(n * size for n, size in counts):,}"


def table(rows: list[Row]) -> str:
    """Columns two spaces apart, numbers to the right."""
    widths = [max(len(r[i]) for r in rows) for i in range(5)]
    lines = [
        "  ".join(
            x.rjust(w) if i > 2 else x.ljust(w)
            for i, (x, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in rows
    ]
    return "\n".join(lines)
