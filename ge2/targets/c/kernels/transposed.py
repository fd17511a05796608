"""Copies of arrays in C: those whose rows are columns of the other array go by tiles through a buffer."""

from __future__ import annotations

import math
from dataclasses import replace

from ge2.codegen.axes import merged
from ge2.codegen.moves import Moved
from ge2.codegen.text import CKernel, Text
from ge2.ops.elementwise import ConvertElementType
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.kernel_parameters import ORDER
from ge2.targets.c.emit.region import c_kernel
from ge2.targets.c.kernels.strided_loops import Elements, Head, nest_of, shared

LETTERS = "ijklmopqrstuvw"
LINE = 64  # bytes of a cache line, and of a row of a tile of transpose.h
BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}  # of elements by their bytes, as it names them


def moving(region_and_places: Moved, caps: Caps) -> CKernel:
    """The kernel of a copy: by tiles where the arrays are across each other, or else by loops."""
    region, placed = region_and_places
    return transposing(region_and_places, caps) or c_kernel(region, placed, caps)


def transposing(given: Moved, caps: Caps) -> CKernel | None:
    """A copy by tiles, if each array has an axis of neighbours that is no short one."""
    region, placed = given
    graph = region.graph
    if len(graph.inputs) != 1 or len(graph.eqns) != 1:
        return None
    (a,), (eqn,), (b,) = graph.inputs, graph.eqns, graph.eqns[0].outs
    x, y, size = placed[a], placed[b], a.type.dtype.itemsize
    if not isinstance(eqn.op, ConvertElementType) or a.type.dtype != b.type.dtype or x.value:
        return None
    shape, (x_steps, y_steps) = merged(b.type.shape, x.strides, y.strides)
    if size not in BITS or 1 not in x_steps or 1 not in y_steps:
        return None
    s, d = x_steps.index(1), y_steps.index(1)
    least = caps.tuning.nests.few
    if s == d or min(shape[s], shape[d]) <= least or min(x_steps[d], y_steps[s]) <= least:
        return None
    head = Head(caps)
    head.array("x", x, a.type.dtype)
    head.array("y", y, b.type.dtype, written=True)
    others = [axis for axis in range(len(shape)) if axis not in (s, d)]
    letters, tile = LETTERS[: len(others)], LINE // size
    ends = head.sizes(letters, [shape[axis] for axis in others])
    n_s, n_d = head.size("n_s", shape[s]), head.size("n_d", shape[d])
    places = [
        head.place(name, (*letters, "first"), (*(steps[axis] for axis in others), steps[s]))
        for name, steps in (("x", x_steps), ("y", y_steps))
    ]
    steps = head.size("x_d", x_steps[d]), head.size("y_s", y_steps[s])
    width = f"ge2_least({tile}, {n_s} - first)"
    each = (
        Text(f"const int64_t first = block * {tile};"),
        Text(
            f"ge2_transpose_{BITS[size]}("
            f"x + {places[0]}, {steps[0]}, y + {places[1]}, {steps[1]}, {n_d}, {width});"
        ),
    )
    names = [*letters, "block"]
    ends = [*ends, f"({n_s} + {tile - 1}) / {tile}"]
    sharing = shared(head, len(ends), math.prod(shape), lines=2)
    arguments = sorted(head.arguments.values(), key=lambda a: ORDER.index(a.kind))
    about = f"{b.type} = {a.type} across"
    view = Elements(nest_of(names, ends), sharing, each)
    bare = CKernel("transpose", about, tuple(arguments), (), 1)
    return replace(bare, template="c/elements.c.jinja", view=view)
