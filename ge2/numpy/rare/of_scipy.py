"""Functions of SciPy that are written in Python, for traced values: `scipy.linalg`, `integrate`,
`fft`, `signal`, `spatial.distance`, and the distributions of `scipy.stats`.

SciPy asks for an array of the elements before it looks at its arguments, so `trace/protocols.py`
has its functions call these where an argument is traced. What one of these does not know, it
answers by NotImplemented, and SciPy's own function says what it makes of a traced value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.arrays import COMPLEX, FLOAT64, INEXACT
from ge2.ir import type_of
from ge2.numpy import fft, linalg
from ge2.numpy.linalg.equations import adjoint, expm, matrices, of_hermitian
from ge2.numpy.rare import special
from ge2.numpy.rare.grids import sliding_window_view

Function = Callable[..., Any]

# ---------------------------------------------------------------------------- scipy.linalg: factors


def mirrored(a: Any, lower: bool) -> Any:
    """Hermitian matrices of one triangle; their derivative is that of the Hermitian part."""
    x = of_hermitian(matrices(a, "solve", square=True))
    strict = gnp.tril(x, -1) if lower else gnp.triu(x, 1)
    diagonal = gnp.eye(type_of(x).shape[-1], dtype=bool)
    return gnp.where(diagonal, x, strict + adjoint(strict))


def cholesky(a: Any, lower: bool = False) -> Any:
    """L of a = L @ L^H, or by default U of a = U^H @ U."""
    return linalg.cholesky(a, upper=not lower)


def cho_factor(a: Any, lower: bool = False) -> Any:
    """The factor of `cholesky` in its triangle of a, and which one that is."""
    factor, below = cholesky(a, lower), gnp.tri(type_of(gnp.asarray(a)).shape[-1], dtype=bool)
    return gnp.where(below if lower else below.T, factor, a), lower


def cho_solve(c_and_lower: Any, b: Any) -> Any:
    c, lower = c_and_lower
    first, last = ("N", "C") if lower else ("C", "N")
    return solve_triangular(c, solve_triangular(c, b, first, lower), last, lower)


def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False
) -> Any:
    x = matrices(a, "solve_triangular", square=True)
    x = gnp.tril(x) if lower else gnp.triu(x)
    if unit_diagonal:
        x = gnp.where(gnp.eye(type_of(x).shape[-1], dtype=bool), 1, x)
    if trans in (2, "C"):
        x = adjoint(x)
    elif trans in (1, "T"):
        x = gnp.matrix_transpose(x)
    return linalg.solve(x, b)


def inv(a: Any, assume_a: str | None = None, lower: bool = False) -> Any:
    found = of_structure(a, assume_a, lower)
    return found if found is NotImplemented else linalg.inv(found)


def solve(
    a: Any, b: Any, lower: bool = False, assume_a: str | None = None, transposed: bool = False
) -> Any:
    x = of_structure(a, assume_a, lower)
    if x is NotImplemented or type_of(gnp.asarray(a)).ndim != 2:
        return NotImplemented
    return linalg.solve(gnp.matrix_transpose(x) if transposed else x, b)


def of_structure(a: Any, assume_a: str | None, lower: bool) -> Any:
    """The matrices that SciPy reads where it is told of their structure."""
    if assume_a in (None, "gen", "general"):
        return a
    if assume_a in ("upper triangular", "lower triangular"):
        return gnp.triu(a) if assume_a[0] == "u" else gnp.tril(a)
    real = type_of(gnp.asarray(a)).dtype not in COMPLEX
    if assume_a in ("sym", "symmetric") and not real:
        return NotImplemented
    known = ("pos", "positive definite", "sym", "symmetric", "her", "hermitian")
    return mirrored(a, lower) if assume_a in known else NotImplemented


def eigh(a: Any, b: Any = None, lower: bool = True, eigvals_only: bool = False) -> Any:
    """Of a x = w b x by the Cholesky factor of b, where there is one."""
    if b is None:
        found = linalg.eigvalsh if eigvals_only else linalg.eigh
        return found(a, "L" if lower else "U")
    factor = linalg.cholesky(mirrored(b, lower))
    half = linalg.solve(factor, mirrored(a, lower))
    w, v = linalg.eigh(linalg.solve(factor, adjoint(half)))
    return w if eigvals_only else (w, linalg.solve(adjoint(factor), v))


def eigvalsh(a: Any, b: Any = None, lower: bool = True) -> Any:
    return eigh(a, b, lower, eigvals_only=True)


def qr(a: Any, mode: str = "full") -> Any:
    m, n = type_of(matrices(a, "qr")).shape[-2:]
    short = m <= n  # then q is square whatever the mode
    if mode not in ("full", "economic", "r") or (mode == "r" and not short):
        return NotImplemented
    q, r = linalg.qr(a, "reduced" if short or mode == "economic" else "complete")
    return (r,) if mode == "r" else (q, r)


def polar(a: Any, side: str = "right") -> Any:
    w, s, vh = linalg.svd(a, full_matrices=False)
    s = s[..., None, :]
    return w @ vh, adjoint(vh) * s @ vh if side == "right" else w * s @ adjoint(w)


def pinvh(a: Any, rtol: Any = None, lower: bool = True) -> Any:
    return linalg.pinv(mirrored(a, lower), hermitian=True, rtol=rtol)


def lstsq(a: Any, b: Any, cond: Any = None) -> Any:
    if type_of(gnp.asarray(a)).ndim != 2:
        return NotImplemented
    dtype = type_of(matrices(a, "lstsq")).dtype
    x, rest, rank, s = linalg.lstsq(a, b, float(np.finfo(dtype).eps) if cond is None else cond)
    scalar = type_of(rest).shape == (1,) and type_of(x).ndim == 1
    return x, rest[0] if scalar else rest, rank, s


# ------------------------------------------------------------------------- scipy.linalg: functions


def block_diag(*arrs: Any) -> Any:
    """Matrices along the diagonal of a larger one."""
    xs = [gnp.atleast_2d(gnp.asarray(x)) for x in arrs]
    if any(type_of(x).ndim != 2 for x in xs):
        return NotImplemented
    dtype, width = gnp.result_type(*xs), sum(type_of(x).shape[1] for x in xs)
    rows, at = [], 0
    for x in xs:
        n = type_of(x).shape[1]
        rows.append(gnp.pad(x.astype(dtype), ((0, 0), (at, width - at - n))))
        at += n
    return gnp.concatenate(rows)


def diagonals(values: Any, rows: int, columns: int, step: int) -> Any:
    """The matrix of values[i + j], or for a step of -1 of values[rows - 1 - i + j]."""
    i, j = np.arange(rows)[:, None], np.arange(columns)
    return gnp.take(values, i + j if step == 1 else rows - 1 - i + j)


def toeplitz(c: Any, r: Any = None) -> Any:
    first = gnp.asarray(c)
    row = gnp.conj(first) if r is None else gnp.asarray(r)
    if type_of(first).ndim != 1 or type_of(row).ndim != 1:
        return NotImplemented
    values = gnp.concatenate([first[::-1], row[1:]])
    return diagonals(values, len(first), len(row), -1)


def hankel(c: Any, r: Any = None) -> Any:
    first = gnp.asarray(c)
    row = gnp.zeros_like(first) if r is None else gnp.asarray(r)
    if type_of(first).ndim != 1 or type_of(row).ndim != 1:
        return NotImplemented
    return diagonals(gnp.concatenate([first, row[1:]]), len(first), len(row), 1)


def circulant(c: Any) -> Any:
    x = gnp.asarray(c)
    if type_of(x).ndim != 1:
        return NotImplemented
    return diagonals(gnp.concatenate([x[::-1], x[::-1][:-1]]), len(x), len(x), -1)


MOST: Final = 900  # unknowns of a linear equation that is solved by its Kronecker products


def solve_sylvester(a: Any, b: Any, q: Any) -> Any:
    """The x of a @ x + x @ b = q."""
    x, y, z = gnp.asarray(a), gnp.asarray(b), gnp.asarray(q)
    m, n = type_of(x).shape[-1], type_of(y).shape[-1]
    if m * n > MOST or type_of(x).ndim != 2:
        return NotImplemented
    both = gnp.kron(x, gnp.eye(n)) + gnp.kron(gnp.eye(m), y.T)
    return linalg.solve(both, z.reshape(m * n)).reshape(m, n)


def solve_continuous_lyapunov(a: Any, q: Any) -> Any:
    """The x of a @ x + x @ a^H = q."""
    return solve_sylvester(a, adjoint(gnp.asarray(a)), q)


def solve_discrete_lyapunov(a: Any, q: Any) -> Any:
    """The x of a @ x @ a^H - x + q = 0."""
    x, z = gnp.asarray(a), gnp.asarray(q)
    n = type_of(x).shape[-1]
    if n * n > MOST or type_of(x).ndim != 2:
        return NotImplemented
    y = linalg.solve(gnp.eye(n * n) - gnp.kron(x, gnp.conj(x)), z.reshape(n * n))
    return y.reshape(n, n)


# ----------------------------------------------------------------------------------- scipy.integrate


def cumulative_trapezoid(
    y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None
) -> Any:
    """The integral from the first sample to each, by trapezoids."""
    v = gnp.moveaxis(gnp.asarray(y), axis, -1)
    h = dx if x is None else spacings(x, axis)
    found = gnp.cumsum(h * (v[..., 1:] + v[..., :-1]) / 2.0, axis=-1)
    if initial is not None:
        found = gnp.concatenate([gnp.full_like(found[..., :1], initial), found], axis=-1)
    return gnp.moveaxis(found, -1, axis)


def spacings(x: Any, axis: int) -> Any:
    """The distances of samples along the last axis, where that was another."""
    at = gnp.asarray(x)
    return gnp.diff(at if type_of(at).ndim == 1 else gnp.moveaxis(at, axis, -1))


def simpson(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples by parabolas; the last interval of an even number by Cartwright's
    formula, as SciPy has it.
    """
    v = gnp.moveaxis(gnp.asarray(y), axis, -1)
    n = type_of(v).shape[-1]
    h = gnp.broadcast_to(dx, (n - 1,)) if x is None else spacings(x, axis)
    if n < 3:
        return NotImplemented
    h, last = h * 1.0, n - 1 - (n % 2 == 0)  # of floats
    h0, h1 = h[..., 0:last:2], h[..., 1:last:2]
    both = h0 + h1
    terms = (
        v[..., 0 : last - 1 : 2] * (2.0 - quotient(h1, h0))
        + v[..., 1:last:2] * both * quotient(both, h0 * h1)
        + v[..., 2 : last + 1 : 2] * (2.0 - quotient(h0, h1))
    )
    found = gnp.sum(both / 6.0 * terms, axis=-1)
    if n % 2:
        return found
    a, b = h[..., -2], h[..., -1]
    first = quotient(2 * b**2 + 3 * a * b, 6 * (b + a)) * v[..., -1]
    second = quotient(b**2 + 3.0 * a * b, 6 * a) * v[..., -2]
    return found + first + second - quotient(b**3, 6 * a * (a + b)) * v[..., -3]


def quotient(a: Any, b: Any) -> Any:
    """a / b, and 0 where b is."""
    nothing = b == 0
    return gnp.where(nothing, 0.0, a / gnp.where(nothing, 1.0, b))


# ----------------------------------------------------------------------------------------- scipy.fft


def along_one(transform: Function) -> Function:
    def called(x: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        return transform(x, n, axis, norm)

    return called


def along_many(transform: Function, axes: Any = None) -> Function:
    def called(x: Any, s: Any = None, axes: Any = axes, norm: Any = None) -> Any:
        return transform(x, s, axes, norm)

    return called


def transform_of_cosines(
    inverse: bool, sines: bool, x: Any, type: int = 2, axis: int = -1, norm: str | None = None,
    orthogonalize: bool | None = None,
) -> Any:  # fmt: skip
    """The discrete cosine or sine transform of type 2 or 3, by a Fourier transform of its length
    (J. Makhoul, 1980); that of sines is one of cosines of every other sign, backward.
    """
    if type not in (2, 3):
        return NotImplemented
    v = gnp.moveaxis(gnp.asarray(x), axis, -1)
    if type_of(v).dtype in COMPLEX:
        return NotImplemented
    v = v if type_of(v).dtype in INEXACT else v.astype(FLOAT64)
    size = type_of(v).shape[-1]
    signs = np.where(np.arange(size) % 2, -1, 1).astype(type_of(v).dtype)
    forward = (type == 2) != inverse
    rooted = norm == "ortho" if orthogonalize is None else orthogonalize
    weights = weights_of_cosines(size, forward, norm, inverse, rooted).astype(type_of(v).dtype)
    if forward:
        y = second_cosines(v * signs if sines else v) * weights
        y = y[..., ::-1] if sines else y
    else:
        y = third_cosines((v[..., ::-1] if sines else v) * weights)
        y = y * signs if sines else y
    return gnp.moveaxis(y, -1, axis)


def weights_of_cosines(
    size: int, forward: bool, norm: str | None, inverse: bool, rooted: bool
) -> np.ndarray[Any, Any]:
    """The factors of coefficients."""
    plain = {"ortho": 1 / math.sqrt(2 * size), "forward": 1 / (2 * size)}.get(str(norm), 1.0)
    if inverse and norm != "ortho":
        plain = 1.0 if norm == "forward" else 1 / (2 * size)
    weights = np.full(size, plain)
    if rooted:
        weights[0] *= math.sqrt(0.5) if forward else math.sqrt(2)
    return weights


def second_cosines(v: Any) -> Any:
    """2 sum_j v[j] cos(pi k (2 j + 1) / 2n)."""
    n = type_of(v).shape[-1]
    w = fft.fft(gnp.concatenate([v[..., ::2], v[..., 1::2][..., ::-1]], axis=-1))
    angles = np.pi / (2 * n) * np.arange(n)
    dtype = type_of(v).dtype
    return 2 * (w.real * np.cos(angles).astype(dtype) + w.imag * np.sin(angles).astype(dtype))


def third_cosines(v: Any) -> Any:
    """v[0] + 2 sum_j v[j] cos(pi (2 k + 1) j / 2n)."""
    n, dtype = type_of(v).shape[-1], type_of(v).dtype
    angles = np.pi / (2 * n) * np.arange(n)
    weights = np.where(np.arange(n), 2.0, 1.0)
    real, imag = (weights * f(angles) for f in (np.cos, np.sin))
    w = fft.ifft(
        v * real.astype(dtype) + v * (1j * imag).astype(fft.spectral(dtype)), norm="forward"
    )
    first = (n + 1) // 2
    order = np.empty(n, int)
    order[::2], order[1::2] = np.arange(first), np.arange(n - 1, first - 1, -1)
    return gnp.take(w.real, order, axis=-1)


# -------------------------------------------------------------------------------------- scipy.signal


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    x, y = gnp.asarray(in1), gnp.asarray(in2)
    if type_of(x).ndim != type_of(y).ndim or not type_of(x).ndim:
        return NotImplemented
    if method == "fft":
        return fftconvolve(x, y, mode)
    return by_windows(x, gnp.flip(y), mode)


def convolve2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0
) -> Any:
    ways = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}
    if boundary not in ways:
        return NotImplemented
    more = {"constant_values": fillvalue} if boundary == "fill" else {}
    return by_windows(
        gnp.asarray(in1), gnp.flip(gnp.asarray(in2)), mode, mode_of_pad=ways[boundary], **more
    )


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    x, y = gnp.asarray(in1), gnp.asarray(in2)
    wider = all(m >= n for m, n in zip(type_of(x).shape, type_of(y).shape, strict=True))
    if type_of(x).ndim != type_of(y).ndim or not wider:
        return NotImplemented
    return by_windows(x, gnp.conj(y), mode)


def by_windows(x: Any, kernel: Any, mode: str, mode_of_pad: str = "constant", **more: Any) -> Any:
    """The sum of each window of x times a kernel, whose size decides by how much `full` is more."""
    shape, sizes = type_of(x).shape, type_of(kernel).shape
    if mode == "valid" and not all(n <= m for m, n in zip(shape, sizes, strict=True)):
        x, kernel = gnp.flip(kernel), gnp.flip(x)  # whichever is the larger
        shape, sizes = sizes, shape
    if mode not in ("full", "same", "valid"):
        return NotImplemented
    if mode == "valid" and not all(n <= m for m, n in zip(shape, sizes, strict=True)):
        return NotImplemented
    if mode != "valid":
        x = gnp.pad(x, [(n - 1, n - 1) for n in sizes], mode_of_pad, **more)
    y = gnp.tensordot(sliding_window_view(x, sizes), kernel, len(sizes))
    return centred(y, shape) if mode == "same" else y


def centred(y: Any, shape: Sequence[int]) -> Any:
    """The middle of an array."""
    starts = [(n - m) // 2 for n, m in zip(type_of(y).shape, shape, strict=True)]
    return y[tuple([slice(start, start + m) for start, m in zip(starts, shape, strict=True)])]


def fftconvolve(in1: Any, in2: Any, mode: str = "full") -> Any:
    x, y = gnp.asarray(in1), gnp.asarray(in2)
    shape, other = type_of(x).shape, type_of(y).shape
    if len(shape) != len(other) or mode not in ("full", "same", "valid"):
        return NotImplemented
    size = [m + n - 1 for m, n in zip(shape, other, strict=True)]
    whole = type_of(x).dtype in COMPLEX or type_of(y).dtype in COMPLEX
    ahead, back = (fft.fftn, fft.ifftn) if whole else (fft.rfftn, fft.irfftn)
    along = tuple(range(len(size)))
    found = back(ahead(x, size, along) * ahead(y, size, along), size, along)
    if mode == "valid":
        larger = all(m >= n for m, n in zip(shape, other, strict=True))
        big, small = (shape, other) if larger else (other, shape)
        return centred(found, [m - n + 1 for m, n in zip(big, small, strict=True)])
    return centred(found, shape) if mode == "same" else found


# ---------------------------------------------------------------------------- scipy.spatial.distance


def of_differences(metric: Any, p: float = 2) -> Function | None:
    """The distance as a function of two arrays of points, their last axis."""

    def cosine(x: Any, y: Any) -> Any:
        sizes = gnp.sqrt(gnp.sum(x * x, -1) * gnp.sum(y * y, -1))
        return 1.0 - gnp.sum(x * y, -1) / sizes

    known: dict[str, Function] = {
        "euclidean": lambda x, y: linalg.norm(x - y, axis=-1),
        "sqeuclidean": lambda x, y: gnp.sum((x - y) ** 2, -1),
        "cityblock": lambda x, y: gnp.sum(abs(x - y), -1),
        "chebyshev": lambda x, y: gnp.max(abs(x - y), -1),
        "minkowski": lambda x, y: linalg.norm(x - y, p, axis=-1),
        "cosine": cosine,
    }
    return known.get(metric) if isinstance(metric, str) else None


def floats(x: Any) -> Any:
    """As SciPy's distances take it, in float64."""
    return gnp.asarray(x, FLOAT64)


def cdist(XA: Any, XB: Any, metric: Any = "euclidean", p: float = 2) -> Any:
    found = of_differences(metric, p)
    if found is None:
        return NotImplemented
    return found(floats(XA)[:, None, :], floats(XB)[None, :, :])


def pdist(X: Any, metric: Any = "euclidean", p: float = 2) -> Any:
    found = of_differences(metric, p)
    if found is None:
        return NotImplemented
    x = floats(X)
    i, j = np.triu_indices(type_of(x).shape[0], 1)
    return found(gnp.take(x, i, axis=0), gnp.take(x, j, axis=0))


def squareform(X: Any) -> Any:
    """The matrix of distances of pairs, or the distances of a matrix."""
    x = gnp.asarray(X)
    n = type_of(x).shape[0]
    if type_of(x).ndim == 2:
        return x[np.triu_indices(n, 1)]
    rows = int(np.ceil(np.sqrt(2 * n)))
    if rows * (rows - 1) != 2 * n:
        return NotImplemented
    order = np.full((rows, rows), n)
    order[np.triu_indices(rows, 1)] = np.arange(n)
    return gnp.take(gnp.append(x, gnp.zeros_like(x, shape=1)), np.minimum(order, order.T))


def distance(metric: str) -> Function:
    def called(u: Any, v: Any) -> Any:
        found = of_differences(metric)
        return NotImplemented if found is None else found(floats(u), floats(v))

    return called


# -------------------------------------------------------------------------------------- scipy.stats


def of_normals(logarithm: bool) -> Function:
    """The density of several normal variables, the last axis of x."""

    def called(
        self: Any, x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False
    ) -> Any:
        spread = floats(cov)
        if mean is None and type_of(spread).ndim < 2:
            return NotImplemented
        centre = floats(np.zeros(type_of(spread).shape[0]) if mean is None else mean)
        centre, n = gnp.atleast_1d(centre), max(type_of(centre).size, 1)
        spread = spread * gnp.eye(n) if type_of(spread).ndim < 2 else spread
        v = floats(x)
        v = v[..., None] if n == 1 and type_of(v).ndim < 2 else v
        size, logs, rank = (of_any_rank if allow_singular else of_full_rank)(v - centre, spread)
        y = gnp.squeeze(-0.5 * (rank * math.log(2 * math.pi) + logs + size))
        return y if logarithm else gnp.exp(y)

    return called


def of_full_rank(d: Any, cov: Any) -> tuple[Any, Any, Any]:
    """d cov^-1 d, the logarithm of the determinant, and the rank."""
    factor = linalg.cholesky(cov)
    half = linalg.solve(factor, d[..., None])[..., 0]
    logs = 2 * gnp.sum(gnp.log(gnp.diagonal(factor)))
    return gnp.sum(half * half, -1), logs, type_of(d).shape[-1]


def of_any_rank(d: Any, cov: Any) -> tuple[Any, Any, Any]:
    """The same of the directions that have a variance."""
    relative = 1e6 * 2.0**-52
    w, inverse = linalg.eigvalsh(cov), linalg.pinv(cov, hermitian=True, rtol=relative)
    bound = relative * gnp.max(abs(w))
    size, rest = gnp.sum((d @ inverse) * d, -1), d - d @ (inverse @ cov)
    size = gnp.where(linalg.norm(rest, axis=-1) < bound, size, np.inf)  # or there is no density
    return size, gnp.sum(gnp.log(gnp.where(w > bound, w, 1.0))), gnp.sum(w > bound)


METHODS: Final = ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf")
# ------------------------------------------------------------------------------------ by their names

# arguments that say how it is done, and not what
OPTIONS: Final = frozenset({
    "overwrite_a", "overwrite_b", "overwrite_x", "overwrite_y", "check_finite", "lapack_driver", "driver",
    "lwork", "workers", "plan", "checks", "method",
})  # fmt: skip
CIRCLES: Final = ("dct", "idct", "dst", "idst")
LINALG: Final[dict[str, Function]] = {
    "eig": lambda a: linalg.eig(a), "eigvals": lambda a: linalg.eigvals(a), "det": linalg.det,
    "svd": linalg.svd, "svdvals": lambda a: linalg.svdvals(a), "pinv": lambda a, rtol: linalg.pinv(a, rtol=rtol),
    "norm": lambda a, ord, axis, keepdims: linalg.norm(a, ord, axis, keepdims),
}  # fmt: skip
# by the name of the module that has them, and of the class where they are methods
OURS: Final[dict[str, dict[str, Function]]] = {
    "scipy.special": {name: getattr(special, name) for name in special.__all__},
    "scipy.linalg": LINALG | {f.__name__: f for f in (
        block_diag, cho_factor, cho_solve, cholesky, circulant, eigh, eigvalsh, expm, hankel, inv, lstsq,
        pinvh, polar, qr, solve, solve_continuous_lyapunov, solve_discrete_lyapunov,
        solve_sylvester, solve_triangular, toeplitz,
    )},
    "scipy.integrate": {
        "trapezoid": gnp.trapezoid, "cumulative_trapezoid": cumulative_trapezoid, "simpson": simpson,
    },
    "scipy.fft._basic_backend": {
        name: along_one(getattr(fft, name)) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    } | {name: along_many(getattr(fft, name)) for name in ("fftn", "ifftn", "rfftn", "irfftn")}
    | {name: along_many(getattr(fft, name), (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2")},
    "scipy.fft._realtransforms_backend": {
        name: partial(transform_of_cosines, name[0] == "i", "s" in name) for name in CIRCLES
    },
    "scipy.signal": {f.__name__: f for f in (convolve, convolve2d, correlate, fftconvolve)},
    "scipy.spatial.distance": {f.__name__: f for f in (cdist, pdist, squareform)}
    | {name: distance(name) for name in ("euclidean", "sqeuclidean", "cityblock", "chebyshev", "cosine")},
    "scipy.stats": {f"rv_continuous.{name}": special.of_distribution(name) for name in METHODS}
    | {f"rv_discrete.{name}": special.of_distribution(name) for name in ("pmf", "logpmf")}
    | {f"multivariate_normal.{name}.__func__": of_normals(name != "pdf") for name in ("pdf", "logpdf")},
}  # fmt: skip
