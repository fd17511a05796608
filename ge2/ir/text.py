"""Graphs as text, in the form jaxprs have, and back.

    { lambda ; a:f32[4,3]. let
        b:f32[4,3] = tanh a
      in (b,) }

Captured arrays come before the semicolon. Literals carry their type (`2.0:f32[]`), weak
types a tilde. A parameter is an int, float, bool, None, word, quoted string, dtype,
type, tuple, or a graph.
"""

from __future__ import annotations

import itertools
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from string import ascii_lowercase
from typing import Any, NoReturn

import numpy as np

from ge2.base.arrays import FLOAT64, LONG, PYTHON, python_type, short
from ge2.base.errors import DEEPER, ParseError
from ge2.ir.graph import Atom, Eqn, Graph, Literal, Op, Var, listed
from ge2.ir.types import ArrayType

# words of the text form, never names of values
KEPT = frozenset(("in", "let", "lambda", "inf", "nan"))
WORDS = {"None": None, "True": True, "False": False}
STEP = "  "
DIGITS = 4000  # of a number; Python reads a few more


def spell() -> Iterator[str]:
    """a, b, ..., z, ba, bb, ...: numbers in base 26."""
    for n in itertools.count():
        name = ""
        while True:
            n, digit = divmod(n, 26)
            name = ascii_lowercase[digit] + name
            if not n:
                break
        if name not in KEPT:
            yield name


class Names(dict[Var, str]):
    """Names values in the order in which they are met."""

    def __init__(self) -> None:
        self._fresh = spell()

    def __missing__(self, var: Var) -> str:
        name = self[var] = next(self._fresh)
        return name

    def take(self, graph: Graph) -> None:
        """Names the values of a graph as its text does."""
        used = read_in(graph)
        for v in graph.inputs:
            self[v]
        for eqn in graph.eqns:
            for v in eqn.outs:
                if v in used:
                    self[v]


def read_in(graph: Graph) -> set[Atom]:
    """The values that a graph reads or returns: the others have no name."""
    return {a for e in graph.eqns for a in e.inputs if type(a) is Var} | set(graph.outputs)


# ------------------------------------------------------------------------------------------ writing


def write(graph: Graph, indent: str = "", names: Names | None = None) -> str:
    """The text of a graph."""
    names = Names() if names is None else names
    used = read_in(graph)

    def bind(v: Var) -> str:
        return f"{names[v]}:{v.type}"

    consts = " ".join(map(bind, graph.inputs[: graph.consts]))
    inputs = " ".join(map(bind, graph.inputs[graph.consts :]))
    inner = indent + 2 * STEP
    lines = [f"{{ lambda {consts}{' ' if consts else ''};{' ' if inputs else ''}{inputs}. let"]
    for eqn in graph.eqns:
        outs = "".join(f"{bind(v)} " if v in used else f"_:{v.type} " for v in eqn.outs)
        ins = "".join(" " + atom_text(a, names) for a in eqn.inputs)
        lines.append(f"{inner}{outs}= {op_text(eqn.op, inner)}{ins}")
    outputs = ", ".join(atom_text(a, names) for a in graph.outputs)
    return "\n".join(
        [*lines, f"{indent}{STEP}in ({outputs}{',' if len(graph.outputs) == 1 else ''}) }}"]
    )


def atom_text(atom: Atom, names: Names) -> str:
    return names[atom] if isinstance(atom, Var) else f"{number_text(atom.value)}:{atom.type}"


def number_text(value: Any) -> str:
    if isinstance(value, complex | np.complexfloating):
        return f"({float(value.real)!r}, {float(value.imag)!r})"
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | np.integer):
        return str(int(value))
    return str(value) if isinstance(value, np.float32) else repr(float(value))


def op_text(op: Op, indent: str = "") -> str:
    params = sorted(op.params().items())
    if not params:
        return op.name
    try:
        return _with_params(op, params, indent)
    except _NoText as error:
        raise ParseError(
            f"{op.name} has no text form: it holds {error}", fix="print the graph without it"
        ) from None


class _NoText(Exception):
    """A parameter is neither a number, a word, a type nor a graph."""


def eqn_text(eqn: Eqn, names: Names) -> str:
    """An equation on one line, without types: its first result, the operation and its operands."""
    inputs = "".join(" " + atom_text(a, names) for a in eqn.inputs)
    return f"{names[eqn.outs[0]]} = {op_text(eqn.op)}{inputs}"


def _with_params(op: Op, params: list[tuple[str, Any]], indent: str) -> str:
    if not any(_holds_graph(v) for _, v in params):
        return f"{op.name}[{' '.join(f'{k}={param_text(v)}' for k, v in params)}]"
    inner = indent + STEP
    body = "\n".join(f"{inner}{k}={param_text(v, inner)}" for k, v in params)
    return f"{op.name}[\n{body}\n{indent}]"


def param_text(value: Any, indent: str = "") -> str:
    if isinstance(value, Graph):
        return write(value, indent)
    if isinstance(value, tuple):
        if _holds_graph(value):
            inner = indent + STEP
            return (
                "(\n" + "".join(f"{inner}{param_text(v, inner)},\n" for v in value) + f"{indent})"
            )
        return f"({', '.join(map(param_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, np.dtype):
        return short(value)
    if isinstance(value, str):
        plain = (
            re.fullmatch(r"[A-Za-z_]\w*", value)
            and value not in LONG
            and value not in (*WORDS, *KEPT)
        )
        return value if plain else repr(value)
    if value is None or isinstance(value, bool | int | float | ArrayType):
        return str(value) if isinstance(value, ArrayType) else repr(value)
    raise _NoText(f"a Python {type(value).__name__}, {value!r}")


def _holds_graph(value: Any) -> bool:
    return isinstance(value, Graph) or (isinstance(value, tuple) and any(map(_holds_graph, value)))


# ------------------------------------------------------------------------------------------ parsing

Table = Mapping[str, Callable[..., Op]]


@cache
def tokens() -> re.Pattern[str]:
    return re.compile(
        r"""\s*(?: (?P<number>[+-]?(?:inf|nan|\d+\.?\d*(?:e[+-]?\d+)?)(?![\w])) | (?P<word>[A-Za-z_][\w-]*)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") | (?P<mark>[{}\[\]();:,.=~]) )""",
        re.VERBOSE,
    )


def parse(text: str, table: Table) -> Graph:
    """The graph that a text stands for; `table` makes an operation from its name and parameters."""
    parser = _Parser(text, table)
    try:
        graph = parser.graph()
    except RecursionError:
        raise ParseError("the text nests deeper than Python's stack", fix=DEEPER) from None
    if parser.at < len(parser.tokens):
        parser.fail("the end of the text")
    return graph


class _Parser:
    def __init__(self, text: str, table: Table) -> None:
        self.table, self.at = table, 0
        self.tokens: list[tuple[str, str, int]] = []
        at, text, token_at = 0, text.rstrip(), tokens().match
        while at < len(text):
            found = token_at(text, at)
            kind = found.lastgroup if found is not None else None
            if found is None or kind is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise ParseError(
                    f"this is no part of a graph: {text[at : at + 20]!r}", where=_place(text, at)
                )
            start, at = found.span(kind)
            if kind == "number" and at - start > DIGITS:
                raise ParseError(f"a number has {at - start} digits", where=_place(text, start))
            self.tokens.append((kind, text[start:at], start))
        self.text = text

    # -- tokens

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else "end"

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def skip(self, token: str) -> bool:
        if self.peek() == token and self.kind() != "string":
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.skip(token):
            self.fail(repr(token))

    def word(self) -> str:
        if self.kind() != "word":
            self.fail("a name")
        return self.take()

    def fail(self, wanted: str, at: int | None = None) -> NoReturn:
        """The error that says what was wanted at token `at`, the current one
        by default.
        """
        self.at = self.at if at is None else at
        place = self.tokens[self.at][2] if self.at < len(self.tokens) else len(self.text)
        found = repr(self.peek()) if self.peek() else "the end of the text"
        raise ParseError(f"expected {wanted}, found {found}", where=_place(self.text, place))

    # -- graphs

    def graph(self) -> Graph:
        names: dict[str, Var] = {}
        self.expect("{")
        self.expect("lambda")
        consts = self.binders(names, ";")
        inputs = self.binders(names, ".")
        self.expect("let")
        eqns = []
        while self.peek() != "in" or self.peek(1) == ":":
            eqns.append(self.eqn(names))
        self.expect("in")
        self.expect("(")
        outputs = []
        while not self.skip(")"):
            outputs.append(self.atom(names))
            self.skip(",")
        self.expect("}")
        return Graph((*consts, *inputs), tuple(eqns), tuple(outputs), len(consts))

    def binders(self, names: dict[str, Var], end: str) -> list[Var]:
        found = []
        while not self.skip(end):
            found.append(self.binder(names))
        return found

    def binder(self, names: dict[str, Var]) -> Var:
        at, name = self.at, self.word()
        self.expect(":")
        var = Var(self.type())
        if name in names:
            self.fail(f"a name other than {name}, which is taken", at)
        if name != "_":
            names[name] = var
        return var

    def eqn(self, names: dict[str, Var]) -> Eqn:
        at = self.at
        fresh: dict[str, Var] = {}
        outs = self.binders(fresh, "=")
        op = self.op()
        inputs = []
        while not self.ends_eqn():
            inputs.append(self.atom(names))
        if taken := names.keys() & fresh.keys():
            self.fail(f"names other than {', '.join(sorted(taken))}, taken above", at)
        names.update(fresh)
        return Eqn(op, tuple(inputs), tuple(outs))

    def ends_eqn(self) -> bool:
        """At `in`, at the end, or at the first binder of the next equation:
        only binders have `name :`.
        """
        if self.kind() != "word":
            return self.kind() == "end" or self.peek() == "="
        return self.peek() == "in" or (self.peek(1) == ":" and self.peek() not in WORDS)

    def op(self) -> Op:
        at, name, params = self.at, self.word(), {}
        if self.skip("["):
            while not self.skip("]"):
                key = self.word()
                self.expect("=")
                params[key] = self.param()
        make = self.table.get(name)
        if make is None:
            self.fail("the name of an operation", at)
        try:
            return make(**params)
        except (TypeError, ValueError) as error:
            where = _place(self.text, self.tokens[at][2])
            raise ParseError(
                f"{name} does not take these parameters: {error}", where=where
            ) from None

    def atom(self, names: dict[str, Var]) -> Atom:
        if self.kind() == "word" and self.peek() not in WORDS:
            name = self.take()
            if name not in names:
                self.fail("a value that is defined above", self.at - 1)
            return names[name]
        at, value = self.at, self.param()
        self.expect(":")
        found = literal(value, self.type())
        if found is None:
            self.fail("a number of the type that follows it", at)
        return found

    def type(self) -> ArrayType:
        at, weak = self.at, self.skip("~")
        dtype = LONG.get(self.word())
        if dtype is None:
            self.fail("a dtype", self.at - 1)
        self.expect("[")
        shape = []
        while not self.skip("]"):
            if not self.peek().isdecimal():
                self.fail("a size, or ']'")
            shape.append(int(self.take()))
            self.skip(",")
        if weak and (shape or dtype not in PYTHON.values()):
            self.fail("the type of a Python number after '~'", at)
        return ArrayType(tuple(shape), dtype, weak)

    def param(self) -> Any:
        kind, token = self.kind(), self.peek()
        if kind == "number":
            self.at += 1
            return int(token) if re.fullmatch(r"[+-]?\d+", token) else float(token)
        if kind == "string":
            try:
                found = literal_eval(token)
            except (SyntaxError, ValueError):
                self.fail("a string that Python reads")
            self.at += 1
            return found
        if token == "{":
            return self.graph()
        if token == "(":
            return self.tuple()
        if token == "~" or (token in LONG and self.peek(1) == "["):
            return self.type()
        word = self.word()
        return LONG[word] if word in LONG else WORDS.get(word, word)

    def tuple(self) -> tuple[Any, ...]:
        self.expect("(")
        items = []
        while not self.skip(")"):
            items.append(self.param())
            self.skip(",")
        return tuple(items)


def literal(value: Any, type: ArrayType) -> Literal | None:
    """A literal of that type from the numbers its text was made of; None if
    they are not of that type.
    """
    kind: Any = python_type(type.dtype)
    number = _number(value, kind)
    if number is None or type.shape:
        return None
    if type.weak:
        return Literal(number, type)
    if kind is int and not np.iinfo(type.dtype).min <= number <= np.iinfo(type.dtype).max:
        return None
    if kind is not float:
        return Literal(type.dtype.type(number), type)
    with np.errstate(over="ignore"):
        return Literal(type.dtype.type(FLOAT64.type(number)), type)


def _number(value: Any, kind: Any) -> Any:
    """The value as a Python number of that kind, or None; a complex number is written as two."""
    if kind is complex:
        parts = [_number(v, float) for v in value] if isinstance(value, tuple) else []
        return complex(*parts) if len(parts) == 2 and None not in parts else None
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 2**1023 else None
    return value if type(value) is kind else None


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"


def shown(eqn: Eqn) -> str:
    """An equation as errors name it: its operation, and the types of its inputs."""
    try:
        op = op_text(eqn.op)
    except ParseError:
        op = eqn.op.name
    return f"{op} of {listed(getattr(a, 'type', a) for a in eqn.inputs)}"
