"""Matrix products by cuBLASLt, with a handle of our own on each GPU and scratch
that the program has for it.

The library is asked through ctypes, as NVRTC is: NVIDIA's bindings take 200 to 300 ms to
import, and bring packages along. A product is a launch like any other
(`launch/library_call.py`), which allocates nothing and waits for nothing, so that it may stand
in the capture of a stream. Numbers are those of cublasLt.h and library_types.h.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from ctypes import (
    addressof,
    byref,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache as once
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, FP8
from ge2.base.errors import DeviceError, KernelError
from ge2.targets.cuda.launch.library_call import (
    STREAM,
    Function,
    LibraryCall,
    LibraryEpilogue,
    Passed,
    Table,
    Wanted,
)
from ge2.targets.cuda.load.toolkit import library_path
from ge2.targets.cuda.products.gemm import Matrix

if TYPE_CHECKING:
    from ge2.targets.cuda.load.arena import Gpu

PACKAGES: Final = ("cu13", "cublas")
INSTALL: Final = "pip install 'nvidia-cublas>=13,<14', or ge2[cuda13]; ge2 doctor"
KEPT: Final = 1024  # products that a GPU remembers
NOT_SUPPORTED: Final = 15
TYPES: Final = {
    FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, COMPLEX64: 4, COMPLEX128: 5, BFLOAT16: 14, FP8[0]: 28,
}  # fmt: skip
# CUBLAS_COMPUTE_32F, 64F, 32F_FAST_16BF, 32F_FAST_TF32
SINGLE, DOUBLE, FAST_BF16, FAST_TF32 = 68, 70, 75, 77
FAST: Final = {"tf32": FAST_TF32, "bf16": FAST_BF16}
TURN_FIRST, TURN_OTHER = 3, 4  # CUBLASLT_MATMUL_DESC_TRANSA, TRANSB
# CUBLASLT_MATMUL_DESC_EPILOGUE, BIAS_POINTER, EPILOGUE_AUX_POINTER, EPILOGUE_AUX_LD
EPILOGUE, VECTOR, MATRIX, MATRIX_LEAD = 7, 8, 11, 12
EPILOGUES: Final = {
    "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU": 32, "GELU_BIAS": 36, "GELU_AUX": 160,
    "GELU_AUX_BIAS": 164, "DGELU": 192, "DGELU_BGRAD": 208, "SCALED": 1,
}  # fmt: skip
SCALES: Final = 17, 18  # CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, B_SCALE_POINTER
BATCH_COUNT, BATCH_STEP = 5, 6  # CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, STRIDED_BATCH_OFFSET
# CUBLASLT_MATMUL_PREF_..., alignments of A, B, C, D
MOST_SCRATCH, REDUCTIONS, ALIGNED = 1, 3, (5, 6, 7, 8)
# CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: what is summed in parts is rounded once
IN_COMPUTE_TYPE: Final = 2


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t, opaque."""

    _fields_ = [("data", c_uint64 * 8)]


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cublasLtCreate": (c_void_p,),
    "cublasLtDestroy": (c_void_p,),
    "cublasLtMatmulDescCreate": (c_void_p, c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, c_void_p, c_void_p),
}


@final
class Library:
    """cuBLASLt, loaded.

    Each function is checked: KernelError with what it says, unless it succeeded.
    """

    __slots__ = ("functions", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.functions = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(f"cuBLASLt cannot be loaded: {error}", fix=INSTALL) from error
        for name, types in SIGNATURES.items():
            function = getattr(self.functions, name)
            function.argtypes, function.restype = types, c_int
        self.functions.cublasLtGetStatusString.restype = ctypes.c_char_p

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self.functions, name)(*args)
        if status:
            raise self.failed(name, status)

    def failed(self, name: str, status: int) -> KernelError:
        return KernelError(f"{name} fails with {status}: {self.words(status)}")

    def words(self, status: int) -> str:
        """The library's name for the number of an error."""
        said = self.functions.cublasLtGetStatusString(status)
        return said.decode() if said else "unknown"

    def made(self, owner: object, kind: str, *args: Any) -> c_void_p:
        """An object of the library, which lives as long as its owner does."""
        found = c_void_p()
        self.call(f"{kind}Create", byref(found), *args)
        weakref.finalize(owner, getattr(self.functions, f"{kind}Destroy"), found).atexit = False
        return found

    def set(self, kind: str, found: c_void_p, attribute: int, value: Any) -> None:
        self.call(f"{kind}SetAttribute", found, attribute, byref(value), ctypes.sizeof(value))


@once
def library() -> Library:
    """The library of this machine. DeviceError if there is none."""
    path = library_path("libcublasLt", *PACKAGES)
    if not path:
        raise DeviceError("matrix products need cuBLASLt, which is not installed", fix=INSTALL)
    return Library(path)


def of_scale(dtype: np.dtype) -> tuple[int, int, Any, Any]:
    """Returns how a product of a dtype is computed: type of sums, type of the scales,
    and the scales one and zero.
    """
    if dtype == FLOAT64:
        return DOUBLE, TYPES[FLOAT64], c_double(1), c_double(0)
    if dtype == COMPLEX128:
        return DOUBLE, TYPES[COMPLEX128], (c_double * 2)(1, 0), (c_double * 2)(0, 0)
    if dtype == COMPLEX64:
        return SINGLE, TYPES[COMPLEX64], (c_float * 2)(1, 0), (c_float * 2)(0, 0)
    return SINGLE, TYPES[FLOAT32], c_float(1), c_float(0)


@final
class Blas:
    """cuBLASLt on one GPU."""

    __slots__ = ("__weakref__", "_known", "_lock", "device", "handle", "library")

    def __init__(self, device: Gpu) -> None:
        self.device, self.library = device, library()
        self._known: OrderedDict[Wanted, LibraryCall | None] = OrderedDict()
        self._lock = Lock()
        with device.here():
            device.xp.cuda.runtime.free(0)  # which makes a context, if there is none yet
            self.handle = c_void_p()
            self.library.call("cublasLtCreate", byref(self.handle))

    def product(self, wanted: Wanted) -> LibraryCall | None:
        """The product, the best algorithm for it chosen; None if the library has none. One with arrays
        of an epilogue is made each time: a launch writes their addresses to its description, which
        two programs must not share.
        """
        with self._lock:
            if wanted not in self._known:
                self._known[wanted] = self.chosen(wanted)
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(wanted)
            known = self._known[wanted]
        return self.chosen(wanted) if known is not None and wanted.epilogue is not None else known

    def chosen(self, wanted: Wanted) -> LibraryCall | None:
        found = Matmul(self, wanted)
        with self.device.here():
            return found.call() if found.choose() else None


@final
class Matmul:
    """A product as cuBLASLt describes it: operation, layouts, the algorithm that is best."""

    __slots__ = (
        "__weakref__",
        "blas",
        "heuristic",
        "layouts",
        "one",
        "operation",
        "wanted",
        "zero",
    )

    def __init__(self, blas: Blas, wanted: Wanted) -> None:
        self.blas, self.wanted = blas, wanted
        lib, g = blas.library, wanted.gemm
        compute, scale, self.one, self.zero = of_scale(wanted.dtype)
        if wanted.dtype == FLOAT32 or wanted.dtype == COMPLEX64:
            compute = FAST.get(wanted.precision or "", compute)
        self.operation = lib.made(self, "cublasLtMatmulDesc", compute, scale)
        for attribute, matrix in ((TURN_FIRST, g.first), (TURN_OTHER, g.other)):
            lib.set("cublasLtMatmulDesc", self.operation, attribute, c_int32(matrix.turned))
        if wanted.epilogue is not None:
            self.describe(wanted.epilogue)
        self.layouts = (
            self.layout(wanted.dtype, g.m, g.k, g.first),
            self.layout(wanted.dtype, g.k, g.n, g.other),
            self.layout(wanted.out, g.m, g.n, g.result),
        )
        self.heuristic = Heuristic()

    def describe(self, epilogue: LibraryEpilogue) -> None:
        """Sets the epilogue; of addresses what they are multiples of, which choosing goes by."""
        values: list[tuple[int, Any]] = [(EPILOGUE, c_uint32(EPILOGUES[epilogue.kind]))]
        values += ((name, c_void_p(nbytes)) for name, nbytes in pointers(epilogue))
        if epilogue.lead:
            values.append((MATRIX_LEAD, c_int64(epilogue.lead)))
        for attribute, value in values:
            self.blas.library.set("cublasLtMatmulDesc", self.operation, attribute, value)

    def layout(self, dtype: np.dtype, rows: int, columns: int, matrix: Matrix) -> c_void_p:
        """A matrix as it lies: turned, its rows are columns."""
        lib, count = self.blas.library, self.wanted.gemm.count
        sizes = (columns, rows) if matrix.turned else (rows, columns)
        found = lib.made(self, "cublasLtMatrixLayout", TYPES[dtype], *sizes, matrix.lead)
        if count > 1:
            lib.set("cublasLtMatrixLayout", found, BATCH_COUNT, c_int32(count))
            lib.set("cublasLtMatrixLayout", found, BATCH_STEP, c_int64(matrix.step))
        return found

    def choose(self) -> bool:
        """Asks which algorithms are best; whether there is the one that is wanted."""
        lib, (a, b, y), count = self.blas.library, self.layouts, c_int()
        asked = self.wanted.algorithm + 1
        found = (Heuristic * asked)()
        owner = Owner()
        preference = lib.made(owner, "cublasLtMatmulPreference")
        most = c_uint64(self.wanted.workspace)
        lib.set("cublasLtMatmulPreference", preference, MOST_SCRATCH, most)
        if self.wanted.out in (FLOAT16, BFLOAT16):
            lib.set("cublasLtMatmulPreference", preference, REDUCTIONS, c_uint32(IN_COMPUTE_TYPE))
        first, other, result = self.wanted.aligned
        for attribute, nbytes in zip(ALIGNED, (first, other, result, result), strict=True):
            lib.set("cublasLtMatmulPreference", preference, attribute, c_uint32(nbytes))
        status = lib.functions.cublasLtMatmulAlgoGetHeuristic(
            self.blas.handle,
            self.operation,
            a,
            b,
            y,
            y,
            preference,
            asked,
            found,
            byref(count),
        )
        if status not in (0, NOT_SUPPORTED):
            raise lib.failed("cublasLtMatmulAlgoGetHeuristic", status)
        self.heuristic = found[self.wanted.algorithm]
        return not (status or count.value < asked or self.heuristic.state)

    def call(self) -> LibraryCall:
        """The product as a launch, of both factors, the result, arrays of an epilogue, and scratch."""
        lib, wanted, workspace = self.blas.library, self.wanted, int(self.heuristic.workspace)
        la, lb, ly = (layout.value or 0 for layout in self.layouts)
        size, size_out = wanted.dtype.itemsize, wanted.out.itemsize
        handle, operation = self.blas.handle.value or 0, self.operation.value or 0
        one, zero, algorithm = map(addressof, (self.one, self.zero, self.heuristic))
        address = ctypes.cast(lib.functions.cublasLtMatmul, c_void_p).value or 0
        found = self.addressed()
        scratch = 3 + len(found)
        for a, b, y in wanted.gemm.calls:
            first, other, result = Passed(0, a * size), Passed(1, b * size), Passed(2, y * size_out)
            words = (
                handle, operation, one, first, la, other, lb, zero, result, ly, result, ly, algorithm,
                Passed(scratch), workspace, STREAM,
            )  # fmt: skip
            found.append(Function("cublasLtMatmul", address, words))
        return LibraryCall("cuBLASLt", found, workspace, self, lib.words)

    def addressed(self) -> list[Function]:
        """Calls that write the addresses of an epilogue's arrays to the description, at each launch."""
        epilogue, name = self.wanted.epilogue, "cublasLtMatmulDescSetAttribute"
        if epilogue is None:
            return []
        function = getattr(self.blas.library.functions, name)
        address, operation = ctypes.cast(function, c_void_p).value or 0, self.operation.value or 0
        return [
            Function(name, address, (operation, attribute, Table((Passed(3 + n),)), 8))
            for n, (attribute, _) in enumerate(pointers(epilogue))
        ]


def pointers(epilogue: LibraryEpilogue) -> list[tuple[int, int]]:
    """The attributes that are addresses, and bytes of which those are multiples."""
    names = SCALES if epilogue.kind == "SCALED" else (VECTOR, MATRIX)
    pairs = zip(names, (epilogue.vector, epilogue.matrix), strict=True)
    return [(name, nbytes) for name, nbytes in pairs if nbytes]


class Owner:
    """Of what is needed for a moment."""
