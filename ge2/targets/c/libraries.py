"""BLAS and LAPACK as this machine has them, and which equations are theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_ssize_t,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from functools import cache
from importlib import import_module
from typing import Any, final

import numpy as np

from ge2.base.arrays import INT64
from ge2.base.detect import has_long_vectors
from ge2.base.record import record
from ge2.base.source import mention
from ge2.ir import ArrayType, Eqn
from ge2.ops.linalg.decompositions import Lu, LuSolve
from ge2.targets.c.tuning import TUNING, Caps, Tuning

# -------- NumPy's own matrix products and sorts, as addresses that C may call.


# -------- NumPy's sorts of contiguous elements in place, as addresses that C may call without
# Python's lock.
# The table of functions of a dtype is part of NumPy's C interface, and NumPy itself calls these
# without the lock. They use the vectors of the processor that NumPy finds. Each is tried before it
# is believed.


SORTED_DTYPES = (
    np.float32,
    np.float64,
    np.int32,
    np.int64,
    np.uint32,
    np.uint64,
)  # as in ge2_services
FUNCTIONS = 365  # of the C interface of NumPy 2: PyDataType_GetArrFuncs
QUICKSORT = 33  # its pointer in a PyArray_ArrFuncs


@cache
def sorts() -> tuple[int, ...]:
    """The address of the sort of each dtype; 0 where none was found.

    >>> len(sorts())
    6
    """
    try:
        capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
        read = pythonapi.PyCapsule_GetPointer
        read.restype, read.argtypes = c_void_p, (py_object, c_char_p)
        interface = cast(read(capsule, None), POINTER(c_void_p))
        table = CFUNCTYPE(c_void_p, py_object)(interface[FUNCTIONS] or 0)
        tables = [cast(table(np.dtype(t)), POINTER(c_void_p)) for t in SORTED_DTYPES]
        found = tuple(t[QUICKSORT] or 0 for t in tables)
    except (ImportError, AttributeError, ValueError, TypeError):
        mention("NumPy's sorts were not found; loops serve")
        return (0,) * len(SORTED_DTYPES)
    return tuple(
        at if really_sorts(at, t) else 0 for at, t in zip(found, SORTED_DTYPES, strict=True)
    )


def really_sorts(at: int, dtype: type) -> bool:
    """True if the function at an address sorts elements of the dtype in place."""
    if not at:
        return False
    values: Sequence[int] = [(7 * i) % 31 for i in range(31)]
    line: np.ndarray = np.array(values, dtype)
    sort = CFUNCTYPE(c_int, c_void_p, c_ssize_t, c_void_p)(at)
    return bool(sort(line.ctypes.data, line.size, None) == 0 and line.tolist() == sorted(values))


# -------- The matrix products that NumPy itself was linked with, as addresses that C may call.
# NumPy's linear algebra sits in one extension module; asked for a symbol, the loader looks through
# that module and all that it was linked with, so no file has to be searched for. Each name is tried
# before it is believed.


# How vendors spell `cblas_sgemm`, and whether its integers have 64 bits. Names
# that say so come first. fmt: off
SPELLINGS = (
    ("scipy_cblas_{}gemm64_", True),  # OpenBLAS in NumPy's wheels
    ("cblas_{}gemm64_", True),  # OpenBLAS of 64 bits
    ("cblas_{}gemm_64", True),  # MKL, reference BLAS
    ("cblas_{}gemm$NEWLAPACK$ILP64", True),  # Accelerate
    ("scipy_cblas_{}gemm", False),
    ("cblas_{}gemm", False),
    ("cblas_{}gemm$NEWLAPACK", False),
)
THREADS = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)
# fmt: on
DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
LOOKING = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyGILState_Release")
ROW_MAJOR, PLAIN, LOWER = 101, 111, 122
PRODUCTS = np.zeros(2, np.int64)  # a `ge2_products`, one a process


@final
@record
class Blas:
    """Addresses of `cblas_?gemm`, `cblas_?gemv`, `cblas_?syrk` and of what counts threads, 0 where
    not found.

    `ilp64`: whether their integers have 64 bits.
    """

    sgemm: int = 0
    dgemm: int = 0
    cgemm: int = 0
    zgemm: int = 0
    ilp64: bool = False
    sgemv: int = 0
    dgemv: int = 0
    cgemv: int = 0
    zgemv: int = 0
    ssyrk: int = 0
    dsyrk: int = 0
    get_threads: int = 0
    set_threads: int = 0

    @property
    def whole(self) -> bool:
        """True if each of the products of matrices is there."""
        return all((self.sgemm, self.dgemm, self.cgemm, self.zgemm))

    def pack(self) -> bytes:
        """The head of a `ge2_services`: all but the address of an error."""
        matrices = self.sgemm, self.dgemm, self.cgemm, self.zgemm
        vectors = self.sgemv, self.dgemv, self.cgemv, self.zgemv
        triangles = self.ssyrk, self.dsyrk
        threads = self.get_threads, self.set_threads, PRODUCTS.ctypes.data
        found = *matrices, *vectors, *triangles, self.ilp64, *threads, *python(), *sorts()
        return np.array((*found, LOOPS.ctypes.data), np.uint64).tobytes()


@cache
def python() -> tuple[int, ...]:
    """The addresses of what lets a program look for signals while it runs;
    zeros where they are not found.
    """
    found = tuple(address(pythonapi, name) for name in LOOKING)
    return found if all(found) else (0, 0, 0)


@cache
def services() -> Blas:
    """Returns what of NumPy's BLAS can be called.

    >>> isinstance(services().sgemm, int)
    True
    """
    library = linked()
    for spelling, ilp64 in SPELLINGS:
        found = {t: address(library, spelling.format(t)) for t in DTYPES}
        if found["d"] and all(works(at, t, ilp64) for t, at in found.items() if at):
            mention("matrix products by %s", spelling.format("?"))
            each = {f"{t}gemm": at for t, at in found.items()} | vectors(library, spelling, ilp64)
            each |= triangles(library, spelling, ilp64)
            return Blas(**each, **counters(library), ilp64=ilp64)
    mention("NumPy's BLAS was not found; np.matmul serves")
    return Blas()


CORES = [f"{a}openblas_get_corename{b}" for a in ("scipy_", "") for b in ("64_", "")]
WIDE = ("skylakex", "cooperlake", "sapphirerapids")  # kernels of OpenBLAS with vectors of 64 bytes


@cache
def core() -> str:
    """The processor that OpenBLAS has chosen its kernels for; "" of another BLAS."""
    library = linked()
    name = next((name for name in CORES if address(library, name)), "")
    found: bytes | None = CFUNCTYPE(c_char_p)(address(library, name))() if name else None
    return found.decode().lower() if found else ""


def is_narrow() -> bool:
    """True if the BLAS is OpenBLAS with vectors of half the length that the processor has: it has
    kernels of 64 bytes for some processors alone.
    """
    return bool(core()) and has_long_vectors() and core() not in WIDE


def unpacked() -> int:
    """The multiplications up to which OpenBLAS has kernels that pack nothing, for the same processors."""
    return 1_000_000 if core() in WIDE else 0


def limits(threads: int, tuning: Tuning = TUNING) -> Caps:
    """The limits of programs of so many threads on this machine."""
    return Caps(threads, bool(services().dgemm), tuning, is_narrow(), unpacked())


def vectors(library: CDLL | None, spelling: str, ilp64: bool) -> dict[str, int]:
    """The products of a matrix and a vector beside those of matrices."""
    found = {t: address(library, spelling.replace("gemm", "gemv").format(t)) for t in DTYPES}
    return {f"{t}gemv": at for t, at in found.items() if at and works_on_vectors(at, t, ilp64)}


def triangles(library: CDLL | None, spelling: str, ilp64: bool) -> dict[str, int]:
    """The products of a matrix and its transpose, of which they write a half."""
    found = {t: address(library, spelling.replace("gemm", "syrk").format(t)) for t in "sd"}
    return {f"{t}syrk": at for t, at in found.items() if at and works_on_itself(at, t, ilp64)}


def counters(library: CDLL | None) -> dict[str, int]:
    """The addresses of the functions that read and set the number of threads of the BLAS."""
    for get, put in THREADS:
        if address(library, get) and address(library, put):
            return {"get_threads": address(library, get), "set_threads": address(library, put)}
    return {}


@cache
def linked() -> CDLL | None:
    """NumPy's linear algebra and what it was linked with."""
    try:
        return CDLL(import_module("numpy._core._multiarray_umath").__file__)
    except (ImportError, AttributeError, OSError):
        return None


def address(library: CDLL | None, symbol: str) -> int:
    try:
        return cast(getattr(library, symbol), c_void_p).value or 0
    except AttributeError:
        return 0


def works(at: int, letter: str, ilp64: bool) -> bool:
    """True if the function at an address multiplies matrices, its integers being of that size."""
    size = c_int64 if ilp64 else c_int32
    real = letter in "sd"
    scalar: Any = {"s": c_float, "d": c_double}.get(letter, c_void_p)
    matrix = c_void_p, size  # and from row to row
    order = c_int, c_int, c_int, size, size, size, scalar, *matrix, *matrix, scalar, *matrix
    gemm = CFUNCTYPE(None, *order)(at)
    dtype = np.dtype(DTYPES[letter])
    a, b = np.arange(6).reshape(2, 3).astype(dtype), np.arange(12).reshape(3, 4).astype(dtype)
    y, one, zero = np.full((2, 4), 7, dtype), np.ones((), dtype), np.zeros((), dtype)
    scale, keep = (one.item(), zero.item()) if real else (one.ctypes.data, zero.ctypes.data)
    places = (a.ctypes.data, 3, b.ctypes.data, 4, keep, y.ctypes.data, 4)
    gemm(ROW_MAJOR, PLAIN, PLAIN, 2, 4, 3, scale, *places)
    return bool(y.tolist() == [[20, 23, 26, 29], [56, 68, 80, 92]])


def works_on_vectors(at: int, letter: str, ilp64: bool) -> bool:
    """True if the function at an address multiplies a matrix and a vector."""
    size, real = c_int64 if ilp64 else c_int32, letter in "sd"
    scalar: Any = {"s": c_float, "d": c_double}.get(letter, c_void_p)
    matrix = c_void_p, size  # and from row to row; of a vector from element to element
    order = c_int, c_int, size, size, scalar, *matrix, *matrix, scalar, *matrix
    gemv, dtype = CFUNCTYPE(None, *order)(at), np.dtype(DTYPES[letter])
    a, x = np.arange(6).reshape(2, 3).astype(dtype), np.arange(6).astype(dtype)
    y, one, zero = np.full(2, 7, dtype), np.ones((), dtype), np.zeros((), dtype)
    scale, keep = (one.item(), zero.item()) if real else (one.ctypes.data, zero.ctypes.data)
    gemv(ROW_MAJOR, PLAIN, 2, 3, scale, a.ctypes.data, 3, x.ctypes.data, 2, keep, y.ctypes.data, 1)
    return bool(y.tolist() == [10, 28])


def works_on_itself(at: int, letter: str, ilp64: bool) -> bool:
    """True if the function at an address writes the lower half of a matrix times its transpose."""
    size = c_int64 if ilp64 else c_int32
    scalar = c_float if letter == "s" else c_double
    order = (c_int, c_int, c_int, size, size, scalar, c_void_p, size, scalar, c_void_p, size)
    syrk, dtype = CFUNCTYPE(None, *order)(at), np.dtype(DTYPES[letter])
    a, y = np.arange(6).astype(dtype), np.full((2, 2), 7, dtype)
    syrk(ROW_MAJOR, LOWER, PLAIN, 2, 3, 1, a.ctypes.data, 3, 0, y.ctypes.data, 2)
    return bool(y.tolist() == [[5, 7], [14, 50]])


# ------------------------------------------------------------------------------------------ threads


@cache
def _counters() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    library = linked()
    for get, put in THREADS:
        if address(library, get) and address(library, put):
            reading, writing = getattr(library, get), getattr(library, put)
            reading.argtypes, reading.restype = (), c_int
            writing.argtypes, writing.restype = (c_int,), None
            return reading, writing
    return None


def get_threads() -> int | None:
    """Returns how many threads the BLAS uses; None where it does not say."""
    found = _counters()
    return None if found is None else found[0]()


def matmul_on(threads: int) -> Callable[..., Any]:
    """`np.matmul` on that many threads of the BLAS; NumPy's own where
    the BLAS has that many already.
    """
    before = get_threads()
    if before is None or before == threads:
        return np.matmul

    def matmul(*args: Any, **more: Any) -> Any:
        before = get_threads()
        set_threads(threads)
        try:
            return np.matmul(*args, **more)
        finally:
            set_threads(before or 1)

    return matmul


def set_threads(count: int) -> bool:
    """Tells the BLAS how many threads to use, for the whole process; False
    where it cannot be told.
    """
    found = _counters()
    if found is None:
        return False
    found[1](count)
    return True


# -------- NumPy's own loops over matrices and lines, as addresses that C may call.
# A ufunc has a loop for each combination of types, which calls LAPACK, or a Fourier transform, for
# each matrix or line of a stack, and needs no interpreter. Its head is part of NumPy's C interface.
# Each loop is tried beside its ufunc before it is believed.


ROWS = (  # as numpy_loops.h names them
    "solve", "det", "slogdet", "cholesky_lo", "eigh_lo", "eigh_up", "eigvalsh_lo", "eigvalsh_up",
    "svd", "svd_s", "svd_f", "fft", "ifft", "rfft_n_even", "rfft_n_odd", "irfft", "getrf", "getrs",
)  # fmt: skip
FOURIER = ROWS[11:16]
FAILURES = (  # what NumPy says of a matrix, by the number that a kernel has for it
    "", "Singular matrix", "Matrix is not positive definite", "Eigenvalues did not converge",
    "SVD did not converge",
)  # fmt: skip
TYPES = (np.float32, np.float64, np.complex64, np.complex128)  # of the first operand
LOOPS = np.zeros((len(ROWS), len(TYPES), 2), np.uint64)  # what a `ge2_services` points to


class UfuncHead(Structure):
    """The first fields of a NumPy ufunc after its object header, as ufuncobject.h declares them."""

    _fields_ = (
        ("nin", c_int), ("nout", c_int), ("nargs", c_int), ("identity", c_int),
        ("loops", POINTER(c_void_p)), ("given", POINTER(c_void_p)), ("count", c_int),
    )  # fmt: skip


@cache
def has_loop(name: str, dtype: np.dtype) -> bool:
    """True if C may call a loop for operands of the dtype by `LOOPS`, where it is from then on.

    >>> has_loop("solve", np.dtype(np.int64))
    False
    """
    if dtype.type not in TYPES:
        return False
    try:
        found = by_address(name, dtype) if name in ("getrf", "getrs") else by_ufunc(name, dtype)
    except (ImportError, AttributeError, StopIteration):
        found = None
    if found is None:
        mention("NumPy's loop of %s was not found; NumPy is called", name)
        return False
    LOOPS[ROWS.index(name), TYPES.index(dtype.type)] = found
    return True


def by_address(name: str, dtype: np.dtype) -> tuple[int, int] | None:
    """A function of LAPACK whose integers have 64 bits."""
    library = lapack()
    if library is None or library.swaps != INT64:
        return None
    functions = library.factor if name == "getrf" else library.solve
    return cast(functions[dtype], c_void_p).value or 0, 0


def by_ufunc(name: str, dtype: np.dtype) -> tuple[int, int] | None:
    """The loop of a ufunc, and what it is given, if it does in the ufunc's stead."""
    module = "fft._pocketfft_umath" if name in FOURIER else "linalg._umath_linalg"
    ufunc = getattr(import_module(f"numpy.{module}"), name)
    head = UfuncHead.from_address(id(ufunc) + object.__basicsize__)
    if (head.nin, head.nout, head.count) != (ufunc.nin, ufunc.nout, ufunc.ntypes):
        return None
    at = next(i for i, types in enumerate(ufunc.types) if types[0] == dtype.char)
    found = head.loops[at] or 0, (head.given[at] or 0) if head.given else 0
    return found if found[0] and loop_works(ufunc, found, dtype) else None


def loop_works(ufunc: np.ufunc, found: tuple[int, int], dtype: np.dtype) -> bool:
    """True if a loop makes of a matrix, or of a line, the bits that its ufunc makes."""
    first = np.array([[4, 1], [1, 3]], dtype)
    given, sizes = [first] * ufunc.nin, (2, 2, 2)
    if ufunc.__name__ in FOURIER:
        n = {"rfft_n_odd": 5, "irfft": 3}.get(ufunc.__name__, 4)
        line = np.array([3, 1, 4, 1, 5][:n], dtype)
        given, sizes = [line, np.ones((), line.real.dtype)], (n, n, 0)
        m = {"rfft_n_even": 3, "rfft_n_odd": 3}.get(ufunc.__name__, 4)
        sizes, wanted = (n, m, 0), [ufunc(*given, out=np.empty(m, ufunc_result(ufunc, dtype)))]
    else:
        made = ufunc(*given)
        wanted = list(made) if isinstance(made, tuple) else [made]
    results = [np.zeros_like(y) for y in wanted]
    arrays = [*given, *results]
    steps = [0] * len(arrays) + [step for x in arrays for step in x.strides]
    call = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_void_p)(found[0])
    places = np.array([x.ctypes.data for x in arrays], np.int64)
    counts, strides = np.array([1, *sizes], np.intp), np.array(steps, np.intp)
    call(*(x.ctypes.data for x in (places, counts, strides)), found[1])
    return all(np.array_equal(x, y) for x, y in zip(results, wanted, strict=True))


def ufunc_result(ufunc: np.ufunc, dtype: np.dtype) -> np.dtype:
    """The dtype of what a ufunc makes, by that of its first operand."""
    return np.dtype(next(t[-1] for t in ufunc.types if t[0] == dtype.char))


# -------- LAPACK's factors of a matrix, and systems solved by them, where NumPy was linked with it.
# NumPy's functions factor a matrix anew for each right side; LAPACK's own two are called here.


# How vendors spell `dgetrf`, and whether its integers have 64 bits.
LAPACK_SPELLINGS = (
    ("scipy_{}get{}_64_", True),  # OpenBLAS in NumPy's wheels
    ("{}get{}_64_", True),
    ("scipy_{}get{}_", False),
    ("{}get{}_", False),
)


@final
@record
class Lapack:
    """`?getrf` and `?getrs` of each dtype, and the types of their integers in C and in arrays."""

    factor: dict[np.dtype, Any]
    solve: dict[np.dtype, Any]
    size: Any
    swaps: np.dtype

    def factored(self, a: Any) -> tuple[Any, Any]:
        """The factors of a matrix: the results of a `Lu`."""
        lu, swaps, info = a.T.copy(), np.empty(len(a), self.swaps), self.size()
        order, rows = number(self.size, len(a)), number(self.size, max(len(a), 1))
        last = rows, address_of(swaps), byref(info)
        self.factor[a.dtype](order, order, address_of(lu), *last)
        if info.value:
            raise np.linalg.LinAlgError("Singular matrix")
        return lu, swaps.astype(INT64, copy=False)

    def solver(
        self, b: ArrayType, transposed: bool, triangular: bool = False
    ) -> Callable[..., Any]:
        """The function that computes a `LuSolve`. Calls are short, so what they share is made once."""
        solve, dtype, info = self.solve[b.dtype], self.swaps, byref(self.size())
        n, k, rows = (number(self.size, each) for each in (*b.shape, max(b.shape[0], 1)))
        mode, one = byref(c_char(b"T" if transposed else b"N")), b.shape[1] == 1

        def solved(lu: Any, swaps: Any, b: Any) -> Any:
            if triangular and not np.all(np.diagonal(lu)):
                raise np.linalg.LinAlgError("Singular matrix")
            x = b.T.copy()  # LAPACK's matrices lie by columns
            if swaps.dtype is not dtype:
                swaps = swaps.astype(dtype)
            solve(mode, n, k, address_of(lu), rows, address_of(swaps), address_of(x), rows, info, 1)
            return x.T if one else x.T.copy()

        return solved


def address_of(x: Any) -> Any:
    """The address of an array, in a fifth of the time that `x.ctypes` takes where it may be written."""
    try:
        return byref(c_char.from_buffer(x))
    except (TypeError, ValueError):  # read-only, or of no elements
        return x.ctypes.data


@cache
def number(size: Any, n: int) -> Any:
    """An integer by its address, as LAPACK takes all of them, which it only reads."""
    return byref(size(n))


@cache
def lapack() -> Lapack | None:
    """The functions of LAPACK that can be called; None where it is not found.

    >>> found = lapack()
    >>> found is None or sorted(map(str, found.factor))
    ['complex128', 'complex64', 'float32', 'float64']
    """
    for spelling, ilp64 in LAPACK_SPELLINGS:
        found = called(spelling, c_int64 if ilp64 else c_int32)
        if found is not None and lapack_works(found):
            mention("factors of matrices by %s", spelling.format("?", "rf"))
            return found
    return None


def called(spelling: str, size: Any) -> Lapack | None:
    """The functions of a name, if each is there."""
    factor, solve = (
        {np.dtype(d): address(linked(), spelling.format(t, name)) for t, d in DTYPES.items()}
        for name in ("rf", "rs")
    )
    if not all((*factor.values(), *solve.values())):
        return None
    where = [c_void_p] * 6
    first, second = CFUNCTYPE(None, *where), CFUNCTYPE(None, *where, *[c_void_p] * 3, c_int64)
    swaps = np.dtype(np.int64 if size is c_int64 else np.int32)
    return Lapack(functions(first, factor), functions(second, solve), size, swaps)


def functions(of: Callable[[int], Any], found: dict[np.dtype, int]) -> dict[np.dtype, Any]:
    return {dtype: of(at) for dtype, at in found.items()}


def lapack_works(found: Lapack) -> bool:
    """True if the functions solve small systems, their integers being of that size."""
    a, b = np.array([[0, 2, 0], [4, 1, 0], [0, 0, 8]]), np.array([[4, 2], [6, 9], [8, 16]])
    for dtype in found.factor:
        given, type_ = found.factored(a.astype(dtype)), ArrayType(b.shape, dtype)
        plain, turned = (found.solver(type_, t)(*given, b.astype(dtype)) for t in (False, True))
        if not (np.array_equal(a @ plain, b) and np.array_equal(a.T @ turned, b)):
            return False
    return True


def by_lapack(eqn: Eqn) -> Callable[..., Any] | None:
    """The function that computes an equation by LAPACK; None of other operations."""
    op = eqn.op
    if not isinstance(op, Lu | LuSolve) or (found := lapack()) is None:
        return None
    return (
        found.factored
        if isinstance(op, Lu)
        else found.solver(eqn.outs[0].type, op.transposed, op.triangular)
    )
