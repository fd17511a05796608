"""One trace of a function, and the entry that the cache keeps for its signature."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import host, on_gpu
from ge2.base.compile_times import Spent, Tally, making, spent
from ge2.base.config import config
from ge2.base.pytree import Structure
from ge2.base.record import after_fork, alone
from ge2.base.source import originals
from ge2.base.treedef import LEAF
from ge2.dispatch.arguments import Build, Match, builder, matcher
from ge2.dispatch.closures import is_namespace, is_plain
from ge2.dispatch.closures.capture import NO_NAMES, Closure, Plan, Seen, coded_classes
from ge2.dispatch.closures.unseen import Purity, refuse_values, watched
from ge2.dispatch.rebind import Rebound
from ge2.dispatch.signature import Function, Key, Static, arguments_of, is_static, leaf_type, title
from ge2.ir import ON_GPU, ArrayType, Eqn, Graph, Op, Var, type_of, without_dead_code
from ge2.ops.graphs.control import EXECUTOR, Call
from ge2.trace import ABSTRACT, Closed, Input, is_long, is_traced, stage, tidy
from ge2.trace.stage import common_place, place_of
from ge2.trace.writes import Changing, is_scalar
from ge2.transforms.arguments import Arguments, Results
from ge2.transforms.graphs import is_float0

if TYPE_CHECKING:
    from ge2.compile.executable import Executable
    from ge2.passes.context import Iotas
    from ge2.targets.cuda.device import Device
    from ge2.trace.writes import Writes


# -------- The cache entry of one signature of a jitted function: graph, executable, how its results
# are built.


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
        from ge2.compile import compile_graph  # passes and templates are not needed before

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

            native = config.executor in ("c", "emulator")
            self.known = iotas(self.graph, self.captured) if native else ()
        return self.known

    def another(self) -> Executable:
        """An executable like its own, which nobody else has, not built yet."""
        from ge2.compile import compile_graph

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


# -------- One trace of a function: the arrays it closes over become inputs, its operations a graph.


CLOSURES: Final = 256


def trace(
    f: Function, key: Key, leaves: list[Any], seen: Seen, closure: Closure | None, limit: int | None
) -> Entry:
    """The entry of a signature: the graph of the function for arguments like
    these, and how it is run.
    """
    positions = [i for i, k in enumerate(key.leaves) if not (is_static(k) or is_float0(leaves[i]))]
    arguments = arguments_of(f, leaves, key.structure, positions)
    names = arguments.names()
    hidden = hidden_inputs(seen, closure)
    changing = Changing(len(hidden), positions, key.donated)
    inputs = [
        Input(t, ABSTRACT, names[i], carried_back=True, scalar=is_scalar(leaves[i]))
        for i, t in zip(positions, arguments.types(), strict=True)
    ]
    returned, frozen = Results(), set[int]()
    classes = coded_classes(key.structure)
    plans = plans_of([*leaves, *classes], closure)
    refuse_values(f, plans)
    results = (
        rebinding(f, arguments, returned, plans, hidden, frozen)
        if hidden
        else plain(arguments, returned)
    )

    def run(*xs: Any) -> list[Any]:
        return changing.outputs(xs, results(*xs))

    def work() -> Closed:
        with watched(f, plans):
            return stage(run, [*hidden, *inputs], arguments.title, "jit")

    generators = [g for p in plans for g in p.generators()]
    purity = Purity(generators, [s.function.__code__ for p in plans for s in p.scopes])
    closed = work()
    purity.check(work)
    entry = entry_of(closed, returned, positions if len(positions) < len(leaves) else None)
    entry.key, entry.names, entry.title, entry.limit = key, names, title(f), limit
    entry.input_names = [*(given.name for given in hidden), *(names[i] for i in positions)]
    entry.classes, entry.scalars = classes, changing.scalars
    captured = ["a constant array"] * len(closed.captured)
    entry.writes = changing.writes(entry.title, [*captured, *entry.input_names])
    given = [(names[i], leaves[i]) for i in positions]
    first = len(closed.captured)
    idle = unread(entry.graph, first, hidden)  # but for numbers that were taken from them
    read = [(name, x) for name, x in closed_over(seen, closure) if id(x) not in idle]
    entry.device = common_place(title(f), [*given, *read])
    entry.looked = decisive(closed, seen, frozen | unread(closed.graph, first, hidden))
    if key.donated:
        before = len(closed.captured) + len(hidden)
        entry.donated = (*(False,) * before, *(i in key.donated for i in positions))
    return entry


def plain(arguments: Arguments, returned: Results) -> Callable[..., list[Any]]:
    """The call of a function that closes over no arrays, on traced arguments."""

    def results(*xs: Any) -> list[Any]:
        return returned.flat(arguments.call(xs))

    return results


def rebinding(
    f: Function,
    arguments: Arguments,
    returned: Results,
    plans: Sequence[Plan],
    hidden: Sequence[Input],
    frozen: set[int],
) -> Callable[..., list[Any]]:
    """The call of a copy of the function that reads traced values, the first given, for
    the arrays it closes over. Adds the arrays that the copy could not be made to read
    to `frozen`, by identity.
    """

    def results(*xs: Any) -> list[Any]:
        rebound = Rebound(
            plans, {id(given.source): x for given, x in zip(hidden, xs, strict=False)}
        )
        copied = [rebound.value(x) for x in arguments.leaves]
        inner = replace(arguments, function=rebound.value(f), leaves=copied)
        with originals(rebound.original):
            found = returned.flat(inner.call(xs[len(hidden) :]))
        rebound.close()
        frozen.update(rebound.frozen | rebound.unreached())
        return found

    return results


def entry_of(closed: Closed, returned: Results, positions: list[int] | None) -> Entry:
    # in a long graph loops are found first: their iterations differ where equal values are made one
    found = without_dead_code(closed.graph) if is_long(closed.graph) else tidy(closed.graph)
    entry = Entry(found, closed.captured, returned.structure, positions)
    if returned.empty:
        entry.without_bytes(returned)
    return entry


def decisive(closed: Closed, seen: Seen, frozen: set[int]) -> list[np.ndarray | None]:
    """Copies of the closed-over arrays whose contents decided the
    trace, to be compared at each call.
    """
    if not (closed.looked or frozen):
        return []
    decided = [not is_traced(x) and (closed.looked or id(x) in frozen) for x in seen.arrays]
    return [x.copy() if d else None for x, d in zip(seen.arrays, decided, strict=True)]


def unread(graph: Graph, first: int, hidden: Sequence[Input]) -> set[int]:
    """The arrays that the function closes over but the graph does not read, by identity; its inputs
    from the `first` on stand for them.

    Something made of them may stand in the graph as a constant, where code ran that could not be
    given the traced array: such arrays are compared at each call.
    """
    read = {a for e in graph.eqns for a in e.inputs if type(a) is Var} | set(graph.outputs)
    places = list(zip(hidden, graph.inputs[first : first + len(hidden)], strict=True))
    found = {id(given.source) for given, var in places if var in read}  # by one of its names
    return {id(given.source) for given, _ in places} - found


def plans_of(leaves: Sequence[Any], closure: Closure | None) -> list[Plan]:
    own = [closure.plan] if closure else []
    return own + [closure_of(x, closure).plan for x in leaves if is_function(x)]


def closed_over(seen: Seen, closure: Closure | None) -> list[tuple[str, Any]]:
    """The values that the function closes over, in words."""
    names = closure.names() if closure and seen.arrays else {}
    return [(f"{names.get(id(x), 'an array')}, which it closes over,", x) for x in seen.arrays]


def hidden_inputs(seen: Seen, closure: Closure | None) -> list[Input]:
    if not seen.arrays:
        return []
    names = closure.names() if closure else {}
    return [
        Input(
            leaf_type(x),
            ABSTRACT if is_traced(x) else x,
            names.get(id(x), "an array closed over"),
            source=x,
        )
        for x in seen.arrays
    ]


def is_function(leaf: Any) -> bool:
    """True for an argument that may hold arrays: a function, a class, a module
    or, if static, an object.
    """
    value = leaf.value if type(leaf) is Static else leaf
    if is_traced(value):
        return False
    if isinstance(value, type | ModuleType):
        return is_namespace(value)
    return callable(value) or (type(leaf) is Static and is_plain(value))


# of arguments by their id, and what is read there
_closures: dict[tuple[int, Any], tuple[Any, Closure]] = {}


def closure_of(leaf: Any, reader: Closure | None) -> Closure:
    """The values an argument closes over or holds, as far as `reader` reads it;
    the latest are remembered.
    """
    value = leaf.value if type(leaf) is Static else leaf
    wanted = reader.plan.attributes if reader else NO_NAMES
    found = _closures.get((id(value), wanted))
    if found is None:
        if len(_closures) >= CLOSURES:
            _closures.clear()
        found = _closures[id(value), wanted] = (value, Closure(value, wanted))
    return found[1]


def forget_closures() -> None:
    _closures.clear()
