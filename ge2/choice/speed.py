"""The speed of a device, for predictions: measured limits, and the time that they imply.

The limits are probed once a device, when something is tuned, and kept with the record; until then
they are those of a data sheet.
"""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import TYPE_CHECKING, final

from ge2.base.cache import content_key
from ge2.base.config import config
from ge2.base.dtypes import COMPLEX128, FLOAT64
from ge2.base.record import record
from ge2.choice.measured import is_measured, recorded_keys
from ge2.ir import Eqn, Var
from ge2.program.cost import computing

if TYPE_CHECKING:
    from ge2.choice.problem import Problem


@final
@record
class Speed:
    """The work of a device in a second: bytes that it moves from and to memory (`moved`), and from
    and to caches of `cache` bytes (`cached`); operations in float32 and in float64, in kernels of
    ours and, in float32, in products of the library. `launch`: seconds that a kernel takes at
    least. `functions`: operations that exp or tanh counts as.
    """

    moved: float
    cached: float
    cache: int
    single: float
    double: float
    products: float
    launch: float
    functions: int = 8

    def of(
        self, problem: Problem, *, passes: float = 1.0, launches: int = 1, rate: float = 1.0
    ) -> float:
        """The seconds of a problem: its bytes, `passes` times, or its operations at that part of the
        `rate`, whichever takes longer, and launches.
        """
        moved, done = bytes_of(problem), operations(problem, self.functions)
        memory = passes * moved / (self.cached if moved < self.cache else self.moved)
        return launches * self.launch + max(memory, done / (self.computed(problem) * rate))

    def computed(self, problem: Problem) -> float:
        """Operations in a second of the widest dtype of a problem."""
        double = any(t.dtype in (FLOAT64, COMPLEX128) for t in (*problem.inputs, *problem.outs))
        return self.double if double else self.single


def bytes_of(problem: Problem) -> int:
    """The bytes of all arrays; of an axis along which elements repeat, those that are there."""
    types = (*problem.inputs, *problem.outs)
    if not problem.operands:
        return sum(t.nbytes for t in types if not t.weak)
    found = 0
    for t, x in zip(types, problem.operands, strict=True):
        if not x.value:
            real = (n for n, s in zip(t.shape, x.strides, strict=True) if s or n == 0)
            found += t.dtype.itemsize * math.prod(real)
    return found


def operations(problem: Problem, functions: int) -> int:
    inputs, outs = tuple(map(Var, problem.inputs)), tuple(map(Var, problem.outs))
    done = computing(Eqn(problem.op, inputs, outs))
    return done.flops + functions * done.transcendentals


# -------------------------------------------------------------------------------------------- kept

_known: dict[tuple[str | None, str], Speed] = {}


def key_of(kind: str) -> str:
    return content_key("speed", kind)


def speed_of(kind: str, usual: Speed) -> Speed:
    """The probed speed of a kind of device, or else the usual one: that alone, if nothing measured
    is to decide.
    """
    if config.tune == "off":
        return usual
    place = config.cache_dir, kind
    if place not in _known:
        _known[place] = probed(kind) or usual
    return _known[place]


def probed(kind: str) -> Speed | None:
    """The probed speed of a kind of device, here or as it ships; None if nothing was probed."""
    here = key_of(kind) in recorded_keys()
    if not here and not is_measured(kind):
        return None
    import json

    from ge2.choice.record import shipped, store, told_in

    try:
        if here:
            return Speed(*json.loads(store().get(key_of(kind)) or b""))
        return Speed(*told_in(shipped(kind).splitlines(), "speed"))
    except (ValueError, TypeError):
        return None


def keep(kind: str, speed: Speed) -> None:
    import json

    from ge2.choice.record import forget, store

    about = {"kind": "measurements", "name": "speed", "device": kind}
    store().put(key_of(kind), json.dumps(astuple(speed)).encode(), about)
    _known.clear()
    forget()
