"""Graphs print and read back: every operation, literal, nesting; what is none
is refused at its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import SHORT, known
from ge2.base.errors import ParseError
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    op_text,
    parse,
    type_of,
    verify,
    write,
)
from ge2.ops import TABLE
from tests.laws.sample import Sample
from tests.laws.samples import SAMPLES

EVERY = [
    (sample, dtype) for samples in SAMPLES.values() for sample in samples for dtype in sample.dtypes
]


# ------------------------------------------------------------------------------------ random graphs


def scalars(dtype: np.dtype) -> st.SearchStrategy[np.generic]:
    """Any bits of that dtype."""
    raw = st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)
    if dtype == np.bool_:
        return st.booleans().map(np.bool_)
    return raw.map(lambda bits: np.frombuffer(bits, dtype)[0])


numbers = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers(allow_nan=True))
literals = st.one_of(st.sampled_from(list(SHORT)).flatmap(scalars), numbers).map(Literal.of)


def operand(draw: Any, x: Any, inputs: list[Var], made: list[Var]) -> Atom:
    """An operand of the type of `x`: a literal, a value met before, or a new input."""
    t = type_of(x)
    if not t.shape and known(t.dtype) and draw(st.booleans()):
        return Literal.of(draw(scalars(t.dtype)) if not t.weak else x)
    fitting = [v for v in made if v.type == t]
    if fitting and draw(st.booleans()):
        return draw(st.sampled_from(fitting))
    var = Var(ArrayType(t.shape, t.dtype, t.weak))
    inputs.append(var)
    made.append(var)
    return var


@st.composite
def graphs(draw: Any) -> Graph:
    """Some equations of any operations, each reading literals, inputs and earlier results."""
    inputs: list[Var] = []
    made: list[Var] = []
    eqns = []
    for _ in range(draw(st.integers(0, 6))):
        sample, dtype = EVERY[draw(st.integers(0, len(EVERY) - 1))]  # sampled_from hashes them all
        xs = sample.draw(np.random.default_rng(draw(st.integers(0, 9))), dtype)
        atoms = tuple(operand(draw, x, inputs, made) for x in xs)
        outs = tuple(map(Var, sample.op.infer(*(a.type for a in atoms))))
        made += outs
        eqns.append(Eqn(sample.op, atoms, outs))
    outputs = draw(
        st.lists(st.one_of(literals, st.sampled_from(made)) if made else literals, max_size=5)
    )
    return Graph(tuple(inputs), tuple(eqns), tuple(outputs), draw(st.integers(0, len(inputs))))


@given(graphs())
def test_a_graph_reads_back_from_its_text(graph: Graph) -> None:
    verify(graph)
    text = write(graph)
    again = parse(text, TABLE)
    assert again == graph
    assert hash(again) == hash(graph)
    assert write(again) == text
    verify(again)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("sample", "dtype"), EVERY[:: max(1, len(EVERY) // 300)], ids=str)
def test_an_equation_of_each_operation_reads_back(sample: Sample, dtype: np.dtype) -> None:
    types = [type_of(x) for x in sample.draw(np.random.default_rng(0), dtype)]
    inputs = tuple(map(Var, types))
    outs = tuple(map(Var, sample.op.infer(*types)))
    graph = Graph(inputs, (Eqn(sample.op, inputs, outs),), outs)
    assert parse(write(graph), TABLE) == graph


@given(literals)
@example(Literal.of(np.float32(-np.nan)))
@example(Literal.of(-0.0))
@example(Literal.of(10**60))
@example(Literal.of(complex("nan-infj")))
def test_a_literal_reads_back_bit_for_bit(literal: Literal) -> None:
    text = write(Graph((), (), (literal,)))
    (again,) = parse(text, TABLE).outputs
    assert again == literal
    assert isinstance(again, Literal)
    assert type(again.value) is type(literal.value)
    assert again.type == literal.type


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0.1:f32[]"),
        (np.float64(1e-300), "1e-300:f64[]"),
        (np.float32(np.inf), "inf:f32[]"),
        (-np.inf, "-inf:~f64[]"),
        (np.float16(np.nan), "nan:f16[]"),
        (-0.0, "-0.0:~f64[]"),
        (True, "True:~bool[]"),
        (np.uint64(2**64 - 1), "18446744073709551615:u64[]"),
        (10**30, "1000000000000000000000000000000:~i64[]"),
        (np.complex64(1 - 2j), "(1.0, -2.0):c64[]"),
        (complex(0.0, -0.0), "(0.0, -0.0):~c128[]"),
    ],
)
def test_literals_are_written_with_their_type(value: Any, text: str) -> None:
    assert write(Graph((), (), (Literal.of(value),))) == f"{{ lambda ;. let\n  in ({text},) }}"


# ----------------------------------------------------------------------------------------- the form


def test_captured_arrays_come_before_the_semicolon() -> None:
    kept = np.arange(3.0)
    text = str(ge2.make_jaxpr(lambda x: x * kept)(np.ones(3)))
    assert text == "{ lambda a:f64[3] ; b:f64[3]. let\n    c:f64[3] = mul b a\n  in (c,) }"


def test_unused_results_are_underscores_and_stay_in_place() -> None:
    text = "{ lambda ; a:f32[4]. let\n    _:f32[4] = tanh a\n    b:f32[4] = sin a\n  in (b, a) }"
    assert str(ge2.parse(text)) == text
    assert len(ge2.parse(text).eqns) == 2


def test_names_go_on_after_z_and_pass_over_the_words_of_the_form() -> None:
    def f(x: Any) -> Any:
        for _ in range(800):
            x = np.sin(x)
        return x

    text = str(ge2.make_jaxpr(f)(np.ones(2)))
    names = re.findall(r"^    (\w+):", text, re.MULTILINE)
    assert names[:2] == ["b", "c"]
    assert names[25:27] == ["ba", "bb"]
    assert not {"in", "let", "inf", "nan"} & set(names)
    assert ge2.parse(text) == ge2.make_jaxpr(f)(np.ones(2)).graph


def test_text_without_line_breaks_reads_as_well() -> None:
    text = "{lambda;a:f32[3].let b:f32[3]=tanh a c:f32[3]=mul b 2.0:f32[] in(b,c,1:~i64[])}"
    graph = ge2.parse(text)
    assert [e.op.name for e in graph.eqns] == ["tanh", "mul"]
    assert len(graph.outputs) == 3


@final
@dataclass(frozen=True, slots=True)
class Python(Op):
    """Holds a Python function, as a callback would."""

    function: Any
    name = "callback"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return types[:1]

    def reference(self, *arrays: Any) -> Any:
        return self.function(*arrays)


def test_an_operation_that_holds_python_is_refused_by_name() -> None:
    with pytest.raises(
        ParseError, match=r"callback has no text form: it holds a Python builtin_function"
    ):
        op_text(Python(abs))


# ---------------------------------------------------------------------------------------- no graphs


@pytest.mark.parametrize(
    ("text", "says", "where"),
    [
        ("", "expected '{'", "line 1, column 1"),
        (
            "{ lambda ; a:f32[3]. let\n  b:f32[3] = tanh c in (b,) }",
            "a value that is defined above, found 'c'",
            "line 2, column 19",
        ),
        ("{ lambda ; a:f33[3]. let in (a,) }", "a dtype, found 'f33'", "line 1, column 14"),
        ("{ lambda ; a:f32[x]. let in (a,) }", "a size, or ']', found 'x'", "line 1, column 18"),
        ("{ lambda ; a:f32[-3]. let in (a,) }", "a size, or ']', found '-3'", "line 1, column 18"),
        (
            "{ lambda ; a:f32[3]. let b:f32[3] = tanhh a in (b,) }",
            "the name of an operation, found 'tanhh'",
            "line 1, column 37",
        ),
        (
            "{ lambda ; a:f32[3]. let\n\n b:f32[3] = tanh a",
            "the end of the text",
            "line 3, column 19",
        ),
        ("{ lambda ; a:f32[3] a:f32[3]. let in (a,) }", "a name other than a", "line 1, column 21"),
        (
            "{ lambda ; a:f32[3]. let a:f32[3] = tanh a in (a,) }",
            "names other than a",
            "line 1, column 26",
        ),
        (
            "{ lambda ; a:i8[]. let b:i8[] = add a 300:i8[] in (b,) }",
            "a number of the type that follows",
            "line 1, column 39",
        ),
        (
            "{ lambda ;. let in (1.5:i32[],) }",
            "a number of the type that follows",
            "line 1, column 21",
        ),
        (
            "{ lambda ;. let in (True:f32[],) }",
            "a number of the type that follows",
            "line 1, column 21",
        ),
        (
            "{ lambda ;. let in ((1, 2, 3):c64[],) }",
            "a number of the type that follows",
            "line 1, column 21",
        ),
        (
            "{ lambda ;. let in (1.0:f32[2],) }",
            "a number of the type that follows",
            "line 1, column 21",
        ),
        ("{ lambda ; a:~f32[]. let in (a,) }", "a Python number after '~'", "line 1, column 14"),
        (
            "{ lambda ; a:f32[3]. let b:f32[3] = tanh[axes=(0,)] a in (b,) }",
            "does not take these parameters",
            "line 1, column 37",
        ),
        (
            "{ lambda ; a:f32[3]. let b:f32[] = reduce_sum[axes=] a in (b,) }",
            "a name, found ']'",
            "line 1, column 52",
        ),
        (
            "{ lambda ;. let in () } and more",
            "the end of the text, found 'and'",
            "line 1, column 25",
        ),
        ("{ lambda ;. let\n in (?) }", "no part of a graph: '?", "line 2, column 6"),
        ("{ lambda ;. let in ('a\\x':f32[],) }", "a string that Python reads", "line 1, column 21"),
    ],
)
def test_what_is_no_graph_is_refused_at_its_place(text: str, says: str, where: str) -> None:
    with pytest.raises(ParseError) as caught:
        ge2.parse(text)
    assert says in str(caught.value)
    assert where in str(caught.value)


PIECES = [
    "a", "b", ":", "f32[3]", "=", "in", "{", "}", "(", ")", ",", "tanh", "1.0", "~", "'", "lambda",
    "[", "]", "\n", "True", "é", "\\",
]  # fmt: skip


@given(graphs(), st.data())
def test_damaged_text_is_a_graph_or_a_parse_error(graph: Graph, data: st.DataObject) -> None:
    text = write(graph)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(start + 8, len(text))))
    damaged = text[:start] + data.draw(st.sampled_from(PIECES)) + text[stop:]
    assume(damaged != text)
    try:
        said = write(parse(damaged, TABLE))
    except ParseError as error:
        said = str(error)
    assert re.search(r"\n  at   line \d+, column \d+|^{ lambda", said)


# ------------------------------------------------------------------------------------------- golden


def layer(x: Any, w: Any, b: Any) -> Any:
    return np.maximum(x @ w + b, 0)


def loss(w: Any, b: Any, x: Any, y: Any) -> Any:
    z = layer(x, w, b)
    z = z - np.max(z, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - z[np.arange(len(y)), y])


def special(x: Any) -> Any:
    return (
        np.where(np.isnan(x), -0.0, np.minimum(x, np.inf)),
        x.astype(np.float16) * 2,
        x > np.nan,
        True,
    )


def changed(x: Any) -> Any:
    y = x.copy()
    y[1:] *= 2
    y.T[0] = x[1]
    return y


ARGS = (np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), np.ones(4, np.float32))
LOSS_ARGS = (ARGS[1], ARGS[2], ARGS[0], np.array([1, 3]))
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "layer": (layer, ARGS),
    "loss": (loss, LOSS_ARGS),
    "loss_gradient": (ge2.grad(loss, argnums=(0, 1)), LOSS_ARGS),
    "layer_batched": (
        ge2.vmap(layer, in_axes=(None, 0, 0)),
        (ARGS[0], np.ones((5, 3, 4)), np.ones((5, 4))),
    ),
    "special": (special, (np.ones(3, np.float32),)),
    "cond": (lambda x, n: ge2.lax.cond(n > 0, np.sin, lambda y: y * n, x), (np.ones(2), 3)),
    "checkpoint": (ge2.grad(ge2.checkpoint(lambda x: np.sum(np.sin(x) ** 2))), (np.ones(2),)),
    "in_place": (changed, (np.ones((2, 2)),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_print_as_they_did(name: str, golden: Any) -> None:
    f, args = PROGRAMS[name]
    graph = ge2.make_jaxpr(f)(*args).graph
    text = golden(f"graphs/{name}.txt", write(graph) + "\n")
    assert ge2.parse(text) == graph


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "{ lambda ; a:f32[4,3] b:f32[2,3]. let c:f32[4,3] = add a b in (c,) }",
            "arrays of one shape",
        ),
        ("{ lambda ; a:f32[4,3]. let c:f32[4,7] = tanh a in (c,) }", "it yields f32"),
        (
            "{ lambda ; a:i64[3]. let c:i64[3] = add a " + "9" * 5000 + ":i64 in (c,) }",
            "5000 digits",
        ),
        ("{ lambda ; a:i64[" + "9" * 5000 + "]. let in (a,) }", "5000 digits"),
        (
            "{ lambda ; a:f32[3]. let c:f32[] = reduce_sum[axes=" + "(" * 5000 + "] a in (c,) }",
            "nests deeper",
        ),
    ],
)
def test_what_is_no_graph_is_a_parse_error(text: str, words: str) -> None:
    with pytest.raises(ParseError, match=words):
        ge2.parse(text)
