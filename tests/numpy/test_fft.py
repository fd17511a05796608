"""numpy.fft beside NumPy: lengths, norms, axes, dtypes; one reading of each
transform back to front.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from ge2.base.errors import Ge2Error
from tests.numpy.agreement import agree, draw

F = np.fft
NORMS = (None, "backward", "ortho", "forward")
ONE = (F.fft, F.ifft, F.rfft, F.irfft, F.hfft, F.ihfft)
SEVERAL = (F.fft2, F.ifft2, F.rfft2, F.irfft2, F.fftn, F.ifftn, F.rfftn, F.irfftn)
by_name = {"ids": lambda f: f.__name__}


@pytest.mark.parametrize("f", ONE, **by_name)
def test_along_one_axis(f: Any, rng: np.random.Generator) -> None:
    for dtype in ("?", "i2", "c8", "c16", "f4", "f8"):
        x = draw(rng, dtype, (3, 5))
        for norm in NORMS:
            agree(f, x, norm=norm)
        for n in (1, 2, 5, 8):
            agree(f, x, n), agree(f, x, n, 0, "ortho")
    (
        agree(f, draw(rng, "f8", (1,)), 1),
        agree(f, draw(rng, "f8", (0, 3))),
        agree(f, draw(rng, "f8", (3, 0))),
    )
    agree(f, x, norm="other"), agree(f, x, -1), agree(f, x, None, 2)


@pytest.mark.parametrize("f", SEVERAL, **by_name)
def test_along_several_axes(f: Any, rng: np.random.Generator) -> None:
    for dtype in ("f4", "f8", "c16"):
        x = draw(rng, dtype, (2, 3, 4))
        agree(f, x), agree(f, x, axes=(1, 0)), agree(f, x, (3, 5), (0, 2), "ortho")
        (
            agree(f, x, s=(-1, 2), axes=(0, 1), norm="forward"),
            agree(f, x, (2,), (0, 1)),
            agree(f, x, axes=(3,)),
        )
        agree(f, x, axes=())


def test_half_types_are_transformed_in_single_precision(rng: np.random.Generator) -> None:
    x = draw(rng, "f2", (6,))
    for f in (F.fft, F.rfft, F.irfft):
        agree(f, x)
    assert gnp.fft.fft(x.astype(gnp.bfloat16)).dtype == np.complex64


def test_shifts(rng: np.random.Generator) -> None:
    x = draw(rng, "f8", (4, 5))
    for f in (F.fftshift, F.ifftshift):
        agree(f, x), agree(f, x, 1), agree(f, x, (0, -1)), agree(f, x, axes=2)
    np.testing.assert_array_equal(ge2.jit(lambda d: F.fftfreq(5, d))(0.1), F.fftfreq(5, 0.1))
    assert gnp.fft.rfftfreq(4).tolist() == [0.0, 0.25, 0.5]


def test_a_spectrum_has_the_derivatives_of_its_sums(rng: np.random.Generator) -> None:
    """By a matrix of exponentials, whose derivatives are those of products."""
    n = 5
    matrix = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)

    def power(x: Any) -> Any:
        return np.sum(abs(F.rfft(x, norm="ortho")) ** 4 * np.arange(1, 4))

    def by_products(x: Any) -> Any:
        return np.sum(abs(matrix[:3] @ (x + 0j) / np.sqrt(n)) ** 4 * np.arange(1, 4))

    x, v = rng.standard_normal((2, n))
    for derive in (ge2.grad, ge2.hessian):
        np.testing.assert_allclose(derive(power)(x), derive(by_products)(x), rtol=1e-10, atol=1e-10)
    tangents = [ge2.jvp(f, (x,), (v,))[1] for f in (power, by_products)]
    np.testing.assert_allclose(*tangents, rtol=1e-12)


def test_a_filter_in_batches_and_compiled(rng: np.random.Generator) -> None:
    def smooth(x: Any) -> Any:
        k = F.rfft(x)
        return F.irfft(k * np.exp(-(np.arange(k.size) ** 2.0)), x.size)

    x = rng.standard_normal((3, 7)).astype(np.float32)
    want = np.stack([smooth(row) for row in x])
    np.testing.assert_allclose(ge2.jit(ge2.vmap(smooth))(x), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ge2.jit(ge2.vmap(smooth, 1, 1))(x.T), want.T, rtol=1e-5, atol=1e-6)


def test_out_is_written_where_it_is_traced(rng: np.random.Generator) -> None:
    def f(x: Any) -> Any:
        y = np.zeros_like(x)
        F.fft(x, out=y)
        return y

    x = draw(rng, "c16", (4,))
    np.testing.assert_allclose(ge2.jit(f)(x), F.fft(x))
    with pytest.raises(Ge2Error, match="out="):
        gnp.fft.fft(x, out=x)


def test_transforms_along_several_axes_are_one() -> None:
    """A library is called once for them; along an axis that is named again, twice."""
    x, z = np.ones((4, 6, 5)), np.ones((4, 6, 5), complex)
    for f, count in (
        (lambda x: np.fft.fft2(x, s=(8, 3)), 1), (np.fft.ifftn, 1), (np.fft.rfftn, 2),
        (lambda x: np.fft.fftn(x, axes=(0, 0)), 2), (np.fft.irfftn, 2),
    ):  # fmt: skip
        real = f is np.fft.rfftn
        eqns = ge2.make_jaxpr(f)(x if real else z).graph.eqns
        assert sum("fft" in e.op.name for e in eqns) == count
