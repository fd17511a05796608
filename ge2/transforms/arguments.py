"""Arguments of a function as a flat list of arrays, its results as containers, and both as types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import wraps
from itertools import chain
from operator import index
from typing import Any, final

import numpy as np

from ge2.base.arrays import INEXACT, PYTHON, as_array, beside, on_gpu
from ge2.base.errors import InputError, ParseError, PytreeError, VerifyError
from ge2.base.pytree import (
    KeyPath,
    Structure,
    flatten,
    flatten_up_to,
    key_paths,
    keystr,
    register_leaf,
    unflatten,
    why_leaf,
)
from ge2.base.record import mutable, record
from ge2.base.source import here, warn
from ge2.base.tracebacks import hides
from ge2.base.treedef import kind_of
from ge2.ir import ArrayType, Evaluate, Graph, current, type_of, verify
from ge2.ir import ShapeDtypeStruct as ShapeDtypeStruct
from ge2.ir import parse as parse_text
from ge2.ops import KNOWN
from ge2.trace import ABSTRACT, Closed, Input, check_type, is_traced, stage, title_of
from ge2.trace.stage import common_place
from ge2.trace.tracer import located
from ge2.trace.writes import Changing, Writes, is_scalar
from ge2.transforms.graphs import empty, float0, is_float0
from ge2.tree import map as tree_map

__all__ = ["Given"]


# -------- Containers that a function changes: it is given copies, so its caller does not see that.


@final
class Given:
    """The containers among the arguments of a call, with the parts that each has at first."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = containers((args, kwargs), ())
        self.found = [(x, path, parts(x)) for x, path in found if len(path) > 1]

    def lost(self, result: Any) -> list[KeyPath]:
        """The paths of those that have other parts now and are not returned."""
        changed = [(x, path) for x, path, before in self.found if not same(before, parts(x))]
        returned = {id(x) for x, _ in containers(result, ())} if changed else ()
        return [path for x, path in changed if id(x) not in returned]


def containers(tree: Any, path: KeyPath) -> Iterator[tuple[Any, KeyPath]]:
    """The nodes of a tree and their paths, each before those inside it."""
    kind = kind_of(type(tree))
    if kind is not None:
        yield tree, path
        children, aux = kind.split(tree)
        for key, child in zip(kind.keys(aux, len(children)), children, strict=True):
            yield from containers(child, (*path, key))


def parts(container: Any) -> Sequence[Any]:
    if isinstance(container, dict):
        return [*chain.from_iterable(container.items())]
    kind = kind_of(type(container))
    return [*kind.split(container)[0]] if kind is not None else []


def same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))


# -------- The arguments of a Python function as a flat list of arrays, and its results as
# containers again.


OPAQUE = (str, bytes, type, np.dtype, type(Ellipsis), slice, range)


def is_array(leaf: Any) -> bool:
    """True if a leaf is an array or a number, traced or real; anything else is passed on as it is.

    So is the derivative by an integer (float0), which has no bytes that could travel.
    """
    if type(leaf) in PYTHON or is_traced(leaf):
        return True
    if isinstance(leaf, np.ndarray | np.generic):
        return bool(leaf.dtype != float0)
    return hasattr(leaf, "__dlpack__") and isinstance(getattr(leaf, "dtype", None), np.dtype)


def check_functions(what: str, *functions: Any) -> None:
    """InputError if `what` was given something else where it takes functions."""
    for f in functions:
        if not callable(f):
            got = f"{f!r:.60} ({type(f).__name__})"
            raise InputError(
                f"{what} takes a function; got {got}", where=here(), fix="f, and not f(x)"
            )


@register_leaf
@mutable
class Arguments:
    """One call's arguments, taken apart."""

    function: Callable[..., Any]
    leaves: list[Any]
    structure: Structure
    arrays: list[int]  # which leaves are arrays or numbers
    title: str

    @staticmethod
    def of(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        check_functions("a transform", function)
        leaves, structure = flatten((args, kwargs))
        found = Arguments(function, leaves, structure, [], title_of(function))
        for i, leaf in enumerate(leaves):
            if is_array(leaf):
                found.arrays.append(i)
            elif not (isinstance(leaf, OPAQUE) or callable(leaf) or is_float0(leaf)):
                raise found.refused(i)
        if any(map(on_gpu, leaves)):
            common_place(found.title, [(found.name(i), leaves[i]) for i in found.arrays])
        return found

    def refused(self, i: int) -> InputError:
        leaf = self.leaves[i]
        why = why_leaf(leaf)
        own = "a number or an array; for a class of your own, ge2.tree_util.register_pytree_node_class"
        fix = as_array(leaf, self.name(i)) or own
        if hasattr(leaf, "__dlpack__"):
            fix = "ge2.jit around it, which takes arrays of others by DLPack, or np.asarray(x)"
        kind = type(leaf).__name__
        what = f"{self.name(i)} of {self.title} is a {kind}, neither an array nor a container of arrays"
        return InputError(what + (f": {why}" if why else ""), where=here(), fix=fix)

    def name(self, i: int) -> str:
        """The user's name of leaf `i`: the parameter's name and the path inside it."""
        return self.spelt(key_paths(self.structure)[i])

    def names(self) -> list[str]:
        """The user's names of all leaves."""
        return [self.spelt(path) for path in key_paths(self.structure)]

    def spelt(self, path: KeyPath) -> str:
        if path[0].idx == 1:  # among the keyword arguments
            return f"{path[1].key}{keystr(path[2:])}"
        at = path[1].idx
        return f"{parameters_at(self.function, [at])[0]}{keystr(path[2:])}"

    def values(self) -> list[Any]:
        found = [self.leaves[i] for i in self.arrays]
        if ShapeDtypeStruct in map(type, found):
            i = next(i for i in self.arrays if type(self.leaves[i]) is ShapeDtypeStruct)
            what = f"{self.name(i)} of {self.title} is a ShapeDtypeStruct, which has no elements"
            raise InputError(
                what, where=here(), fix="an array; or ge2.eval_shape(f, ...) for shapes alone"
            )
        return found

    def types(self) -> list[ArrayType]:
        return [checked_type(self, i) for i in self.arrays]

    def inexact(self) -> list[int]:
        """The leaves that have a derivative."""
        return [i for i in self.arrays if type_of(self.leaves[i]).dtype in INEXACT]

    def of_argument(self, argnum: int) -> list[int]:
        """The leaves that belong to a positional argument."""
        args = self.structure.children[0].children
        argnum = placed(argnum, len(args), self.title)
        start = sum(s.num_leaves for s in args[:argnum])
        return list(range(start, start + args[argnum].num_leaves))

    def structure_of(self, argnum: int) -> Structure:
        return self.structure.children[0].children[argnum]

    def call(self, arrays: Sequence[Any]) -> Any:
        """The function's result with other arrays in the same places."""
        leaves = list(self.leaves)
        for i, x in zip(self.arrays, arrays, strict=True):
            leaves[i] = x
        args, kwargs = unflatten(self.structure, leaves)
        given = Given(args, kwargs)
        result = self.function(*args, **kwargs)
        for path in given.lost(result):
            name = self.spelt(path)
            warn(
                f"{self.title} changes {name}, a container that it is given: its caller's stays as it was",
                f"return {name} and assign it outside, or change a copy of it",
            )
        return result

    def stage(self, inputs: Sequence[Input], returned: Results, kind: str = "") -> Closed:
        return stage(lambda *arrays: returned.flat(self.call(arrays)), inputs, self.title, kind)

    def stage_writing(
        self, inputs: Sequence[Input], returned: Results, kind: str, free: Sequence[bool]
    ) -> tuple[Closed, Writes | None]:
        """As `stage`; the function may write the arrays that are `free`, whose last contents are
        outputs after its results.
        """
        changing = Changing(0, self.arrays)
        allowed = [
            replace(given, carried_back=is_free, scalar=is_scalar(self.leaves[i]))
            if is_free
            else given
            for given, is_free, i in zip(inputs, free, self.arrays, strict=True)
        ]

        def run(*arrays: Any) -> list[Any]:
            found = returned.flat(self.call(arrays))
            return [*found, *changing.outputs(arrays, ())]

        closed = stage(run, allowed, self.title, kind)
        names = self.names()
        return closed, changing.writes(self.title, [names[i] for i in self.arrays])

    def check(self, writes: Writes | None) -> None:
        """ReadOnlyError, InPlaceError unless what is written can be,
        and shares no memory with another.
        """
        if writes is not None:
            writes.check_given(self.values())

    def carry(self, writes: Writes | None, found: Sequence[Any]) -> None:
        """Gives the arrays that were written their last contents, with which `found` ends."""
        if writes is not None:
            writes.carried(self.values(), list(found[len(found) - len(writes.each) :]))

    def inputs(
        self, active: Iterable[int] = (), types: Sequence[ArrayType] | None = None
    ) -> list[Input]:
        """The inputs of a trace for each array: its type, its value, whether a derivative flows
        from it.
        """
        chosen = set(active)
        given = self.types() if types is None else types
        names = self.names()
        return [
            Input(t, self.leaves[i], names[i], i in chosen)
            for i, t in zip(self.arrays, given, strict=True)
        ]


def numbered(argnums: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of arguments, as a tuple."""
    given: tuple[Any, ...] = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    if not all(hasattr(n, "__index__") for n in given):
        what = f"argnums counts arguments by integers; got {argnums!r}"
        raise InputError(what, where=here(), fix="argnums=0 for the first, (0, 1) for two")
    return tuple(map(index, given))


def placed(argnum: int, given: int, title: str) -> int:
    """The place of an argument that may be counted from the end."""
    if not -given <= argnum < given:
        what = f"argnums names argument {argnum}, but {title} was given {given}"
        raise InputError(
            what,
            where=here(),
            fix=f"argnums={given - 1}: they count from 0, those given by position"
            if given
            else "f(x), by position",
        )
    return argnum % given


@record
class Static:
    """The positional arguments that are no arrays for a transform, but passed on as they are."""

    argnums: tuple[int, ...]

    @staticmethod
    def of(argnums: int | Sequence[int] | None) -> Static:
        return Static(() if argnums is None else numbered(argnums))

    def places(self, function: Any, args: Sequence[Any]) -> set[int]:
        return {placed(n, len(args), title_of(function)) for n in self.argnums}

    def split(
        self, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], Callable[..., Any]]:
        """The static arguments, the others, and the function of those others
        (and of keyword arguments).
        """
        if not self.argnums:
            return (), args, function
        places = self.places(function, args)

        @named_after(
            function, parameters_at(function, [i for i in range(len(args)) if i not in places])
        )
        def merged(*others: Any, **kwargs: Any) -> Any:
            rest = iter(others)
            return function(
                *(args[i] if i in places else next(rest) for i in range(len(args))), **kwargs
            )

        return (
            tuple(args[i] for i in sorted(places)),
            tuple(a for i, a in enumerate(args) if i not in places),
            merged,
        )


@register_leaf
@mutable
class Results:
    """The results of a traced function, remembered while only its arrays travel.

    Derivatives by integers (float0) have no bytes and do not travel: they are put back afterwards.
    """

    has_aux: bool = False
    structure: Any = None
    count: int = 0  # of arrays that are the result proper; those after are auxiliary
    main: Any = None
    # the leaves that are float0, by their place
    empty: dict[int, Any] = field(default_factory=dict)

    def flat(self, result: Any) -> list[Any]:
        if self.has_aux and (type(result) is not tuple or len(result) != 2):
            got = f"{len(result)} values" if type(result) is tuple else "one value"
            raise InputError(
                f"with has_aux=True the function returns a pair, (result, aux); it returned {got}",
                where=here(),
                fix="return loss, aux",
            )
        leaves, self.structure = flatten(result)
        self.main = self.structure.children[0] if self.has_aux else self.structure
        self.empty = {i: x for i, x in enumerate(leaves) if is_float0(x)}
        self.count = self.main.num_leaves - sum(i < self.main.num_leaves for i in self.empty)
        return self.arrays_of(leaves)

    def arrays_of(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves that travel."""
        return (
            [x for i, x in enumerate(leaves) if i not in self.empty] if self.empty else list(leaves)
        )

    def build(self, arrays: Sequence[Any], over: int | None = None) -> Any:
        """The result with other arrays in it; `over` is the size of one more
        axis that they have.
        """
        return unflatten(self.structure, self._with_empty(arrays, self.structure.num_leaves, over))

    def build_main(self, arrays: Sequence[Any]) -> Any:
        """As `build`, without the auxiliary part."""
        return unflatten(self.main, self._with_empty(arrays, self.main.num_leaves, None))

    def _with_empty(self, arrays: Sequence[Any], count: int, over: int | None) -> list[Any]:
        lead, rest = (() if over is None else (over,)), iter(arrays)
        return [
            empty((*lead, *self.empty[i].shape)) if i in self.empty else next(rest)
            for i in range(count)
        ]

    def paths(self) -> list[str]:
        """The path of each array in the result, as `['a'][0]`."""
        return self.arrays_of([keystr(path) for path in key_paths(self.structure)])


def parameters(function: Any) -> Sequence[str]:
    """The names of a function's positional parameters; of a wrapped one
    those of the function inside.
    """
    while True:
        named = getattr(function, "parameters_of_ge2", None)
        if named is not None:
            return named  # type: ignore[no-any-return]
        if not hasattr(function, "__wrapped__"):
            break
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    names: Sequence[str] = code.co_varnames[: code.co_argcount]
    return names[1:] if hasattr(function, "__self__") else names


def parameters_at(function: Any, places: Iterable[int]) -> list[str]:
    """The names of the arguments at these places in errors."""
    known = parameters(function)
    return [known[i] if i < len(known) else f"argument {i}" for i in places]


def leaves_like(structure: Structure, tree: Any, names: tuple[str, str]) -> list[Any]:
    """The leaves of a tree that has that structure; PytreeError with
    the user's line if it has another.
    """
    try:
        return flatten_up_to(structure, tree, names)
    except PytreeError as error:
        raise located(error) from None


def named_after(
    function: Callable[..., Any], names: Sequence[str]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `functools.wraps`, for a function of some of the parameters."""

    def decorate(inner: Callable[..., Any]) -> Callable[..., Any]:
        inner = wraps(function)(inner)
        inner.parameters_of_ge2 = tuple(names)  # type: ignore[attr-defined]
        return inner

    return decorate


def checked_type(arguments: Arguments, i: int) -> ArrayType:
    leaf = arguments.leaves[i]
    if type(leaf) in PYTHON or is_traced(leaf):
        return type_of(leaf)
    try:
        return check_type(leaf)
    except InputError as error:
        raise InputError(f"{arguments.name(i)} of {arguments.title} is {error}") from None


def owned(results: Sequence[Any], args: Sequence[Any] = ()) -> list[Any]:
    """Results that are the caller's own: writable, contiguous, sharing memory
    with no input and no other.

    They are on the GPU of the arguments, if those are on one. Python
    numbers and traced values pass.
    """
    seen, near = {id(x) for x in args}, next(filter(on_gpu, args), None)
    return [_owned(y, seen, near) for y in results]


def _owned(y: Any, seen: set[int], near: Any) -> Any:
    if type(y) in PYTHON or is_traced(y):
        return y
    if on_gpu(y):  # whose arrays are all writable
        y = (
            y
            if y.base is None and y.flags.c_contiguous and id(y) not in seen
            else y.copy(order="C")
        )
    else:
        plain = (
            type(y) is np.ndarray and y.base is None and y.flags.c_contiguous and y.flags.writeable
        )
        y = y if plain and id(y) not in seen else np.array(y, order="C")
    y = beside(y, near)
    seen.add(id(y))
    return y


def at_top() -> bool:
    """True if no function is being traced."""
    return isinstance(current(), Evaluate)


# -------- Looking at functions: their graph as text, and the types of their results.


def make_jaxpr(
    fun: Callable[..., Any], static_argnums: int | Sequence[int] = (), return_shape: bool = False
) -> Callable[..., Any]:
    """A function that takes `fun`'s arguments and returns its graph; arrays
    that `fun` captured come first.

    The last contents of arguments that `fun` writes are outputs of the graph, after its results.

    >>> import numpy as np
    >>> print(make_jaxpr(lambda x: np.tanh(x) * 2)(np.zeros(3, np.float32)))
    { lambda ; a:f32[3]. let
        b:f32[3] = tanh a
        c:f32[3] = mul b 2.0:f32[]
      in (c,) }
    """
    static = Static.of(static_argnums)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _, others, merged = static.split(fun, args)
        call = Arguments.of(merged, others, kwargs)
        inputs = [Input(g.type, ABSTRACT, g.name) for g in call.inputs()]
        returned = Results()
        closed, _ = call.stage_writing(inputs, returned, "make_jaxpr", [True] * len(inputs))
        if not return_shape:
            return closed
        return closed, returned.build(
            [ShapeDtypeStruct(a.type.shape, a.type.dtype) for a in closed.graph.outputs]
        )

    return wrapped


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The structure, shapes and dtypes of `fun(*args)`, which is not computed.

    An argument is an array, a `ShapeDtypeStruct`, or anything with a `shape` and a `dtype`; one
    that `fun` would write is left as it is.

    >>> import numpy as np
    >>> eval_shape(lambda x: x @ x.T, ShapeDtypeStruct((2, 3), np.float32))
    ShapeDtypeStruct(shape=(2, 2), dtype=dtype('float32'))
    """
    args, kwargs = tree_map(as_struct, (args, kwargs))
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]


def as_struct(x: Any) -> Any:
    """A ShapeDtypeStruct of what only has a shape and dtype; an array as it is."""
    if is_array(x) or not (hasattr(x, "shape") and hasattr(x, "dtype")):
        return x
    return ShapeDtypeStruct(x.shape, x.dtype)


def parse(text: str) -> Graph:
    """The graph that a text in jaxpr form stands for.

    >>> import numpy as np
    >>> parse("{ lambda ; a:f32[3]. let b:f32[3] = tanh a in (b,) }")(np.zeros(3, np.float32))
    [array([0., 0., 0.], dtype=float32)]

    Raises:
        ParseError: it is no text of a graph, or its types do not fit.
    """
    graph = parse_text(text, KNOWN)
    try:
        return verify(graph)
    except VerifyError as error:
        raise ParseError(f"the text is no graph: {error}") from None
