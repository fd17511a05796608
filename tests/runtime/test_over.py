"""Results in the GPU's memory that a kernel makes where an array is that it reads last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import VerifyError
from ge2.codegen.kernel_values import Blocks
from ge2.codegen.layout import Layout
from ge2.compile import steps
from ge2.compile.steps import in_place
from ge2.ops.graphs.contraction import steps_of
from ge2.program import PLACEMENT
from ge2.targets.cuda.assemble.steps import check_written_over
from ge2.targets.cuda.limits import H200
from tests.together import needs_compiler

pytestmark = needs_compiler
RANDOM = np.random.default_rng(7)
OVER = replace(PLACEMENT, over=1)  # for small arrays too


def softmax(h: Any) -> Any:
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(h: Any) -> Any:
    d = h - h.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)


def cross_entropy_gradient(h: Any, labels: Any) -> Any:
    """The logits of labels are picked: each by its place in a row."""
    n = h.shape[-1]
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) - (np.arange(n) == labels[:, None])


def in_the_first_pass(h: Any) -> Any:
    """The first result is made before the row is read again."""
    return h * 2.0, h - h.mean(-1, keepdims=True)


def columns(h: Any) -> Any:
    return h - h.mean(0)


def picked(h: Any, labels: Any) -> Any:
    """A pick and a fold in the pass in which the result is written."""
    e = np.exp(h - h.max(-1, keepdims=True))
    return e, np.take_along_axis(e, labels[:, None], -1)[:, 0], e.sum(-1)


def sums_apart(h: Any) -> Any:
    """Sums of columns and of all, which may be a kernel each that reads all of h."""
    s = np.tanh(h)
    d = 1.0 - s * s
    return d, d.sum(0), (s * s).sum()


# a function of h, whether one of its results may be where h is, and shapes of h: rows of a few
# threads, of a warp, of a block, and one a thread
ROWS = [
    (softmax, True, [(5, 7), (40, 5001)]),
    (normalised, True, [(20, 300), (300, 40)]),
    (cross_entropy_gradient, True, [(5, 7), (40, 5001)]),
    (np.tanh, True, [(5, 7)]),
    (in_the_first_pass, True, [(20, 300), (40, 5001)]),
    (columns, False, [(300, 40)]),
    (picked, False, [(20, 300)]),
    (sums_apart, False, [(300, 40), (40, 5001)]),
]
CASES = [(f, over, shape) for f, over, shapes in ROWS for shape in shapes]


def around(f: Any) -> Any:
    """The function between two products, so that nothing around it joins its kernel."""

    def call(a: Any, w: Any, labels: Any) -> Any:
        h = a @ w
        made = f(h, labels) if f in (cross_entropy_gradient, picked) else f(h)
        first, *rest = made if isinstance(made, tuple) else (made,)
        return (first @ w.T, *(r @ w.T if r.ndim == 2 else r for r in rest))

    return call


def compiled(f: Any, *arrays: Any) -> tuple[Any, Any]:
    """Its results and the timeline of its memory."""
    with config.using(executor="shim", tuning=(OVER,), passes_off="epilogue"):
        low = ge2.jit(around(f)).lower(*arrays)
        return low.compile()(*arrays), low.memory_timeline()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("f", "over", "shape"), CASES, ids=[f.__name__ for f, *_ in CASES])
def test_the_values_are_those_of_numpy(f: Any, over: bool, shape: tuple[int, int]) -> None:
    rows, n = shape
    a, w = RANDOM.standard_normal((rows, 20)), RANDOM.standard_normal((20, n)) / n**0.5
    labels = RANDOM.integers(0, n, rows)
    results, timeline = compiled(f, a, w, labels)
    expected = around(f)(a, w, labels)
    for y, e in zip(results, expected, strict=True):
        np.testing.assert_allclose(y, e, rtol=1e-10, atol=1e-12)
    whole = [row for row in timeline.rows if row.kind == "arena" and row.nbytes == rows * n * 8]
    assert len(whole) == {in_the_first_pass: 2}.get(f, 1) + (not over)


def test_a_kernel_that_reads_what_one_before_wrote_over_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was before somebody asked whether a region may be divided."""
    monkeypatch.setattr(steps, "is_divided", lambda *_: False)
    a, w = RANDOM.standard_normal((300, 20)), RANDOM.standard_normal((20, 40))
    with config.using(executor="shim", tuning=(OVER,), passes_off="epilogue"):
        f = ge2.jit(around(sums_apart))
        with pytest.raises(
            VerifyError, match="region writes result 0 over input 0, which it reads"
        ):
            f.lower(a, w, None).executable.build()


def test_an_input_is_not_where_a_result_is_before_it_was_read() -> None:
    """By launches written by hand: which inputs each is given, and which results."""
    with config.using(executor="shim", tuning=(OVER,), passes_off="epilogue"):
        low = ge2.jit(around(np.tanh)).lower(np.ones((5, 7)), np.ones((7, 9)), None)
    program = low.executable.program
    (step,) = (s for s in program.steps if s.name == "pointwise")
    reads, writes, both = ({"in": i, "out": o} for i, o in (({0}, set()), (set(), {0}), ({0}, {0})))
    for uses in ([both], [reads, writes], [reads, both]):
        check_written_over(program, step.eqn, uses)
    for uses in ([writes, reads], [both, reads], [writes, both]):
        with pytest.raises(VerifyError, match="over input 0, which it reads later"):
            check_written_over(program, step.eqn, uses)
    (x,), (y,) = step.eqn.inputs, step.eqn.outs
    turned = replace(program, layouts={**program.layouts, x: Layout(0, (1, 5))})
    with pytest.raises(VerifyError, match="over input 0, which it reads later"):
        check_written_over(turned, step.eqn, [both])
    apart = replace(
        program, layouts={**program.layouts, x: Layout(0, (18, 2)), y: Layout(1, (18, 2))}
    )
    check_written_over(apart, step.eqn, [writes, reads])


def test_arrays_that_are_written_over_are_computed_again_under_a_limit() -> None:
    """The search sees them where they wait, though their memory is another's in the end."""

    def deep(w: Any, x: Any) -> Any:
        for _ in range(12):
            x = np.tanh(x @ w)
        return (x * x).sum()

    w, x = RANDOM.standard_normal((20, 20)) / 5, RANDOM.standard_normal((300, 20))
    with config.using(executor="shim", tuning=(OVER,)):
        plain = ge2.jit(ge2.grad(deep))
        wanted, needed = plain(w, x), plain.lower(w, x).memory_analysis().peak
        limited = ge2.jit(ge2.grad(deep), memory_limit=needed * 6 // 10)
        np.testing.assert_allclose(limited(w, x), wanted, rtol=1e-10)
        assert limited.lower(w, x).memory_analysis().peak <= needed * 6 // 10


def test_no_product_writes_over_what_its_operands_are_made_of() -> None:
    """Other blocks read it again."""
    a, w = (RANDOM.normal(size=(40, 40)).astype(np.float32) for _ in range(2))
    with config.using(executor="shim", tuning=(H200,)):
        lowered = ge2.jit(lambda a, w: np.tanh(np.maximum(a, 0) @ w)).lower(a, w)
    (eqn,) = (s.eqn for s in lowered.executable.program.steps if s.name == "contraction")
    (made,) = steps_of(eqn.op).prologues
    x = eqn.inputs[eqn.op.graph.inputs.index(made.inputs[0])]
    assert not in_place(eqn, 0, x, "cuda", Blocks())


@pytest.mark.parametrize(
    ("family", "over"),
    [("product by BLAS and its epilogue", False), ("mma product and region", True)],
)
def test_a_library_writes_over_none_of_its_arrays(family: str, over: bool) -> None:
    """Nothing says in which order it reads and writes."""

    def slope(ct: Any, w: Any, x: Any) -> Any:
        _, back = ge2.vjp(ge2.nn.gelu, x)
        return back(ct @ w)[0]

    xs = [RANDOM.normal(size=s).astype(ml_dtypes.bfloat16) for s in ((64, 64), (64, 64), (64, 64))]
    with config.using(executor="shim", prefer=(family,)):
        made = ge2.jit(slope).lower(*xs).executable.program.steps
    (eqn,) = (s.eqn for s in made if s.name == "contraction")
    (x,) = (v for v in steps_of(eqn.op).rest.inputs if v in eqn.op.graph.inputs)
    x = eqn.inputs[eqn.op.graph.inputs.index(x)]
    assert in_place(eqn, 0, x, "cuda", Blocks()) == over
