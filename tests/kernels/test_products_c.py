"""Products of a matrix and a vector, thin ones and many tiny ones, as they lie:
exact for small integers.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ge2
from tests.together import needs_compiler

pytestmark = needs_compiler
DTYPES = (np.float32, np.float64, np.complex64, np.complex128, np.float16, ml_dtypes.bfloat16)
SHAPES = (
    *(((90, 100), (100,)), ((90,), (90, 100)), ((1, 90), (90, 100)), ((90, 100), (100, 1))),
    *(
        ((2, 2), (2, 1500)), ((1500, 3), (3, 3)), ((60, 4), (4, 70)), ((4, 1), (1, 1200)),
        ((50, 1), (1, 90)),
    ),
    *(((2, 2000), (2000, 2)), ((8, 90), (90, 100))),
    *(
        ((70, 4, 4), (70, 4, 4)),
        ((70, 2, 3), (70, 3, 1)),
        ((5000, 4, 4), (4, 4)),
        ((3, 2, 2), (3, 2, 900)),
    ),
    *(((300,), (300,)), ((3, 300), (300,)), ((20, 17), (17,)), ((30, 100), (100,))),
    *(((0, 3), (3, 4000)), ((90, 0), (0, 90)), ((9, 30, 20), (9, 20, 1))),
)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_products_are_exact(dtype):
    rng = np.random.default_rng(0)
    pairs, expected = [], []
    for m, n in SHAPES:
        a, b = rng.integers(-1, 2, m), rng.integers(-1, 2, n)
        if np.dtype(dtype).kind == "c":
            a, b = a + 1j * rng.integers(-1, 2, m), b + 1j * rng.integers(-1, 2, n)
        pairs.append((a.astype(dtype), b.astype(dtype)))
        expected.append(a @ b)

    def every(pairs):
        """Views are taken inside, so that products read them as they lie."""
        return [[x @ y for x in transposed(a) for y in transposed(b)] for a, b in pairs]

    def transposed(x):
        return x, np.swapaxes(np.swapaxes(x, 0, -1).copy(), 0, -1)

    for products, y in zip(ge2.jit(every)(pairs), expected, strict=True):
        for x in products:
            assert x.dtype == dtype
            np.testing.assert_array_equal(x.astype(y.dtype), y)


def test_strides_of_vectors_and_matrices():
    rng = np.random.default_rng(1)
    a, x = rng.integers(-3, 4, (80, 160)).astype(float), rng.integers(-3, 4, 480).astype(float)
    cases = {
        "every third": lambda a, x: a @ x[::3],
        "backwards": lambda a, x: a @ x[159::-1],
        "columns": lambda a, x: a[:, ::2] @ x[:80],
        "rows": lambda a, x: x[:40] @ a[::2],
        "one number": lambda a, x: a @ np.broadcast_to(x[:1], (160,)),
        "a column": lambda a, x: x[:80] @ a[:, 3:100].copy() + a[:, 5] @ a[:, 3:100],
        "turned": lambda a, x: a.T[:, ::2] @ x[:40],
    }
    found = ge2.jit(lambda a, x: [f(a, x) for f in cases.values()])(a, x)
    for (name, f), y in zip(cases.items(), found, strict=True):
        np.testing.assert_array_equal(y, f(a, x), err_msg=name)


def test_thin_products_are_loops_and_tiny_ones_are_written_for_their_size():
    def text(m, n):
        f = ge2.jit(lambda a, b: a @ b)
        return " ".join(f.lower(np.ones(m), np.ones(n)).as_text("c").split()).replace("( ", "(")

    assert "ge2_product_terms_f64(rows, columns, 2, " in text((2, 2), (2, 16384))
    assert "ge2_product_f64(lib, 4, 4, 4, " in text((65536, 4, 4), (65536, 4, 4))
    assert (
        "ge2_product_terms" not in text((300, 300), (300, 300)).split("static void product_0(")[1]
    )
