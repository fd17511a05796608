"""Operations as one C program, beside their references: many problems a
compilation, operands are views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pytest
from hypothesis import strategies as st

from ge2.base.arrays import BOOL, COMPLEX, HALF, INTEGERS
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.executable import Executable
from ge2.ir import ArrayType, Eqn, Graph, Op, Var
from ge2.ops.shape import BroadcastInDim, Rev, Slice, Transpose
from ge2.targets.c.tuning import Moves, Tuning
from tests.together import needs_compiler as needs_compiler
from tests.together import together


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Two threads share even the smallest work."""
    with config.using(tuning=(Tuning(moves=Moves(grain=0, threads=2)),)):
        yield


@final
@dataclass
class Programs:
    """A graph that grows by one operation after the other."""

    inputs: list[Var] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    eqns: list[Eqn] = field(default_factory=list)
    outs: list[Var] = field(default_factory=list)
    wanted: list[Any] = field(default_factory=list)

    def given(self, array: Any) -> Var:
        var = Var(ArrayType(array.shape, array.dtype))
        self.inputs.append(var)
        self.arrays.append(array)
        return var

    def apply(self, op: Op, *xs: Var) -> Var:
        (out,) = op.infer(*(x.type for x in xs))
        var = Var(out)
        self.eqns.append(Eqn(op, xs, (var,)))
        return var

    def add(self, op: Op, *operands: tuple[Var, Any]) -> None:
        """An operation on variables, with the arrays that they hold."""
        self.outs.append(self.apply(op, *(var for var, _ in operands)))
        with np.errstate(all="ignore"):
            self.wanted.append(op.reference(*(array for _, array in operands)))

    def compiled(self, threads: int = 2) -> Executable:
        graph = Graph(tuple(self.inputs), tuple(self.eqns), tuple(self.outs))
        with config.using(executor="c", threads=threads, passes_off=("simplify", "fold", "match")):
            with together("-Og"):
                found = compile_graph(graph)
                found.build()
            assert found.program.target == "c"
            return found

    def results(self, whole: bool = True) -> list[Any]:
        """Those of the program, which are the same to the bit on one thread and on two."""
        executable = self.compiled(1)
        kinds = {s.kind for s in executable.program.steps}
        assert not whole or kinds <= {"kernel", "copy", "view"}
        one, two = executable(*self.arrays), self.compiled(2)(*self.arrays)
        for a, b in zip(one, two, strict=True):
            assert a.tobytes() == b.tobytes()
        return one

    def check(self) -> None:
        """The results are those of the references."""
        for y, wanted in zip(self.results(), self.wanted, strict=True):
            alike(y, wanted)

    def view(self, draw: Any, array: Any) -> tuple[Var, Any]:
        """An array of the same elements as a view of a larger input, with strides of any sign."""
        how = draw(st.sampled_from(("plain", "turned", "cut", "reversed", "repeated")))
        rank = array.ndim
        if how == "turned":
            order = tuple(draw(st.permutations(range(rank))))
            base = array.transpose(np.argsort(order)).copy() if rank else array
            return self.apply(Transpose(order), self.given(base)), array
        if how == "cut":
            base = np.zeros([2 * n + 3 for n in array.shape], array.dtype)
            places = tuple(slice(1, 1 + 2 * n, 2) for n in array.shape)
            base[places] = array
            stops = tuple(min(1 + 2 * n, 2 * n + 3) for n in array.shape)
            return self.apply(Slice((1,) * rank, stops, (2,) * rank), self.given(base)), array
        if how == "reversed":
            return self.apply(Rev(tuple(range(rank))), self.given(np.flip(array).copy())), array
        if how == "repeated" and rank and array.size:
            base = array[:1].reshape(array.shape[1:]).copy()
            spread = BroadcastInDim(array.shape, tuple(range(1, rank)))
            return self.apply(spread, self.given(base)), np.broadcast_to(base, array.shape)
        return self.given(array), array


def numbers(
    rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype, small: bool = False
) -> Any:
    """Numbers of all kinds; `small`: of few values, so that equals meet."""
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        low, high = (0, 5) if small else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    x = rng.integers(-4, 5, shape) / 2 if small else rng.standard_normal(shape) * 4
    if dtype in COMPLEX:
        return (x + 1j * rng.standard_normal(shape)).astype(dtype)
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape)
    return np.where(rng.random(shape) < 0.1, special, x).astype(dtype)


def alike(y: Any, wanted: Any) -> None:
    """Equal to the bit, but for the bits of NaN."""
    assert (y.shape, y.dtype) == (np.shape(wanted), np.asarray(wanted).dtype)
    wide = {2: np.float32, 1: np.float32}[y.dtype.itemsize] if y.dtype in HALF else y.dtype
    a, b = y.astype(wide), np.asarray(wanted).astype(wide)
    np.testing.assert_array_equal(a, b)
    if y.dtype.kind in "fV":
        np.testing.assert_array_equal(np.signbit(a[a == a]), np.signbit(b[b == b]))
