"""Rules and effects of one's own: `custom_gradient`, `sequential_vmap`, printing, callbacks."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, ParamSpec, TypeVar, final

import numpy as np

from ge2.base.arrays import INEXACT
from ge2.base.errors import ArgumentError, InputError, PytreeError, TypeRuleError
from ge2.base.pytree import (
    Structure,
    broadcast_prefix,
    flatten,
    mismatch,
    register_pytree_node,
    unflatten,
)
from ge2.base.record import record
from ge2.base.source import here, original
from ge2.base.tracebacks import hides
from ge2.base.treedef import LEAF
from ge2.ir import ArrayType, Derive, Flags, Graph, Var, type_of
from ge2.ops.graphs.custom import CustomBatch, with_consts
from ge2.ops.graphs.effects import (
    HOLE,
    METHODS,
    DebugCallback,
    DebugPrint,
    Host,
    PureCallback,
    host,
)
from ge2.trace import Input, is_traced, run, stage, tidy, title_of
from ge2.transforms.arguments import Arguments, Results, is_array
from ge2.transforms.branches import conformed
from ge2.transforms.custom import CustomRule, Made, custom_vjp, filled, paired
from ge2.transforms.graphs import embedded
from ge2.transforms.loops import map as loop_map
from ge2.tree import map as tree_map

# -------- Two shorter ways to a rule of one's own: `custom_gradient` and `sequential_vmap`.


R = TypeVar("R")


@final
class Rule:
    """A function from a cotangent, and the arrays that it reads beside it, which are its leaves."""

    __slots__ = ("function", "residuals")

    def __init__(self, function: Callable[..., Any], residuals: Sequence[Any]) -> None:
        self.function, self.residuals = function, residuals


register_pytree_node(Rule, lambda r: (tuple(r.residuals), r.function), Rule)


def custom_gradient(fun: Callable[..., tuple[R, Callable[[Any], Any]]]) -> Callable[..., R]:
    """A function from one that returns its result and a function from a
    cotangent to those of the arguments.

    That function returns a tuple with a cotangent for each argument, or a cotangent if
    there is one argument; what it reads from `fun` is kept for it. GradientError if
    `fun` returns something else.

    >>> import numpy as np, ge2
    >>> f = custom_gradient(lambda x: (np.sin(x), lambda ct: ct * x * 10.0))
    >>> ge2.grad(f)(2.0)
    20.0
    """
    both = paired(fun, "a function with custom_gradient", "rule")

    def forward(*args: Any) -> tuple[Any, Any]:
        y, rule = both(*args)
        return y, (y, Rule(*closure_convert(rule, y)))

    def backward(kept: Any, ct: Any) -> Any:
        rule = kept[1]
        found = rule.function(ct, *rule.residuals)
        return found if isinstance(found, tuple | list) else (found,)

    made = custom_vjp(wraps(fun)(lambda *args: both(*args)[0]))
    made.defvjp(forward, backward)
    return made


def sequential_vmap(fun: Callable[..., R]) -> Callable[..., R]:
    """The function, whose batch is a loop over its elements, one after the other: for what vmap
    would make too large, or cannot batch.

    >>> import numpy as np, ge2
    >>> ge2.vmap(sequential_vmap(lambda x, y: x * y), (0, None))(np.array([1.0, 2.0]), 3.0)
    array([3., 6.])
    """
    made = custom_batch(fun)

    def rule(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(args)
        flags = flatten(batched)[0]

        def one(elements: Any) -> Any:
            rest = iter(elements)
            given = [next(rest) if b else x for x, b in zip(leaves, flags, strict=True)]
            return fun(*unflatten(structure, given))

        ys = loop_map(one, [x for x, b in zip(leaves, flags, strict=True) if b])
        return ys, tree_map(lambda _: True, ys)

    made.def_vmap(rule)
    return made


# ----------------------------------------------------------------------------------------- closure
# What a function reads from around it, as arguments: `closure_convert`.


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """`fun` as a function of `(*args, *consts)`, and the consts: traced floats
    that it reads from around it.

    A `custom_vjp` or `custom_jvp` whose function closes over values that a derivative flows through
    is an error; with these as arguments its rule can speak of them. Arguments of other shapes or
    dtypes than `example_args` are an InputError.

    >>> import ge2
    >>> def outer(w):
    ...     f, consts = closure_convert(lambda x: x * w, 1.0)
    ...     return f(3.0, *consts)
    >>> ge2.grad(outer)(2.0)
    3.0
    """
    call, returned = Arguments.of(fun, example_args, {}), Results()
    closed = call.stage(call.inputs(), returned, "closure_convert")
    free = [
        i for i, x in enumerate(closed.captured) if is_traced(x) and type_of(x).dtype in INEXACT
    ]

    @wraps(fun)
    @hides
    def converted(*args: Any) -> Any:
        others = args[len(example_args) :]
        given = Arguments.of(fun, args[: len(example_args)], {})
        if (
            len(others) != len(free)
            or given.structure != call.structure
            or given.types() != call.types()
        ):
            what = f"{call.title} was converted for other arguments"
            raise InputError(
                what, where=here(), fix="f(*args, *consts), the args like example_args"
            )
        around = list(closed.captured)
        for i, x in zip(free, others, strict=True):
            around[i] = x
        return returned.build(run(closed.graph, (*around, *given.values())))

    return converted, [closed.captured[i] for i in free]


# ---------------------------------------------------------------------------------------- batching
# Functions that bring their own batch: `custom_batch`.


Function = Callable[..., Any]
P = ParamSpec("P")
DEEP = 3  # how far arrays are sought in the functions that a rule calls


@final
class custom_batch(CustomRule[P, R]):
    """A function whose batch is given by `def_vmap(rule)`, in place of one made of its equations.

    `rule(axis_size, in_batched, *args)` returns (result, out_batched). `in_batched` has for each
    argument the argument's tree with a bool for each leaf: whether it has the new axis, which is
    then the first; `out_batched` says the same of the result. The rule computes what a loop over
    the axis would: what it is free in is how. Derivatives are those of the function, and the rule
    of a derivative is made of the rule's.

    NoRuleError without a rule, TypeRuleError for a result that is no batch of the function's.

    >>> import numpy as np, ge2
    >>> total = custom_batch(lambda x: x.sum())
    >>> _ = total.def_vmap(lambda size, batched, x: (np.ones(x.shape[1]) @ x.T, True))
    >>> ge2.vmap(total)(np.eye(2))
    array([1., 1.])
    """

    fix = "f.def_vmap(rule)"

    def def_vmap(self, rule: Function) -> Function:
        self.rule, self.ruled = rule, True
        return rule

    def make(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        returned = Results()
        closed = call.stage(call.inputs(), returned, "custom_batch")
        around = around_of(self.rule)
        extra = tuple(Var(type_of(x)) for x in around)
        inputs = (*extra, *closed.graph.inputs)
        graph = tidy(Graph(inputs, closed.graph.eqns, closed.graph.outputs))
        captured = [*around, *closed.captured]
        rule = Batching(
            self, static, call, returned, with_consts(graph, len(captured)), len(around)
        )
        return Made(CustomBatch(rule.graph, rule), captured, returned, closed.looked)


@final
class Batching:
    """The rule of one call: of flat arrays, the values from around the rule first."""

    def __init__(
        self,
        function: custom_batch[..., Any],
        static: tuple[Any, ...],
        call: Arguments,
        returned: Results,
        graph: Graph,
        around: int,
    ) -> None:
        self.rule, self.static, self.returned = function.rule, static, returned
        # it outlives them
        leaves = [None if i in call.arrays else x for i, x in enumerate(call.leaves)]
        self.call, self.graph, self.around = replace(call, leaves=leaves), graph, around
        self.title = f"the rule {title_of(function.rule)}"

    def __call__(self, derive: Derive, batched: Flags, size: int) -> tuple[Graph, Flags, Flags]:
        """The rule's graph; where a value from around the function has the axis, of which the rule
        knows nothing, that of the function.
        """
        consts = self.graph.consts
        if any(batched[:consts]):
            graph, has = derive.batch(self.graph, batched, size)
            return graph, batched, has
        sources = around_of(self.rule)[: self.around]
        types = [
            v.type.with_shape((size, *v.type.shape)) if b else v.type
            for v, b in zip(self.graph.inputs, batched, strict=True)
        ]
        inputs = [Input(t, source=s) for t, s in zip(types, sources, strict=False)]
        inputs += [Input(t) for t in types[len(sources) :]]
        flags: list[bool] = []

        def work(*arrays: Any) -> list[Any]:
            in_batched = filled(self.call, batched[consts:])
            found = self.rule(*self.static, size, in_batched, *filled(self.call, arrays[consts:]))
            return self.checked(found, size, flags)

        graph = embedded(stage(work, inputs, self.title, "custom_batch"), self.title)
        return graph, batched, tuple(flags)

    def checked(self, found: Any, size: int, flags: list[bool]) -> list[Any]:
        """The result of the rule, as arrays; `flags` learns which have the axis."""
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeRuleError(
                f"{self.title} returns (result, out_batched); got a {type(found).__name__}"
            )
        leaves, structure = flatten(found[0])
        if structure != self.returned.structure:
            what = mismatch(self.returned.structure, structure, "the function", self.title)
            raise TypeRuleError(what, fix="return one structure from both")
        try:
            flags += map(bool, broadcast_prefix(found[1], found[0]))
        except PytreeError as error:
            raise TypeRuleError(
                f"{self.title} returns an out_batched that does not fit: {error}"
            ) from None
        return [
            self.fitted(y, a.type, flag, size)
            for y, a, flag in zip(leaves, self.graph.outputs, flags, strict=True)
        ]

    def fitted(self, y: Any, t: Any, flag: bool, size: int) -> Any:
        want = t.with_shape((size, *t.shape)) if flag else t
        got = type_of(y)
        if got.shape != want.shape or (got.dtype != want.dtype and not got.weak):
            what = f"{self.title} returns {got} for {want}" + (
                ", a batch of the result" if flag else ""
            )
            raise TypeRuleError(
                what, fix="a result with the new axis first, and True for it in out_batched"
            )
        return conformed(y, want)


def around_of(rule: Any) -> list[Any]:
    """The arrays that a function reads from around it: by its closure, defaults and globals, and by
    those of functions there. Each once.
    """
    found: dict[int, Any] = {}
    for value in reached(rule, DEEP):
        for leaf in flatten(value)[0]:
            if is_traced(leaf) or (is_array(leaf) and np.ndim(leaf)):
                found.setdefault(id(leaf), leaf)
    return list(found.values())


def reached(function: Any, deep: int) -> Iterator[Any]:
    """The values that a function names."""
    function = getattr(function, "__func__", getattr(function, "fun", function))
    if not isinstance(function, FunctionType) or not deep:
        return
    cells = [c.cell_contents for c in function.__closure__ or () if not is_empty(c)]
    named = [
        function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__
    ]
    for value in (*cells, *(function.__defaults__ or ()), *named):
        if callable(value):
            yield from reached(value, deep - 1)
        elif not isinstance(value, ModuleType):
            yield value


def is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


# -------- Printing, looking and computing in Python from inside traced functions.


TRACED: Final = re.compile(r"<(\w+, |a )traced ~?[a-z0-9]+\[[\d,]*\]>")


@final
@record
class Printer:
    """Prints what it is called with; two of one format are equal."""

    fmt: str
    __name__ = "print"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        sys.stdout.write(f"{self.fmt.format(*args, **kwargs)}\n")


def debug_print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Prints `fmt.format(*args, **kwargs)` when the program runs, with the
    values that traced ones then have.

    Prints come in the order of the program, whatever `ordered` says. Under `vmap` there is one for
    each element, if an argument is mapped; under `grad` one, in the forward pass. ArgumentError for
    a format that does not fit the arguments.

    >>> import ge2
    >>> f = ge2.jit(lambda x: debug_print("x is {}, twice that {y}", x, y=2 * x))
    >>> f(1.5)
    x is 1.5, twice that 3.0
    """
    check_format(fmt, args, kwargs)
    leaves, structure = flatten((args, kwargs))
    each = [s is LEAF for group in structure.children for s in group.children]
    if all(each) and all(map(is_array, leaves)):
        DebugPrint(fmt, tuple(sorted(kwargs)))(*leaves)
        return
    called, arrays = host_of(Printer(fmt), leaves, structure)
    DebugCallback(called)(*arrays)


def debug_callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any
) -> None:
    """Calls `callback(*args, **kwargs)` when the program runs, with the values
    that traced ones then have.

    It is called for its effect; what it returns is dropped. The arrays it gets are its own. Calls
    come in the order of the program, whatever `ordered` says; under `vmap` there is one for each
    element, if an argument is mapped. An exception in it ends the call of the program. InputError
    if the callback closes over a traced value.

    >>> import numpy as np, ge2
    >>> seen = []
    >>> f = ge2.jit(lambda x: debug_callback(seen.append, x) or np.sin(x))
    >>> f(0.0), seen
    (array(0.), [array(0.)])
    """
    leaves, structure = flatten((args, kwargs))
    called, arrays = host_of(checked_callback("debug.callback", callback), leaves, structure)
    DebugCallback(called)(*arrays)


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """`callback(*args, **kwargs)`, computed in Python when the program runs.

    The callback takes and returns NumPy arrays, and depends on its arguments alone: it may be
    called once, twice, or not at all if its result is not used. `result_shape_dtypes` is what it
    returns with `ShapeDtypeStruct`s (or anything with a shape and a dtype) for arrays.
    `vmap_method` says how a batch is computed: "sequential", a call an element; "expand_dims", one
    call, all arrays with one more first axis, of size 1 for those that are not mapped;
    "broadcast_all", likewise, but of the size of the batch; "legacy_vectorized", one call, only
    mapped arrays with the axis. It has no derivative.

    >>> import numpy as np, ge2
    >>> def f(x):
    ...     return pure_callback(lambda x: np.sort(x), x, x)
    >>> ge2.jit(f)(np.array([3.0, 1.0, 2.0]))
    array([1., 2., 3.])
    """
    if vmap_method is not None and vmap_method not in METHODS:
        known = ", ".join(map(repr, METHODS))
        raise ArgumentError(
            f"pure_callback has no vmap_method {vmap_method!r}", where=here(), fix=known
        )
    wanted, results = flatten(result_shape_dtypes)
    types = tuple(map(result_type, wanted))
    leaves, structure = flatten((args, kwargs))
    called, arrays = host_of(
        checked_callback("pure_callback", callback), leaves, structure, results
    )
    ys = PureCallback(called, types, vmap_method)(*arrays)
    return results.unflatten(list(ys))


def result_type(wanted: Any) -> ArrayType:
    """The type of a promised result."""
    if hasattr(wanted, "shape") and hasattr(wanted, "dtype"):
        return ArrayType(tuple(wanted.shape), np.dtype(wanted.dtype))
    if is_array(wanted):
        t = type_of(wanted)
        return ArrayType(t.shape, t.dtype)
    what = f"result_shape_dtypes of pure_callback holds {wanted!r:.60} ({type(wanted).__name__})"
    raise InputError(
        what, where=here(), fix="ge2.ShapeDtypeStruct(shape, dtype), or an array like the result"
    )


# -------------------------------------------------------------------------------------------- hosts


def host_of(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    structure: Structure,
    results: Structure | None = None,
) -> tuple[Host, list[Any]]:
    """The function with what is no array filled in, and the arrays."""
    holes = [HOLE if is_array(leaf) else leaf for leaf in leaves]
    return host(function, holes, structure, results), [leaf for leaf in leaves if is_array(leaf)]


def checked_callback(what: str, callback: Any) -> Any:
    """The user's own function, which must not close over traced values: they
    are gone when it runs.
    """
    if not callable(callback):
        words = f"{what} takes a function; got a {type(callback).__name__}"
        raise InputError(words, where=here(), fix=f"ge2.{what}(f, x), not ge2.{what}(f(x))")
    found = original(callback)
    name = traced_name(found)
    if name:
        words = (
            f"{what}: {title_of(callback)} reads {name}, a traced value, which is gone when it runs"
        )
        raise InputError(
            words, where=here(), fix=f"pass it as an argument: ge2.{what}(f, ..., {name})"
        )
    return found


def traced_name(function: Any) -> str:
    """The variable of a function, or of one inside, that holds a traced value."""
    if isinstance(function, MethodType):
        return traced_name(function.__func__)
    if isinstance(function, partial):
        given = [*function.args, *function.keywords.values()]
        return (
            "an argument of the partial"
            if any(map(is_traced, given))
            else traced_name(function.func)
        )
    if not isinstance(function, FunctionType):
        return ""
    code, defaults = function.__code__, function.__defaults__ or ()
    last = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    given = [*zip(last, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]
    return next((name for name, value in [*bound(function), *given] if holds_traced(value)), "")


def bound(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of functions around it, and what they are bound to."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield name, cell.cell_contents


def holds_traced(value: Any) -> bool:
    try:
        return any(map(is_traced, flatten(value)[0]))
    except PytreeError:  # it contains itself
        return False


# ------------------------------------------------------------------------------------------ formats


def check_format(fmt: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """ArgumentError if the format has fields for which there are no arguments, or lacks some."""
    if not isinstance(fmt, str):
        what = f"debug.print takes a format string first; got a {type(fmt).__name__}"
        raise InputError(what, where=here(), fix="ge2.debug.print('x = {}', x)")
    found = TRACED.search(fmt)
    if found:
        what = f"the format of debug.print was made of a traced value: it holds {found[0]}"
        raise ArgumentError(
            what, where=here(), fix="ge2.debug.print('x = {}', x), without the f before '"
        )
    try:
        Fields().vformat(fmt, args, kwargs)
        if (
            len(
                {
                    name.isdigit()
                    for name in map(leading, string.Formatter().parse(fmt))
                    if name is not None
                }
            )
            > 1
        ):
            raise ValueError("it has both {} and {0}")
    except (LookupError, ValueError, AttributeError) as error:
        what = (
            f"the format {fmt!r} of debug.print does not fit its arguments: {Fields.words(error)}"
        )
        fix = "a {} for each argument, in order, or {name} for name=; {{ and }} for braces"
        raise ArgumentError(what, where=here(), fix=fix) from None


def leading(part: tuple[str, str | None, str | None, str | None]) -> str | None:
    """A field's number, nothing for the next, None for a name or plain text."""
    name = None if part[1] is None else re.split(r"[.\[]", part[1])[0]
    return name if name is not None and (not name or name.isdigit()) else None


@final
class Fields(string.Formatter):
    """Looks up every field, and formats none."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def check_unused_args(
        self, used_args: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        places = [f"argument {i}" for i in range(len(args)) if i not in used_args]
        unused = [*places, *(name for name in kwargs if name not in used_args)]
        if unused:
            raise ValueError(f"{', '.join(unused)} has no place in it")

    @staticmethod
    def words(error: Exception) -> str:
        if isinstance(error, KeyError):
            return f"{error} is not among them"
        return "there are too few of them" if isinstance(error, IndexError) else str(error)
