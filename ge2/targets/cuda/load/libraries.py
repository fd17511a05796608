"""Libraries of a GPU that kernels are taken from: products by cuBLASLt, and attention by cuDNN."""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from ctypes import (
    CFUNCTYPE,
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
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import (
    BFLOAT16,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FP8,
    INT8,
    INT32,
)
from ge2.base.errors import DeviceError, KernelError
from ge2.base.source import logger
from ge2.targets.cuda.launch.library_call import (
    STREAM,
    Function,
    LibraryCall,
    LibraryEpilogue,
    Passed,
    Steps,
    Table,
    Wanted,
    WantedAttention,
)
from ge2.targets.cuda.load import library_path
from ge2.targets.cuda.products import Matrix

if TYPE_CHECKING:
    from ge2.targets.cuda.load.arena import Gpu


# -------- Matrix products by cuBLASLt, with a handle of our own on each GPU and scratch that the
# program has for it.
# The library is asked through ctypes, as NVRTC is: NVIDIA's bindings take 200 to 300 ms to import,
# and bring packages along. A product is a launch like any other (`launch/library_call.py`), which
# allocates nothing and waits for nothing, so that it may stand in the capture of a stream. Numbers
# are those of cublasLt.h and library_types.h.


PACKAGES: Final = ("cu13", "cublas")
INSTALL: Final = "pip install 'nvidia-cublas>=13,<14', or ge2[cuda13]; ge2 doctor"
KEPT: Final = 1024  # products that a GPU remembers
NOT_SUPPORTED: Final = 15
TYPES: Final = {
    FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, COMPLEX64: 4, COMPLEX128: 5, BFLOAT16: 14, FP8[0]: 28,
    FP8[1]: 29, INT8: 3, INT32: 10,
}  # fmt: skip
# CUBLAS_COMPUTE_32F, 64F, 32I, 32F_FAST_16BF, 32F_FAST_TF32
SINGLE, DOUBLE, WHOLE, FAST_BF16, FAST_TF32 = 68, 70, 72, 75, 77
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
    if dtype == INT8:
        return WHOLE, TYPES[INT32], c_int32(1), c_int32(0)
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
        first, other = wanted.dtypes
        self.layouts = (
            self.layout(first, g.m, g.k, g.first),
            self.layout(other, g.k, g.n, g.other),
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


# -------- Attention by cuDNN, through NVIDIA's front end for it, which is optional.
# The front end makes a graph of cuDNN's operations, and a plan of it. A launch is the plan's
# execution: a function in C that the extension calls with addresses and the stream, as it does any
# library's, and captures what that launches. That function is Python's, so it is called when a
# graph is captured, or where there is none, and never when a captured graph runs. Nothing is
# imported before attention is first offered to cuDNN.


INSTALL_CUDNN: Final = "pip install 'ge2[cudnn]'"
# of cuDNN: 9.10.0 and 9.10.1 have wrong attention, as its front end says; before, windows need a
# causal mask
OLDEST: Final = 91002
# with versions before this, keys that are no multiple of 128 are lengths that are copied from the
# host in each call, which a captured graph cannot do
ANY_LENGTH: Final = 91501
# what a module of C++ raises beside exceptions of its own, and Python in loading it
FAILURES: Final = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ImportError,
    OSError,
    AssertionError,
    AttributeError,
)
GRAPHS: Final = 256  # graphs that a GPU remembers


def missing() -> str:
    """The reason why there is no cuDNN, as far as nothing need be loaded to know; "" if there may
    be one.
    """
    return "" if find_spec("cudnn") is not None else f"cuDNN is not installed: {INSTALL_CUDNN}"


@once
def frontend() -> Any:
    """NVIDIA's module; or the reason why it cannot be used."""
    if reason := missing():
        return reason
    path = library_path("libcudnn", "cudnn")
    try:
        if path:
            ctypes.CDLL(path)  # so that the front end finds it by name
        found = import_module("cudnn")
        version = int(found.backend_version())
    except FAILURES as trouble:
        return f"cuDNN cannot be loaded: {trouble}"
    if version < OLDEST:
        return f"cuDNN {version} is too old: {OLDEST} is the oldest with all of attention"
    return found


@final
class Graphs:
    """The graphs that were asked of a handle of cuDNN's, planned once."""

    __slots__ = ("_known", "_lock", "handle", "module")

    def __init__(self, module: Any, handle: Any) -> None:
        self.module, self.handle = module, handle
        self._known: OrderedDict[WantedAttention, LibraryCall | str] = OrderedDict()
        self._lock = Lock()

    def of(self, wanted: WantedAttention) -> LibraryCall | str:
        """A launch of attention, or of its derivative; or the reason why cuDNN has none."""
        with self._lock:
            if wanted not in self._known:
                self._known[wanted] = built(self.module, self.handle, wanted)
                while len(self._known) > GRAPHS:
                    self._known.popitem(last=False)
            self._known.move_to_end(wanted)
            return self._known[wanted]


def on(device: Gpu, module: Any) -> Graphs:
    """Returns the planned graphs, none yet, of a new handle of cuDNN's on a GPU."""
    with device.here():
        device.xp.cuda.runtime.free(0)  # which makes a context, if there is none yet
        return Graphs(module, module.create_handle())


def built(module: Any, handle: Any, wanted: WantedAttention) -> LibraryCall | str:
    """The launch; or why there is none. What cuDNN does not support is no surprise, all else is a
    warning.
    """
    padded = wanted.backward and wanted.keys % 128 and module.backend_version() < ANY_LENGTH
    if padded:
        return "keys are no multiple of 128, which this version of cuDNN copies lengths for"
    try:
        graph = Graph(module, handle, wanted)
        scratch = graph.plan()
    except module.cudnnGraphNotSupportedError as refusal:
        return f"cuDNN has no such attention: {first_line(refusal)}"
    except FAILURES as trouble:
        why = f"cuDNN makes no plan: {first_line(trouble)}"
        logger().warning("%s; another kernel is taken", why)
        return why
    if scratch > wanted.workspace:
        few, much = (-(-n >> 20) for n in (wanted.workspace, scratch))
        return f"cuDNN asks for {much} MB of scratch, and may have {few} (GE2_WORKSPACE)"
    return Execution(graph, scratch).call()


def first_line(trouble: Exception) -> str:
    return next(iter(str(trouble).strip().splitlines()), type(trouble).__name__)


class Graph:
    """Attention as cuDNN describes it: a graph of one operation, and its tensors in the order of the
    launch's arguments.
    """

    def __init__(self, module: Any, handle: Any, wanted: WantedAttention) -> None:
        self.module, self.handle, self.wanted = module, handle, wanted
        types = module.data_type
        self.io = {FLOAT16: types.HALF, BFLOAT16: types.BFLOAT16}[wanted.dtype]
        self.graph = module.pygraph(
            io_data_type=self.io, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT,
            handle=handle,
        )  # fmt: skip
        self.tensors = tuple(self.backward() if wanted.backward else self.forward())

    def forward(self) -> list[Any]:
        steps = self.wanted.steps
        given = [self.given(name, rows, n) for n, (name, rows) in enumerate(self.sides("qkv"))]
        logs = len(steps) > 4
        y, sums = self.graph.sdpa(*given, generate_stats=logs, name="attention", **self.about())
        found = [*given, self.made(y, "q", steps[3])]
        if logs:
            self.made(sums, "sums", steps[4])
            found.append(sums)
        return found

    def backward(self) -> list[Any]:
        steps = self.wanted.steps
        given = [self.given(name, rows, n) for n, (name, rows) in enumerate(self.sides("qkvqq"))]
        sums = self.given("sums", "sums", 5)
        made = self.graph.sdpa_backward(
            *given, sums, use_deterministic_algorithm=self.wanted.ordered, name="attention",
            **self.about(),
        )  # fmt: skip
        pairs = zip(made, "qkv", steps[6:], strict=True)
        return [*given, sums, *(self.made(x, rows, each) for x, rows, each in pairs)]

    def sides(self, letters: str) -> list[tuple[str, str]]:
        """A name for each operand, and whose rows it has."""
        return [(f"{letter}{n}", letter) for n, letter in enumerate(letters)]

    def about(self) -> dict[str, Any]:
        """Of scores: what they are multiplied by, and which keys are seen."""
        wanted, band = self.wanted, self.wanted.band
        found: dict[str, Any] = {"attn_scale": wanted.factor}
        if band.low is not None or band.high is not None:
            found["diagonal_alignment"] = self.module.diagonal_alignment.TOP_LEFT
        if band.low is not None:
            found["diagonal_band_right_bound"] = -band.low
        if band.high is not None:
            found["diagonal_band_left_bound"] = band.high + 1  # the keys up to the diagonal
        return found

    def shape(self, rows: str) -> list[int]:
        w = self.wanted
        if rows == "sums":
            return [w.batches, w.heads, w.queries, 1]
        heads, count = (w.heads, w.queries) if rows == "q" else (w.key_heads, w.keys)
        return [w.batches, heads, count, w.width]

    def dtype(self, rows: str) -> Any:
        return self.module.data_type.FLOAT if rows == "sums" else self.io

    def given(self, name: str, rows: str, n: int) -> Any:
        """The tensor of an operand that is read."""
        return self.graph.tensor(
            name=name, dim=self.shape(rows), stride=[*self.wanted.steps[n], 1],
            data_type=self.dtype(rows),
        )  # fmt: skip

    def made(self, tensor: Any, rows: str, steps: Steps) -> Any:
        """A tensor that the operation makes, where it is to lie."""
        tensor.set_output(True).set_dim(self.shape(rows)).set_stride([*steps, 1])
        return tensor.set_data_type(self.dtype(rows))

    def plan(self) -> int:
        """Has cuDNN plan the graph; the bytes of scratch that it asks for."""
        modes = self.module.heur_mode
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([modes.A, modes.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans()
        return int(self.graph.get_workspace_size())


class Execution:
    """A plan as a function in C of the addresses of its tensors, that of its scratch, and the stream."""

    def __init__(self, graph: Graph, scratch: int) -> None:
        self.graph, self.scratch, self.said = graph, scratch, ""
        self.lock = Lock()  # a handle has one stream
        count = len(graph.tensors) + 2
        self.function = CFUNCTYPE(c_int, *(c_uint64,) * count)(self.run)

    def run(self, *words: int) -> int:
        """Executes the plan; 0, or 1 if it fails."""
        *places, scratch, stream = words
        graph = self.graph
        try:
            with self.lock:
                graph.module.set_stream(handle=graph.handle, stream=stream)
                pack = dict(zip(graph.tensors, places, strict=True))
                graph.graph.execute(pack, scratch, handle=graph.handle)
        except FAILURES as trouble:  # through C nothing is raised
            self.said = str(trouble)
            return 1
        return 0

    def call(self) -> LibraryCall:
        count = len(self.graph.tensors)
        words = *(Passed(n) for n in range(count)), Passed(count) if self.scratch else 0, STREAM
        address = ctypes.cast(self.function, c_void_p).value or 0
        name = "cudnnBackendExecute"
        function = Function(name, address, words)
        return LibraryCall(
            "cuDNN", (function,), self.scratch, self, lambda status: self.said, in_python=True
        )
