"""Checks that a graph is well formed; every pass is followed by it in the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ge2.base.dtypes import PYTHON, known
from ge2.base.errors import ParseError, TypeRuleError, VerifyError
from ge2.ir.graph import Atom, Eqn, Graph, Literal, Var
from ge2.ir.op import GraphOp
from ge2.ir.types import ArrayType, type_of


def verify(graph: Graph) -> Graph:
    """The graph itself, if values are defined once, before use, and typed by
    their rules; or VerifyError.
    """
    if not 0 <= graph.consts <= len(graph.inputs):
        raise VerifyError(f"{graph.consts} of {len(graph.inputs)} inputs are said to be captured")
    defined: set[Var] = set()
    define(defined, graph.inputs, "the inputs")
    for n, eqn in enumerate(graph.eqns):
        try:
            verify_equation(defined, eqn)
        except VerifyError as error:
            raise VerifyError(f"equation {n}, {shown(eqn)}: {error}", where=eqn.source) from None
    for i, atom in enumerate(graph.outputs):
        read(defined, atom, f"output {i}")
    return graph


def verify_equation(defined: set[Var], eqn: Eqn) -> None:
    for i, atom in enumerate(eqn.inputs):
        read(defined, atom, f"input {i}")
    if isinstance(eqn.op, GraphOp):
        for inner in eqn.op.graphs():
            verify(inner)
    got = types_of(eqn.outs)
    try:
        want = eqn.op.infer(*types_of(eqn.inputs))
    except TypeRuleError as error:
        raise VerifyError(f"its type rule refuses it: {error}") from None
    if got != want:
        raise VerifyError(f"it yields {listed(want)}, but is typed {listed(got)}")
    define(defined, eqn.outs, "its results")


def read(defined: set[Var], atom: Atom, what: str) -> None:
    if isinstance(atom, Literal):
        verify_literal(atom, what)
    elif not isinstance(atom, Var):
        raise VerifyError(f"{what} is a {type(atom).__name__}, neither a value nor a literal")
    elif atom not in defined:
        raise VerifyError(f"{what} reads a value that is not defined yet")


def verify_literal(literal: Literal, what: str) -> None:
    if type_of(literal.value) != literal.type:
        raise VerifyError(f"{what}, the literal {literal.value!r}, is typed {literal.type}")


def define(defined: set[Var], new: Sequence[Var], what: str) -> None:
    if len(set(new)) != len(new) or not defined.isdisjoint(new):
        raise VerifyError(f"{what} define a value twice")
    for v in new:
        if not known(v.type.dtype):
            raise VerifyError(f"{what} hold a value of dtype {v.type.dtype}")
        if v.type.weak and (v.type.shape or v.type.dtype not in PYTHON.values()):
            raise VerifyError(f"{what} hold a weak {v.type}, which no Python number has")
    defined.update(new)


def types_of(atoms: Iterable[Atom]) -> tuple[ArrayType, ...]:
    return tuple([a.type for a in atoms])


def listed(types: Iterable[object]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def shown(eqn: Eqn) -> str:
    from ge2.ir.text import op_text

    try:
        op = op_text(eqn.op)
    except ParseError:
        op = eqn.op.name
    return f"{op} of {listed(getattr(a, 'type', a) for a in eqn.inputs)}"
