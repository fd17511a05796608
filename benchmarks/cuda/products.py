"""Products of matrices, which every library leaves to cuBLAS or its own
choice; torch is not compiled.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import BF16, Draw, Work
from benchmarks.options import USUAL, Options

PRECISIONS: dict[str, dict[str, str | None]] = {
    "ge2": {"usual": None, "ieee": "highest", "tf32": "tf32"},
    "jax": {"usual": None, "ieee": "highest", "tf32": "tensorfloat32"},
}


def product(precision: str, lib: Any, xp: Any, a: Any, b: Any) -> Any:
    return lib.numpy.matmul(a, b, precision=PRECISIONS[lib.__name__][precision])


def first_transposed(lib: Any, xp: Any, a: Any, b: Any) -> Any:
    return lib.numpy.matmul(a.T, b)


def second_transposed(lib: Any, xp: Any, a: Any, b: Any) -> Any:
    return lib.numpy.matmul(a, b.T)


def operands(dtype: Any, a: tuple[int, ...], b: tuple[int, ...], draw: Draw) -> tuple[Any, ...]:
    return draw.normal(*a, dtype=dtype), draw.normal(*b, dtype=dtype)


def of(title: str, precision: str, dtype: Any, m: int, n: int, k: int, tolerance: float) -> Work:
    return Work(
        f"a@b {title} {m}x{n}x{k}", partial(product, precision), partial(operands, dtype, (m, k), (k, n)),
        lambda torch, a, b: a @ b, np.matmul,
        tolerance=tolerance, summed=-1, eager=True, tf32=precision == "tf32",
    )  # fmt: skip


# fmt: off
WORKS = {
    "product-wide": of("bf16", "usual", BF16, 8192, 3072, 768, 1e-2),
    "product-square": of("bf16", "usual", BF16, 4096, 4096, 1024, 1e-2),
    "product-large": of("bf16", "usual", BF16, 8192, 8192, 8192, 1e-2),
    "product-tf32": of("tf32", "tf32", np.float32, 8192, 3072, 768, 5e-3),
    "product-f32": of("f32 (IEEE)", "ieee", np.float32, 4096, 4096, 4096, 1e-4),
    "product-f64": of("f64", "usual", np.float64, 2048, 2048, 2048, 1e-10),
    "product-at": Work(
        "a.T@b bf16 8192x3072x768", first_transposed, partial(operands, BF16, (768, 8192), (768, 3072)),
        lambda torch, a, b: a.T @ b, lambda a, b: a.T @ b, tolerance=1e-2, summed=0, eager=True),
    "product-bt": Work(
        "a@b.T bf16 8192x3072x768", second_transposed, partial(operands, BF16, (8192, 768), (3072, 768)),
        lambda torch, a, b: a @ b.T, lambda a, b: a @ b.T, tolerance=1e-2, summed=-1, eager=True),
    "product-batched": Work(
        "64 of a@b bf16 1024x1024x64", partial(product, "usual"),
        partial(operands, BF16, (64, 1024, 64), (64, 64, 1024)),
        lambda torch, a, b: a @ b, np.matmul, tolerance=1e-2, summed=-1, eager=True),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("products", WORKS, options)
