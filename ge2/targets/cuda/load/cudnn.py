"""Attention by cuDNN, through NVIDIA's front end for it, which is optional.

The front end makes a graph of cuDNN's operations, and a plan of it. A launch is the plan's execution:
a function in C that the extension calls with addresses and the stream, as it does any library's, and
captures what that launches. That function is Python's, so it is called when a graph is captured, or
where there is none, and never when a captured graph runs. Nothing is imported before attention is
first offered to cuDNN.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from ctypes import CFUNCTYPE, c_int, c_uint64, c_void_p
from functools import cache as once
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.arrays import BFLOAT16, FLOAT16
from ge2.base.source import logger
from ge2.targets.cuda.launch.library_call import (
    STREAM,
    Function,
    LibraryCall,
    Passed,
    Steps,
    WantedAttention,
)
from ge2.targets.cuda.load.toolkit import library_path

if TYPE_CHECKING:
    from ge2.targets.cuda.load.arena import Gpu

INSTALL: Final = "pip install 'ge2[cudnn]'"
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
KEPT: Final = 256  # graphs that a GPU remembers


def missing() -> str:
    """The reason why there is no cuDNN, as far as nothing need be loaded to know; "" if there may
    be one.
    """
    return "" if find_spec("cudnn") is not None else f"cuDNN is not installed: {INSTALL}"


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
                while len(self._known) > KEPT:
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
