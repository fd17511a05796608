"""Another length of a loop, or number of rows that blocks share, has the same
text and compiles nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import ge2
from benchmarks.cuda.programs import RNN_WIDTH, rnn_loss
from ge2 import lax
from ge2.base.config import config
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.dispatch import cache
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice
from ge2.targets.cuda.limits import H200, Limits
from tests.codegen.loop_programs import inner_stacks
from tests.codegen.test_resident import drawn, rnn, same
from tests.together import needs_compiler

WIDTH = 128


def sources(
    f: Any, *shapes: tuple[int, ...], dtype: Any = np.float32, chip: Limits = H200
) -> dict[str, CudaKernel]:
    """The kernels of a function by their code, which is what is compiled."""
    types = [ge2.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    graph = ge2.make_jaxpr(f)(*types).graph
    executable = compile_graph(graph, device=OfflineDevice(chip))
    return {code: s.kernel for d in assemblers(executable) for code, s in d.kernels.sources.items()}


def sizes(kernel: CudaKernel) -> dict[str, int]:
    return {a.name: a.value for a in kernel.given if a.kind == "size"}


def resident_ones(found: dict[str, CudaKernel]) -> set[str]:
    return {code for code, kernel in found.items() if kernel.kind == "resident kernel"}


def test_the_gradient_of_a_net_has_one_set_of_texts() -> None:
    def gradient(a: Any, b: Any, c: Any, xs: Any, h: Any) -> Any:
        return ge2.grad(partial(rnn_loss, ge2, np, False))((a, b, c), xs, h)

    n, found = RNN_WIDTH, []
    for length, batch in ((512, 32), (400, 32), (512, 24), (512, 1)):
        found.append(sources(gradient, (n, n), (n, n), (n,), (length, batch, n), (batch, n)))
        ones = resident_ones(found[-1])
        assert [found[-1][one].grid for one in ones] == [(batch,)] * 2
        assert all(sizes(found[-1][one]) == {"rows": batch, "rounds": length} for one in ones)
    assert found[0].keys() == found[1].keys() == found[2].keys()
    assert resident_ones(found[3]) == resident_ones(found[0])


@pytest.fixture
def anew() -> Any:
    cache.forget()
    yield
    cache.forget()


def by_hand(w: Any, h: Any, xs: Any, reverse: bool) -> Any:
    """In float64: in float32 what BLAS adds up first, and so rounds, is each machine's own."""
    w, h, xs = (a.astype(np.float64) for a in (w, h, xs))
    ys = np.empty_like(xs)
    for t in reversed(range(len(xs))) if reverse else range(len(xs)):
        ys[t] = h = np.tanh(h @ w + xs[t])
    return h, ys


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("reverse", [False, True])
def test_one_text_for_all_lengths_and_rows(anew: Any, reverse: bool) -> None:
    w, compiled = drawn(WIDTH, WIDTH) / 12, []
    f = ge2.jit(partial(rnn, reverse=reverse))
    pairs = [(t, b) for b in (3, 1, 33) for t in (5, 1, 2, 0)] + [(2, 32)]
    for length, rows in pairs:
        h, xs = drawn(rows, WIDTH), drawn(length, rows, WIDTH, seed=1)
        with config.using(executor="shim"):
            found = f(w, h, xs)
            report = f.report()
        if length:  # no rounds are no loop, but a copy
            compiled += [each.name for each in report.bill.kernels if each.how != "memory"]
            assert report.traced and len(report.bill.kernels) == 1
        for y, want in zip(found, by_hand(w, h, xs, reverse), strict=True):
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    assert len(compiled) <= 1  # none, where another test had the same


def batch_first(w: Any, h: Any, xs: Any) -> Any:
    return rnn(w, h, np.swapaxes(xs, 0, 1))


def rows_last(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h @ w + x)
        return h, (h.T, h.max(1))

    return lax.scan(step, h, xs, reverse=True)


@pytest.mark.parametrize("rounds_first", [True, False])
def test_strides_of_other_layouts_are_no_text(rounds_first: bool) -> None:
    f = rows_last if rounds_first else batch_first
    found = set()
    for length, rows in ((5, 3), (7, 3), (5, 4), (2, 33)):
        xs = (length, rows) if rounds_first else (rows, length)
        found |= resident_ones(sources(f, (WIDTH, WIDTH), (rows, WIDTH), (*xs, WIDTH)))
    assert len(found) == 1


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize(("length", "rows"), [(1, 1), (3, 1), (1, 4), (4, 5)])
def test_other_layouts(length: int, rows: int) -> None:
    w, h = drawn(WIDTH, WIDTH) / 12, drawn(rows, WIDTH)
    same(rows_last, w, h, drawn(length, rows, WIDTH, seed=1), rtol=1e-4)
    same(batch_first, w, h, drawn(rows, length, WIDTH, seed=1), rtol=1e-4)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("rows", [2, 4, 6])
def test_two_rows_a_block(rows: int) -> None:
    w, chip = drawn(WIDTH, WIDTH) / 12, replace(EMULATED, multiprocessors=rows // 2)
    with config.using(tuning=(chip,)):
        same(rows_last, w, drawn(rows, WIDTH), drawn(3, rows, WIDTH, seed=1), rtol=1e-4)
    shapes = [(WIDTH, WIDTH), (rows, WIDTH), (3, rows, WIDTH)]
    another = [(WIDTH, WIDTH), (8, WIDTH), (5, 8, WIDTH)]
    found = sources(rows_last, *shapes, chip=chip)
    more = sources(rows_last, *another, chip=replace(chip, multiprocessors=4))
    assert resident_ones(found) == resident_ones(more)


def small(h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h * 0.5 + x)
        return h, h.sum()

    return lax.scan(step, h, xs)


def branched(h: Any, xs: Any) -> Any:
    """Loops within a loop, one of them as long as an array is."""

    def step(h: Any, x: Any) -> Any:
        h = lax.cond(x.sum() > 0, lambda h: h * 0.5, lambda h: h + 1, h + x)
        return lax.fori_loop(0, len(xs) + 1, lambda i, c: c * 0.5 + i, h), h

    return lax.scan(step, h, xs, reverse=True)


@pytest.mark.parametrize("f", [small, branched])
def test_the_length_of_a_small_loop_is_no_text(f: Any) -> None:
    found = [resident_ones(sources(f, (33,), (length, 33))) for length in (1, 2, 5, 400)]
    assert all(len(each) == 1 for each in found) and len(set().union(*found)) == 1


def side_by_side(h: Any, xs: Any) -> Any:
    """The rounds' elements do not lie one after the other."""
    return small(h, xs.T)


def test_nor_is_it_where_rounds_lie_side_by_side() -> None:
    found = [resident_ones(sources(side_by_side, (33,), (33, length))) for length in (2, 5, 400)]
    assert all(len(each) == 1 for each in found) and len(set().union(*found)) == 1


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("length", [1, 2, 5])
def test_rounds_that_lie_side_by_side(length: int) -> None:
    same(side_by_side, drawn(33), drawn(33, length, seed=1))


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_small_loops(length: int) -> None:
    for f in (small, branched):
        if length:
            same(f, drawn(33), drawn(length, 33, seed=1))
        else:
            with config.using(executor="shim"):
                found = ge2.jit(f)(drawn(33), drawn(0, 33))
            np.testing.assert_array_equal(found[0], drawn(33))
            assert len(found[1]) == 0


@needs_compiler
def test_blocks_have_their_own_stacks_of_a_loop_in_a_round() -> None:
    same(
        inner_stacks,
        drawn(WIDTH, WIDTH) / 12,
        drawn(5, WIDTH),
        drawn(4, 5, WIDTH, seed=1),
        rtol=1e-4,
    )
