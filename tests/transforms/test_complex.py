"""Derivatives by complex numbers, by the convention of docs/design/complex.md."""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.errors import GradientError
from ge2.transforms import grad, hessian, jacfwd, jacrev, jvp, linearize, value_and_grad, vjp, vmap
from tests.transforms.functions import close

STEP = 1e-4
W = np.array([[1.0 + 0.5j, -0.3j], [0.2, 0.7 - 1.0j]])

REAL_VALUED = {
    "abs2": lambda z: np.sum(np.abs(z) ** 2),
    "abs": lambda z: np.sum(np.abs(z * z + 1.0)),
    "parts": lambda z: np.sum(np.real(z) ** 3 * np.imag(z)),
    "conj": lambda z: np.sum(np.real(np.conj(z) * np.exp(z))),
    "products": lambda z: np.sum(np.abs(W @ z) ** 2) + np.real(z[0] * z[1]),
    "division": lambda z: np.imag(np.sum(z / (2.0 + np.conj(z)))),
    "angle": lambda z: np.sum(np.angle(z + 3.0)),
    "to real": lambda z: np.sum(np.sin(z).real * (z.imag + 1.0)),
}
HOLOMORPHIC = {
    "exp": np.exp,
    "rational": lambda z: (z * z + 1.0) / (z - 3.0),
    "powers": lambda z: z**3 + z**-2 + np.sqrt(z + 3.0),
    "products": lambda z: np.sin(W @ z) * z,
    "logarithm": lambda z: np.log(z + 3.0) * np.tanh(z),
}
real_valued = pytest.mark.parametrize("name", REAL_VALUED)
holomorphic = pytest.mark.parametrize("name", HOLOMORPHIC)


def point(rng):
    return rng.normal(size=2) + 1j * rng.normal(size=2)


def slope(f, z, t):
    at = lambda n: np.asarray(f(z + n * STEP * t))  # noqa: E731
    return (at(-2) - 8 * at(-1) + 8 * at(1) - at(2)) / (12 * STEP)


@real_valued
def test_the_gradient_of_a_real_function_is_du_dx_minus_i_du_dy(name, rng):
    f, z = REAL_VALUED[name], point(rng)
    value, found = value_and_grad(f)(z)
    close(value, f(z), 1e-12)
    assert found.dtype == np.complex128
    want = [slope(f, z, e) - 1j * slope(f, z, 1j * e) for e in np.eye(2)]
    close(found, want, 1e-8)


@real_valued
def test_a_cotangent_acts_on_a_tangent_without_a_conjugate(name, rng):
    f, z, t = REAL_VALUED[name], point(rng), point(rng)
    _, dy = jvp(f, (z,), (t,))
    close(dy, slope(f, z, t), 1e-8)
    close(np.sum(np.real(grad(f)(z) * t)), dy)
    close(linearize(f, z)[1](t), dy)


@real_valued
def test_second_derivatives(name, rng):
    f, z, t, c = REAL_VALUED[name], point(rng), point(rng), point(rng)
    along = lambda z: np.sum(np.real(grad(f)(z) * c))  # noqa: E731
    close(jvp(along, (z,), (t,))[1], slope(along, z, t), 1e-7)
    close(np.sum(np.real(grad(along)(z) * t)), slope(along, z, t), 1e-7)


@real_valued
def test_steepest_descent_follows_the_conjugate(name, rng):
    f, z = REAL_VALUED[name], point(rng)
    g = grad(f)(z)
    assert f(z - 1e-6 * np.conj(g)) < f(z)


@holomorphic
def test_the_holomorphic_derivative(name, rng):
    f, z, t = HOLOMORPHIC[name], point(rng), point(rng)
    found = grad(lambda z: np.sum(f(z)), holomorphic=True)(z)
    want = np.array([np.sum(slope(f, z, e)) for e in np.eye(2)])
    close(found, want, 1e-8)
    close(want, [np.sum(slope(f, z, 1j * e)) / 1j for e in np.eye(2)], 1e-8)
    close(jvp(f, (z,), (t,))[1], slope(f, z, t), 1e-8)


@holomorphic
def test_jacobians_of_holomorphic_functions(name, rng):
    f, z = HOLOMORPHIC[name], point(rng)
    want = np.stack([slope(f, z, e) for e in np.eye(2)], axis=-1)
    close(jacfwd(f, holomorphic=True)(z), want, 1e-8)
    close(jacrev(f, holomorphic=True)(z), want, 1e-8)
    h = hessian(lambda z: np.sum(f(z)), holomorphic=True)(z)
    close(h, h.T)
    close(h @ z, slope(grad(lambda z: np.sum(f(z)), holomorphic=True), z, z), 1e-6)


def test_the_two_rows_of_a_function_that_is_not_holomorphic(rng):
    f, z = lambda z: np.conj(z) * z * z, point(rng)
    _, pull = vjp(f, z)
    for ct, part in ((1.0, np.real), (-1j, np.imag)):
        found = pull(np.full(2, ct + 0j))[0]
        dx, dy = (part(slope(f, z, d * np.ones(2))) for d in (1.0, 1j))
        close(found, dx - 1j * dy, 1e-8)


def test_real_arguments_have_real_gradients():
    f = lambda x: np.real(np.exp(1j * x) * (1.0 + 2.0j))  # noqa: E731
    x = np.array([0.3, -0.2])
    found = vmap(grad(f))(x)
    assert found.dtype == np.float64
    close(found, -np.sin(x) - 2 * np.cos(x))
    close(jacfwd(lambda x: np.exp(1j * x))(x), np.diag(1j * np.exp(1j * x)))


def test_python_complex_numbers():
    found = grad(lambda z: z**3, holomorphic=True)(1.0 + 1.0j)
    assert found == 6j and type(found) is complex
    assert grad(lambda z: abs(z) ** 2)(3.0 + 4.0j) == 6.0 - 8.0j
    assert jvp(lambda z: z * 2.0, (1j,), (2.0 + 0j,)) == (2j, 4.0 + 0j)


def test_the_gradient_of_abs_at_zero_is_zero():
    assert grad(lambda z: np.abs(z))(0.0 + 0.0j) == 0.0
    assert jvp(np.abs, (np.complex128(0),), (np.complex128(1j),))[1] == 0.0


def test_single_precision_stays_single():
    z = np.ones(2, np.complex64)
    assert grad(lambda z: np.sum(np.abs(z) ** 2))(z).dtype == np.complex64
    assert jvp(lambda z: np.abs(z), (z,), (z,))[1].dtype == np.float32


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: grad(lambda z: z)(1j), "real result.*c128"),
        (lambda: grad(lambda x: x, holomorphic=True)(1.0), "takes complex arguments; x is ~f64"),
        (lambda: grad(lambda z: np.real(z), holomorphic=True)(1j), "complex result.*f64"),
        (lambda: jacrev(lambda z: z * 1j)(np.ones(2)), "real floating results"),
        (lambda: jacfwd(np.real)(np.ones(2) * 1j), "real floating arguments"),
        (lambda: jacrev(lambda z: z, holomorphic=True)(np.ones(2)), "complex arguments"),
    ],
)
def test_errors(call, says):
    with pytest.raises(GradientError, match=says) as error:
        call()
    assert "test_complex.py" in str(error.value)
