"""Statements of scores of attention, and of their derivative, for one pair of a query and a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from ge2.base.dtypes import FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.codegen.text import Operand, Text
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Var
from ge2.ops.attention.facts import REPEATED
from ge2.ops.attention.form import Form
from ge2.ops.attention.graphs import inputs_of
from ge2.ops.attention.scores import MOVES, narrowed
from ge2.ops.attention.slopes import Elementwise
from ge2.ops.shape import Iota
from ge2.targets.c.emit.types import HELD, SUFFIX, expression, number, retyped
from ge2.targets.c.kernels.strided_loops import Head

REASON: Final = "scores are not elementwise work on the products"


@final
@record
class Statements:
    """Statements by where they are: before the loops over queries (`first`), for a query, for a key of
    it. `results`: the values that they make.
    """

    first: tuple[Text, ...]
    row: tuple[Text, ...]
    key: tuple[Text, ...]
    results: tuple[str, ...]


@final
@record
class Reads:
    """The operands of what scores are made of, and where a kernel declares how they are reached."""

    form: Form
    operands: Mapping[Var, Operand]
    head: Head


def statements(
    graph: Graph, reads: Reads, names: Sequence[str], dims: Dims, mark: str
) -> Statements | str:
    """The statements of a graph (products, what else scores are made of, ...) whose results have these
    axes of the products; or the reason why there are none. `names`: of its first input and of those
    after the others; `mark`: the beginning of the names that they declare.
    """
    return Writer(narrowed(graph), reads, names, mark).run(dims)


@final
class Writer:
    def __init__(self, graph: Graph, reads: Reads, names: Sequence[str], mark: str) -> None:
        self.form, self.reads, self.mark, self.graph = reads.form, reads, mark, graph
        self.work = Elementwise(reads.form, graph)
        self.full, given = self.work.all_axes, graph.inputs
        count = 1 + len(inputs_of(reads.form))
        self.known: dict[tuple[Atom, Dims], str] = {(given[0], self.full): names[0]}
        self.known |= {(v, self.full): n for v, n in zip(given[count:], names[1:], strict=True)}
        self.inputs = dict(zip(given[1:count], inputs_of(reads.form), strict=True))
        self.first, self.row, self.key = list[Text](), list[Text](), list[Text]()

    def run(self, dims: Dims) -> Statements | str:
        every = [v for e in self.graph.eqns for v in (*e.inputs, *e.outs)]
        if any(a.type.dtype in HALF for a in every) or any(map(is_special, self.graph.eqns)):
            return "scores are of a half type, or by a function that has no statement"
        seen = set(self.known)
        if not all(self.work.visited(a, dims, seen) for a in self.graph.outputs):
            return REASON
        results = tuple(self.value(a, dims) for a in self.graph.outputs)
        return Statements(tuple(self.first), tuple(self.row), tuple(self.key), results)

    def value(self, a: Atom, dims: Dims) -> str:
        """The name of a value whose axes are these of the products."""
        if isinstance(a, Literal):
            return number(a.value, a.type.dtype)
        if (a, dims) not in self.known:
            self.known[a, dims] = self.made(a, dims)
        return self.known[a, dims]

    def made(self, a: Atom, dims: Dims) -> str:
        eqn = self.work.makers.get(a)
        if eqn is None:
            return self.read(self.inputs[a], dims)  # type: ignore[index]
        op, inner = eqn.op, self.work.inner(eqn, dims)
        assert inner is not None
        if isinstance(op, Iota):
            return f"({HELD[op.dtype]}){self.place(dims[op.axis])}"
        xs = [self.value(x, d) for x, d in zip(eqn.inputs, inner, strict=True)]
        if isinstance(op, MOVES):
            return xs[0]
        dtype, out = eqn.inputs[0].type.dtype, eqn.outs[0].type.dtype
        if op.retypes:
            code = retyped(xs[0], eqn)
        else:
            code = expression(op.lowering.expression, xs, dtype, out)  # type: ignore[union-attr]
        return self.declared(HELD[out], code, dims, str(op.name))

    def declared(self, ctype: str, code: str, dims: Dims, comment: str = "") -> str:
        """The name of a value, which is computed where its axes are known."""
        form = self.form
        where = self.key if form.key in dims else self.row if form.row in dims else self.first
        name = f"{self.mark}{len(self.first) + len(self.row) + len(self.key)}"
        where.append(Text(f"const {ctype} {name} = {code};", comment))
        return name

    def place(self, axis: int) -> str:
        """The index along an axis of the products."""
        if axis == REPEATED:
            return "0"
        form = self.form
        return "key" if axis == form.key else "row" if axis == form.row else f"at{axis}"

    def read(self, v: Var, dims: Dims) -> str:
        """An element of an array: where it is along keys is added in the innermost loop alone."""
        head, operand, dtype = self.reads.head, self.reads.operands[v], v.type.dtype
        n = self.form.plain.inputs.index(v)
        base = head.array(f"x{n}", operand, dtype)
        if operand.value:
            return base
        pairs = zip(dims, operand.strides, strict=True)
        steps = [(d, s) for d, s in pairs if d != REPEATED and s]
        terms = [
            self.place(d) if s == 1 else f"{self.place(d)} * {head.size(f'x{n}_{d}', s)}"
            for d, s in sorted(steps, reverse=True)
        ]
        held = f"{base}[{' + '.join(terms) or '0'}]"
        return self.declared(HELD[dtype], held, dims)


def is_special(eqn: Eqn) -> bool:
    """True of a function of a user's, or one that may fail."""
    op = eqn.op
    power = op.name == "pow" and eqn.inputs[0].type.dtype not in (FLOAT32, FLOAT64)
    return power or bool(getattr(op, "edition", 0)) or any(v.type.weak for v in eqn.outs)


def batch_places(form: Form, head: Head) -> tuple[Text, ...]:
    """The statements of the index along each axis of batches, by that of the head."""
    shape, inner, found = form.product.type.shape, "", list[Text]()
    long = [a for a in form.batch if shape[a] > 1]
    for a in reversed(long):
        size = head.size(f"n_at{a}", shape[a])
        code = f"head{f' / ({inner})' if inner else ''}"
        found.append(Text(f"const int64_t at{a} = {code}{f' % {size}' if a != long[0] else ''};"))
        inner = f"{inner} * {size}" if inner else size
    return tuple(found)


__all__ = ["SUFFIX", "Reads", "Statements", "batch_places", "statements"]
