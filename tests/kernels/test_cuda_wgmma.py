"""Products on Hopper's tensor cores: in the emulator against NumPy, and compiled for the chip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import expecting
from ge2.base.config import config
from ge2.choice import Pin
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.kernels.tensor_cores import in_turns, seconds
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.products import contraction
from ge2.targets.cuda.products.tensor_epilogue import Epilogue
from tests.kernels.families import families_of, kinds
from tests.kernels.wgmma_cases import (
    ACTIVATIONS,
    BF16,
    BIASES,
    F16,
    F32,
    JOINT_VIEWS,
    LAYERS,
    TURNS,
    VIEWS,
    biased,
    drawn,
    emulated,
    exactly,
    judge,
    odd,
    precision,
    silu,
    turned,
)

BARE, FUSED = "wgmma product", "wgmma product and region"
TWICE = "64 x 64, two blocks at once"
# what goes on with many matrices of one tile, and the shapes of its arguments
BRIEF: dict[str, Any] = {
    "bias": (lambda a, b, c: np.maximum(a @ b + c, 0), ((7, 40, 72), (7, 72, 48), (48,))),
    "residual": (lambda a, b, r: np.tanh(a @ b) + r, ((7, 64, 72), (7, 72, 64), (7, 64, 64))),
    "two results": (lambda a, b: (a @ b + 1.0, np.tanh(a @ b)), ((5, 48, 72), (5, 72, 40))),
}
COPIED = "wgmma product of copies", "wgmma product of copies and region"


def checked(function: Any, xs: Any, family: str, terms: int, **precision: Any) -> None:
    emulated((BARE, FUSED), function, xs, family, terms, **precision)


@pytest.mark.exhaustive("bias", "activation", table="biases of tiles")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(activation: str, bias: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    xs = [drawn(rng, s, dtype) for s in ((136, 72), (72, 88), BIASES[bias](136, 88))]
    checked(biased(activation), xs, FUSED, 72)


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dtype: Any) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    checked(function, [drawn(rng, s, dtype) for s in shapes], FUSED, 72, **precision(name, dtype))


@pytest.mark.exhaustive("turn", "dtype", table="turns of tiles")
@pytest.mark.parametrize("shape", [(72, 72, 8), (136, 264, 200), (64, 64, 1032)])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("turn", TURNS)
def test_products_as_they_lie(turn: str, dtype: Any, shape: tuple[int, int, int]) -> None:
    function, xs, _ = turned(turn, shape, dtype, 2)
    checked(function, xs, BARE, shape[2])


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("name", [*VIEWS, *LAYERS])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_copies_of_operands(dtype: Any, name: str) -> None:
    """Operands whose rows are no multiples of 16 bytes apart are copied before."""
    function, shapes = {**LAYERS, **VIEWS}[name]
    if name in LAYERS:
        shapes = tuple(map(odd, shapes))
    rng = np.random.default_rng(4)
    family = COPIED[name in LAYERS or name in JOINT_VIEWS]
    emulated(
        COPIED, function, [drawn(rng, s, dtype) for s in shapes], FUSED if name == "heads" else family,
        73, **precision(name, dtype),
    )  # fmt: skip


def test_float32_rounded_to_tf32() -> None:
    rng = np.random.default_rng(3)
    a, b = (drawn(rng, s, BF16).astype(F32) for s in ((136, 72), (88, 72)))
    c = drawn(rng, (88,), F32)

    def layer(a: Any, b: Any, c: Any) -> Any:
        matmul = ge2.numpy.matmul(a, b.T, precision="tf32")
        return np.maximum(matmul + c, 0)

    with config.using(executor="shim", prefer=(BARE, FUSED)):
        assert kinds(ge2.jit(layer), a, b, c) == [FUSED]
        judge(ge2.jit(layer)(a, b, c), np.maximum(exactly(lambda a, b: a @ b.T, a, b) + c, 0), 72)


@pytest.mark.parametrize(
    ("first", "second"), [((1, 72), (72, 80)), ((136, 72), (72, 1)), ((136, 1), (1, 80))]
)
def test_one_row_column_or_term_is_for_others(first: Any, second: Any) -> None:
    rng = np.random.default_rng(5)
    a, b = drawn(rng, first, BF16), drawn(rng, second, BF16)
    for function in (lambda a, b: a @ b, lambda a, b: np.tanh(a @ b)):
        with config.using(executor="shim", prefer=(BARE, FUSED)):
            assert not {BARE, FUSED} & {*kinds(ge2.jit(function), a, b)}
            judge(ge2.jit(function)(a, b), exactly(function, a, b), first[1], roundings=2)


@pytest.mark.exhaustive("tile")
@pytest.mark.parametrize("name", ["three results of two arrays", "batched", "a long way"])
@pytest.mark.parametrize("tile", ["128 x 128, narrow strips", "128 x 192, narrow strips"])
def test_narrow_strips(tile: str, name: str) -> None:
    """What leaves by strips of half the width, as it may where sums are long."""
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(6)
    usual = H200.tuning.wgmma  # tiles that would have more stages than there is room for
    tiles = tuple(replace(tile, stages=9) for tile in usual.tiles)
    tuning = replace(H200.tuning, wgmma=replace(usual, tiles=tiles, long=1, idle=1e9))
    limits = replace(H200, tuning=tuning)
    with config.using(tuning=(limits,), pins=(Pin(FUSED, tile),), shim_watch=True):
        checked(function, [drawn(rng, s, BF16) for s in shapes], FUSED, 72)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", ["64 x 64", "128 x 192", "128 x 192, narrow strips"])
def test_no_tile_takes_the_place_of_the_one_before(tile: str) -> None:
    """Of tiles with an odd number of strips the last one lies where the first of the next tile does."""
    rng = np.random.default_rng(11)
    a, b, c = (drawn(rng, s, BF16) for s in ((400, 72), (72, 400), (400,)))
    usual = H200.tuning.wgmma
    tiles = tuple(replace(each, stages=9) for each in usual.tiles)
    tuning = replace(H200.tuning, wgmma=replace(usual, tiles=tiles, long=1, idle=1e9))
    limits = replace(H200, multiprocessors=1, tuning=tuning)
    with config.using(tuning=(limits,), pins=(Pin(FUSED, tile),), shim_watch=True):
        checked(lambda a, b, c: a @ b + c, [a, b, c], FUSED, 72)


@pytest.mark.exhaustive("name", "dtype", table="blocks at once")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize("name", BRIEF)
def test_two_blocks_at_once(name: str, processors: int, dtype: Any) -> None:
    """What matrices of one tile may have, of which a block takes one after another."""
    function, shapes = BRIEF[name]
    rng = np.random.default_rng(12)
    limits = replace(H200, multiprocessors=processors)
    xs = [drawn(rng, s, dtype) for s in shapes]
    with config.using(tuning=(limits,), pins=(Pin(FUSED, TWICE),), shim_watch=True):
        checked(function, xs, FUSED, 72)
        with config.using(executor="shim"):
            (taken,) = (str(c.taken) for c in ge2.jit(function).lower(*xs).choices.values())
            assert TWICE in taken


@pytest.mark.parametrize(("side", "twice"), [(32, True), (64, True), (96, False), (256, False)])
def test_matrices_of_short_sums_are_for_two_blocks_at_once(side: int, twice: bool) -> None:
    """A block takes its time for each tile, however short its sums: many of one stage have two."""
    x = ge2.ShapeDtypeStruct((2**25 // side**2, side, side), BF16)
    with expecting("sm_90a"), config.using(executor="shim"):
        lowered = ge2.jit(lambda a, b: np.maximum(a @ b, 0)).lower(x, x)
    (choice,) = (c for c in lowered.choices.values() if c.taken.family.name == FUSED)
    assert (TWICE in str(choice.taken)) is twice


def gated_gradient(x: Any, w: Any, u: Any, ct: Any) -> Any:
    """A gated unit and its gradients: of two arrays, three results."""
    gate, back = ge2.vjp(lambda u, v: silu(u) * v, u, x @ w)
    return (gate, *back(ct))


WIDE = "wgmma product and region, 128 x 128"


@pytest.mark.parametrize(
    ("function", "sizes", "title"),
    [
        (gated_gradient, (8192, 768, 3072), WIDE),
        (gated_gradient, (4096, 4096, 11008), f"{WIDE}, narrow strips"),
        (np.matmul, (4096, 11008, 4096), "product by BLAS"),
        (np.matmul, (8192, 8192, 8192), "wgmma product, 128 x 192"),
        (np.matmul, (4096, 4096, 11008), "wgmma product, 128 x 128"),
        (np.matmul, (511, 511, 511), "mma product, 64 x 64 by 4"),
        (np.matmul, (8192, 784, 1000), "product by BLAS"),  # 27 to 39 us, beside 40 by our tiles
        (np.matmul, (1023, 1023, 1023), "wgmma product of copies, 64 x 64"),
    ],
)
def test_what_is_chosen_on_an_h200(function: Any, sizes: tuple[int, int, int], title: str) -> None:
    """As was measured there: docs/design/wgmma.md."""
    m, k, n = sizes
    shapes = ((m, k), (k, n), (m, n), (m, n))[: 2 if function is np.matmul else 4]
    with config.using(tuning=(H200,), executor="shim"):
        lowered = ge2.jit(function).lower(*(ge2.ShapeDtypeStruct(s, BF16) for s in shapes))
        found = [choice.taken.title for choice in lowered.choices.values()]
    assert title in found


def decayed(x: Any, dy: Any, p: Any, m: Any, v: Any) -> Any:
    """A step of Adam: of three arrays, three results, all of float32."""
    g = (x.T @ dy).astype(np.float32)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.001 * m / (np.sqrt(v) + 1e-8), m, v


def projected(x: Any, w: Any, *added: Any) -> Any:
    return sum(added, start=(x @ w).astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "rows", "joint"), [(768, 2304, False), (50304, 768, True), (2304, 2304, True)]
)
def test_what_no_products_hide_is_apart(columns: int, rows: int, joint: bool) -> None:
    """The gradient of weights, and a step of Adam: one tile a multiprocessor, or many."""
    halves = [ge2.ShapeDtypeStruct((8192, n), BF16) for n in (columns, rows)]
    whole = [ge2.ShapeDtypeStruct((columns, rows), np.float32)] * 3
    with expecting("sm_90a"), config.using(executor="shim"):
        lowered = ge2.jit(decayed).lower(*halves, *whole)
    assert (FUSED in families_of(lowered)) == joint


def test_the_order_takes_no_predicted_loser() -> None:
    """A sum of two arrays of float32 and a product leaves in packs: slower than the two steps."""
    halves = [ge2.ShapeDtypeStruct(shape, BF16) for shape in ((8, 1024, 768), (768, 768))]
    added = [ge2.ShapeDtypeStruct(shape, np.float32) for shape in ((1024, 768), (8, 1024, 768))]
    for some, joint in (added, False), (added[1:], True):
        with expecting("sm_90a"), config.using(executor="shim"):
            assert (FUSED in kinds(ge2.jit(projected), *halves, *some)) == joint


@pytest.mark.parametrize(
    ("shape", "moved", "columns", "microseconds"),
    [
        ((8192, 3072, 768), 6, 128, 153), ((50304, 768, 8192), 28, 128, 1010),
        ((50304, 768, 8192), 28, 192, 926),
    ],
)  # fmt: skip
def test_predictions_of_packs_are_near_what_was_measured(
    shape: tuple[int, int, int], moved: int, columns: int, microseconds: float
) -> None:
    """On an H200: a gelu's cotangent before it left by strips, and AdamW behind a gradient."""
    rows, n, terms = shape
    types = ArrayType((rows, terms), BF16), ArrayType((terms, n), BF16)
    axes = contraction(DotGeneral(((1,), (0,))), *types, ((terms, 1), (n, 1), (n, 1)))
    caps = Caps.before(H200)
    (tile,) = (t for t in caps.chip.tuning.wgmma.tiles if t.columns == columns)
    after = Epilogue("int", "j", 8, moved=moved)
    assert seconds(axes, BF16, tile, after, caps) == pytest.approx(microseconds * 1e-6, rel=0.1)


@pytest.mark.parametrize("tiles", range(1, 9))
@pytest.mark.parametrize("left", [0, 1, 3, 7])
def test_a_walk_through_tiles(tiles: int, left: int) -> None:
    free, groups = 0, [0, 0]
    for n in range(tiles):
        free = max(free, groups[n % 2]) + 3
        groups[n % 2] = free + left
    assert in_turns(tiles, 3, left) == max(groups)


def test_gradients_of_biases_are_summed_where_they_are_made() -> None:
    def gradients(x: Any, w: Any, b: Any, ct: Any) -> Any:
        y, back = ge2.vjp(biased("gelu"), x, w, b)
        return (y, *back(ct))

    shapes = (8192, 768), (768, 3072), (3072,), (8192, 3072)
    with config.using(tuning=(H200,), executor="shim"):
        lowered = ge2.jit(gradients).lower(*(ge2.ShapeDtypeStruct(s, BF16) for s in shapes))
        assert families_of(lowered) == [FUSED, BARE]  # and a product of long sums by the library


def test_a_tanh_beside_one_is_short_where_last_bits_are_nobodys() -> None:
    """As in the derivative of gelu, whose float32 values are added up and rounded."""

    def summed(f: Any) -> Any:
        def run(a: Any, b: Any) -> Any:
            y = f((a @ b).astype(F32))
            return y.astype(BF16), np.sum(y, axis=0)

        return run

    def text(f: Any) -> str:
        structs = (ge2.ShapeDtypeStruct(s, BF16) for s in ((8192, 768), (768, 3072)))
        with config.using(tuning=(H200,), executor="shim", prefer=(FUSED,)):
            return str(ge2.jit(f).lower(*structs).as_text("cuda"))

    short, fused = "ge2_tanh_beside_one(", "ge2_fma_f32(-"
    found = text(summed(lambda x: x * (1 - np.square(np.tanh(x))) + (1 + np.tanh(x))))
    assert short in found and fused in found
    for f in (
        summed(np.tanh),
        summed(lambda x: np.tanh(x) + (1 + np.tanh(x))),  # which reads the tanh itself, too
        summed(lambda x: np.square(np.tanh(x)) + (1 + np.tanh(x))),
        lambda a, b: 1 + np.tanh((a @ b).astype(F32)),  # all of whose bits are a result's
    ):
        assert short not in text(f)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_steps_of_biases_are_made_of_sums(dtype: Any) -> None:
    """Where arrays are large, as all are for a slow memory, none is read again to be summed."""

    def step(a: Any, b: Any, c: Any) -> Any:
        y = np.square(np.tanh(a @ b + c))
        return y, np.abs(c) + 0.5 * np.sum(y, axis=0)

    rng = np.random.default_rng(8)
    xs = [drawn(rng, s, dtype) for s in ((136, 72), (72, 88), (88,))]
    with config.using(tuning=(replace(H200, bandwidth=1e6),), executor="shim", prefer=(FUSED,)):
        assert kinds(ge2.jit(step), *xs) == [FUSED, "region in CUDA"]
        judge(ge2.jit(step)(*xs), exactly(step, *xs), 72, roundings=2)
    with config.using(tuning=(H200,), executor="shim", prefer=(FUSED,)):
        lowered = ge2.jit(step).lower(*xs)
        (after,) = (k for k in lowered.kernels if k.choice.family.name == "region in CUDA")
        assert after.choice.taken.variant.name == "elementwise"  # nor where they are small
