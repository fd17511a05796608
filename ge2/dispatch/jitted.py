"""A jitted function: looked up by the signature of a call, traced and
compiled where that is new.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Sequence
from copy import deepcopy
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    final,
    overload,
)
from weakref import WeakSet

from ge2.base.arrays import gpu_key
from ge2.base.compile_times import Tally, making, spent
from ge2.base.config import config
from ge2.base.errors import InputError, RetraceError
from ge2.base.pytree import Structure, flatten, register_leaf
from ge2.base.record import alone, collector_paused, deep_recursion
from ge2.base.source import here, say
from ge2.base.tracebacks import hide, hides
from ge2.dispatch.arguments import Donation, spoiling, stands
from ge2.dispatch.cache import Entry, closure_of, is_function, trace
from ge2.dispatch.closures.capture import NOTHING, Closure, Seen, coded_classes
from ge2.dispatch.signature import (
    ARRAY_TYPE,
    NO_LEAVES,
    WEAK,
    Function,
    Key,
    Refused,
    arguments_of,
    careful_keys,
    frozen,
    is_static,
    leaf_key,
    parameter_name,
    takes_any_keyword,
    title,
)
from ge2.ir import Evaluate, current
from ge2.ops.graphs.control import Call
from ge2.trace import is_traced, title_of
from ge2.trace.concrete import watching
from ge2.trace.writes import is_scalar

if TYPE_CHECKING:
    import numpy as np

    from ge2.choice.saved import Pinned
    from ge2.compile.race import Tuned
    from ge2.dispatch.cache_report import CacheReport, Signature
    from ge2.dispatch.lowered import Lowered, Report, Traced

TRACES: Final = 512  # signatures that a function remembers; the oldest is forgotten first
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
living: WeakSet[Jitted[..., Any]] = WeakSet()


@register_leaf
@final
class Jitted(Generic[P, R]):
    """A function that is compiled when it is first called with arguments of a signature."""

    def __init__(
        self,
        function: Function,
        static: tuple[frozenset[int], frozenset[str]],
        donated: tuple[frozenset[int], frozenset[str]],
        max_traces: int | None,
        limit: int | None = None,
        widest: np.dtype | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._limit, self._widest = function, limit, widest
        self._options = static, donated, max_traces, limit, widest
        self._static, self._max_traces = static, max_traces
        self._traces = 0
        self._donation = Donation(function, *donated) if any(donated) else None
        self._closure: Closure | None = None
        self._plain = False  # whether the arguments alone decide: no options, nothing closed over
        self._quick: dict[Any, Entry] = {}
        self._entries: dict[Key, Entry] = {}
        self._last: Entry | None = None
        self._again: Entry | None = None  # one that is likely to be called again
        living.add(self)

    # -------------------------------------------------------------------------------------- calling

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:  # which costs nothing where nothing is raised
            if (again := self._again) is not None and not kwargs and type(current()) is Evaluate:
                found = self._repeated(again, args)
                if found is not None:
                    return again.finish(found)  # type: ignore[no-any-return]
            if self._quick and not kwargs and type(current()) is Evaluate:
                key = tuple(
                    [
                        (x.shape, x.dtype)
                        if type(x) is ARRAY_TYPE
                        else WEAK.get(type(x)) or gpu_key(x)
                        for x in args
                    ]
                )
                entry = self._quick.get(key)
                if entry is not None and entry.settings is config.key and not config.disable_jit:
                    entry.hits += 1
                    self._last = entry
                    # arrays there are sooner seen together
                    if entry.device is not None and entry.spell():
                        self._again = entry
                    results = entry.executable(*entry.captured, *args)  # type: ignore[misc]
                    return results[0] if entry.single else entry.build(results)  # type: ignore[no-any-return]
            return self._call(args, kwargs)  # type: ignore[no-any-return]
        except (Exception, KeyboardInterrupt) as error:
            hide(error)
            raise

    def _repeated(self, entry: Entry, args: tuple[Any, ...]) -> list[Any] | None:
        """The results of a call that is like the one before; None for any other."""
        if entry.settings is not config.key or config.disable_jit:
            return None
        assert (
            entry.match is not None and entry.executable is not None and self._closure is not None
        )
        leaves = entry.match(args)
        if leaves is None:
            return None
        seen = NOTHING if self._closure.empty else self._closure.look()
        if entry.classes:
            seen = self._with_classes(seen, entry.classes)
        if seen.key != entry.key.closure:
            return None
        if entry.donated:
            donated = entry.key.donated
            if config.check or not stands(leaves, donated, seen.arrays, entry.device):
                return None
        entry.hits += 1
        self._last = entry
        run = entry.executable.run or entry.executable.build()
        if entry.captured or seen.arrays:
            return run(*entry.captured, *seen.arrays, *leaves)
        return run(*leaves)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.disable_jit:
            return self._function(*args, **kwargs)
        return self._run(*self._find(args, kwargs))

    def _run(self, entry: Entry, leaves: list[Any], seen: Seen) -> Any:
        arrays = [*entry.captured, *seen.arrays, *entry.arrays(leaves)]
        entry.hits += 1
        self._last = entry
        if entry.hits > 1 and self._quick:
            self._expect(entry)
        if entry.hits > 1 and self._again is not entry and not self._quick:
            plain = not any(self._static) and not any(entry.scalars.values())
            lasting = self._entries.get(entry.key) is entry and plain
            whole = self._donation is None or self._donation.complete(entry.key, leaves)
            self._again = entry if lasting and whole and entry.spell() else None
        if type(current()) is not Evaluate:
            return entry.finish(called(entry, arrays))
        executable = entry.ready()
        if entry.hits == 1 and self._entries.get(entry.key) is entry:
            self._expect(entry)  # if it was traced alone, it was not ready before
        if config.dump and entry.hits == 1 and executable.label:
            from ge2.compile import dump_inputs

            dump_inputs(executable.label, arrays)
        if entry.donated and config.check:
            written = entry.writes.of_inputs(arrays) if entry.writes else []
            return entry.finish(spoiling(executable, arrays, entry.donated, written))
        return entry.finish(executable(*arrays))

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        """The cache entry of a call's signature, and the arrays that its program is called with."""
        entry, leaves, seen = self._find(args, kwargs)
        entry.ready()
        return entry, [*entry.captured, *seen.arrays, *entry.arrays(leaves)]

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], abstract: bool = False
    ) -> tuple[Entry, list[Any], Seen]:
        """The entry of a call's signature, made if it is new; its leaves; what
        the function closes over.
        """
        key, leaves, seen = self._signature(args, kwargs, abstract)
        entry = self._entries.get(key)
        if entry is not None and entry.scalars and not entry.suits(leaves):
            key = key._replace(scalars=frozenset(i for i, x in enumerate(leaves) if is_scalar(x)))
            entry = self._entries.get(key)
        if entry is None or (entry.looked and not entry.holds(seen.arrays)):
            entry = self._make(key, leaves, seen, not abstract)
        return entry, leaves, seen

    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], abstract: bool = False
    ) -> tuple[Key, list[Any], Seen]:
        if any(self._static):
            args, kwargs = self._with_static(args, kwargs)
        if len(kwargs) > 1 and not takes_any_keyword(self._function):
            kwargs = {name: kwargs[name] for name in sorted(kwargs)}
        leaves, structure = flatten((args, kwargs))
        try:
            keys = tuple(
                [(x.shape, x.dtype) if type(x) is ARRAY_TYPE else leaf_key(x) for x in leaves]
            )
        except (Refused, InputError):
            keys = careful_keys(self._function, leaves, structure, abstract)
        seen = self._look(leaves, keys, structure)
        donated = self._accepted(structure, leaves, seen)
        key = Key(keys, structure, seen.key, config.key, donated, structure.order)
        return key, leaves, seen

    def _with_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        numbers, names = self._static
        f = self._function
        args = tuple(
            frozen(f, x, parameter_name(f, i)) if i in numbers else x for i, x in enumerate(args)
        )
        return args, {n: frozen(f, x, n) if n in names else x for n, x in kwargs.items()}

    def _look(self, leaves: Sequence[Any], keys: tuple[Any, ...], structure: Structure) -> Seen:
        """The values that the function closes over, and those of functions among its arguments."""
        closure = self._closure
        if closure is None:
            closure = self._closure = Closure(self._function)
            self._plain = closure.empty and self._donation is None and not any(self._static)
        seen = NOTHING if closure.empty else closure.look()
        for x in leaves if any(map(is_static, keys)) else ():
            if is_function(x):
                more = closure_of(x, closure).look()
                seen = Seen((seen.key, more.key), (*seen.arrays, *more.arrays))
        return self._with_classes(seen, coded_classes(structure))

    def _with_classes(self, seen: Seen, classes: Sequence[type]) -> Seen:
        """With what methods of the arguments' classes read."""
        for cls in classes:
            more = closure_of(cls, self._closure).look()
            seen = Seen((seen.key, more.key), (*seen.arrays, *more.arrays))
        return seen

    def _accepted(self, structure: Structure, leaves: Sequence[Any], seen: Seen) -> frozenset[int]:
        if self._donation is None or type(current()) is not Evaluate or watching():
            return NO_LEAVES
        return self._donation.accepted(leaves, self._donation.offered(structure), seen.arrays)

    # --------------------------------------------------------------------------------------- making

    @collector_paused
    def _make(self, key: Key, leaves: list[Any], seen: Seen, compiles: bool = True) -> Entry:
        """Traces, and for a call outside any trace compiles: one thread does it, others wait."""
        with alone((id(self), key)), deep_recursion():
            entry = self._entries.get(key)
            if entry is None or not entry.holds(seen.arrays):
                if self._max_traces is not None and self._traces >= self._max_traces:
                    self._too_many(key, leaves)
                self._traces += 1
                entry = self._made(key, leaves, seen, compiles)
                if entry.executable is not None:
                    count_as_old()
                if not any(map(is_traced, entry.captured)):
                    self._remember(entry)
            return entry

    def _made(self, key: Key, leaves: list[Any], seen: Seen, compiles: bool) -> Entry:
        tally = Tally(self._title)
        with making(tally):
            with spent("trace"):
                entry = trace(self._function, key, leaves, seen, self._closure, self._limit)
            self._explain(entry)
            if self._widest is not None:
                from ge2.dispatch.cache_report import refuse_wider  # seldom needed

                refuse_wider(entry.graph, self._widest, self._title, entry.input_names)
            if compiles and type(current()) is Evaluate:
                entry.ready(tally)
        entry.spent = tally.so_far()
        if config.log_compiles:
            say("%s", entry.spent.compile_times(tally.title))
        return entry

    def _remember(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        if len(self._entries) > TRACES and self._max_traces is None:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._quick.clear()
        self._expect(entry)

    def _expect(self, entry: Entry) -> None:
        """Finds an entry by its arguments alone from now on, where they decide:
        settings may have changed.
        """
        args, kwargs = entry.key.structure.children
        if (
            self._plain
            and entry.executable
            and args.flat
            and not kwargs.children
            and not entry.looked
            and entry.positions is None
            and not any(entry.scalars.values())
        ):
            self._quick[entry.key.leaves] = entry

    def _explain(self, entry: Entry) -> None:
        if config.log_compiles:
            from ge2.dispatch.cache_report import why

            say("%s is traced and compiled: %s", *why(self._title, self._known(), entry))

    def _too_many(self, key: Key, leaves: Sequence[Any]) -> NoReturn:
        """RetraceError with the report of what was traced so far, and of what
        this call differs in.
        """
        from ge2.dispatch.cache_report import Signature, cache_report

        arguments = arguments_of(self._function, leaves, key.structure, [])
        new = Signature(key, tuple(arguments.names()), 0)
        report = cache_report(self._title, [*self._known(), new], self._labels())
        what = f"{self._title} was to be traced {self._max_traces} times at most; this call would be one more"
        raise RetraceError(
            f"{what}\n{report}", where=here(), fix="what the report says, or a larger max_traces"
        )

    def _known(self) -> list[Signature]:
        from ge2.dispatch.cache_report import signature

        return [signature(entry) for entry in self._entries.values()]

    def _labels(self) -> list[str]:
        return self._closure.labels() if self._closure else []

    @property
    def _title(self) -> str:
        return title(self._function)

    # -------------------------------------------------------------------------------------- looking

    @hides
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The graph for these arguments (or ShapeDtypeStructs in their
        place), without running it.
        """
        from ge2.dispatch.lowered import Traced  # here and below: not needed for calls

        return Traced(self._find(args, kwargs, abstract=True)[0], self._checked)

    @hides
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program and the kernels for these arguments (or
        ShapeDtypeStructs), without running them.
        """
        return self.trace(*args, **kwargs).lower()

    @hides
    def tune(self, *args: Any, budget: float = 30.0, again: bool = False, **kwargs: Any) -> Tuned:
        """Measures the candidates for each kernel that a call with these arguments (or
        ShapeDtypeStructs) runs, for so many seconds, and records them; the next call runs the
        winners. What the record has is measured only `again`. Printed, the result is a table.

        Raises ArgumentError for a budget that is no number of seconds.
        """
        from ge2.dispatch.pins import tuned

        return tuned(self, args, kwargs, budget, again)

    @hides
    def pin(self, path: str, *args: Any, file: str = "ge2-pins.toml", **kwargs: Any) -> Pinned:
        """Takes a kernel that was saved (`f.lower(*args).kernels[0].save("k.cu")`) and edited, in the
        place of what ge2 writes for that problem.

        It is checked beside the reference, on results filled with NaN between guard bands, timed
        beside the original, and named in `file`, which `ge2.kernels.use` reads ("": in none). The
        problem is one of the programs that there are, or of that for `args`. Programs that are
        built stay as they are; the next call builds anew.

        InputError if it makes something else, if its signature was edited, if ge2 writes another
        kernel for the problem by now, or if no program has it; CompileError if it does not compile.
        """
        from ge2.dispatch.pins import pin

        return pin(self, path, args, kwargs, file)

    def entries(self) -> list[Entry]:
        """The entries that are remembered."""
        return [*self._entries.values()]

    def entry_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """The entry of these arguments."""
        return self._find(args, kwargs, abstract=True)[0]

    @hides
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The structure, shapes and dtypes of the result for these
        arguments (or ShapeDtypeStructs).
        """
        return self.trace(*args, **kwargs).out_info

    def _checked(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that must be of the signature of `entry`; its static arguments may be left out."""
        args, kwargs = self._with_known(entry, args, kwargs)
        key, leaves, seen = self._signature(args, kwargs)
        key = key._replace(scalars=entry.key.scalars)
        if key == entry.key and not entry.looked and entry.suits(leaves):
            return self._run(entry, leaves, seen)
        if key._replace(donated=entry.key.donated) == entry.key:
            return self._call(args, kwargs)
        from ge2.dispatch.cache_report import Signature, differences, signature

        new = Signature(
            key, tuple(arguments_of(self._function, leaves, key.structure, []).names()), 0
        )
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

    @hides
    def report(self) -> Report:
        """The report of the last call: whether it traced and compiled, and what it ran."""
        from ge2.dispatch.lowered import report

        entry = self._last
        if entry is None:
            plain = ", or it ran as plain Python: jit is off (disable_jit, GE2_DISABLE_JIT)"
            what = f"{title(self._function)} has not been called yet{plain if config.disable_jit else ''}"
            raise InputError(what, where=here(), fix="report() after a call that jit compiles")
        return report(title(self._function), entry)

    @hides
    def cache_report(self) -> CacheReport:
        """The signatures it has met, how often, in what each differs from the nearest before it,
        and what would have spared its trace.
        """
        from ge2.dispatch.cache_report import cache_report

        return cache_report(self._title, self._known(), self._labels())

    def clear_cache(self) -> None:
        """Forgets every trace."""
        self._entries.clear()
        self._quick.clear()
        self._last = self._again = None
        self._traces = 0

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: Jitted[Concatenate[S, Q], R], instance: S, owner: Any = None
    ) -> Method[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else Method(self, instance)

    def __reduce__(self) -> Any:
        """Copies and pickles as the function and its options; a copy has traced nothing yet.

        One that its module holds under the function's name is pickled
        by that name, as functions are.
        """
        name = getattr(self._function, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self._function, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Jitted, (self._function, *self._options))

    def __copy__(self) -> Jitted[P, R]:
        return Jitted(self._function, *self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted[P, R]:
        return Jitted(deepcopy(self._function, memo), *self._options)

    def __repr__(self) -> str:
        return f"<jit of {title_of(self._function)}>"


def called(entry: Entry, arrays: Sequence[Any]) -> Sequence[Any]:
    """The results of a function called inside a trace, which changes values
    of that one in place.
    """
    writes = entry.writes
    found: list[Any]
    if writes is None:
        found = Call(entry.graph, entry.title)(*arrays)
        return found
    writes.check_traced(arrays)
    found = list(Call(entry.graph, entry.title)(*arrays))
    return writes.of(writes.carried(arrays, found))


@functools.cache
def count_as_old() -> None:
    """Tells the collector, once a process, that what the first program made lives long: modules
    above all. It would walk all of that when it no longer rests, for a tenth of that call in Python.

    Once, for each time begins its counts anew, and garbage among what is old waits for a full look.
    """
    if hasattr(gc, "freeze") and not gc.get_freeze_count():  # else somebody froze what stays frozen
        gc.freeze()
        gc.unfreeze()


@register_leaf
@final
class Method(Generic[P, R]):
    """A jitted method of an object, which is its first argument."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: Jitted[..., R], instance: Any) -> None:
        self.__func__ = function
        self.__self__ = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__func__(self.__self__, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        return self.__func__.trace(self.__self__, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        return self.__func__.lower(self.__self__, *args, **kwargs)

    def tune(self, *args: Any, budget: float = 30.0, again: bool = False, **kwargs: Any) -> Tuned:
        return self.__func__.tune(self.__self__, *args, budget=budget, again=again, **kwargs)

    def pin(self, path: str, *args: Any, file: str = "ge2-pins.toml", **kwargs: Any) -> Pinned:
        given = (self.__self__, *args) if args else ()
        return self.__func__.pin(path, *given, file=file, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__.eval_shape(self.__self__, *args, **kwargs)

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        return self.__func__.prepared((self.__self__, *args), kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __reduce__(self) -> Any:
        return Method, (self.__func__, self.__self__)

    def __repr__(self) -> str:
        return f"<{self.__func__!r} of {self.__self__!r:.60}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Method)
            and self.__func__ is other.__func__
            and self.__self__ is other.__self__
        )

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))
