"""The cache entry of one signature of a jitted function: graph, executable, how its results are
built.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.compile_times import Spent, Tally, making, spent
from ge2.base.config import config
from ge2.base.gpu import host, on_gpu
from ge2.base.interpreter import after_fork
from ge2.base.locks import alone
from ge2.base.pytrees.compiled import Build, Match, builder, matcher
from ge2.base.pytrees.pytree import Structure
from ge2.base.pytrees.treedef import LEAF
from ge2.dispatch.signature import is_static
from ge2.ir import ON_GPU, ArrayType, Eqn, Graph, Op, Var, type_of
from ge2.ops.graphs.control import EXECUTOR, Call
from ge2.trace.stage import place_of
from ge2.trace.writes import is_scalar
from ge2.transforms.arguments import Results

if TYPE_CHECKING:
    from ge2.compile.executable import Executable
    from ge2.passes.context import Iotas
    from ge2.targets.cuda.device import Device
    from ge2.trace.writes import Writes

FAMILIES: Final = (
    # executables that are kept for graphs that are met again, in another function or a new lambda
    128
)
_compiled: OrderedDict[Any, Executable] = OrderedDict()
_guard = Lock()


def compiled(
    graph: Graph,
    donated: tuple[bool, ...] = (),
    name: str = "f",
    limit: int | None = None,
    device: int | None = None,
    writes: Writes | None = None,
    iotas: Iotas = (),
) -> Executable:
    """The executable of a graph under the settings of now, on a GPU if named.

    Equal graphs of the same lines share one.
    """
    with spent("import"):
        from ge2.compile.compile import compile_graph  # passes and templates are not needed before

    key = key_of(graph, donated, limit, device, writes, iotas)
    found = _compiled.get(key)
    if found is None:
        with alone(("compile", key)):
            found = _compiled.get(key)
            if found is None:
                found = compile_graph(
                    graph, donated=donated, name=name, limit=limit, device=gpu_or_not(device),
                    writes=writes, iotas=iotas,
                )  # fmt: skip
                found.build()
                keep(key, found)
    return found


def gpu_or_not(number: int | None) -> Device | None:
    if number is None:
        return None
    from ge2.targets.cuda.load.gpu import gpu

    return gpu(number)


def there(device: Device | None, x: Any) -> Any:
    """A captured array on the device: what a function made while it was traced was NumPy's."""
    if device is None or on_gpu(x) or not isinstance(x, np.ndarray):
        return x
    from ge2.targets.cuda.device import upload

    return upload(device, x)


def key_of(
    graph: Graph,
    donated: tuple[bool, ...],
    limit: int | None,
    device: int | None,
    writes: Writes | None = None,
    iotas: Iotas = (),
) -> Any:
    """Key of an executable and of the files that are written of it: a graph,
    and the lines that it is from.

    Errors of a call name the caller's lines. Equal kernels of other lines are
    the same text, compiled once.
    """
    return graph, donated, config.key, config.dump, limit, device, words_of(graph), writes, iotas


def words_of(graph: Graph) -> tuple[str, ...]:
    """The user's lines, which errors name, and ranges."""
    from ge2.program.records import spoken  # hardly ever needed

    return spoken(graph)


def keep(key: Any, made: Executable) -> None:
    with _guard:
        _compiled[key] = made
        while len(_compiled) > FAMILIES:
            _compiled.popitem(last=False)


def forget() -> None:
    with _guard:
        _compiled.clear()


def run_call(call: Call, arrays: Sequence[Any]) -> Sequence[Any]:
    """The evaluation of a jitted function inside a graph."""
    if config.disable_jit:
        return call.jaxpr(*arrays)
    device = place_of(arrays)
    if device is None:
        return compiled(call.jaxpr, name=call.title)(*arrays)
    return compiled(call.jaxpr, name=call.title, device=device)(*arrays)


EXECUTOR[:] = [run_call]


def run_on_gpu(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """One operation on arrays of a GPU, as a program of its own."""
    types = [type_of(x) for x in args]
    inputs, outs = tuple(map(Var, types)), tuple(map(Var, op.infer(*types)))
    graph = Graph(inputs, (Eqn(op, inputs, outs),), outs)
    return compiled(graph, name=op.name, device=place_of(args))(*args)


ON_GPU[:] = [run_on_gpu]


@final
class Entry:
    """One signature of one function."""

    __slots__ = (
        "build", "captured", "classes", "device", "donated", "executable", "fresh", "graph", "hits", "input_names",
        "key", "known", "limit", "looked", "match", "names", "positions", "scalars", "settings", "single", "spelt",
        "spent", "structure", "title", "writes",
    )  # fmt: skip

    def __init__(
        self,
        graph: Graph,
        captured: tuple[Any, ...],
        structure: Structure,
        positions: list[int] | None,
    ) -> None:
        self.graph, self.captured, self.structure = graph, captured, structure
        self.positions = positions  # of the leaves that are arrays; None for all
        self.single = structure is LEAF
        self.hits = 0
        self.executable: Executable | None = None
        self.fresh = False  # whether it was made for this signature, and for no equal graph before
        # contents of the hidden inputs that the trace looked at
        self.looked: list[np.ndarray | None] = []
        self.donated: tuple[bool, ...] = ()
        self.writes: Writes | None = None  # the arguments that it changes in place
        # leaves of which it matters whether they are NumPy's scalars
        self.scalars: dict[int, bool] = {}
        self.device: int | None = None  # the GPU that its arrays are on; None: none
        self.limit: int | None = None  # bytes that scratch and results may take
        self.settings = config.key
        self.names: list[str] = []
        self.input_names: list[
            str
        ] = []  # of the graph's inputs, but for the captured arrays, which come first
        self.title = "f"
        self.known: Iotas | None = None  # what the contents of captured arrays tell
        self.key: Any = None
        self.classes: tuple[type, ...] = ()  # of the user's, of arguments that have methods
        self.match: Match | None = None  # for calls of the same signature
        self.build: Build = structure.unflatten
        self.spelt = False
        self.spent: Spent | None = None  # on making it ready

    def without_bytes(self, returned: Results) -> None:
        """Some results are derivatives by integers, which the program does not know of."""
        self.single, self.build = False, returned.build

    def spell(self) -> bool:
        """True if another call of this signature can be recognised without a walk through its
        arguments.
        """
        if not self.spelt:
            self.spelt = True
            args, kwargs = self.key.structure.children
            plain = (
                self.positions is None
                and not self.looked
                and not any(map(is_static, self.key.leaves))
            )
            if plain and not kwargs.children and self.executable is not None:
                self.match = matcher(args, self.key.leaves)
                if self.build == self.structure.unflatten:
                    self.build = builder(self.structure) or self.build
        return self.match is not None

    def ready(self, tally: Tally | None = None) -> Executable:
        """Its executable, compiled when it is first called outside any trace;
        `tally` counts the time.
        """
        if self.executable is None:
            tally = tally or Tally(self.title, self.spent)
            with making(tally):
                about = self.limit, self.device, self.writes, self.iotas()
                self.fresh = key_of(self.graph, self.donated, *about) not in _compiled
                self.executable = compiled(self.graph, self.donated, self.title, *about)
                if self.device is not None:
                    self.captured = tuple(
                        map(partial(there, gpu_or_not(self.device)), self.captured)
                    )
            self.spent = tally.so_far()
        return self.executable

    def iotas(self) -> Iotas:
        """The captured indices that count.

        Blocked NumPy reads single elements sooner than it compares rows.
        """
        if self.known is None:  # later captured arrays may be on a GPU
            with spent("import"):
                from ge2.passes.fold import iotas  # as the passes

            native = config.executor in ("c", "shim")
            self.known = iotas(self.graph, self.captured) if native else ()
        return self.known

    def another(self) -> Executable:
        """An executable like its own, which nobody else has, not built yet."""
        from ge2.compile.compile import compile_graph

        device = gpu_or_not(self.device)
        return compile_graph(
            self.graph, donated=self.donated, name=self.title, limit=self.limit, device=device,
            writes=self.writes, iotas=self.iotas(),
        )  # fmt: skip

    def suits(self, leaves: Sequence[Any]) -> bool:
        """True if arguments are NumPy's scalars, or arrays, where those were
        that it was traced with.
        """
        return all(is_scalar(leaves[i]) == scalar for i, scalar in self.scalars.items())

    def result_types(self) -> list[ArrayType]:
        """The types of what a call returns."""
        types = [a.type for a in self.graph.outputs]
        return types if self.writes is None else self.writes.of(types)

    def holds(self, hidden: Sequence[Any]) -> bool:
        """True if the arrays whose contents decided the trace are still what they were."""
        return all(
            old is None or same(old, new) for old, new in zip(self.looked, hidden, strict=False)
        )

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return leaves if self.positions is None else [leaves[i] for i in self.positions]

    def finish(self, results: Sequence[Any]) -> Any:
        return results[0] if self.single else self.build(results)


def same(old: np.ndarray, new: Any) -> bool:
    return bool(old.shape == new.shape and host(old).tobytes() == host(new).tobytes())


@after_fork
def _after_fork() -> None:
    global _guard
    _guard = Lock()
