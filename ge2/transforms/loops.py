"""Loops over traced values: `scan`, `while_loop`, `fori_loop`, `map` and `associative_scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from operator import index
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, INEXACT, on_gpu
from ge2.base.errors import InputError, TypeRuleError
from ge2.base.pytree import Structure, flatten, key_paths, keystr, mismatch, unflatten
from ge2.base.record import record
from ge2.base.source import here
from ge2.ir import ArrayType, Atom, Eqn, Graph, GraphOp, Literal, Var, rename, type_of
from ge2.ops.graphs.associative import AssociativeScan, Prefixes, in_turn
from ge2.ops.graphs.control import Call, inlined, types_of
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import Iota
from ge2.ops.sort import BitcastConvertType
from ge2.trace import Closed, Input, is_traced, retrace, stage, title_of
from ge2.trace.concrete import knowable
from ge2.trace.stage import strong, strong_value
from ge2.transforms.arguments import at_top, check_functions, is_array, owned
from ge2.transforms.batching import vmap
from ge2.transforms.branches import common, retyped
from ge2.tree import map as tree_map

Function = Callable[..., Any]
INDEX = np.dtype(np.int64)
EIGHT = 8  # elements that a kernel of associative_scan combines one after the other
MOST = 8  # arrays that a kernel of one has
HOLOMORPHIC = frozenset(("add", "sub", "mul", "div", "neg", "exp"))


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Calls `carry, y = f(carry, x)` for each element of `xs`: the last carry,
    and all results stacked.

    `xs` is a container of arrays (or None, with a `length`) that agree in the first axis; `x` is
    the same container of their elements. The carry is a container that keeps its structure, shapes
    and dtypes. With `reverse` the last element comes first, and results are where their elements
    do. `unroll`, 1 or more or a bool, is a hint that JAX takes: here the compiler decides how many
    iterations stand together. TypeRuleError if an iteration returns another carry than it was
    given.

    >>> scan(lambda total, x: (total + x, total * x), 0.0, np.array([1.0, 2.0, 3.0]))
    (array(6.), array([0., 2., 9.]))
    """
    check_functions("scan", f)
    check_unroll("scan", unroll)
    elements, structure = flatten(xs)
    length = checked_length(elements, structure, length)
    carry = Carry.of(init, "init of scan")
    types = [element_type(x) for x in elements]

    def call(leaves: Sequence[Any]) -> Any:
        found: Any = f(
            carry.build(leaves[: carry.count]), unflatten(structure, leaves[carry.count :])
        )
        if not (isinstance(found, tuple) and len(found) == 2):
            got = f"{len(found)} values" if isinstance(found, tuple) else kind_of(found)
            raise TypeRuleError(
                f"{title_of(f)} is to return (carry, result) for scan; it returned {got}",
                where=here(), fix="return carry, None where there is no result",
            )  # fmt: skip
        return found

    closed, results = carry.stage(f, call, types, "scan")
    op = ScanLoop(strong(closed.graph), length, len(closed.captured), carry.count, bool(reverse))
    found = applied(op, [*closed.captured, *carry.values, *elements])
    return carry.build(found[: carry.count]), unflatten(results, found[carry.count :])


def check_unroll(what: str, unroll: Any) -> None:
    if not hasattr(unroll, "__index__") or (not isinstance(unroll, bool) and index(unroll) < 1):
        raise InputError(
            f"{what} takes an unroll of 1 or more; got {unroll!r}", where=here(), fix="unroll=1"
        )


def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any
) -> Any:
    """`val = body_fun(val)` as long as `cond_fun(val)`, a bool scalar, holds: the last `val`.

    `val` is a container of arrays that keeps its structure, shapes and dtypes. Under
    `vmap` elements go on until their own predicate fails. It has forward derivatives; a
    reverse one is an error that says what to use instead, since how many iterations would
    have to be kept is not known beforehand.

    >>> while_loop(lambda x: x < 100, lambda x: x * 2, 3)
    array(192)
    """
    check_functions("while_loop", cond_fun, body_fun)
    carry = Carry.of(init_val, "init_val of while_loop")
    closed, _ = carry.stage(
        body_fun, lambda leaves: (body_fun(carry.build(leaves)), None), (), "while_loop"
    )
    inputs = carry.inputs("while_loop")
    decided = stage(
        lambda *xs: [predicate(cond_fun, carry.build(xs))], inputs, title_of(cond_fun), "while_loop"
    )
    op = WhileLoop(
        strong(decided.graph), strong(closed.graph), len(decided.captured), len(closed.captured)
    )
    return carry.build(applied(op, [*decided.captured, *closed.captured, *carry.values]))


def kind_of(x: Any) -> str:
    """The result of a function, in words."""
    return str(type_of(x)) if is_array(x) else f"a {type(x).__name__}"


def predicate(f: Function, val: Any) -> Any:
    found = f(val)
    what = f"{title_of(f)} is to return a bool scalar for while_loop; it returned "
    if not is_array(found):
        raise TypeRuleError(f"{what}a {type(found).__name__}", where=here(), fix="np.all(x < y)")
    if type_of(found).shape or type_of(found).dtype != BOOL:
        raise TypeRuleError(
            f"{what}{type_of(found)}", where=here(), fix="np.any(x) or np.all(x); x != 0"
        )
    return found


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    unroll: int | bool | None = None,
) -> Any:
    """`val = body_fun(i, val)` for i from `lower` up to `upper`, without it: the last `val`.

    With bounds that are known it is a scan, which has all derivatives; with those that depend on an
    argument of `jit`, or on an element of a batch, a while loop.

    `i` is a Python int to the arrays that it meets: it does not widen their dtypes.

    >>> fori_loop(0, 5, lambda i, total: total + i, 0)
    array(10)
    """
    check_functions("fori_loop", body_fun)
    check_unroll("fori_loop", 1 if unroll is None else unroll)
    if not (knowable(lower) and knowable(upper)):
        return counted_while(lower, upper, body_fun, init_val)
    first, last = (checked_bound(x) for x in (lower, upper))
    carry = Carry.of(init_val, "init_val of fori_loop")

    def call(leaves: Sequence[Any]) -> Any:
        return body_fun(leaves[carry.count], carry.build(leaves[: carry.count])), None

    closed, _ = carry.stage(body_fun, call, [ArrayType((), INDEX, weak=True)], "fori_loop")
    length = max(last - first, 0)
    op = ScanLoop(strong(closed.graph), length, len(closed.captured), carry.count)
    counter = Iota((length,), 0, INDEX)() + INDEX.type(first)
    return carry.build(applied(op, [*closed.captured, *carry.values, counter]))


def counted_while(lower: Any, upper: Any, body_fun: Function, init_val: Any) -> Any:
    def on(val: Any) -> Any:
        return val[0] < val[1]

    def body(val: Any) -> Any:
        i, end, inner = val
        return i + 1, end, body_fun(i, inner)

    bounds: list[Any] = [x if is_traced(x) else checked_bound(x) for x in (lower, upper)]
    for x in bounds:
        if type_of(x).shape or type_of(x).dtype.kind not in "iu":
            raise TypeRuleError(
                f"a bound of fori_loop is an integer scalar; got {type_of(x)}", where=here()
            )
    return while_loop(
        on, body, (*(x if type_of(x).weak else x.astype(INDEX) for x in bounds), init_val)
    )[2]


def checked_bound(x: Any) -> int:
    try:
        return index(x)
    except TypeError:
        what = f"a bound of fori_loop is an integer; got {type_of(x) if is_array(x) else type(x).__name__}"
        raise TypeRuleError(what, where=here(), fix="int(x)") from None


def map(f: Function, xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` of each element of `xs` along the first axis, one after the other, results stacked.

    With `batch_size` so many at a time are taken by `vmap`, which is quicker and needs more memory.

    >>> map(lambda x: x * x, np.array([1.0, 2.0, 3.0]))
    array([1., 4., 9.])
    """
    check_functions("map", f)

    @wraps(f)
    def one(_: Any, x: Any) -> Any:
        return (), f(x)

    if batch_size is None:
        return scan(one, (), xs)[1]
    elements, structure = flatten(xs)
    length = checked_length(elements, structure, None)
    if batch_size < 1:
        raise InputError(f"map takes a batch_size of 1 or more; got {batch_size}", where=here())
    whole, batched = length // batch_size * batch_size, vmap(f)
    ys = []
    if whole:
        parts = [x[:whole].reshape(whole // batch_size, batch_size, *x.shape[1:]) for x in elements]
        found = scan(lambda _, x: ((), batched(x)), (), unflatten(structure, parts))[1]
        ys.append(tree_map(lambda y: y.reshape(whole, *y.shape[2:]), found))
    if whole < length or not whole:
        ys.append(batched(unflatten(structure, [x[whole:] for x in elements])))
    return ys[0] if len(ys) == 1 else tree_map(lambda a, b: np.concatenate([a, b], 0), *ys)


def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All elements up to each one, combined by the associative `fn`, along an axis.

    `fn(a, b)` combines containers like `elems` of any size along the axis, element by element. It
    is called on arrays, not on single elements: about 2 times for each halving of the axis, or 15
    for each eighth of it where `fn` only computes element by element, so that one kernel combines
    eight (G. E. Blelloch, "Prefix sums and their applications", 1990).

    >>> associative_scan(np.add, np.array([1, 2, 3, 4]))
    array([ 1,  3,  6, 10])
    """
    leaves, structure = flatten(elems)
    if not leaves:
        return elems
    given = {type_of(x).shape[axis] if -x.ndim <= axis < x.ndim else None for x in leaves}
    if None in given or len(given) > 1:
        shapes = ", ".join(str(type_of(x)) for x in leaves)
        what = f"associative_scan takes arrays of one size along axis {axis}; got {shapes}"
        raise InputError(what, where=here())
    scan = ScanInRows(fn, structure, [axis % x.ndim for x in leaves])
    pair = scan.staged(leaves) if any(is_traced(x) for x in leaves) else None
    if pair is not None and is_elementwise(pair.graph):
        of_scalars = scalar_pair(pair, [type_of(x) for x in leaves], scan.axes[0])
        if of_scalars is not None:
            return unflatten(structure, AssociativeScan(of_scalars, scan.axes[0], reverse)(*leaves))
        scan = replace(scan, widest=EIGHT)
    flipped = scan.cut(leaves, None, None, -1) if reverse else leaves
    found = scan.of(flipped, leaves[0].shape[axis])
    return unflatten(structure, scan.cut(found, None, None, -1) if reverse else found)


@final
@record
class ScanInRows:
    """All elements up to each one, combined by an associative function, along an axis of each leaf."""

    fn: Callable[[Any, Any], Any]
    structure: Structure
    axes: Sequence[int]
    widest: int = 2  # elements that are combined one after the other

    def of(self, xs: Sequence[Any], n: int) -> Sequence[Any]:
        """The prefixes of n elements: in rows of some, by the prefixes of the rows' totals.

        The first row may be shorter. It alone has nothing before it; the others are arrays of one
        shape, which a kernel takes whole.
        """
        if n <= self.widest:
            return self.joined(self.chain([self.cut(xs, k, k + 1) for k in range(n)])) if n else xs
        width = self.width(n)
        first = (n - 1) % width + 1
        whole = first == width  # the first row is as the others are
        known = self.widest == 2  # a region combines a row's last again: a copy would be a kernel
        head = self.chain([self.cut(xs, k, k + 1) for k in range(first - (known and whole))])
        totals = self.chain(self.columns(xs, 0 if whole else first, n, width))[-1]
        if not whole:
            totals = self.concatenated([head[-1], totals])
        rows = (n - first) // width
        ends = self.of(totals, rows + 1)
        columns = self.columns(xs, first, n, width)
        body = self.chain([self.cut(ends, 0, rows), *columns[: width - known]])[1:]
        if known:
            body.append(self.cut(ends, 1, rows + 1))
            head = [*head, self.cut(ends, 0, 1)][:first]
        return self.concatenated([self.joined(head), self.joined(body)])

    def width(self, n: int) -> int:
        """How many elements are a row: all rows alike, where that takes no narrower than half."""
        widest = self.widest
        return next((w for w in range(widest, widest // 2, -1) if n % w == 0), widest)

    def chain(self, xs: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Each combined with all before it."""
        found = [xs[0]]
        for x in xs[1:]:
            found.append(self.combined(found[-1], x))
        return found

    def columns(self, xs: Sequence[Any], start: int, stop: int, width: int) -> list[list[Any]]:
        """The first element of each row, the second, ..., the last.

        As columns of a table and not as slices with a step: derivatives of those are put together
        without zeros between.
        """
        tables = [
            x.reshape(*x.shape[:a], (stop - start) // width, width, *x.shape[a + 1 :])
            for x, a in zip(self.cut(xs, start, stop), self.axes, strict=True)
        ]
        return [
            [t[(slice(None),) * (a + 1) + (k,)] for t, a in zip(tables, self.axes, strict=True)]
            for k in range(width)
        ]

    def joined(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """The elements of rows, by columns, one row after the other."""
        tables = [np.stack(x, a + 1) for *x, a in zip(*columns, self.axes, strict=True)]
        return [
            t.reshape(*t.shape[:a], t.shape[a] * t.shape[a + 1], *t.shape[a + 2 :])
            for t, a in zip(tables, self.axes, strict=True)
        ]

    def concatenated(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        return [np.concatenate(each, a) for *each, a in zip(*parts, self.axes, strict=True)]

    def staged(self, xs: Sequence[Any]) -> Closed:
        """`fn` of one element and another."""

        def pair(*leaves: Any) -> list[Any]:
            return self.combined(leaves[: len(xs)], leaves[len(xs) :])

        reason = "it is any part of what associative_scan combines"
        inputs = [Input(type_of(x), reason=reason) for x in self.cut(xs, 0, 1)]
        return stage(pair, inputs * 2, title_of(self.fn), "associative_scan")

    def cut(
        self, xs: Sequence[Any], start: int | None, stop: int | None, step: int | None = None
    ) -> list[Any]:
        """A slice of each leaf along its axis."""
        part = slice(start, stop, step)
        return [x[(slice(None),) * a + (part,)] for x, a in zip(xs, self.axes, strict=True)]

    def combined(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        """`fn(a, b)`, whose structure and types are those of a."""
        structure, name = self.structure, title_of(self.fn)
        found, own = flatten(self.fn(unflatten(structure, a), unflatten(structure, b)))
        if own != structure:
            what = mismatch(structure, own, "elems", f"the result of {name}")
            raise TypeRuleError(f"associative_scan: {what}", where=here())
        for x, y, path in zip(a, found, key_paths(structure), strict=True):
            if type_of(x) != type_of(y):
                at = f" at {keystr(path)}" if path else ""
                what = f"{name} combines {type_of(x)}{at} to {type_of(y)}"
                fix = "combine element by element, and keep shapes and dtypes"
                raise TypeRuleError(f"associative_scan: {what}", where=here(), fix=fix)
        return found


def is_elementwise(graph: Graph) -> bool:
    """Whether a region has room for all: no sums, products or loops, jitted functions seen through."""
    return all(
        all(is_elementwise(g) for g in e.op.graphs())
        if isinstance(e.op, Call)
        else isinstance(e.op, Pointlike) or e.op.is_view
        for e in graph.eqns
    )


def without_kernels(graph: Graph, least: int) -> Graph:
    """The graph, its associative scans down rows of so many elements as loops, and others by regions."""
    eqns, env = list[Eqn](), dict[Var, Atom]()
    for e in graph.eqns:
        inputs = rename(env, e.inputs)
        if not isinstance(e.op, Prefixes):
            eqns.append(replace(e, inputs=inputs))
            continue
        t = inputs[0].type
        down = e.op.axis == 0 and t.shape[0] > EIGHT and t.size >= least * t.shape[0]
        made = retrace(partial(in_turn if down else in_rows, e.op), types_of(inputs))
        names: dict[Var, Atom] = dict(zip(made.inputs, inputs, strict=True))
        eqns += [
            replace(each, inputs=rename(names, each.inputs), source=e.source) for each in made.eqns
        ]
        env.update(zip(e.outs, rename(names, made.outputs), strict=True))
    return replace(graph, eqns=tuple(eqns), outputs=rename(env, graph.outputs))


def in_rows(op: Prefixes, *xs: Any) -> list[Any]:
    """An associative scan by regions, each of which combines eight elements."""
    n, count = xs[0].shape[op.axis], len(xs)

    def pair(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
        found = op.jaxpr(*a, *b)
        return tuple(y if y.ndim else y.spread(x.shape, ()) for x, y in zip(b, found, strict=True))

    scan = ScanInRows(pair, flatten((0,) * count)[1], [op.axis] * count, EIGHT)
    found = scan.of(scan.cut(xs, None, None, -1) if op.reverse else xs, n)
    found = scan.cut(found, None, None, -1) if op.reverse else found
    return [found[i] for i in op.results]


def scalar_pair(pair: Closed, types: Sequence[ArrayType], axis: int) -> Graph | None:
    """`pair` of scalars, if kernels of associative scans compute it: each of its results is made of
    the elements at one place of arrays of one shape, and of numbers.
    """
    graph = inlined(pair.graph, (Call,))
    shapes, dtypes = {t.shape for t in types}, {t.dtype for t in types} & INEXACT
    if max(len(shapes), len(dtypes)) > 1 or len(types) > MOST or types[0].shape[axis] <= EIGHT:
        return None
    env: dict[Var, Atom] = {v: Var(v.type.with_shape(())) for v in graph.inputs[graph.consts :]}
    for v, x in zip(graph.inputs[: graph.consts], pair.captured, strict=True):
        if is_traced(x) or on_gpu(x) or type_of(x).size != 1:
            return None
        env[v] = Literal.of(np.asarray(x).reshape(-1)[0])
    eqns = list[Eqn]()
    for e in graph.eqns:
        inputs = rename(env, e.inputs)
        if e.op.is_view and not e.inputs[0].type.shape:
            env[e.outs[0]] = inputs[0]  # a number, spread
        elif isinstance(e.op, Pointlike) and not e.op.edition and not is_unfit(e):
            outs = tuple(Var(v.type.with_shape(())) for v in e.outs)
            env.update(zip(e.outs, outs, strict=True))
            eqns.append(Eqn(e.op, inputs, outs, e.source))
        else:
            return None
    given = tuple(v for v in rename(env, graph.inputs[graph.consts :]) if isinstance(v, Var))
    return Graph(given, tuple(eqns), rename(env, graph.outputs))


def is_unfit(eqn: Eqn) -> bool:
    """True of what may end with an error, looks at bits, or whose derivative is no multiple of a
    complex number.
    """
    dtypes, name = {v.type.dtype for v in (*eqn.inputs, *eqn.outs)}, eqn.op.name
    if (name == "pow" and not dtypes & INEXACT) or isinstance(eqn.op, BitcastConvertType):
        return True
    return bool(dtypes & COMPLEX) and name not in HOLOMORPHIC


# ---------------------------------------------------------------------------------------- the carry


class Carry:
    """The carry of a loop from one iteration to the next: its structure, its first values, and
    their types.
    """

    def __init__(self, values: list[Any], structure: Structure, what: str) -> None:
        self.values, self.structure, self.what = values, structure, what
        self.types = [type_of(x) for x in values]

    @staticmethod
    def of(init: Any, what: str) -> Carry:
        values, structure = flatten(init)
        for x, path in zip(values, key_paths(structure), strict=True):
            if not is_array(x):
                raise InputError(
                    f"{what} holds a {type(x).__name__} at {keystr(path) or 'its root'}, no array",
                    where=here(),
                )
        return Carry(values, structure, what)

    @property
    def count(self) -> int:
        return len(self.values)

    def build(self, leaves: Sequence[Any]) -> Any:
        return unflatten(self.structure, leaves)

    def inputs(self, kind: str, writable: bool = False) -> list[Input]:
        reason = f"it changes from one iteration of {kind} to the next"
        given = zip(self.types, self.names(), strict=True)
        return [Input(t, reason=reason, name=n, writable=writable) for t, n in given]

    def names(self) -> list[str]:
        return [f"the carry{keystr(path)}" for path in key_paths(self.structure)]

    def stage(
        self, f: Function, call: Function, elements: Sequence[ArrayType], kind: str
    ) -> tuple[Closed, Structure]:
        """An iteration as a graph whose carry has one type throughout; the
        structure of its other results.

        The carry is the loop's own: an iteration may write into it, and the first
        values stay as they are.
        """
        rest = [
            Input(t, reason=f"it changes from one iteration of {kind} to the next")
            for t in elements
        ]
        while True:
            found: list[Structure] = []

            def flat(*leaves: Any) -> list[Any]:
                carried, others = call(leaves)
                after, structure = flatten(carried)
                if structure != self.structure:
                    what = mismatch(
                        self.structure, structure, self.what, f"what {title_of(f)} returns"
                    )
                    raise TypeRuleError(
                        f"{kind}: {what}", where=here(), fix="carry one structure throughout"
                    )
                results, others_structure = flatten(others)
                found[:] = [others_structure]  # noqa: B023
                return [*after, *results]

            closed = stage(flat, [*self.inputs(kind, writable=True), *rest], title_of(f), kind)
            types = [a.type for a in closed.graph.outputs[: self.count]]
            agreed = [self.agreed(i, t, f, kind) for i, t in enumerate(types)]
            if agreed == self.types:
                break
            self.types = agreed
        graph = retyped(closed.graph, self.types)
        self.values = [conformed_first(x, t) for x, t in zip(self.values, self.types, strict=True)]
        return Closed(graph, closed.captured, closed.looked), found[0]

    def agreed(self, i: int, after: ArrayType, f: Function, kind: str) -> ArrayType:
        """The type that a part of the carry has before and after an iteration."""
        before = self.types[i]
        t = common(before, after)
        if t is None or (t != before and not before.weak):
            path = keystr(key_paths(self.structure)[i])
            at = f" at {path}" if path else ""
            fix = (
                f'return x.astype("{before.dtype}"), or begin with {after.dtype}'
                if before.shape == after.shape
                else f"np.zeros({after.shape}) to begin with: a carry keeps its shape"
            )
            raise TypeRuleError(
                f"{kind}: the carry{at} is {before} before an iteration of {title_of(f)} and {after} after it",
                where=here(), fix=fix,
            )  # fmt: skip
        return t


def conformed_first(x: Any, t: ArrayType) -> Any:
    """A first value in the type that the carry has."""
    if type_of(x).weak and not t.weak:
        return x.cast(t.dtype, False) if is_traced(x) else t.dtype.type(x)
    if type_of(x).dtype != t.dtype:
        return x.cast(t.dtype, True) if is_traced(x) else t.dtype.type(x)
    return x


# ----------------------------------------------------------------------------------------- elements


def checked_length(elements: Sequence[Any], structure: Structure, length: int | None) -> int:
    sizes = {}
    for x, path in zip(elements, key_paths(structure), strict=True):
        if not is_array(x) or not type_of(x).shape:
            got = type_of(x) if is_array(x) else f"a {type(x).__name__}"
            raise InputError(
                f"a loop runs over the first axis of arrays; xs{keystr(path)} is {got}", where=here(),
                fix="capture it in the function, or np.broadcast_to(x, (length, *shape))",
            )  # fmt: skip
        sizes[f"xs{keystr(path)}"] = type_of(x).shape[0]
    if length is not None:
        if issubclass(type(length), bool):
            raise InputError(
                f"the length of a loop is an integer; got {length}", where=here(), fix="length=1"
            )
        sizes["length"] = index(length)
        if sizes["length"] < 0:
            raise InputError(f"the length of a loop is 0 or more; got {length}", where=here())
    if not sizes:
        raise InputError("a loop over nothing needs a length", where=here(), fix="length=n")
    if len({*sizes.values()}) > 1:
        listed = ", ".join(f"{name} has {n}" for name, n in sizes.items())
        fix = f"x[:{min(sizes.values())}] of the longer ones"
        raise InputError(f"a loop runs over arrays of one length: {listed}", where=here(), fix=fix)
    return next(iter(sizes.values()))


def element_type(x: Any) -> ArrayType:
    t = type_of(x)
    return t.with_shape(t.shape[1:])


def applied(op: GraphOp, values: Sequence[Any]) -> list[Any]:
    """The results of a loop; outside any trace it is compiled first, as a jitted function is."""
    values = [strong_value(x) for x in values]
    if not at_top():
        return list(op(*values))
    values = [x if on_gpu(x) else np.asarray(x) for x in values]
    graph = retrace(lambda *xs: list(op(*xs)), [type_of(x) for x in values])
    return owned(Call(graph, op.name)(*values), values)
