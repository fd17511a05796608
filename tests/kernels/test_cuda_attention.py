"""Attention on Hopper's tensor cores, on those of warps, and by multiply-adds: in the emulator against
NumPy, and compiled for GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import expecting
from ge2.base.config import config
from ge2.choice import Pin
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.ops.attention import Distances
from ge2.ops.attention.ops import form_of
from ge2.ops.attention.scores import scores_of
from ge2.passes.fold import iotas
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load.nvrtc import compile, told
from tests.codegen.texts import chosen_kernels, kernels
from tests.kernels.attention_cases import (
    BACKWARD,
    BF16,
    BOUNDS,
    BY_KEYS,
    DERIVED,
    DERIVED_SCORES,
    F16,
    F32,
    FAMILY,
    FEW,
    FORWARD,
    LAYOUTS,
    MASKS,
    MMA,
    SCORES,
    SPELLINGS,
    WARPS,
    Attention,
    biased,
    drawn,
    exactly,
    few,
    grouped,
    in_numpy,
    judge,
    judge_slopes,
    masked,
    more,
    plain,
    scale,
    scores,
    slopes,
    slopes_of_scores,
    softmax,
)
from tests.kernels.families import families_of, kinds
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES


def checked(function: Attention, xs: Any, kind: str) -> None:
    """Runs a function by the kernel, whose result is that of NumPy."""
    made = FORWARD[kind]
    with config.using(executor="shim", prefer=(made.family,)):
        compiled = ge2.jit(made.of(function))
        assert made.family in kinds(compiled, *xs)
        judge(compiled(*xs), exactly(function, *xs), made.bound, in_numpy(function, xs, made))


@pytest.mark.exhaustive("kind", table="attention")
@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_spellings(function: Attention, kind: str) -> None:
    shape = (1, 2, 72, 64)
    checked(function, drawn(np.random.default_rng(0), shape, shape, FORWARD[kind].dtype), kind)


@pytest.mark.exhaustive("kind", table="attention")
@pytest.mark.parametrize(
    ("kind", "width"), [("wgmma bf16", 64), ("wgmma bf16", 128), *((kind, 32) for kind in WARPS)]
)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, kind: str, width: int) -> None:
    rng, shape, dtype = np.random.default_rng(1), (2, 2, 200, width), FORWARD[kind].dtype
    xs = drawn(rng, shape, shape, dtype) + more(rng, name, shape, shape, dtype)
    checked(SCORES[name][0], xs, kind)


def test_scores_that_are_large() -> None:
    """Their errors grow with them, NumPy's alike."""
    (rng, shape), (function, _) = (np.random.default_rng(1), (1, 1, 100, 32)), SCORES["warm"]
    *xs, bias = drawn(rng, shape, shape, F32) + more(rng, "warm", shape, shape, F32)
    xs[3] = np.full_like(xs[3], 12)
    checked(function, [*xs, bias], "mma f32")


@pytest.mark.exhaustive("kind", table="attention")
@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, kind: str) -> None:
    function, q, k = LAYOUTS[name]
    checked(function, drawn(np.random.default_rng(2), q, k, FORWARD[kind].dtype), kind)


@pytest.mark.exhaustive("kind", table="attention")
@pytest.mark.parametrize(("kind", "width"), [("wgmma bf16", 128), ("mma tf32", 32)])
@pytest.mark.parametrize("lengths", [(1, 129), (128, 128), (257, 511)])
def test_lengths(lengths: tuple[int, int], kind: str, width: int) -> None:
    q, k = ((1, n, width) for n in lengths)
    checked(plain, drawn(np.random.default_rng(3), q, k, FORWARD[kind].dtype), kind)


@pytest.mark.exhaustive("kind", table="attention")
@pytest.mark.parametrize("kind", ["wgmma bf16", "mma bf16", "mma f32"])
def test_queries_that_see_no_key_are_not_numbers(kind: str) -> None:
    """The first 150 of 200; one tile has no block of keys, another has some."""
    shape = (1, 200, 64)
    xs = drawn(np.random.default_rng(4), shape, shape, FORWARD[kind].dtype)
    checked(masked(150), xs, kind)
    checked(masked(150, None, -1e9), xs, kind)  # they see all alike


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", FEW)
def test_few_queries(name: str, dtype: Any) -> None:
    """Warps share the keys."""
    function, xs = few(np.random.default_rng(9), name, dtype)
    with config.using(executor="shim"):
        compiled = ge2.jit(function)
        assert BY_KEYS in kinds(compiled, *xs)
        judge(compiled(*xs), exactly(function, *xs), BOUNDS[dtype])


def test_few_queries_have_a_gradient() -> None:
    """The backward kernels read the logarithms of what warps have summed."""
    xs = drawn(np.random.default_rng(9), (1, 2, 3, 64), (1, 2, 72, 64), BF16)
    with config.using(executor="shim", prefer=(BACKWARD, BY_KEYS)):
        compiled = ge2.jit(slopes(plain))
        assert {BY_KEYS, BACKWARD} <= {*kinds(compiled, *xs)}
        judge_slopes(compiled(*xs), exactly(slopes(plain), *xs))


def checked_back(function: Attention, xs: Any, kind: str, wanted: Any = (0, 1, 2)) -> None:
    """Runs the gradient by kernels, which is that of NumPy."""
    made = FORWARD[kind]
    with config.using(executor="shim", prefer=made.families):
        compiled = ge2.jit(slopes(made.of(function), wanted))
        assert {*made.families} <= {*kinds(compiled, *xs)}
        found = compiled(*xs)
    judge_slopes(found, exactly(slopes(function, wanted), *xs), made.slope_bound)


WIDTHS = {
    "plain": (plain, 24, 64), "narrower": (plain, 192, 128), "wider": (masked(0), 64, 128),
    "bias": (biased, 64, 128), "far narrower": (masked(0), 72, 8),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WIDTHS)
def test_values_of_another_width(name: str) -> None:
    """As keys, of which tensor maps fill the rest of the tiles."""
    (function, width, other), rng, shape = WIDTHS[name], np.random.default_rng(4), (2, 2, 150)
    xs = [rng.standard_normal((*shape, n)).astype(BF16) for n in (width, width, other)]
    xs += [rng.standard_normal((2, 150, 150)).astype(BF16)] if function is biased else []
    checked(function, xs, "wgmma bf16")
    checked_back(function, xs, "wgmma bf16", tuple(range(len(xs))))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_values_of_another_width_where_no_kernel_has_them(arch: str, dtype: Any) -> None:
    xs = [np.zeros((2, 150, n), dtype) for n in (64, 64, 128)]
    with expecting(arch):
        found = kernels(slopes(plain), *xs, arch=arch)
    attends = any(kernel.kind.startswith("attention") for kernel, _ in found)
    assert attends == (arch == "sm_90a" and dtype == BF16)


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("name", DERIVED)
def test_gradients(name: str, kind: str) -> None:
    function, q, k = DERIVED[name]
    checked_back(function, drawn(np.random.default_rng(5), q, k, FORWARD[kind].dtype), kind)


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize(
    ("kind", "width"), [("wgmma bf16", 64), ("wgmma bf16", 128), *((kind, 32) for kind in WARPS)]
)
@pytest.mark.parametrize("name", DERIVED_SCORES)
def test_gradients_of_scores(name: str, kind: str, width: int) -> None:
    """By what scores are made of, too."""
    rng, shape, dtype = np.random.default_rng(6), (2, 2, 72, width), FORWARD[kind].dtype
    wanted, xs = slopes_of_scores(rng, name, shape, dtype)
    checked_back(SCORES[name][0], xs, kind, wanted)


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize(
    ("kind", "width"),
    [(kind, width) for kind in FORWARD for width in (16, 80, 96, 192, 256)]
    + [(kind, width) for kind in WARPS for width in (4, 20, 24)],
)
def test_widths(width: int, kind: str) -> None:
    """Forward, and backward; the last features of a tile are zeros, and wide heads have their sums
    one by one. Copies bring rows of warps by 16, 8 or 4 bytes, tensor maps by 16 alone.
    """
    xs = drawn(np.random.default_rng(8), *[(1, 72, width)] * 2, FORWARD[kind].dtype)
    checked_back(masked(0), xs, kind)


def test_a_tile_of_fewer_lines_than_its_threads_bring_at_once() -> None:
    """Threads that have no line of it write nothing."""
    made, shape = FORWARD["mma bf16"], (1, 40, 4)
    xs = drawn(np.random.default_rng(8), shape, shape, made.dtype)
    pin = Pin("mma attention backward", "128 x 32 by 4")
    with config.using(executor="shim", shim_watch=True, prefer=made.families, pins=(pin,)):
        compiled = ge2.jit(slopes(made.of(masked(0))))
        taken = [kernel.choice.taken.title for kernel in compiled.lower(*xs).kernels]
        assert "mma attention backward, 128 x 32 by 4" in taken
        judge_slopes(compiled(*xs), exactly(slopes(masked(0)), *xs))


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize("kind", ["wgmma bf16", *WARPS])
def test_what_is_no_number_stays_none(kind: str) -> None:
    """As tensor cores have it, all of whose bits are set: where the bias of a query is not a number,
    neither are its result and its slope, nor those of all keys.
    """
    made, shape = FORWARD[kind], (1, 72, 32)
    xs = drawn(np.random.default_rng(7), shape, shape, made.dtype)
    bias = np.zeros((72, 72), made.dtype)
    bias[5] = np.frombuffer(b"\xff" * (bias.itemsize - 1) + b"\x7f", made.dtype)
    with config.using(executor="shim", prefer=made.families):
        found = ge2.jit(slopes(made.of(biased)))(*xs, bias)
    for y, w in zip(found, exactly(slopes(biased), *xs, bias), strict=True):
        assert np.array_equal(np.isnan(np.asarray(y, np.float64)), np.isnan(w))


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize("kind", ["wgmma bf16", "mma bf16", "mma f32"])
@pytest.mark.parametrize("axis", [1, 2])
def test_cotangents_of_parts_of_one_array_are_written_where_they_are_joined(
    axis: int, kind: str
) -> None:
    """Heads beside each other in a row, queries, keys and values beside or after each other."""

    def layer(x: Any) -> Any:
        parts = np.split(x * x, 3, axis=axis)
        q, k, v = (np.swapaxes(each.reshape(2, 72, 2, 64), 1, 2) for each in parts)
        return masked(0)(q, k, v)

    made, shape = FORWARD[kind], [2, 72, 128]
    shape[axis] *= 3
    x = (np.random.default_rng(9).standard_normal(shape) * 0.9 + 0.1).astype(made.dtype)
    with config.using(executor="shim", prefer=made.families):
        compiled = ge2.jit(slopes(made.of(layer), (0,)))
        lowered = compiled.lower(x)
        titles = [k.choice.taken.title for k in lowered.kernels]
        assert {*made.families} <= {*families_of(lowered)}
        assert not any("concatenate" in title or "copy" in title for title in titles)
        judge_slopes(compiled(x), exactly(slopes(layer, (0,)), x))


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize("kind", ["wgmma bf16", "mma bf16", "mma f32"])
def test_queries_that_see_no_key_have_no_slope(kind: str) -> None:
    """All keys count alike for the first of them; what they do comes from no score."""
    made = FORWARD[kind]
    for shape in ((1, 72, 64), (1, 40, 64)):  # of the second all keys are in a tile
        xs = drawn(np.random.default_rng(7), shape, shape, made.dtype)
        with config.using(executor="shim", prefer=made.families, shim_watch=kind == "mma f32"):
            queries, *_ = ge2.jit(slopes(masked(3, None, -3e4)))(*xs)
        assert not np.asarray(queries, np.float64)[:, :3].any()


def by_keys_first(q: Any, k: Any, v: Any) -> Any:
    """Groups of heads again, keys and values being the left operands."""
    b, h, t, d = q.shape
    q = q.reshape(b, k.shape[1], h // k.shape[1], t, d)
    w = softmax(np.einsum("bhkd,bhgqd->bhgqk", k, q) * scale(q))
    return np.einsum("bhkd,bhgqk->bhgqd", v, w).reshape(b, h, t, d)


@pytest.mark.parametrize("function", [grouped, by_keys_first])
def test_gradients_of_heads_in_groups(function: Attention) -> None:
    """Whose keys have no axis of the heads that share them: they are as repeated ones."""
    xs = drawn(np.random.default_rng(7), (2, 6, 40, 32), (2, 2, 40, 32), BF16)
    checked_back(function, xs, "wgmma bf16")


@needs_nvrtc
@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "sm_89"])
@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("kind", ["mma bf16", "mma tf32"])
def test_no_spills(kind: str, width: int, architecture: str) -> None:
    """Forward, and backward; both are looked for where a GPU of that architecture is expected."""
    made, x = FORWARD[kind], np.zeros((2, 16, 1024, width), FORWARD[kind].dtype)
    with config.using(prefer=made.families), expecting(architecture):
        found = kernels(slopes(made.of(masked(0))), x, x, x, arch=architecture)
    texts = [text for kernel, text in found if kernel.kind.startswith("attention")]
    assert len(texts) == (4 if width > 128 else 3)
    assert not any(usage.spills for text in texts for usage in compile(text, architecture).kernels)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_another_batch_has_the_same_kernels(arch: str) -> None:
    """As the cache of compiled kernels knows them: by their code, without comments."""

    def codes(batch: int) -> set[str]:
        x = np.zeros((batch, 12, 256, 64), BF16)
        with expecting(arch):
            found = kernels(slopes(masked(0)), x, x, x, arch=arch)
        return {told(text) for kernel, text in found if kernel.kind.startswith("attention")}

    few, many = codes(32), codes(64)  # in tiles of one size
    assert len(few) >= 2
    assert few == many


def captured(q: Any, k: Any, v: Any) -> Any:
    seen = np.tri(q.shape[-2], dtype=bool)
    return softmax(np.where(seen, scores(q, k), -np.inf)) @ v


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_captured_mask_is_a_band_behind_a_checkpoint(arch: str) -> None:
    """So that what a causal mask hides is skipped where attention is computed again, too."""
    x = np.zeros((2, 4, 256, 64), BF16)

    def codes(function: Attention) -> set[str]:
        with expecting(arch), config.using(executor="c", check=False):
            entry = ge2.jit(slopes(function)).trace(x, x, x).entry
            known = iotas(entry.graph, entry.captured)
            assert known
            made = compile_graph(entry.graph, device=OfflineDevice(limits_of(arch)), iotas=known)
        sources = [s for d in assemblers(made) for s in d.kernels.sources.values()]
        return {told(s.text()) for s in sources if s.kernel.kind.startswith("attention")}

    assert codes(lambda *xs: ge2.checkpoint(captured)(*xs)) == codes(captured)


def test_weights_times_captured_ones_are_in_a_band() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        e = np.exp(scores(q, k))
        e = e * np.tri(*e.shape[-2:]).astype(e.dtype)
        return e / e.sum(-1, keepdims=True) @ v

    x = np.zeros((2, 4, 256, 64), BF16)
    with expecting("sm_90a"), config.using(executor="c", check=False):
        entry = ge2.jit(attention).trace(x, x, x).entry
        known = iotas(entry.graph, entry.captured)
        made = compile_graph(entry.graph, device=OfflineDevice(limits_of("sm_90a")), iotas=known)
    (op,) = (e.op for e in made.program.graph.eqns if e.op.name.startswith("fused_"))
    found = scores_of(form_of(op.plain))
    assert (found.band.low, found.band.high, found.is_simple) == (0, None, True)
    checked(attention, drawn(np.random.default_rng(3), (2, 72, 32), (2, 72, 32), F32), "mma f32")


@pytest.mark.exhaustive("name", "back", table="words for masks")
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_bands_in_any_words(name: str, back: bool) -> None:
    """So that tiles whose keys are hidden are skipped, and scores in most others are the products."""
    hide = MASKS[name]

    def attention(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k) * np.asarray(0.5, q.dtype)
        return softmax(hide(s, ~np.tri(*s.shape[-2:], dtype=bool))) @ v

    x = np.zeros((2, 4, 256, 64), BF16)
    with expecting("sm_90a"), config.using(executor="c", check=False):
        entry = ge2.jit(slopes(attention) if back else attention).trace(x, x, x).entry
        known = iotas(entry.graph, entry.captured)
        made = compile_graph(entry.graph, device=OfflineDevice(limits_of("sm_90a")), iotas=known)
    ops = [e.op for e in made.program.graph.eqns if e.op.name.startswith("fused_")]
    assert len(ops) == 1 + back
    for op in ops:
        found = scores_of(form_of(op.plain))
        assert (found.band.low, found.band.high, found.is_simple) == (0, None, True)
    rng = np.random.default_rng(3)
    xs = drawn(rng, (2, 1, 40, 8), (2, 1, 40, 8), F32)
    function = slopes(attention) if back else attention
    judge_slopes(*[ys if back else [ys] for ys in (ge2.jit(function)(*xs), exactly(function, *xs))])


@pytest.mark.exhaustive("kind", table="slopes of attention")
@pytest.mark.parametrize("kind", ["wgmma bf16", "mma bf16", "mma f32"])
def test_cotangents_of_a_bias_that_many_batches_share_are_added_up_in_parts(kind: str) -> None:
    """Its tiles alone would be few blocks."""
    rng, dtype = np.random.default_rng(4), FORWARD[kind].dtype
    xs = drawn(rng, (3, 2, 2, 40, 16), (3, 2, 2, 40, 16), dtype)
    xs.append(rng.standard_normal((2, 40, 40)).astype(dtype))
    with config.using(executor="shim", prefer=FORWARD[kind].families):
        lowered = ge2.jit(slopes(biased, (0, 1, 2, 3))).lower(*xs)
    ops = [k.choice.problem.op for k in lowered.kernels]
    (op,) = {id(x): x for x in ops if x.name == "fused_attention_backward"}.values()
    assert op.jaxpr.outputs[3].type.shape == (3, 1, 1, 2, 40, 40)
    checked_back(biased, xs, kind, (0, 1, 2, 3))


def sloped(q: Any, k: Any, v: Any, slope: Any) -> Any:
    i = np.arange(q.shape[-2])
    away = (i[None, :] - i[:, None]).astype(np.float32)
    biased = scores(q, k).astype(np.float32) + slope[:, None, None] * away
    return softmax(np.where(away <= 0, biased, -np.inf)).astype(q.dtype) @ v


def test_captured_distances_are_made_of_indices() -> None:
    """Each tile would read them from memory, for each head."""
    x = np.random.default_rng(2).standard_normal((1, 2, 128, 64)).astype(BF16)
    slope = np.array([0.5, 0.125], np.float32)
    with config.using(executor="c", check=False):
        entry = ge2.jit(sloped).trace(x, x, x, slope).entry
        known = iotas(entry.graph, entry.captured)
        device = OfflineDevice(limits_of("sm_90a"))
        made = compile_graph(entry.graph, device=device, iotas=known)
    assert Distances(0, -1, 1) in [each for _, each in known]
    (eqn,) = [e for e in made.program.graph.eqns if e.op.name == "fused_attention"]
    assert len(eqn.inputs) == 4
    with config.using(executor="emulator"):
        found = np.asarray(ge2.jit(sloped)(x, x, x, slope)).astype(np.float32)
    wide = x.astype(np.float32)
    np.testing.assert_allclose(found, sloped(wide, wide, wide, slope), atol=0.03)


@pytest.mark.parametrize(("heads", "length", "products"), [(8, 128, True), (64, 512, False)])
def test_short_attention_in_float32_is_its_small_products(
    heads: int, length: int, products: bool
) -> None:
    """A kernel of few blocks is slower than they are; one of many is not."""

    def f(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(1, 2) / np.float32(8)
        seen = np.tril(np.ones((length, length), bool))
        e = np.exp(np.where(seen, scores, -np.inf))
        return (e / e.sum(-1, keepdims=True)) @ v

    x = ge2.ShapeDtypeStruct((heads, length, 64), np.float32)
    graph = ge2.make_jaxpr(f)(x, x, x).graph
    kinds = [k.kind for k in chosen_kernels(graph, H200)]
    assert ("small product" in kinds) is products


def families_chosen(function: Attention, queries: int, keys: int, width: int) -> list[str]:
    """Returns which families have the attention of many heads on an H200."""
    xs = [ge2.ShapeDtypeStruct((64, 64, n, width), BF16) for n in (queries, keys, keys)]
    with expecting("sm_90a"):
        graph = ge2.make_jaxpr(function)(*xs).graph
        made = chosen_kernels(graph, H200)
    names = [k.choice.family.name for k in made if k.choice is not None]
    return [name for name in names if "attention" in name]


@pytest.mark.parametrize(
    ("queries", "keys", "width", "families"),
    [
        (49, 49, 32, [MMA, f"{MMA} backward"]), (8, 8, 64, [MMA, f"{MMA} backward"]),
        (64, 200, 64, [MMA, BACKWARD]), (200, 64, 64, [FAMILY, BACKWARD]),
        (128, 128, 32, [FAMILY, f"{MMA} backward"]), (128, 128, 64, [FAMILY, BACKWARD]),
    ],
)  # fmt: skip
def test_short_attention_is_by_warps(
    queries: int, keys: int, width: int, families: list[str]
) -> None:
    """Most of a tile of groups of warps would be empty."""
    assert families_chosen(slopes(plain), queries, keys, width) == families


def test_few_keys_are_not_shared_by_warps() -> None:
    """There would be nothing to merge."""
    assert families_chosen(plain, 1, 64, 64) == [MMA]
    assert families_chosen(plain, 1, 8192, 64) != [MMA]


@pytest.mark.exhaustive("kind", "mask", "queries", table="slopes by one kernel")
@pytest.mark.parametrize("kind", ["mma bf16", "mma f16"])
@pytest.mark.parametrize("mask", [None, masked(0), masked(-5, 40)])
@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (49, 49), (70, 40), (16, 64)])
def test_one_kernel_derives_attention_of_which_a_tile_has_all_keys(
    queries: int, keys: int, mask: Any, kind: str
) -> None:
    function = plain if mask is None else mask
    xs = drawn(np.random.default_rng(11), (2, queries, 48), (2, keys, 48), FORWARD[kind].dtype)
    with config.using(executor="shim", prefer=FORWARD[kind].families):
        made = [k.name for k in ge2.jit(slopes(function)).lower(*xs).kernels]
    assert sum("attention_backward" in name for name in made) == 1
    checked_back(function, xs, kind)
