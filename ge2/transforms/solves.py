"""Solvers differentiated by the equation that they solve, and transposed linear functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, final

import numpy as np

from ge2.base.arrays import INEXACT
from ge2.base.errors import GradientError
from ge2.base.pytree import mismatch, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Flags,
    Graph,
    GraphOp,
    Literal,
    Var,
    is_traced,
    type_of,
    without_dead_code,
)
from ge2.ops.graphs.control import CALLS, Cond, inlined
from ge2.ops.graphs.custom import CUSTOM
from ge2.ops.graphs.region import zero_equation
from ge2.ops.graphs.while_loop import LinearSolve, Root
from ge2.ops.pointlike import Elementwise
from ge2.trace import Closed, Input, run, stage, title_of
from ge2.trace import is_traced as is_tracer
from ge2.transforms.api import active_inputs, gradient_like, linearize
from ge2.transforms.arguments import Arguments, Results, ShapeDtypeStruct, at_top, owned
from ge2.transforms.branches import common, retyped, widened
from ge2.transforms.graphs import DERIVE, vjp_graph
from ge2.transforms.pullback import cotangents

# -------- Linear functions turned around: from cotangents of the result to those of the arguments.


PRODUCTS = frozenset(("mul", "dot_general"))


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a linear function: from a cotangent of its result to
    those of its arguments, a tuple.

    Of the primals only shapes and dtypes matter: ShapeDtypeStructs do. GradientError if an equation
    of `fun` is not linear in them; that names the line.

    >>> import numpy as np
    >>> A = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> linear_transpose(lambda x: A @ x, np.zeros(2))(np.array([1.0, 0.0]))
    (array([1., 2.]),)
    """
    call, returned = Arguments.of(fun, primals, {}), Results()
    for i, t in zip(call.arrays, call.types(), strict=True):
        if t.dtype not in INEXACT:
            what = f"linear_transpose takes floating arguments; {call.name(i)} is {t}"
            raise GradientError(what, where=here(), fix=f"a closure over {call.name(i)}")
    why = "linear_transpose knows no value of it"
    inputs = [Input(given.type, name=given.name, reason=why) for given in call.inputs()]
    closed = call.stage(inputs, returned, "linear_transpose")
    wanted = active_inputs(closed, call, call.arrays)
    graph = turned(closed.graph, wanted, call.title, zeros_of(closed))
    types = [a.type for a in closed.graph.outputs]

    @hides
    def transposed(ct: Any) -> tuple[Any, ...]:
        given = (*closed.captured, *cotangents(ct, returned, types))
        found = owned(run(graph, given), given)
        grads = dict(zip(call.arrays, found, strict=True))
        return tuple(gradient_like(call, n, grads) for n in range(len(primals)))

    return transposed


def zeros_of(closed: Closed) -> set[Atom]:
    """The inputs that stand for captured arrays of zeros."""
    known = zip(closed.graph.inputs, closed.captured, strict=False)
    return {v for v, x in known if not is_tracer(x) and not np.any(x)}


def turned(graph: Graph, wanted: Flags, title: str, zeros: set[Atom]) -> Graph:
    """(the other inputs, cotangents) -> cotangents of the wanted inputs, in
    which the graph is linear.
    """
    graph = without_dead_code(inlined(graph, CALLS))  # what no result reads may be anything
    proof = Proof(title)
    proof.of_function(graph, wanted, zeros)
    n, joint = len(graph.outputs), vjp_graph(graph, wanted, DERIVE)
    back = without_dead_code(inlined(Graph(joint.inputs, joint.eqns, joint.outputs[n:]), CALLS))
    places = [v for v, w in zip(joint.inputs, wanted, strict=False) if w]
    read = next((e for e in back.eqns if not set(places).isdisjoint(e.inputs)), None)
    if not proof.complete and (read is not None or not set(places).isdisjoint(back.outputs)):
        raise proof.fails(read, "its derivative depends on where it is taken")
    kept = tuple(v for v in back.inputs if v not in set(places))
    # the same anywhere: at 0
    return Graph(kept, (*(zeros_at(v) for v in places), *back.eqns), back.outputs)


def zeros_at(v: Var) -> Eqn:
    made = zero_equation(v.type)
    return Eqn(made.op, made.inputs, (v,))


def check_linear(closed: Closed, known: int, title: str) -> None:
    """GradientError unless a function is linear in what follows its first `known`
    inputs and the captured.
    """
    before = len(closed.captured) + known
    wanted = tuple(i >= before for i in range(len(closed.graph.inputs)))
    turned(closed.graph, wanted, title, zeros_of(closed))


class Proof:
    """A proof that a graph is linear: `moves` are the values that depend on the arguments, linearly
    so far; `zeros` the constants known to be zero. What is not linear raises; what is not known
    leaves it incomplete.
    """

    def __init__(self, title: str) -> None:
        self.title, self.complete = title, True

    def of_function(self, graph: Graph, wanted: Flags, known: set[Atom]) -> None:
        moves: set[Atom] = {v for v, w in zip(graph.inputs, wanted, strict=True) if w}
        zeros = set(known)
        self.walk(graph, moves, zeros)
        for a in graph.outputs:
            if a not in moves and not is_zero(a, zeros):
                why = f"a result ({a.type}) is a constant that is not known to be zero"
                raise self.fails(None, why)

    def walk(self, graph: Graph, moves: set[Atom], zeros: set[Atom]) -> None:
        for eqn in graph.eqns:
            chosen = [a for a in eqn.inputs if a in moves]
            if (
                not chosen
                and eqn.op.linear
                and eqn.inputs
                and all(is_zero(a, zeros) for a in eqn.inputs)
            ):
                zeros.update(eqn.outs)
            elif chosen and isinstance(eqn.op, GraphOp):
                self.of_graphs(eqn, moves, zeros)
            elif chosen:
                self.of_equation(eqn, moves, zeros)
                moves.update(eqn.outs)

    def of_equation(self, eqn: Eqn, moves: set[Atom], zeros: set[Atom]) -> None:
        op, out = eqn.op, eqn.outs[0].type
        if out.dtype not in INEXACT:
            raise self.fails(eqn, f"{op.name} makes {out} of it")
        if isinstance(op, Elementwise) and op.pull is None:
            for a, partial in zip(eqn.inputs, op.partials, strict=True):
                if a in moves and partial is None:
                    raise self.fails(eqn, f"{op.name} rounds it")
        if op.linear:
            rest = [a for a in eqn.inputs if a not in moves and a.type.dtype in INEXACT]
            if not all(is_zero(a, zeros) for a in rest):
                raise self.fails(eqn, f"{op.name} puts a constant beside it")
            return
        among = [a in moves for a in eqn.inputs]
        product = (op.name in PRODUCTS and sum(among) == 1) or (
            op.name == "div" and among == [True, False]
        )
        self.complete &= product

    def of_graphs(self, eqn: Eqn, moves: set[Atom], zeros: set[Atom]) -> None:
        """A function with rules of its own, or branches: linear if each graph is."""
        op = eqn.op
        graphs = (
            op.branches
            if isinstance(op, Cond)
            else (op.graphs()[0],)
            if isinstance(op, CUSTOM)
            else ()
        )
        if not graphs or (isinstance(op, Cond) and eqn.inputs[0] in moves):
            self.complete = False
            moves.update(v for v in eqn.outs if v.type.dtype in INEXACT)
            return
        fixed: set[Atom] = set()
        for graph in graphs:
            pairs = list(zip(graph.inputs, eqn.inputs[-len(graph.inputs) :], strict=True))
            inner: set[Atom] = {v for v, a in pairs if a in moves}
            none: set[Atom] = {v for v, a in pairs if is_zero(a, zeros)}
            self.walk(graph, inner, none)
            results = list(zip(eqn.outs, graph.outputs, strict=True))
            moves.update(v for v, a in results if a in inner)
            fixed.update(v for v, a in results if not (a in inner or is_zero(a, none)))
        if not moves.isdisjoint(fixed):
            raise self.fails(eqn, "a branch returns a constant")

    def fails(self, eqn: Eqn | None, why: str) -> GradientError:
        place = (eqn.source if eqn is not None else None) or here()
        return GradientError(
            f"{self.title} is not linear: {why}", where=place, fix="ge2.vjp, at a point"
        )


def is_zero(a: Atom, zeros: set[Atom]) -> bool:
    return a.value == 0 if isinstance(a, Literal) else a in zeros


# -------- `custom_root` and `custom_linear_solve`: a solver's derivative is that of the equation it
# solves.


Function = Callable[..., Any]
B = "b of custom_linear_solve"
GUESS = "initial_guess of custom_root"


def custom_linear_solve(
    matvec: Function,
    b: Any,
    solve: Function,
    transpose_solve: Function | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """`solve(matvec, b)`: the x of `matvec(x) = b`, whose derivative is not
    that of the steps of `solve`.

    `matvec` is linear, from a tree like `b` to one like `b`. Forward mode calls `solve` once more,
    reverse mode `transpose_solve(vecmat, ct)` (or `solve`, if the product is `symmetric`). `matvec`
    and the solvers may read traced values from around them, which have derivatives too. With
    `has_aux`, the solvers return (x, aux), and so does this; aux has no derivative.

    NoRuleError in reverse mode without `transpose_solve`, GradientError if `matvec` is not linear.

    >>> import numpy as np, ge2
    >>> def x_of(a): return custom_linear_solve(lambda x: a * x, 6.0, lambda f, b: b / f(1.0), symmetric=True)
    >>> x_of(2.0), ge2.grad(x_of)(2.0)
    (3.0, -1.5)
    """
    if at_top():
        return at_once(solve, matvec, b, has_aux, B)
    sought, returned = Sought("b", b, matvec, B), Results(has_aux)
    solved = sought.staged(lambda b: solve(matvec, b), solve, solution_of(solve), returned)
    made = sought.staged(matvec, matvec, result_of(matvec))
    check_linear(made, 0, title_of(matvec))
    graphs = [solved, made]
    other = solve if symmetric and transpose_solve is None else transpose_solve
    if other is not None:
        vecmat = matvec if symmetric else transpose_of(sought, matvec)
        again = Results(has_aux)
        closed = sought.staged(partial(other, vecmat), other, solution_of(other), again)
        graphs.append(sought.without_aux(closed))
    (first, second, *rest), captured = widened(graphs)
    op = LinearSolve(
        sought.retyped(first), sought.retyped(second), tuple(map(sought.retyped, rest)),
        len(captured), symmetric,
    )  # fmt: skip
    return returned.build(op(*captured, *sought.values()))


def transpose_of(sought: Sought, matvec: Function) -> Function:
    """The product with the transpose."""
    structs = sought.tree([ShapeDtypeStruct(t.shape, t.dtype) for t in sought.types])
    return lambda ct: linear_transpose(matvec, structs)(ct)[0]


def custom_root(
    f: Function,
    initial_guess: Any,
    solve: Function,
    tangent_solve: Function,
    has_aux: bool = False,
) -> Any:
    """`solve(f, initial_guess)`: the x of `f(x) = 0`, differentiated by the
    theorem of implicit functions.

    `f` maps a tree like the guess to one like it. `tangent_solve(g, y)` returns the v of `g(v) = y`
    for a linear `g`, the derivative of `f` at x; reverse mode transposes it. `f` may read traced
    values from around it, which have derivatives; the guess has none. With `has_aux`, `solve`
    returns (x, aux), and so does this.

    GradientError if the solution, or the result of `f`, is not like the guess.

    >>> import ge2
    >>> def newton(f, x):
    ...     for _ in range(6):
    ...         y, dy = ge2.jvp(f, (x,), (1.0,))
    ...         x = x - y / dy
    ...     return x
    >>> def root(a): return custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> root(4.0), ge2.grad(root)(4.0)
    (2.0, 0.25)
    """
    if at_top():
        return at_once(solve, f, initial_guess, has_aux, GUESS)
    sought, returned = Sought("initial_guess", initial_guess, f, GUESS), Results(has_aux)
    solved = sought.staged(partial(solve, f), solve, solution_of(solve), returned)
    residual = sought.staged(f, f, result_of(f))
    tangent = sought.tangent(f, tangent_solve)
    check_linear(tangent, len(sought.types), title_of(tangent_solve))
    (first, second, third), captured = widened([solved, residual, tangent])
    graphs = sought.retyped(first), sought.retyped(second), sought.retyped(third)
    op = Root(*graphs, len(captured))
    return returned.build(op(*captured, *sought.values()))


# ---------------------------------------------------------------------------------------- arguments


@final
class Sought:
    """The argument of a solver, which its solution is like: a tree of floating arrays.

    `parameter` and `name` name it in messages; `f` makes the dtype of a Python number in it.
    """

    def __init__(self, parameter: str, value: Any, f: Function, name: str) -> None:
        self.call, self.name = Arguments.of(numbered_as(parameter), (value,), {}), name
        self.types = strong_types(self.call, f, name)
        self.wanted = Results()
        self.wanted.flat(value)

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Leaves in the structure of the argument."""
        return unflatten(self.call.structure, list(leaves))[0][0]

    def staged(
        self, work: Function, named: Function, what: str, returned: Results | None = None
    ) -> Closed:
        """A function of the argument as a graph, whose result is like the argument."""
        returned = Results() if returned is None else returned
        closed = staged(self.call, self.types, returned, work, named)
        check(returned, closed.graph.outputs, self.wanted, self.types, what, self.name)
        return closed

    def tangent(self, f: Function, solve: Function) -> Closed:
        """(x, y) -> the v of f'(x) v = y."""
        n, returned = len(self.types), Results()

        def work(*arrays: Any) -> list[Any]:
            x, y = self.tree(arrays[:n]), self.tree(arrays[n:])
            return returned.flat(solve(linearize(f, x)[1], y))

        inputs = [Input(t) for t in (*self.types, *self.types)]
        closed = stage(work, inputs, title_of(solve), "custom_root")
        outputs, what = closed.graph.outputs, result_of(solve)
        check(returned, outputs, self.wanted, self.types, what, self.name)
        return closed

    def without_aux(self, closed: Closed) -> Closed:
        """A graph without its auxiliary results."""
        graph = replace(closed.graph, outputs=closed.graph.outputs[: len(self.types)])
        return Closed(graph, closed.captured, closed.looked)

    def retyped(self, graph: Graph) -> Graph:
        """A graph whose first results have the types of the argument."""
        return retyped(graph, self.types)

    def values(self) -> list[Any]:
        """The leaves, Python numbers as arrays of their dtype."""
        values = zip(self.call.values(), self.call.types(), self.types, strict=True)
        return [
            (x.cast(t.dtype) if is_traced(x) else t.dtype.type(x)) if own.weak else x
            for x, own, t in values
        ]


def result_of(f: Function) -> str:
    return f"the result of {title_of(f)}"


def solution_of(solve: Function) -> str:
    return f"the solution of {title_of(solve)}"


def numbered_as(name: str) -> Function:
    """A function whose one parameter errors call by that name."""

    def inner(x: Any) -> Any:
        return x

    inner.__name__, inner.parameters_of_ge2 = name, (name,)  # type: ignore[attr-defined]
    return inner


def strong_types(call: Arguments, f: Function, what: str) -> list[ArrayType]:
    """The types of the leaves; a Python number is of the dtype that `f` makes
    of it, or of its own.
    """
    found = given = call.types()
    if any(t.weak for t in given) and len(call.arrays) == len(call.leaves):
        made = [a.type for a in staged(call, given, Results(), f, f).graph.outputs]
        if len(made) == len(given):
            found = [m if t.weak and m.shape == () else t for t, m in zip(given, made, strict=True)]
    found = [ArrayType(t.shape, t.dtype) for t in found]
    if len(call.arrays) < len(call.leaves) or any(t.dtype not in INEXACT for t in found):
        got = next((str(t) for t in found if t.dtype not in INEXACT), "other values")
        raise GradientError(
            f"{what} holds floating arrays; got {got}", where=here(), fix="x.astype(np.float64)"
        )
    return found


def staged(
    call: Arguments, types: Sequence[ArrayType], returned: Results, work: Function, named: Function
) -> Closed:
    """A function of one tree like the argument."""

    def flat_work(*arrays: Any) -> list[Any]:
        return returned.flat(work(unflatten(call.structure, list(arrays))[0][0]))

    return stage(flat_work, [Input(t) for t in types], title_of(named), "custom_root")


def at_once(solve: Function, f: Function, given: Any, has_aux: bool, name: str) -> Any:
    """The solution where nothing is traced. What `f` returns is compared with what it is given,
    and `f` called once for that, if the solver does not.
    """
    called = []

    @wraps(f)
    def compared(x: Any) -> Any:
        called.append(True)
        return like(f(x), x, False, result_of(f), f"the argument of {title_of(f)}")

    found = like(solve(compared, given), given, has_aux, solution_of(solve), name)
    if not called:
        compared(given)
    return found


def like(found: Any, given: Any, has_aux: bool, what: str, name: str) -> Any:
    """A solution, if its structure, shapes and dtypes are those of what it was asked for."""
    returned, wanted = Results(has_aux), Results()
    leaves, others = returned.flat(found), wanted.flat(given)
    check(returned, leaves, wanted, [type_of(x) for x in others], what, name)
    return found


def check(
    returned: Results,
    results: Sequence[Any],
    wanted: Results,
    types: Sequence[ArrayType],
    what: str,
    like: str,
) -> None:
    """Refuses a result that is not like the argument."""
    if returned.main != wanted.main:
        why = mismatch(wanted.main, returned.main, like, what)
        raise GradientError(why, where=here(), fix="the same structure")
    outputs = [
        a.type if isinstance(a, Var | Literal) else type_of(a) for a in results[: len(types)]
    ]
    for t, got, path in zip(types, outputs, returned.paths(), strict=False):
        if common(t, got) is None:
            fix = "x.astype(dtype)" if t.shape == got.shape else "a solution of the same shape"
            raise GradientError(
                f"{what}{path} is {got}, but {like}{path} is {t}", where=here(), fix=fix
            )
