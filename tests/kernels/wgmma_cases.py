"""Products for tensor cores, as NumPy writes them; on a GPU and in the emulator alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

import ge2
from ge2.base.config import config
from tests.kernels.families import kinds

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype("f2"), np.dtype("f4")
# what one rounding errs at most, relative; of float32, what sums of 256 terms do
DIGITS: Final = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-18}
CUT: Final = 2.0**-23 / 8  # what a term adds: tensor cores cut off digits after each eight
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


# constants that all these types have, since a Python number becomes the array's
ROOT, CUBE, SLOPE = 0.796875, 0.044677734375, 0.010009765625


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(ROOT * (x + CUBE * x * x * x)))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


ACTIVATIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "none": lambda x: x + 0.0,
    "relu": lambda x: np.maximum(x, 0),
    "leaky": lambda x: np.where(x > 0, x, SLOPE * x),
    "gelu": gelu,
    "silu": silu,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
BIASES: Final[dict[str, Callable[[int, int], tuple[int, ...]]]] = {
    "scalar": lambda m, n: (1, 1),
    "row": lambda m, n: (m, 1),
    "column": lambda m, n: (n,),
    "full": lambda m, n: (m, n),
}


def biased(activation: str) -> Callable[..., Any]:
    return lambda a, b, c: ACTIVATIONS[activation](a @ b + c)


def with_sum(y: Any) -> Any:
    """What a layer makes, and the sum of each column."""
    return y, np.sum(y, axis=0)


# what a layer may be: each function, and the shapes of its arguments
LAYERS: Final[dict[str, Case]] = {
    "batch and time": (lambda x, w, c: gelu(x @ w + c), ((2, 136, 72), (72, 80), (80,))),
    "two results": (
        lambda a, b, c: (a @ b + c, np.tanh(a @ b + c)),
        ((136, 72), (72, 80), (80,)),
    ),
    "residual": (lambda a, b, c, r: gelu(a @ b + c) + r, ((200, 72), (72, 264), (264,), (200, 264))),
    "three results of two arrays": (
        lambda a, b, c, r: (a @ b + c, (a @ b + c) * r, np.tanh(a @ b + c) + c),
        ((200, 72), (72, 136), (200, 136), (200, 136)),
    ),
    "results of two and four bytes": (
        lambda a, b, r: (np.tanh(a @ b + r), (a @ b).astype(F32) * r),
        ((200, 72), (72, 136), (200, 136)),
    ),
    "a long way": (
        lambda a, b, c, r: (gelu(gelu(a @ b + c)), gelu(gelu(a @ b + c)) * r),
        ((200, 72), (72, 200), (200,), (200, 200)),
    ),
    "sums of columns": (
        lambda a, b, c, r: with_sum(np.tanh(a @ b + c) * r),
        ((200, 72), (72, 136), (136,), (200, 136)),
    ),
    "sums alone, of batches": (
        lambda x, w, c: np.sum(np.tanh(x @ w) * c, axis=(0, 1)), ((2, 136, 72), (72, 80), (2, 136, 1))
    ),
    "sums in float32": (
        lambda a, b, c: with_sum(np.tanh(a @ b + c).astype(F32)), ((136, 72), (72, 264), (264,))
    ),
    "a square that is turned": (lambda a, b, r: np.tanh(a @ b) + r.T, ((72, 40), (40, 72), (72, 72))),
    "an array backwards": (lambda a, b, r: np.tanh(a @ b) + r[::-1], ((72, 40), (40, 80), (72, 80))),
    "a result that is turned": (
        lambda a, b, r: (np.tanh(a @ b), 2 * (np.tanh(a @ b) + r).T), ((72, 40), (40, 72), (72, 72))
    ),
    "a triangle": (lambda a, b: np.triu(a @ b), ((136, 72), (72, 136))),
    "a triangle of batches": (lambda a, b: np.tril(a @ b, 3), ((3, 136, 72), (3, 72, 80))),
    "every second column": (
        lambda a, b: (y := a @ b, np.where(np.arange(b.shape[-1]) % 2 == 0, y, -y))[1],
        ((136, 72), (72, 80)),
    ),
    "some rows, and an array": (
        lambda a, b, r: np.where(np.arange(len(a))[:, None] < 70, np.tanh(a @ b), r),
        ((136, 72), (72, 80), (136, 80)),
    ),
    "alpha and beta": (lambda a, b, c: 0.5 * (a @ b) + 2.0 * c, ((136, 72), (72, 80), (136, 80))),
    "gate": (
        lambda x, w, v: np.tanh(x @ w) * (x @ v),
        ((136, 72), (72, 80), (72, 80)),
    ),
    "batched": (lambda a, b, c: np.tanh(a @ b + c), ((3, 136, 72), (3, 72, 80), (80,))),
    "a bias of each batch": (
        lambda a, b, c: np.tanh(a @ b + c), ((3, 136, 72), (3, 72, 80), (3, 1, 80))
    ),
    "one matrix for all": (lambda a, b: np.tanh(a @ b), ((3, 136, 72), (72, 80))),
    "heads": (
        lambda a, b: np.tanh(np.einsum("bqhd,bkhd->bhqk", a, b)), ((2, 72, 3, 64), (2, 80, 3, 64))
    ),
    "several columns": (
        lambda x, w, c: np.tanh(np.einsum("bd,dhe->bhe", x, w) + c), ((136, 72), (72, 2, 40), (2, 40))
    ),
}  # fmt: skip


def precision(name: str, dtype: Any) -> dict[str, Any]:
    """How a layer is rounded on its way, as `judge` takes it."""
    if name == "gate":
        return {"roundings": 2}  # its second product is, too
    casts = "results of two and four bytes", "sums in float32"
    return {"through": dtype} if name in casts else {}


TURNS: Final[dict[str, tuple[Callable[..., Any], bool, bool]]] = {
    "as they lie": (lambda a, b: a @ b, False, False),
    "second turned": (lambda a, b: a @ b.T, False, True),
    "first turned": (lambda a, b: a.T @ b, True, False),
    "both turned": (lambda a, b: a.T @ b.T, True, True),
}


# operands that lie as no tensor map copies them
VIEWS: Final[dict[str, Case]] = {
    "every second term": (lambda a, b: a[:, ::2] @ b, ((70, 130), (65, 40))),
    "backwards": (lambda a, b: a[::-1] @ b[:, ::-1], ((70, 65), (65, 40))),
    "from the second on": (lambda a, b: np.tanh(a[1:, 1:] @ b[3:, :-1]), ((71, 66), (68, 41))),
    "no neighbours": (lambda a, b: a[::3, ::2] @ b[::2, ::5], ((210, 130), (130, 205))),
    "the same row": (
        lambda a, b: np.tanh(np.broadcast_to(a, (3, 70, 65)) @ b), ((70, 65), (3, 65, 40))
    ),
}  # fmt: skip

JOINT_VIEWS: Final = "from the second on", "the same row"  # with something after the product

# few tiles of long sums, in parts: the tile, and the family
PARTED: Final[dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str, str]]] = {
    "bare": (lambda a, b: a @ b, ((64, 1100), (1100, 70)), "64 x 64 by 4, 4 parts", "mma product"),
    "layer": (
        biased("gelu"), ((64, 1101), (1101, 71), (71,)), "64 x 64 by 4, 4 parts",
        "mma product and region",
    ),
    "copies": (
        biased("gelu"), ((64, 1101), (1101, 64), (64,)), "64 x 64 by 4, 4 parts, of copies",
        "mma product and region",
    ),
    "batches": (
        LAYERS["a bias of each batch"][0], ((3, 40, 529), (3, 529, 33), (3, 1, 33)),
        "64 x 64 by 4, 2 parts", "mma product and region",
    ),
}  # fmt: skip


def odd(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape whose rows are no multiples of 16 bytes apart, for one whose are."""
    return tuple(n + 1 if n >= 72 else n for n in shape)


def turned(
    turn: str, shape: tuple[int, int, int], dtype: Any, seed: int
) -> tuple[Callable[..., Any], tuple[Any, Any], Callable[..., Any]]:
    """A product of TURNS as it is called, its operands, of numbers that bfloat16 has, and the exact
    product.
    """
    (function, first, second), (m, n, k) = TURNS[turn], shape
    rng = np.random.default_rng(seed)
    a = drawn(rng, (k, m) if first else (m, k), BF16).astype(dtype)
    b = drawn(rng, (n, k) if second else (k, n), BF16).astype(dtype)
    return (rounded_to_tf32(function) if dtype == F32 else function), (a, b), function


def rounded_to_tf32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of TURNS, whose product rounds float32."""
    matmul = ge2.numpy.matmul

    class Factor:
        def __init__(self, x: Any) -> None:
            self.x = x

        @property
        def T(self) -> Factor:
            return Factor(self.x.T)

        def __matmul__(self, other: Factor) -> Any:
            return matmul(self.x, other.x, precision="tf32")

    return lambda a, b: function(Factor(a), Factor(b))


def emulated(
    families: tuple[str, str], function: Any, xs: Any, family: str, terms: int,
    exact: Any = None, **precision: Any,
) -> None:  # fmt: skip
    """Runs a function by a kernel of the family, whose result is that of NumPy, in the emulator.
    `exact`: the function as NumPy knows it, if it is another one.
    """
    with config.using(executor="shim", prefer=families):
        compiled = ge2.jit(function)
        assert family in kinds(compiled, *xs)
        judge(compiled(*xs), exactly(exact or function, *xs), terms, **precision)


def on_gpu(
    xp: Any, function: Any, xs: Any, family: str, terms: int, exact: Any = None,
    **precision: Any,
) -> None:  # fmt: skip
    """The same on a GPU, where further runs have the same bits."""
    given = tuple(map(xp.asarray, xs))
    compiled = ge2.jit(function)
    assert family in kinds(compiled, *given)
    first = compiled(*given)
    found = tuple(map(xp.asnumpy, first)) if isinstance(first, tuple) else xp.asnumpy(first)
    judge(found, exactly(exact or function, *xs), terms, **precision)
    for _ in range(10):
        again = compiled(*given)
        pairs = zip(again, first, strict=True) if isinstance(first, tuple) else [(again, first)]
        assert all(bool((y.view(np.uint8) == x.view(np.uint8)).all()) for y, x in pairs)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def judge(
    found: Any, wanted: Any, terms: int, roundings: int = 1, through: Any = F32, slope: Any = 0.0
) -> None:
    """A result of sums of so many products of normal numbers: those stay float32, so that nothing
    but the result is rounded, unless there are more `roundings` of what it is made of, or a cast
    from the type `through`. `slope`: how far results move for one that the sums are off, where that
    is more than in proportion: a product of two of them may be far smaller than either.
    """
    found = (found,) if not isinstance(found, tuple) else found
    wanted = (wanted,) if not isinstance(wanted, tuple) else wanted
    assert len(found) == len(wanted)
    for y, w in zip(found, wanted, strict=True):
        assert y.shape == w.shape
        least = np.sqrt(terms) * (1.0 if y.dtype == F32 else 2.0**-6)
        size = np.maximum(np.abs(w), least)
        off = slope * CUT * terms * np.sqrt(terms)
        error = np.maximum(np.abs(np.asarray(y, np.float64) - w) - off, 0) / size
        assert not np.isnan(np.asarray(y, np.float64)).any()
        digits = max(DIGITS[np.dtype(y.dtype)], DIGITS[through], CUT * terms)
        assert error.max() <= (roundings + 0.25) * digits, error.max()


def exactly(function: Callable[..., Any], *xs: Any) -> Any:
    """The function in float64."""
    return function(*(np.asarray(x, np.float64) for x in xs))
