"""Attention by cuDNN: what it is asked for, what it is not, and what it is handed, where NumPy stands
in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.errors import KernelError
from ge2.ops.attention import Band
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.launch import Launch
from ge2.targets.cuda.launch.graph import gains
from ge2.targets.cuda.launch.library_call import Function, LibraryCall, WantedAttention
from ge2.targets.cuda.load import libraries
from tests.kernels.attention_cases import (
    BACKWARD,
    BF16,
    F16,
    FAMILY,
    LAYOUTS,
    Attention,
    biased,
    drawn,
    exactly,
    grouped,
    judge,
    judge_slopes,
    masked,
    plain,
    repeated,
    slopes,
    time_first,
)
from tests.kernels.fake_cudnn import FakeCudnn, NotSupportedError, Types

OURS, THEIRS = "cudnn attention", "cudnn attention backward"
ANY_ORDER = "cudnn attention backward in any order"
Given = tuple[Attention, list[Any]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    """cuDNN is installed, and the emulator has it."""
    found = FakeCudnn()
    known = libraries.Graphs(found, "handle")
    monkeypatch.setattr(ShimDevice, "attention", lambda device, wanted: known.of(wanted))
    monkeypatch.setattr(libraries, "find_spec", lambda name: ModuleType(name))
    ge2.clear_caches()  # of programs that another test's was handed to
    with config.using(executor="shim", prefer=(OURS, THEIRS)):
        yield found
    ge2.clear_caches()


def taken(compiled: Any, *xs: Any) -> list[str]:
    """The families that were chosen for the steps of a program."""
    return [choice.family.name for choice in compiled.lower(*xs).choices.values()]


def forward(fake: FakeCudnn, function: Attention, q: Any, k: Any, dtype: Any = BF16) -> Any:
    """Runs attention by cuDNN; the graph that was planned."""
    xs = drawn(np.random.default_rng(0), q, k, dtype)
    compiled = ge2.jit(lambda *xs: function(*xs))
    assert OURS in taken(compiled, *xs)
    judge(compiled(*xs), exactly(function, *xs), 2.0**-7)
    assert fake.runs
    return fake.graphs[-1]


SHAPE = (2, 3, 72, 64)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    ("function", "about"),
    [
        (plain, {}),
        (masked(0), {"diagonal_band_right_bound": 0}),
        (masked(-5), {"diagonal_band_right_bound": 5}),
        (masked(0, 15), {"diagonal_band_right_bound": 0, "diagonal_band_left_bound": 16}),
        (masked(-9, 30), {"diagonal_band_right_bound": 9, "diagonal_band_left_bound": 31}),
    ],
)
def test_scores(fake: FakeCudnn, function: Attention, about: dict[str, int], dtype: Any) -> None:
    graph = forward(fake, function, SHAPE, SHAPE, dtype)
    if about:
        about = {**about, "diagonal_alignment": "top left"}  # type: ignore[dict-item]
    io = Types.BFLOAT16 if dtype == BF16 else Types.HALF
    assert graph.given["io_data_type"] == io
    scale = graph.about.pop("attn_scale")
    assert scale == pytest.approx(0.125, rel=2**-8)
    assert graph.about == {"generate_stats": False, "name": "attention", **about}
    for x in (*graph.tensors, *graph.made):
        assert x.given["dim"] == [2, 3, 72, 64]
        assert x.given["stride"] == [3 * 72 * 64, 72 * 64, 64, 1]
        assert x.given["data_type"] == io


@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - {"three axes of batches", "one query"}))
def test_layouts(fake: FakeCudnn, name: str) -> None:
    function, q, k = LAYOUTS[name]
    forward(fake, function, q, k)


def test_heads_that_share_keys_are_asked_for_as_such(fake: FakeCudnn) -> None:
    for function in (repeated, grouped):
        graph = forward(fake, function, (2, 6, 72, 64), (2, 2, 72, 64))
        q, k, _ = graph.tensors
        assert (q.given["dim"], k.given["dim"]) == ([2, 6, 72, 64], [2, 2, 72, 64])


def test_time_may_come_before_heads(fake: FakeCudnn) -> None:
    graph = forward(fake, time_first, (2, 72, 3, 64), (2, 72, 3, 64))
    assert graph.tensors[0].given["dim"] == [2, 3, 72, 64]
    assert graph.tensors[0].given["stride"] == [72 * 3 * 64, 64, 3 * 64, 1]


GRADIENTS: dict[str, tuple[Attention, tuple[int, ...], tuple[int, ...]]] = {
    "plain": (plain, SHAPE, SHAPE),
    "causal": (masked(0), SHAPE, SHAPE),
    "window": (masked(0, 20), SHAPE, SHAPE),
    "one head": (masked(0), (72, 64), (72, 64)),
    "other lengths": (plain, (2, 3, 40, 64), (2, 3, 128, 64)),
    "keys repeated": (repeated, (2, 6, 72, 64), (2, 2, 72, 64)),
    "one head of keys": (repeated, (1, 4, 72, 64), (1, 1, 72, 64)),
    "time first": (time_first, (2, 72, 3, 64), (2, 72, 3, 64)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(fake: FakeCudnn, name: str) -> None:
    function, q, k = GRADIENTS[name]
    xs = drawn(np.random.default_rng(1), q, k, BF16)
    compiled = ge2.jit(slopes(lambda *xs: function(*xs)))
    assert {OURS, THEIRS} <= {*taken(compiled, *xs)}
    judge_slopes(compiled(*xs), exactly(slopes(function), *xs))
    backward = next(g for g in fake.graphs if g.name == "sdpa_backward")
    assert backward.about["use_deterministic_algorithm"] is True
    assert backward.tensors[-1].given["data_type"] == Types.FLOAT


def test_a_kernel_of_ours_reads_the_logarithms_of_theirs(fake: FakeCudnn) -> None:
    xs = drawn(np.random.default_rng(1), SHAPE, SHAPE, BF16)
    for families in ((OURS, BACKWARD), (FAMILY, THEIRS)):
        with config.using(prefer=families):
            compiled = ge2.jit(slopes(lambda *xs: masked(0)(*xs)))
            assert {*families} <= {*taken(compiled, *xs)}
            judge_slopes(compiled(*xs), exactly(slopes(masked(0)), *xs))


def test_sums_in_any_order_are_for_those_who_allow_them(fake: FakeCudnn) -> None:
    xs = drawn(np.random.default_rng(1), SHAPE, SHAPE, BF16)
    for same_bits in (True, False):
        with config.using(prefer=(ANY_ORDER,), deterministic=same_bits):
            found = taken(ge2.jit(slopes(lambda *xs: plain(*xs))), *xs)
            assert (ANY_ORDER in found) is not same_bits
    assert fake.graphs[-1].about["use_deterministic_algorithm"] is False


def refusal(
    function: Attention, xs: list[Any], family: str = OURS, prefer: tuple[str, ...] = ()
) -> str:
    """The reason why cuDNN does not serve a program."""
    with config.using(prefer=prefer):
        compiled = ge2.jit(lambda *xs: function(*xs))
        choices = compiled.lower(*xs).choices.values()
    found: Iterator[Any] = (c for choice in choices for c in choice.candidates)
    return next(c.refusal for c in found if c.family.name == family and not c.other)


def with_bias() -> Given:
    rng = np.random.default_rng(2)
    return biased, [*drawn(rng, SHAPE, SHAPE, BF16), rng.standard_normal((72, 72)).astype(BF16)]


def of(function: Attention, q: Any, k: Any, dtype: Any = BF16) -> Callable[[], Given]:
    return lambda: (function, drawn(np.random.default_rng(2), q, k, dtype))


REFUSED: dict[str, Callable[[], Given]] = {
    "scores are more than products times a number": with_bias,
    "a query sees no key, of which cuDNN makes 0, not NaN": of(masked(3), SHAPE, SHAPE),
    "cuDNN has windows of no more queries than keys": of(
        masked(0, 60), (1, 2, 100, 64), (1, 2, 72, 64)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(fake: FakeCudnn, reason: str) -> None:
    assert refusal(*REFUSED[reason]()) == reason


def test_float32_is_refused(fake: FakeCudnn) -> None:
    function, xs = of(plain, SHAPE, SHAPE, np.dtype("f4"))()
    found = refusal(function, xs, prefer=("-launches, step by step",))
    assert found == "queries, keys, values and result are not of one half type"


def test_without_the_front_end_another_kernel_is_taken(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    found = refusal(*of(plain, SHAPE, SHAPE)())
    assert found == "cuDNN is not installed: pip install 'ge2[cudnn]'"


def test_what_has_no_plan_is_warned_of_once(
    fake: FakeCudnn, caplog: pytest.LogCaptureFixture
) -> None:
    """And another kernel is taken."""
    fake.trouble = RuntimeError("no engine\nand more")
    function, xs = of(plain, SHAPE, SHAPE)()
    with caplog.at_level(logging.WARNING, "ge2"):
        compiled = ge2.jit(lambda *xs: function(*xs))
        judge(compiled(*xs), exactly(function, *xs), 2.0**-7)
        assert OURS not in taken(compiled, *xs)
    assert [r.message for r in caplog.records] == [
        "cuDNN makes no plan: no engine; another kernel is taken"
    ]


def test_what_cudnn_does_not_support_is_no_surprise(
    fake: FakeCudnn, caplog: pytest.LogCaptureFixture
) -> None:
    fake.trouble = NotSupportedError("heads are odd")
    with caplog.at_level(logging.WARNING, "ge2"):
        reason = refusal(*of(plain, SHAPE, SHAPE)())
    assert (reason, caplog.records) == ("cuDNN has no such attention: heads are odd", [])


def test_scratch_is_no_more_than_arrays_or_what_settings_allow(fake: FakeCudnn) -> None:
    fake.scratch = 40 << 20
    given = of(plain, SHAPE, SHAPE)
    assert refusal(*given()) == "cuDNN asks for 40 MB of scratch, and may have 32 (GE2_WORKSPACE)"
    with config.using(workspace=64):
        assert refusal(*given()) == ""


def test_old_versions_do_not_have_keys_of_any_length(fake: FakeCudnn) -> None:
    fake.version = 91400
    xs = drawn(np.random.default_rng(1), SHAPE, SHAPE, BF16)
    found = refusal(slopes(plain), xs, THEIRS)
    assert found.startswith("keys are no multiple of 128")


def test_a_failure_is_an_error(fake: FakeCudnn) -> None:
    fake.failure = RuntimeError("out of order")
    function, xs = of(plain, SHAPE, SHAPE)()
    with pytest.raises(KernelError, match="cudnnBackendExecute fails with 1: out of order"):
        ge2.jit(lambda *xs: function(*xs))(*xs)


def test_a_function_in_python_is_captured_even_alone() -> None:
    """In a graph it is not called again; a function in C alone needs no graph."""
    for in_python in (True, False):
        call = LibraryCall("cuDNN", (Function("run", 0, ()),), in_python=in_python)
        launch = Launch(call, (), (), 0, (), "run")
        assert gains((launch,), 3) is in_python


def test_what_is_loaded_is_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: ModuleType(name))
    monkeypatch.setattr(libraries, "library_path", lambda *names: "")
    monkeypatch.setattr(libraries, "import_module", lambda name: FakeCudnn(version=90100))
    assert "cuDNN 90100 is too old" in libraries.frontend.__wrapped__()


def test_prediction(fake: FakeCudnn) -> None:
    """Causal attention sees half of the keys."""
    sizes = BF16, 4, 16, 16, 4096, 4096, 128, 0.1
    full = WantedAttention(*sizes, Band(), ())
    causal = WantedAttention(*sizes, Band(0), ())
    window = WantedAttention(*sizes, Band(0, 1023), ())
    assert full.flops == 4 * 4 * 16 * 4096 * 4096 * 128
    assert causal.seen == 4096 * 4097 // 2
    assert window.seen == sum(min(i + 1, 1024) for i in range(4096))
