"""What every executor makes of an operation and of its derivative is what the
references make of them.

What is C is compiled many operations at a time. `--all` takes every sample in every
dtype, as users compile it, in some minutes; without it each operation, with each of its
parameters, has a tenth of them, or one; in Python too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import BFLOAT16, BOOL, COMPLEX, COMPLEX64, FLOAT32, FP8, INEXACT
from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.compile import compile_graph
from ge2.compile.executable import Executable
from ge2.ir import Eqn, Graph, Literal, Var, rename
from ge2.ir.text import op_text
from ge2.ops.elementwise import BY_NAME
from ge2.test_util.laws import (
    difference,
    eps,
    evaluate,
    executed,
    graph_of,
    inexact,
    like,
    pulled,
    tolerance,
    types_of,
    widened,
)
from tests.exhaustive import SAMPLING, is_sampled, place_of, sampled
from tests.laws.batched import Batch
from tests.laws.batched import batch as batch
from tests.laws.batched import selected as selected
from tests.laws.sample import Sample
from tests.laws.samples import SAMPLES
from tests.laws.test_laws import NAMES, drawn, every_op, smooth
from tests.small import SHARED_OUT
from tests.together import needs_compiler, together

# which of two zeros they return is left open by NumPy too
ZEROS = frozenset(("max", "min", "fmax", "fmin"))
POWERS = frozenset(("pow", "exp2"))
SUMS = frozenset(("logaddexp", "logaddexp2"))  # which may cancel, as any sum
in_python = pytest.mark.parametrize("executor", ["blocked", "reference"])


def agree(graph: Graph, got: Any, want: Any) -> None:
    for y, w, a in zip(got, want, graph.outputs, strict=True):
        why = difference(y, w, a.type)
        assert not why, why


@pytest.mark.exhaustive("name")
@in_python
@every_op
def test_an_operation(name: str, executor: str, rng: np.random.Generator) -> None:
    for sample, arrays in chosen(name, rng):
        graph = graph_of(sample.op, types_of(arrays))
        executed(executor, sample.op, graph, arrays, evaluate(sample.op, arrays))


@pytest.mark.exhaustive("name")
@in_python
@every_op
def test_its_derivative(name: str, executor: str, rng: np.random.Generator) -> None:
    for sample, arrays, joint in differentiated(name, rng):
        cts = [like(rng, y) for y in inexact(evaluate(sample.op, arrays))]
        executed(executor, sample.op, joint, (*arrays, *cts), joint(*arrays, *cts))


def test_the_executors_are_all_of_them() -> None:
    with pytest.raises(InputError, match="must be 'c' or 'blocked' or 'emulator' or 'reference'"):
        config.using(executor="another").__enter__()


# --------------------------------------------------------------------------------------- compiled C


@dataclass(frozen=True)
class Case:
    """A graph, arguments, what it should give, and how that is judged."""

    name: str
    graph: Graph
    arrays: tuple[Any, ...]
    want: Any
    judge: Callable[[Graph, Any, Any], None] = agree


def run(cases: list[Case], threads: tuple[int, ...] = (1, 3)) -> list[str]:
    """Each case in C, on the most of those threads and a tenth on all, which give the same bits:
    the error of each case, or nothing.
    """
    with together("-O0"):
        built = [
            [
                executable(case.graph, n)
                for n in (threads if is_sampled(case.name) else threads[-1:])
            ]
            for case in cases
        ]
    errors = []
    for case, executables in zip(cases, built, strict=True):
        try:
            found = [
                executable(*map(np.asarray, case.arrays))
                for executable in executables
                for _ in range(2)
            ]
            case.judge(case.graph, found[0], case.want)
            bits = [[as_bytes(y) for y in ys] for ys in found]
            assert all(b == bits[0] for b in bits), (
                f"other bits on another of {threads} threads, or again"
            )
            errors.append("")
        except Exception as error:  # noqa: BLE001 - one of many failures, all of which are named
            errors.append(f"{case.name}: {type(error).__name__}: {error}")
    return errors


def as_bytes(y: Any) -> bytes:
    """Bits, but of NaN: its sign is that of either operand."""
    y = np.array(y)
    if y.dtype in INEXACT:
        y[y != y] = np.nan
    return y.tobytes()


def executable(graph: Graph, threads: int) -> Executable:
    """All work is cut into tasks, however little it is."""
    with config.using(threads=threads, tuning=(SHARED_OUT,)):
        made = compile_graph(graph)
        made.build()
    return made


def named(op: Any, arrays: Any) -> str:
    return f"{op_text(op)[:200]} of {', '.join(map(str, types_of(arrays)))}"


def dtypes_of(sample: Sample) -> tuple[np.dtype, ...]:
    return (
        (*sample.dtypes, *FP8)
        if BFLOAT16 in sample.dtypes and FLOAT32 in sample.dtypes
        else sample.dtypes
    )


def chosen(name: str, rng: np.random.Generator) -> list[tuple[Sample, tuple[Any, ...]]]:
    """The samples of an operation for compiled targets, with operands: each
    value of it at least once.
    """
    found = [(sample, sample.draw(rng, d)) for sample in SAMPLES[name] for d in dtypes_of(sample)]
    return sampled(found, lambda case: named(case[0].op, case[1]), lambda case: case[0].op)


def differentiated(
    name: str, rng: np.random.Generator
) -> list[tuple[Sample, tuple[Any, ...], Graph]]:
    """Samples of an operation, with operands and the graph of its derivative: at least one."""
    found = [(s, xs, wanted) for s, xs, wanted in smooth(name, rng) if s.reverse]
    taken = sampled(found, lambda case: named(case[0].op, case[1]))
    return [(s, xs, pulled(graph_of(s.op, types_of(xs)), wanted)) for s, xs, wanted in taken]


def operations(name: str, rng: np.random.Generator) -> list[Case]:
    cases = []
    for sample, arrays in chosen(name, rng):
        graph = graph_of(sample.op, types_of(arrays))
        cases.append(Case(named(sample.op, arrays), graph, arrays, evaluate(sample.op, arrays)))
    if name in BY_NAME and isinstance(BY_NAME[name], ops.elementwise.Elementwise):
        cases += special(name)
    return cases


def half_of(
    cases: Callable[[str, np.random.Generator], list[Case]], which: int
) -> Callable[[str, np.random.Generator], list[Case]]:
    """The cases of an operation that one of two targets takes, at least one; the other takes the
    others. All under `--all`.
    """

    def taken(name: str, rng: np.random.Generator) -> list[Case]:
        found = cases(name, rng)
        mine = [case for case in found if place_of(f"half {case.name}") % 2 == which]
        return found if SAMPLING.every else mine or found[:1]

    return taken


def derivatives(name: str, rng: np.random.Generator) -> list[Case]:
    cases = []
    for sample, arrays, joint in differentiated(name, rng):
        given = (*arrays, *(like(rng, y) for y in inexact(evaluate(sample.op, arrays))))
        cases.append(
            Case(f"the derivative of {named(sample.op, arrays)}", joint, given, joint(*given))
        )
    return cases


@needs_compiler
@every_op
def test_operations_in_c(batch: Batch) -> None:
    batch.check(half_of(operations, 0), run)


@needs_compiler
@pytest.mark.exhaustive
@every_op
def test_derivatives_in_c(batch: Batch) -> None:
    batch.check(derivatives, run)


def with_literals(name: str, rng: np.random.Generator) -> Iterator[Case]:
    """The first sample of an operation that has scalars among its operands,
    written into the graph.
    """
    for sample, arrays in drawn(name, rng):
        scalars = [isinstance(x, np.ndarray | np.generic) and not x.shape for x in arrays]
        if any(scalars) and not all(scalars) and not sample.op.effect:
            graph = graph_of(sample.op, types_of(arrays))
            rest = tuple([x for x, scalar in zip(arrays, scalars, strict=True) if not scalar])
            values = [
                Literal.of(x[()]) if scalar else None
                for x, scalar in zip(arrays, scalars, strict=True)
            ]
            written = [v if a is None else a for v, a in zip(graph.inputs, values, strict=True)]
            inputs = tuple([v for v in written if isinstance(v, Var)])
            known = dict(zip(graph.inputs, written, strict=True))
            eqns = [Eqn(e.op, rename(known, e.inputs), e.outs, e.source) for e in graph.eqns]
            found = Graph(inputs, tuple(eqns), graph.outputs)
            yield Case(named(sample.op, arrays), found, rest, evaluate(sample.op, arrays))
            return


@needs_compiler
def test_scalars_may_be_literals(rng: np.random.Generator) -> None:
    cases = [case for name in NAMES for case in with_literals(name, rng)]
    assert cases
    assert not [*filter(None, run(cases, threads=(1,)))]


# ----------------------------------------------------------------------------------- special values


def specials(dtype: np.dtype) -> Any:
    """NaN, infinities, signed zeros, subnormals; the extremes of integers;
    and what lies between.
    """
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array(
            [info.min, info.max, info.min + 1, 0, 1, 2, 3, 7, info.max // 2, info.max - 1], dtype
        )
    if dtype in COMPLEX:
        part = specials(np.dtype(f"f{dtype.itemsize // 2}"))
        part = part[np.isfinite(part) & (abs(part) < 1e6) & ((part == 0) | (abs(part) > 1e-6))]
        return (part[:, None] + 1j * part).astype(dtype).ravel()
    tiny = np.array([1], f"u{dtype.itemsize}").view(dtype)[0]  # the least subnormal
    values = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 100.0, np.inf]
    with np.errstate(all="ignore"):
        x = np.array([*values, np.nan], np.float64).astype(dtype)
    x = np.concatenate([x, [tiny, dtype.type(float(tiny) * 3)]]).astype(dtype)
    return np.concatenate([x, -x])


def special(name: str) -> Iterator[Case]:
    """Every pair of special values, in some of the dtypes."""
    op = BY_NAME[name]
    for dtype in sampled(
        dtypes_of(SAMPLES[name][0]), lambda dtype: f"special values of {name} {dtype}"
    ):
        x = specials(dtype)
        arrays: tuple[Any, ...] = (x,)
        if len(op.partials) == 2:
            arrays = tuple(np.ascontiguousarray(a.ravel()) for a in np.meshgrid(x, second(name, x)))
        graph = graph_of(op, types_of(arrays))
        judge = partial(exactly, name, arrays)
        yield Case(
            f"special values: {named(op, arrays)}", graph, arrays, evaluate(op, arrays), judge
        )


def second(name: str, x: Any) -> Any:
    """Values of the second operand: NumPy has no negative integer powers."""
    return x[x >= 0] if name == "pow" and x.dtype.kind == "i" else x


def exactly(name: str, xs: tuple[Any, ...], graph: Graph, got: Any, want: Any) -> None:
    """NaN, infinities and signed zeros are equal; what is finite has the relative error of `agree`.

    A complex power is that of e to a product, whose rounding is an error of the
    result; NumPy errs alike.
    """
    for y, w, a in zip(got, want, graph.outputs, strict=True):
        assert (np.asarray(y).dtype, np.shape(y)) == (a.type.dtype, a.type.shape)
        with np.errstate(all="ignore"):
            close = same(widened(y), widened(w), a.type.dtype)
            if name in ZEROS:
                close |= (y == 0) & (w == 0)
            if name in SUMS:
                close |= abs(widened(y) - widened(w)) <= 4 * eps(a.type.dtype)
            if name in POWERS and a.type.dtype in COMPLEX:
                base, power = (2, *xs) if name == "exp2" else xs
                close |= abs(y - w) <= 4 * eps(a.type.dtype) * abs(w) * abs(power * np.log(base))
            if a.type.dtype == COMPLEX64:  # a part that is subnormal is rounded twice by NumPy
                close |= y == evaluate(BY_NAME[name], [*map(widened, xs)])[0].astype(COMPLEX64)
            places = np.flatnonzero(~close)
        assert not places.size, "; ".join(f"{at(y, i)}, not {at(w, i)}, at {i}" for i in places[:4])


def same(y: Any, w: Any, dtype: np.dtype) -> Any:
    if dtype not in INEXACT:
        return y == w
    close = abs(y - w) <= tolerance(dtype) * abs(w)
    if dtype in COMPLEX:
        return close | ~np.isfinite(w)
    least = float(np.array([1], f"u{dtype.itemsize}").view(dtype)[0])
    close |= abs(y - w) <= 4 * least
    close = np.where(np.isfinite(w), close, (y == w) | (np.isnan(y) & np.isnan(w)))
    return close & ((w != 0) | (np.signbit(y) == np.signbit(w)))


def at(x: Any, i: int) -> str:
    return str(np.ravel(x)[i])
