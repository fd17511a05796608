"""NumPy's own loops over matrices and lines, called by C: stacks at any strides, in loops, with their errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import INT64
from ge2.base.source import templates
from ge2.targets.c.libraries import FOURIER, ROWS, TYPES, has_loop, lapack
from tests.kernels.programs import eager_threads, needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("eager_threads")]
__all__ = ["eager_threads"]
L, Rng = np.linalg, np.random.Generator


def test_rows_are_those_of_the_header() -> None:
    text = Path(templates(), "c/include/ge2/numpy_loops.h").read_text()
    (rows,) = re.findall(r"enum \{(.*?)\}", text, re.DOTALL)
    assert re.findall(r"GE2_(\w+)", rows) == [name.upper() for name in ROWS]


def test_all_loops_are_found_and_tried() -> None:
    real = {"rfft_n_even", "rfft_n_odd"}
    for name in ROWS:
        for dtype in map(np.dtype, TYPES):
            fourier = name in FOURIER and (dtype.kind == "f") != (name in real)
            no_lapack = name.startswith("getr") and (lapack() is None or lapack().swaps != INT64)  # type: ignore[union-attr]
            assert has_loop(name, dtype) == (not fourier and not no_lapack)


CASES: dict[str, Callable[[Any], Any]] = {
    "solve": lambda a: L.solve(a, a[..., :1] + 1),
    "inv": L.inv, "det": L.det, "slogdet": lambda a: tuple(L.slogdet(a)),
    "cholesky": lambda a: L.cholesky(a @ np.conj(np.swapaxes(a, -1, -2))),
    "eigvalsh": L.eigvalsh, "eigh of the upper": lambda a: L.eigh(a, "U")[0],
    "singular values": lambda a: L.svd(a, compute_uv=False),
    "svd": lambda a: tuple(L.svd(a[..., :2], full_matrices=False)),
    "full svd": lambda a: tuple(L.svd(a[..., :2])),
    "fft": np.fft.fft, "ifft along the first axis": lambda a: np.fft.ifft(a, axis=0), "fft2": np.fft.fft2,
}  # fmt: skip
STACKS: dict[str, Callable[[Any], Any]] = {
    "one": lambda a: a[0, 0], "a stack": lambda a: a[0], "stacks": lambda a: a,
    "transposed": lambda a: a.transpose(1, 0, 3, 2), "parts": lambda a: a[:, ::-2],
    "of no length": lambda a: a[:, :0], "lines across": lambda a: np.moveaxis(a, 0, -1)[:3, :3, :3],
}  # fmt: skip


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("name", CASES)
def test_stacks_are_numpys_to_the_bit(rng: Rng, name: str, dtype: str) -> None:
    x = rng.normal(size=(3, 5, 3, 3)) + 1j * rng.normal(size=(3, 5, 3, 3))
    x = x.astype(dtype) if dtype[0] == "c" else x.real.astype(dtype)
    takes = {k: v for k, v in STACKS.items() if "no length" not in k or "fft" not in name}

    def every(x: Any) -> Any:
        return {k: CASES[name](view(x)) for k, view in takes.items()}

    with np.errstate(all="ignore"):
        wanted = every(x)
    found = ge2.jit(every)(x)
    single = dtype in ("f4", "c8")
    tolerance = 1e-5 if single else 1e-12
    # products before them are ours; transforms of single precision are rounded once, NumPy's by axis
    ours = name == "cholesky" or (single and "fft" in name)
    for y, w in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        assert y.shape == w.shape and y.dtype == w.dtype
        if ours:
            np.testing.assert_allclose(y, w, tolerance, tolerance)
        else:
            np.testing.assert_array_equal(y, w)


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_transforms_of_real_lines(rng: Rng, n: int, dtype: str) -> None:
    x = rng.normal(size=(4, n, 3)).astype(dtype)

    def f(x: Any) -> Any:
        y = np.fft.rfft(x, axis=1)
        return y, np.fft.irfft(y, n, axis=1), np.fft.rfft(x.T)

    tolerance = 1e-6 if dtype == "f4" else 0
    for found, wanted in zip(ge2.jit(f)(x), f(x), strict=True):
        np.testing.assert_allclose(found, wanted, 0, tolerance)
        assert found.dtype == wanted.dtype


REAL: dict[str, Callable[[Any], Any]] = {
    "last axis": np.fft.fft, "first axis": lambda x: np.fft.fft(x, axis=0), "shorter": lambda x: np.fft.fft(x, 65),
    "longer": lambda x: np.fft.fft(x, 200), "two axes": np.fft.fft2, "three axes": np.fft.fftn,
    "of both": lambda x: (np.fft.fft(x), np.fft.fft(x.astype(complex))),
    "orthonormal": lambda x: np.fft.fft2(x, norm="ortho"),
    "filtered": lambda x: np.fft.ifft(np.fft.fft(x) * np.abs(np.fft.fft(x)) ** 2).real,
    "the upper half": lambda x: np.fft.fft(x)[..., 40:],
}  # fmt: skip
HALF: dict[str, Callable[[Any], Any]] = {
    "all of it": lambda x: np.fft.fft(x)[..., :65],
    "a part, twice": lambda x: np.fft.fft(x)[..., 3:40:2] * np.fft.fft(x)[..., :19],
    "two axes": lambda x: np.abs(np.fft.fft2(x)[1:, :, :64]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("name", [*REAL, *HALF])
def test_a_transform_of_real_numbers_is_half_of_one(rng: Rng, name: str, dtype: str) -> None:
    """What is behind the middle is as much a transform as what is before it."""
    f, x = (REAL | HALF)[name], (9 * rng.normal(size=(70, 6, 128))).astype(dtype)
    compiled = ge2.jit(f)
    found, wanted = compiled(x), f(x)
    both = ((found, wanted),) if not isinstance(found, tuple) else zip(found, wanted, strict=True)
    for ours, theirs in both:
        assert ours.dtype == theirs.dtype
        most = np.abs(theirs).max() * (4e-7 if dtype == "f4" else 4e-15)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=most)
    kernels = [str(k) for k in compiled.lower(x).kernels]
    assert any("ge2_numpy_call(lib, GE2_RFFT_N_" in k for k in kernels)
    if name in HALF:
        assert "conj" not in "".join(kernels)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_inverse_transforms_are_numpys_to_the_bit(rng: Rng, dtype: str) -> None:
    """By its usual norm NumPy has those of single precision in it, and others in double."""
    z = (rng.normal(size=(8, 4, 16)) + 1j * rng.normal(size=(8, 4, 16))).astype(dtype)
    for axis in range(3):
        n = z.shape[axis]
        part = z.take(range(n // 2 + 1), axis)
        for f, x in (
            (partial(np.fft.ifft, axis=axis), z),
            (partial(np.fft.irfft, axis=axis), part),
        ):
            compiled = ge2.jit(f)
            np.testing.assert_array_equal(
                compiled(x), f(x)
            )  # n is a power of two, its factor exact
            kernel, *_ = compiled.lower(x).kernels
            assert f"const {'float' if dtype == 'c8' else 'double'} one = 1;" in str(kernel)


def test_other_sizes_have_the_same_text() -> None:
    def f(x: Any) -> Any:
        return np.fft.fft(x), L.inv(x.real[:, :36].reshape(-1, 6, 6) + np.eye(6))

    texts = set()
    for shape in ((40, 64), (900, 64), (700, 100)):
        kernels = [str(k) for k in ge2.jit(f).lower(np.ones(shape, complex)).kernels]
        texts.add(tuple(k.rsplit("*/", 1)[1] for k in kernels if "ge2_numpy" in k))
    assert len(texts) == 1


def in_c(f: Any, *xs: Any) -> bool:
    """True if a call of Python's is all that runs a program."""
    return {s.kind for s in f.lower(*xs).executable.program.steps} <= {
        "kernel",
        "copy",
        "view",
        "loop",
    }


@pytest.mark.parametrize("k", [1, 3])
def test_loops_that_solve_and_transform_need_no_python(rng: Rng, k: int) -> None:
    a, b = rng.normal(size=(4, 4)) + 4 * np.eye(4), rng.normal(size=(4, k))

    @ge2.jit
    def f(a: Any, b: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            a, x = c
            x = np.fft.ifft(np.fft.fft(np.tanh(L.solve(a, x)), axis=0), axis=0).real
            return (
                a + x @ x.T * 0.01,
                x + L.det(a) * 1e-6 + L.solve(c[0] * 0 + 2 * np.eye(4), x),
            ), L.cholesky(a @ a.T)

        return ge2.lax.scan(step, (a, b), None, 6)

    def constant(a: Any, b: Any) -> Any:
        return ge2.lax.scan(lambda x, _: (L.solve(a.T, np.tanh(x) + b), L.solve(a, x)), b, None, 5)

    g = ge2.jit(constant)
    assert in_c(f, a, b) and in_c(g, a, b)
    with ge2.config.using(executor="reference"):
        wanted = f(a, b), g(a, b)
    for y, w in zip(ge2.tree.leaves((f(a, b), g(a, b))), ge2.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda a: L.solve(a, a), "Singular matrix"),
        (lambda a: L.solve(a[0], L.solve(a[0], a[0])), "Singular matrix"),
        (lambda a: L.cholesky(a - 3), "not positive definite"),
        (lambda a: L.eigh(a * np.nan)[0], "converge"),
        (lambda a: L.svd(a * np.nan)[1], "converge"),
    ],
)
def test_a_matrix_that_fails_is_numpys_error_with_its_line(f: Any, what: str) -> None:
    """Also of a loop, of one matrix among many, and in a later call only."""
    bad, good = np.ones((40, 3, 3)), np.broadcast_to(4 * np.eye(3), (40, 3, 3))
    mixed = good.copy()
    mixed[[0, 33]] = 1.0
    whole = ge2.jit(lambda a: ge2.lax.scan(lambda c, x: (c, f(x[None])), 0.0, a)[1])
    for program in (ge2.jit(f), whole):
        for given in (bad, mixed):
            with pytest.raises(L.LinAlgError, match=what) as found:
                program(given)
            assert "test_numpy_loops_c.py" in str(found.value.__notes__)
    if "converge" not in what and "positive" not in what:
        np.testing.assert_array_equal(ge2.jit(f)(good), f(good))


def test_flags_of_before_are_no_error() -> None:
    a = np.stack([np.eye(3)] * 2)
    f = ge2.jit(lambda a, x: (L.solve(a, a), np.sqrt(x)))
    for _ in range(2):
        np.testing.assert_array_equal(f(a, np.full(3, -1.0))[0], a)
