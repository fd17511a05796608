"""Mixed precision: `autocast`, and the rewrite of graphs behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, final, overload

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32
from ge2.base.errors import ArgumentError, InputError
from ge2.base.record import record
from ge2.base.source import Source, here
from ge2.ir import Atom, Eqn, Graph, GraphOp, Literal, Op, Var, rename, renamed
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.control import Checkpoint
from ge2.ops.graphs.while_loop import LinearSolve, LinearSolveSaving, Root, RootSaving
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce
from ge2.ops.shape import BroadcastInDim, Concatenate, Pad, Reshape, Slice, Transpose
from ge2.ops.sort import BitcastConvertType
from ge2.trace import run, tidy
from ge2.transforms.arguments import Arguments, Results, owned
from ge2.transforms.pullback import remembering

__all__ = ["Policy", "autocast"]


# -------- Mixed precision, from graph to graph of the same types: products of low types, all else
# float32.
# Each product of float32 or half types multiplies operands of the low type and gives float32. What
# is computed of half types is computed in float32, as far as elementwise work, reductions and views
# go, and rounded to the type it is to have where another operation, a loop or a result takes it.


LOW: Final = {"bf16": BFLOAT16, "f16": FLOAT16}
MANAGED: Final = (FLOAT16, BFLOAT16)  # fp8 is rounded where the program says
SETTLED: Final = ("half", "highest")  # what a policy within this one, or the user, has decided
SOLVERS: Final = (LinearSolve, LinearSolveSaving, Root, RootSaving)
WIDE: Final = (Pointlike, Reduce, Concatenate, Pad)
MOVES: Final = (BroadcastInDim, Reshape, Transpose)  # they may come after the rounding as well


@record
class Policy:
    """The way in which `ge2.autocast` computes.

    `product`: "bf16", "f16", or "tf32", in which float32 stays in memory what it is; None leaves
    products as they are, also to a policy around this one. `chains`: whether what is computed of
    half types is float32 until it is stored.

    >>> Policy("f16")
    Policy(product='f16', chains=True)
    """

    product: str | None = "bf16"
    chains: bool = True


def lowered(graph: Graph, policy: Policy) -> Graph:
    """The graph by a policy, its inputs and outputs of the types that they had."""
    return stored_low(tidy(Lowering(graph, policy).graph()))


@final
class Lowering:
    """The equations so far, and what stands for each value: at times one of a wider type."""

    def __init__(self, graph: Graph, policy: Policy) -> None:
        self.given, self.policy = graph, policy
        self.low_dtype = LOW.get(policy.product or "")
        self.eqns: list[Eqn] = []
        self.env: dict[Var, Atom] = {}
        self.made: dict[Atom, Eqn] = {}  # the equation of each new value
        self.rounded: dict[Atom, Atom] = {}
        self.source: Source | None = None

    def graph(self) -> Graph:
        for eqn in self.given.eqns:
            self.source = eqn.source
            found = self.equation(eqn, rename(self.env, eqn.inputs))
            self.env.update(zip(eqn.outs, found, strict=True))
        self.source = None
        outputs = [self.cast(a, old) for a, old in self.pairs(self.given.outputs)]
        return Graph(self.given.inputs, tuple(self.eqns), tuple(outputs), self.given.consts)

    def pairs(self, atoms: Sequence[Atom]) -> list[tuple[Atom, np.dtype]]:
        """The atom that stands for each value, and the dtype that it is to have."""
        return [(a, old.type.dtype) for a, old in zip(rename(self.env, atoms), atoms, strict=True)]

    def equation(self, eqn: Eqn, inputs: Sequence[Atom]) -> Sequence[Atom]:
        op = eqn.op
        if isinstance(op, DotGeneral) and (product := self.product(op, eqn, inputs)):
            return [product]
        if op.is_view and len(inputs) == 1 and not isinstance(inputs[0], Literal):
            return self.emit(op, inputs)
        if self.is_chain(eqn):
            return self.chain(op, inputs)
        exact = [self.cast(a, dtype) for a, dtype in self.pairs(eqn.inputs)]
        op = within(op, self.policy)
        if isinstance(op, Checkpoint) and self.low_dtype is not None:
            graph, taken = taking_low(op.jaxpr, self.low_dtype)
            op = op.of(graph)
            exact = [self.low(a) if low else a for a, low in zip(exact, taken, strict=True)]
        self.append(Eqn(op, tuple(exact), eqn.outs, eqn.source))
        return eqn.outs

    # -- products

    def product(self, op: DotGeneral, eqn: Eqn, inputs: Sequence[Atom]) -> Atom | None:
        """A product by the policy, if it is one that the policy is about."""
        dtypes = {a.type.dtype for a in eqn.inputs}
        if op.precision in SETTLED or not dtypes <= {FLOAT32, *MANAGED}:
            return None
        if self.low_dtype is not None:
            half = [self.low(a) for a in inputs]
            return self.emit(replace(op, precision="half", out=FLOAT32), half)[0]
        if self.policy.product is None:
            return self.emit(replace(op, precision="highest"), self.exact(eqn))[0]
        if dtypes == {FLOAT32} and op.precision is None:
            return self.emit(replace(op, precision="tf32"), self.exact(eqn))[0]
        return None

    def exact(self, eqn: Eqn) -> list[Atom]:
        return [self.cast(a, dtype) for a, dtype in self.pairs(eqn.inputs)]

    def low(self, atom: Atom) -> Atom:
        """A value rounded to the low type, once for all who read it."""
        assert self.low_dtype is not None
        if atom.type.dtype == self.low_dtype:
            return atom
        if atom not in self.rounded:
            self.rounded[atom] = self.rounding(atom, self.low_dtype)
        return self.rounded[atom]

    def rounding(self, atom: Atom, dtype: np.dtype) -> Atom:
        made = self.made.get(atom)
        if made is not None and (isinstance(made.op, MOVES) or is_large_part(made)):
            return self.emit(made.op, [self.low(made.inputs[0])])[0]
        if made is not None and isinstance(made.op, ConvertElementType):
            (before,) = made.inputs
            if before.type.dtype == dtype and atom.type.dtype == FLOAT32:
                return before
        return self.cast(atom, dtype)

    # -- everything else

    def is_chain(self, eqn: Eqn) -> bool:
        """True for what is computed in float32 in place of a half type."""
        if not self.policy.chains or not isinstance(eqn.op, WIDE):
            return False
        if isinstance(eqn.op, ConvertElementType | BitcastConvertType):
            return False
        return any(a.type.dtype in MANAGED and not a.type.weak for a in eqn.inputs)

    def chain(self, op: Op, inputs: Sequence[Atom]) -> Sequence[Atom]:
        wide = [self.cast(a, FLOAT32) if a.type.dtype in MANAGED else a for a in inputs]
        return self.emit(op, wide)

    def cast(self, atom: Atom, dtype: np.dtype) -> Atom:
        if atom.type.dtype == dtype:
            return atom
        if isinstance(atom, Literal):
            value: Any = np.asarray(atom.value).astype(dtype)[()]
            return Literal(value, replace(atom.type, dtype=dtype))
        return self.emit(ConvertElementType(dtype), [atom])[0]

    def emit(self, op: Op, inputs: Sequence[Atom]) -> Sequence[Atom]:
        outs = tuple(Var(t) for t in op.infer(*(a.type for a in inputs)))
        self.append(Eqn(op, tuple(inputs), outs, self.source))
        return outs

    def append(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)
        self.made.update(dict.fromkeys(eqn.outs, eqn))


def is_large_part(eqn: Eqn) -> bool:
    """True of a slice that is a quarter or more, as queries, keys and values are of what one product
    makes: the whole is rounded once, and never stored in float32 if nothing else reads it.
    """
    return isinstance(eqn.op, Slice) and 4 * eqn.outs[0].type.size >= eqn.inputs[0].type.size


def within(op: Op, policy: Policy) -> Op:
    """An operation whose graphs are by the policy as well.

    Solvers keep theirs: what iterates until it is near enough may never be, in a low type.
    """
    if not isinstance(op, GraphOp) or isinstance(op, SOLVERS):
        return op
    changes: dict[str, Any] = {}
    for f in fields(op):  # type: ignore[arg-type]
        value = getattr(op, f.name)
        if isinstance(value, Graph):
            changes[f.name] = lowered(value, policy)
        elif isinstance(value, tuple) and value and isinstance(value[0], Graph):
            changes[f.name] = tuple(lowered(each, policy) for each in value)
    return replace(op, **changes)  # type: ignore[type-var]


def taking_low(graph: Graph, dtype: np.dtype) -> tuple[Graph, list[bool]]:
    """Returns the graph with those inputs in a low type that it only rounds to it, and which inputs
    they are: a checkpoint would round them again in the backward pass.
    """
    readers: dict[Atom, list[Eqn]] = {v: [] for v in graph.inputs}
    for eqn in graph.eqns:
        for a in dict.fromkeys(eqn.inputs):
            readers.get(a, []).append(eqn)
    taken = [
        v.type.dtype in (FLOAT32, *MANAGED)
        and bool(readers[v])
        and v not in graph.outputs
        and all(rounds(e, dtype) for e in readers[v])
        for v in graph.inputs
    ]
    inputs = [
        Var(replace(v.type, dtype=dtype)) if low else v
        for v, low in zip(graph.inputs, taken, strict=True)
    ]
    names: dict[Var, Atom] = {
        e.outs[0]: x
        for v, x, low in zip(graph.inputs, inputs, taken, strict=True)
        if low
        for e in readers[v]
    }
    kept = [e for e in graph.eqns if names.keys().isdisjoint(e.outs)]  # some have no results
    eqns = (renamed(names, e) for e in kept)
    return Graph(tuple(inputs), tuple(eqns), rename(names, graph.outputs), graph.consts), taken


def rounds(eqn: Eqn, dtype: np.dtype) -> bool:
    return isinstance(eqn.op, ConvertElementType) and eqn.outs[0].type.dtype == dtype


def stored_low(graph: Graph) -> Graph:
    """Products of which nothing but the rounded value is read give that, rounded once."""
    reads = Counter(a for e in graph.eqns for a in e.inputs) + Counter(graph.outputs)
    casts = {
        e.inputs[0]: e
        for e in graph.eqns
        if isinstance(e.op, ConvertElementType) and reads[e.inputs[0]] == 1
    }
    gone: set[int] = set()
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        op, cast = eqn.op, casts.get(eqn.outs[0]) if len(eqn.outs) == 1 else None
        product = op if isinstance(op, DotGeneral) and op.precision == "half" else None
        if product and cast and cast.outs[0].type.dtype == eqn.inputs[0].type.dtype:
            gone.add(id(cast))
            eqn = Eqn(replace(product, out=None), eqn.inputs, cast.outs, eqn.source)
        if id(eqn) not in gone:
            eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


# -------- `autocast`: a function in mixed precision.


P = ParamSpec("P")
R = TypeVar("R")
PRODUCTS = (*LOW, "tf32")


@overload
def autocast(fun: Callable[P, R], policy: str | Policy | None = "bf16") -> Callable[P, R]: ...
@overload
def autocast(
    fun: None = None, policy: str | Policy | None = "bf16"
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def autocast(fun: Any = None, policy: str | Policy | None = "bf16") -> Any:
    """`fun` in mixed precision: its products multiply bfloat16 (or "f16", "tf32") and give float32.

    Arguments and results keep their dtypes, so parameters stay float32, and so do their gradients.
    Everything but products is float32: sums, norms, exponentials, losses, and what is computed of
    half types, until it is stored in one. A weight is rounded once, however many products read it.
    Products of float64, and those of `precision="highest"`, are left as they are; so are those of
    solvers. `policy` is a `Policy` or the name of a type for products; None, inside of another
    autocast, leaves a function out of it.

    It is a transform of graphs and comes before derivatives: `grad(autocast(loss))`, where it rounds
    cotangents likewise. Under f16 they may vanish: `ge2.optim.loss_scale`. Micikevicius and others,
    "Mixed Precision Training", 2017.

    Without a function it is a decorator: `@autocast(policy="f16")`, as that of `jit`.

    Raises ArgumentError for a policy that there is not.

    >>> import numpy as np, ge2
    >>> w, x = np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)
    >>> print(ge2.make_jaxpr(autocast(lambda w, x: np.tanh(x @ w)))(w, x))
    { lambda ; a:f32[2,3] b:f32[4,2]. let
        c:bf16[4,2] = convert_element_type[dtype=bf16 weak=False] b
        d:bf16[2,3] = convert_element_type[dtype=bf16 weak=False] a
        e:f32[4,3] = dot_general[beside=((), ()) contract=((1,), (0,)) out=f32 precision=half] c d
        f:f32[4,3] = tanh e
      in (f,) }
    """
    chosen = policy_of(policy)
    if fun is None:
        return partial(autocast, policy=policy)
    if not callable(fun):
        what = f"autocast takes a function; got {fun!r:.60} ({type(fun).__name__})"
        raise InputError(what, where=here(), fix='ge2.autocast(f, policy="bf16")(x)')

    def work(*args: Any, **kwargs: Any) -> Any:
        call, returned = Arguments.of(fun, args, kwargs), Results()
        closed, writes = call.stage_writing(
            call.inputs(), returned, "autocast", [True] * len(call.arrays)
        )
        call.check(writes)
        values = (*closed.captured, *call.values())
        found = run(lowered(tidy(closed.graph), chosen), values)
        count = len(found) - (len(writes.each) if writes else 0)
        results = owned(found[:count], values)
        call.carry(writes, found)
        return returned.build(results)

    return remembering(fun, "autocast", (chosen,), work)


def policy_of(policy: Any) -> Policy:
    """The policy that a name stands for."""
    found = policy if isinstance(policy, Policy) else Policy(policy)
    if not (found.product is None or found.product in PRODUCTS):
        what = (
            f"products are of {', '.join(map(repr, PRODUCTS))} or None; got {found.product!r:.60}"
        )
        raise ArgumentError(what, where=here(), fix="ge2.autocast(f, 'bf16')")
    if not isinstance(found.chains, bool):
        raise InputError(f"chains is a bool; got {found.chains!r:.60}", where=here())
    return found


def __dir__() -> list[str]:
    return __all__
