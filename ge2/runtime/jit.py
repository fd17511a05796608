"""`jit`: a function is traced and compiled for each new signature, and looked up ever after."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, final
from weakref import WeakSet

import numpy as np

from ge2.base.config import config
from ge2.base.dtypes import python_type
from ge2.base.errors import ImpureError, InputError, RetraceError
from ge2.base.log import logger
from ge2.base.original import originals
from ge2.base.pause import collector_paused
from ge2.base.pytree import Structure, flatten, register_leaf, why_leaf
from ge2.base.source import here, of_function
from ge2.base.words import byte_count
from ge2.ir import Evaluate, ShapeDtypeStruct, Var, current
from ge2.ops.control import Call
from ge2.runtime import entry as entries
from ge2.runtime.closures import NOTHING, Closure, Plan, Seen, is_plain
from ge2.runtime.donate import Donation, spoil
from ge2.runtime.entry import Entry
from ge2.runtime.once import alone
from ge2.runtime.purity import Purity
from ge2.runtime.rebind import Rebound
from ge2.runtime.signature import (
    ARRAY_TYPE,
    WEAK,
    Argnames,
    Argnums,
    Refused,
    Static,
    frozen,
    is_static,
    leaf_key,
    leaf_type,
    numbers_and_names,
    parameter_name,
    title,
)
from ge2.trace import ABSTRACT, Closed, Input, is_traced, stage, tidy, title_of
from ge2.trace.watch import watching
from ge2.transforms.arguments import Arguments, Results
from ge2.transforms.zeros import is_float0

if TYPE_CHECKING:
    from ge2.runtime.aot import Lowered, Report, Traced
    from ge2.runtime.remembered import CacheReport, Signature

Function = Callable[..., Any]
TRACES: Final = 512  # signatures that a function remembers; the oldest is forgotten first
CLOSURES: Final = 256
NO_LEAVES: Final[frozenset[int]] = frozenset()
_all: WeakSet[Jitted] = WeakSet()


class Key(NamedTuple):
    """The signature of a call."""

    leaves: tuple[Any, ...]
    structure: Structure
    closure: Any
    settings: Any
    donated: frozenset[int] = NO_LEAVES


def unread(closed: Closed, hidden: Sequence[Input]) -> set[int]:
    """The arrays that the function closes over but the graph does not read, by identity.

    Something made of them may stand in the graph as a constant, where code ran that could not be handed the
    traced array: such arrays are compared at each call.
    """
    graph, first = closed.graph, len(closed.captured)
    read = {a for e in graph.eqns for a in e.inputs if type(a) is Var} | set(graph.outputs)
    places = list(zip(hidden, graph.inputs[first : first + len(hidden)], strict=True))
    found = {id(given.source) for given, var in places if var in read}  # by one of its names
    return {id(given.source) for given, _ in places} - found


@register_leaf
@final
class Jitted:
    """A function that is compiled when it is first called with arguments of a signature."""

    def __init__(
        self,
        function: Function,
        static: tuple[frozenset[int], frozenset[str]],
        donated: tuple[frozenset[int], frozenset[str]],
        max_traces: int | None,
        limit: int | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._limit = function, limit
        self._static, self._max_traces = static, max_traces
        self._traces = 0
        self._donation = Donation(function, *donated) if any(donated) else None
        self._closure: Closure | None = None
        self._plain = False  # whether the arguments alone decide: no options, nothing closed over
        self._quick: dict[Any, Entry] = {}
        self._entries: dict[Key, Entry] = {}
        self._last: Entry | None = None
        self._again: Entry | None = None  # one that is likely to be called again
        _all.add(self)

    # ------------------------------------------------------------------------------------------ calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._quick and not kwargs and type(current()) is Evaluate:
            key = tuple([(x.shape, x.dtype) if type(x) is ARRAY_TYPE else WEAK.get(type(x)) for x in args])
            entry = self._quick.get(key)
            if entry is not None and entry.settings is config.key and not config.disable_jit:
                entry.hits += 1
                self._last = entry
                results = entry.executable(*entry.captured, *args)  # type: ignore[misc]
                return results[0] if entry.single else entry.build(results)
        elif (again := self._again) is not None and not kwargs and type(current()) is Evaluate:
            found = self._repeated(again, args)
            if found is not None:
                return again.finish(found)
        return self._call(args, kwargs)

    def _repeated(self, entry: Entry, args: tuple[Any, ...]) -> list[Any] | None:
        """The results of a call that is like the one before; None for any other."""
        if entry.settings is not config.key or config.disable_jit:
            return None
        assert entry.match is not None and entry.executable is not None and self._closure is not None
        leaves = entry.match(args)
        if leaves is None:
            return None
        seen = NOTHING if self._closure.empty else self._closure.look()
        if seen.key != entry.key.closure:
            return None
        entry.hits += 1
        self._last = entry
        return entry.executable(*entry.captured, *seen.arrays, *leaves)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.disable_jit:
            return self._function(*args, **kwargs)
        return self._run(*self._find(args, kwargs))

    def _run(self, entry: Entry, leaves: list[Any], seen: Seen) -> Any:
        arrays = [*entry.captured, *seen.arrays, *entry.arrays(leaves)]
        entry.hits += 1
        self._last = entry
        if entry.hits > 1 and self._again is not entry and not self._quick and not entry.donated:
            lasting = self._entries.get(entry.key) is entry and not any(self._static)
            self._again = entry if lasting and entry.spell() else None
        if type(current()) is not Evaluate:
            return entry.finish(Call(entry.graph, entry.title)(*arrays))
        executable = entry.ready()
        if config.dump and entry.hits == 1 and executable.label:
            from ge2.runtime.repro import dump_inputs

            dump_inputs(executable.label, arrays)
        results = executable(*arrays)
        if entry.donated and config.check:
            spoil([x for x, d in zip(arrays, entry.donated, strict=True) if d], results)
        return entry.finish(results)

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], abstract: bool = False
    ) -> tuple[Entry, list[Any], Seen]:
        """The entry of a call's signature, made if it is new; its leaves; what the function closes over."""
        key, leaves, seen = self._signature(args, kwargs, abstract)
        entry = self._entries.get(key)
        if entry is None or (entry.looked and not entry.holds(seen.arrays)):
            entry = self._make(key, leaves, seen)
        return entry, leaves, seen

    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], abstract: bool = False
    ) -> tuple[Key, list[Any], Seen]:
        if any(self._static):
            args, kwargs = self._with_static(args, kwargs)
        leaves, structure = flatten((args, kwargs))
        try:
            keys = tuple([(x.shape, x.dtype) if type(x) is ARRAY_TYPE else leaf_key(x) for x in leaves])
        except (Refused, InputError):
            keys = self._careful_keys(leaves, structure, abstract)
        seen = self._look(leaves, keys)
        donated = self._accepted(structure, leaves, seen)
        return Key(keys, structure, seen.key, config.key, donated), leaves, seen

    def _with_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        numbers, names = self._static
        f = self._function
        args = tuple(frozen(f, x, parameter_name(f, i)) if i in numbers else x for i, x in enumerate(args))
        return args, {n: frozen(f, x, n) if n in names else x for n, x in kwargs.items()}

    def _careful_keys(self, leaves: list[Any], structure: Structure, abstract: bool) -> tuple[Any, ...]:
        """The keys of leaves with something unusual among them, which is converted or refused by name."""
        keys = []
        for i, leaf in enumerate(leaves):
            if abstract and isinstance(leaf, ShapeDtypeStruct):
                keys.append(python_type(leaf.dtype) if leaf.weak_type else (leaf.shape, leaf.dtype))
                continue
            try:
                leaves[i] = from_elsewhere(leaf)
                keys.append(leaf_key(leaves[i]))
            except Refused as why:
                self._refuse(leaves, structure, i, *why.args)
            except InputError as error:
                name = self._arguments(leaves, structure, []).name(i)
                raise InputError(f"{name} of {title_of(self._function)} is {error}") from None
        return tuple(keys)

    def _refuse(self, leaves: list[Any], structure: Structure, i: int, why: str, fix: str) -> NoReturn:
        arguments = self._arguments(leaves, structure, [])
        name, kind = arguments.name(i), type(leaves[i]).__name__
        if why:
            raise InputError(f"{name} of {arguments.title} {why}", where=here(), fix=fix)
        what = (
            f"{name} of {arguments.title} is {article(kind)} {kind}, neither an array nor a container of them"
        )
        if isinstance(leaves[i], ShapeDtypeStruct):
            fix = "an array; for shapes alone f.lower(...), f.eval_shape(...)"
            raise InputError(f"{what}: it has no elements", where=here(), fix=fix)
        more = why_leaf(leaves[i])
        raise InputError(
            f"{what}: {more}" if more else what,
            where=here(),
            fix=f"{container_fix(leaves[i])}, if it is a constant",
        )

    def _look(self, leaves: Sequence[Any], keys: tuple[Any, ...]) -> Seen:
        """What the function closes over, and what functions among its arguments do."""
        closure = self._closure
        if closure is None:
            closure = self._closure = Closure(self._function)
            self._plain = closure.empty and self._donation is None and not any(self._static)
        seen = NOTHING if closure.empty else closure.look()
        for x in leaves if any(map(is_static, keys)) else ():
            if is_function(x):
                more = closure_of(x).look()
                seen = Seen((seen.key, more.key), (*seen.arrays, *more.arrays))
        return seen

    def _accepted(self, structure: Structure, leaves: Sequence[Any], seen: Seen) -> frozenset[int]:
        if self._donation is None or type(current()) is not Evaluate or watching():
            return NO_LEAVES
        return self._donation.accepted(leaves, self._donation.offered(structure), seen.arrays)

    # ------------------------------------------------------------------------------------------- making

    @collector_paused
    def _make(self, key: Key, leaves: list[Any], seen: Seen) -> Entry:
        """Traces, and outside any trace compiles: one thread does it, others wait."""
        with alone((id(self), key)):
            entry = self._entries.get(key)
            if entry is None or not entry.holds(seen.arrays):
                if self._max_traces is not None and self._traces >= self._max_traces:
                    self._too_many(key, leaves)
                self._traces += 1
                entry = self._trace(key, leaves, seen)
                self._explain(entry)
                if type(current()) is Evaluate:
                    entry.ready()
                if not any(map(is_traced, entry.captured)):
                    self._remember(entry)
            return entry

    def _remember(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        if len(self._entries) > TRACES and self._max_traces is None:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._quick.clear()
        args, kwargs = entry.key.structure.children
        if (
            self._plain
            and entry.executable
            and args.flat
            and not kwargs.children
            and not entry.looked
            and entry.positions is None
        ):
            self._quick[entry.key.leaves] = entry

    def _trace(self, key: Key, leaves: list[Any], seen: Seen) -> Entry:
        positions = [i for i, k in enumerate(key.leaves) if not (is_static(k) or is_float0(leaves[i]))]
        arguments = self._arguments(leaves, key.structure, positions)
        names = arguments.names()
        hidden = self._hidden(seen)
        inputs = [Input(t, ABSTRACT, names[i]) for i, t in zip(positions, arguments.types(), strict=True)]
        returned = Results()

        plans = self._plans(leaves)
        self._refuse_iterators(plans)
        frozen_arrays: set[int] = set()

        def run(*xs: Any) -> list[Any]:
            if not hidden:
                return returned.flat(arguments.call(xs))
            rebound = Rebound(plans, {id(given.source): x for given, x in zip(hidden, xs, strict=False)})
            inner = replace(
                arguments,
                function=rebound.value(self._function),
                leaves=[rebound.value(x) for x in arguments.leaves],
            )
            with originals(rebound.original):
                found = returned.flat(inner.call(xs[len(hidden) :]))
            rebound.close()
            frozen_arrays.update(rebound.frozen | rebound.unreached())
            return found

        def work() -> Any:
            return stage(run, [*hidden, *inputs], arguments.title, "jit")

        purity = Purity(
            [g for p in plans for g in p.generators()], [s.function.__code__ for p in plans for s in p.scopes]
        )
        closed = work()
        purity.check(work)
        entry = Entry(
            tidy(closed.graph),
            closed.captured,
            returned.structure,
            positions if len(positions) < len(leaves) else None,
        )
        if returned.empty:
            entry.without_bytes(returned)
        entry.key, entry.names, entry.title = key, names, title(self._function)
        entry.limit = self._limit
        frozen_arrays |= unread(closed, hidden)
        if closed.looked or frozen_arrays:
            decided = [not is_traced(x) and (closed.looked or id(x) in frozen_arrays) for x in seen.arrays]
            entry.looked = [x.copy() if d else None for x, d in zip(seen.arrays, decided, strict=True)]
        if key.donated:
            before = len(closed.captured) + len(hidden)
            entry.donated = (*(False,) * before, *(i in key.donated for i in positions))
        return entry

    def _refuse_iterators(self, plans: Sequence[Plan]) -> None:
        kinds = [type(x).__name__ for plan in plans for x in plan.iterators()]
        if kinds:
            what = f"{self._title} reads {article(kinds[0])} {kinds[0]} from outside"
            why = "what it yields while traced would be that of every call"
            fix = "x = next(it) outside, and x as an argument; or a list"
            raise ImpureError(f"{what}: {why}", where=of_function(self._function) or here(), fix=fix)

    def _plans(self, leaves: Sequence[Any]) -> list[Plan]:
        own = [self._closure.plan] if self._closure else []
        return own + [closure_of(x).plan for x in leaves if is_function(x)]

    def _hidden(self, seen: Seen) -> list[Input]:
        if not seen.arrays:
            return []
        names = self._closure.names() if self._closure else {}
        return [
            Input(
                leaf_type(x),
                ABSTRACT if is_traced(x) else x,
                names.get(id(x), "an array closed over"),
                source=x,
            )
            for x in seen.arrays
        ]

    def _arguments(self, leaves: Sequence[Any], structure: Structure, positions: list[int]) -> Arguments:
        plain = [x.value if type(x) is Static else x for x in leaves]
        return Arguments(self._function, plain, structure, positions, title_of(self._function))

    def _explain(self, entry: Entry) -> None:
        if config.log_compiles:
            from ge2.runtime.remembered import why

            logger().warning("%s is traced and compiled: %s", *why(self._title, self._known(), entry))

    def _too_many(self, key: Key, leaves: Sequence[Any]) -> NoReturn:
        """RetraceError with the report of what was traced so far, and of what this call differs in."""
        from ge2.runtime.remembered import Signature, cache_report

        arguments = self._arguments(leaves, key.structure, [])
        new = Signature(key, tuple(arguments.names()), 0)
        report = cache_report(self._title, [*self._known(), new], self._labels())
        what = f"{self._title} was to be traced {self._max_traces} times at most; this call would be one more"
        raise RetraceError(
            f"{what}\n{report}", where=here(), fix="what the report says, or a larger max_traces"
        )

    def _known(self) -> list[Signature]:
        from ge2.runtime.remembered import signature

        return [signature(entry) for entry in self._entries.values()]

    def _labels(self) -> list[str]:
        return self._closure.labels() if self._closure else []

    @property
    def _title(self) -> str:
        return title(self._function)

    # ------------------------------------------------------------------------------------------ looking

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The graph for these arguments (or ShapeDtypeStructs in their place), without running it."""
        from ge2.runtime.aot import Traced  # here and below: not needed for calls

        return Traced(self._find(args, kwargs, abstract=True)[0], self._checked)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program and the kernels for these arguments (or ShapeDtypeStructs), without running them."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The structure, shapes and dtypes of the result for these arguments (or ShapeDtypeStructs)."""
        return self.trace(*args, **kwargs).out_info

    def _checked(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that must be of the signature of `entry`; its static arguments may be left out."""
        args, kwargs = self._with_known(entry, args, kwargs)
        key, leaves, seen = self._signature(args, kwargs)
        if key == entry.key and not entry.looked:
            return self._run(entry, leaves, seen)
        if key._replace(donated=entry.key.donated) == entry.key:
            return self._call(args, kwargs)
        from ge2.runtime.remembered import Signature, differences, signature

        new = Signature(key, tuple(self._arguments(leaves, key.structure, []).names()), 0)
        what = "; ".join(d.text for d in differences(signature(entry), new, self._labels()))
        raise InputError(
            f"{self._title} was compiled for other arguments: {what}",
            where=here(),
            fix="the jitted function itself, which compiles for these too",
        )

    def _with_known(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the static ones that `entry` was made for, where they are left out."""
        numbers, names = self._static
        if not numbers and not names:
            return args, kwargs
        given, keywords = entry.key.structure.unflatten(entry.key.leaves)
        known = {i for i in numbers if i < len(given)}
        if len(args) == len(given) - len(known):
            rest = iter(args)
            args = tuple(given[i].value if i in known else next(rest) for i in range(len(given)))
        return args, {**{n: keywords[n].value for n in names if n in keywords}, **kwargs}

    def report(self) -> Report:
        """What the last call did: whether it traced and compiled, and what it ran."""
        from ge2.runtime.aot import report

        entry = self._last
        if entry is None:
            raise InputError(
                f"{title(self._function)} has not been called yet", where=here(), fix="report() after a call"
            )
        return report(title(self._function), entry)

    def cache_report(self) -> CacheReport:
        """The signatures it has met, how often, in what each differs from the nearest before it, and what
        would have spared its trace."""
        from ge2.runtime.remembered import cache_report

        return cache_report(self._title, self._known(), self._labels())

    def clear_cache(self) -> None:
        """Forgets every trace."""
        self._entries.clear()
        self._quick.clear()
        self._last = self._again = None
        self._traces = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else Method(self, instance)

    def __repr__(self) -> str:
        return f"<jit of {title_of(self._function)}>"


@register_leaf
@final
class Method:
    """A jitted method of an object, which is its first argument."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: Jitted, instance: Any) -> None:
        self.__func__, self.__self__ = function, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        return self.__func__.trace(self.__self__, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        return self.__func__.lower(self.__self__, *args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__.eval_shape(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Method) and self.__func__ is other.__func__ and self.__self__ is other.__self__
        )

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))


def from_elsewhere(leaf: Any) -> Any:
    """An array of another library as NumPy's, sharing its memory; anything else as it is."""
    if not hasattr(leaf, "__dlpack__") or isinstance(leaf, np.ndarray | np.generic) or is_traced(leaf):
        return leaf
    try:
        return np.from_dlpack(leaf)
    except BufferError:
        return leaf


def article(word: str) -> str:
    return "an" if word[0] in "aeiouAEIOU" else "a"


def container_fix(leaf: Any) -> str:
    """How an object becomes an argument."""
    cls = type(leaf)
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return "a list, a dict or np.asarray(x); or static_argnums"
    register = f"@ge2.tree_util.register_pytree_node_class above {cls.__name__}"
    return f"{register}, if it holds arrays; or static_argnums"


def is_function(leaf: Any) -> bool:
    """Whether an argument is a function or, if static, an object: these may hold arrays too."""
    value = leaf.value if type(leaf) is Static else leaf
    if isinstance(value, type) or is_traced(value):
        return False
    return callable(value) or (type(leaf) is Static and is_plain(value))


_closures: dict[int, tuple[Any, Closure]] = {}  # of functions that were arguments, by their id


def closure_of(leaf: Any) -> Closure:
    """What a function among the arguments closes over; the latest ones are remembered."""
    value = leaf.value if type(leaf) is Static else leaf
    found = _closures.get(id(value))
    if found is None:
        if len(_closures) >= CLOSURES:
            _closures.clear()
        found = _closures[id(value)] = (value, Closure(value))
    return found[1]


def jit(
    fun: Function | None = None,
    *,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    device: Any = None,
    max_traces: int | None = None,
    memory_limit: int | str | None = None,
) -> Any:
    """`fun`, compiled: traced once for each signature of its arguments, then run as a fixed program.

    Arrays, numbers and containers of them are arguments; a changed number is no new signature. Strings,
    functions and the arguments named by `static_argnums` or `static_argnames` (hashable) are constants and
    part of the signature, as is what the function closes over: arrays there are inputs like arguments.
    Arguments named by `donate_argnums` or `donate_argnames` may be overwritten with results. The latest 512
    signatures are remembered; with `max_traces`, a call that would be one trace more than that is a
    RetraceError, which shows `cache_report()`. Results are new arrays, writable and contiguous.
    `memory_limit`, as 200_000_000 or "200MB" (a MB is 1024 * 1024 bytes), bounds what a call allocates for
    scratch and results: values that wait for the end of the program are computed again instead, just enough.
    Within another traced function it has no limit of its own.

    InputError for an argument that is none of these, ImpureError for a function that draws from `np.random`,
    MemoryLimitError for a limit that cannot be kept.

    >>> import numpy as np
    >>> f = jit(lambda x, scale: np.tanh(x) * scale)
    >>> f(np.zeros(3, np.float32), 2.0)
    array([0., 0., 0.], dtype=float32)
    """
    if device not in (None, "cpu"):
        raise InputError(f"jit has no device {device!r}", where=here(), fix="device=None, or 'cpu'")
    if fun is None:
        return lambda fun: jit(
            fun,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            device=device,
            max_traces=max_traces,
            memory_limit=memory_limit,
        )
    check_function(fun)
    if max_traces is not None and (type(max_traces) is not int or max_traces < 1):
        what = f"max_traces is a number of traces, 1 or more; got {max_traces!r}"
        raise InputError(what, where=here(), fix="max_traces=None for no limit")
    static = numbers_and_names(fun, static_argnums, static_argnames, "static")
    donated = numbers_and_names(fun, donate_argnums, donate_argnames, "donate")
    if both := (static[0] & donated[0]) or (static[1] & donated[1]):
        raise InputError(f"jit: argument {min(both)} is both static and donated", where=here())
    limit = None if memory_limit is None else byte_count(memory_limit)
    return Jitted(fun, static, donated, max_traces, limit)


def check_function(fun: Any) -> None:
    if isinstance(fun, classmethod | staticmethod):
        kind = type(fun).__name__
        raise InputError(f"jit was given a {kind}", where=here(), fix=f"@{kind} above @ge2.jit")
    if not callable(fun):
        raise InputError(
            f"jit takes a function; got {fun!r:.60} ({type(fun).__name__})",
            where=here(),
            fix="ge2.jit(f)(x), not ge2.jit(f(x))",
        )
    if (
        inspect.isgeneratorfunction(fun)
        or inspect.iscoroutinefunction(fun)
        or inspect.isasyncgenfunction(fun)
    ):
        raise InputError(
            f"{title(fun)} is a generator or coroutine, which has no single result",
            where=here(),
            fix="a function that returns",
        )


def clear_caches() -> None:
    """Forgets every trace and every compiled program of this process."""
    for jitted in list(_all):
        jitted.clear_cache()
    _closures.clear()
    entries.forget()
