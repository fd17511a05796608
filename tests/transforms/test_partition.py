"""The cut of a joint graph: the fewest bytes, nothing dear computed twice, the same derivatives."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.ir import ArrayType, Eqn, Graph, Op, Var, parse
from ge2.ops import TABLE, DotGeneral
from ge2.ops.elementwise import BY_NAME
from ge2.transforms import grad, make_jaxpr, vjp
from ge2.transforms.graphs import DERIVE, vjp_graph
from ge2.transforms.graphs.partition import (
    NEVER,
    Network,
    cheapest,
    constants,
    cut,
    effort,
    partition,
    split,
    twins,
)
from tests.exhaustive import examples
from tests.passes.graphs import names
from tests.transforms.functions import FUNCTIONS, close, points

FEW = settings(max_examples=examples(60), deadline=None)
F32 = np.dtype(np.float32)


# ----------------------------------------------------------------------------------- the cut itself


def network(edges: list[tuple[int, int, int]]) -> Network:
    found = Network()
    for _ in range(2, 1 + max(max(a, b) for a, b, _ in edges)):
        found.node()
    for edge in edges:
        found.join(*edge)
    return found


def test_a_known_network():
    """Two paths that share an edge, and one back."""
    edges = [(0, 2, 3), (0, 3, 2), (2, 3, 5), (2, 4, 2), (3, 5, 3), (4, 1, 2), (5, 1, 3), (5, 4, 1)]
    total, behind = network(edges).cut()
    assert total == 5
    assert sum(c for a, b, c in edges if b in behind and a not in behind) == 5
    assert network([(0, 2, 7), (2, 1, NEVER), (0, 2, 1)]).cut() == (8, {1, 2})
    assert network([(0, 2, 7), (3, 1, 5)]).cut() == (0, {1, 3})


@FEW
@given(st.integers(2, 7), st.data())
def test_the_least_of_all_cuts(nodes: int, data: st.DataObject):
    edge = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1), st.integers(0, 9))
    edges = [e for e in data.draw(st.lists(edge, min_size=1, max_size=18)) if e[0] != e[1]]
    total, behind = network([*edges, (0, nodes - 1, 0)]).cut() if edges else (0, {1})
    price = lambda late: sum(c for a, b, c in edges if b in late and a not in late)  # noqa: E731
    others = list(range(2, nodes))
    sides = [
        {1, *(n for n, s in zip(others, side, strict=True) if s)}
        for side in product((0, 1), repeat=len(others))
    ]
    assert total == min(map(price, sides))
    assert price(behind) == total and 0 not in behind


# ------------------------------------------------------------------------------ saving or repeating


@FEW
@given(st.data())
def test_the_least_of_all_ways_to_have_values_again(data: st.DataObject):
    """Against every choice of equations to repeat, on small graphs."""
    values = [Var(ArrayType((data.draw(st.integers(1, 9)),), F32)) for _ in range(2)]
    inputs, makers = list(values), {}
    for _ in range(data.draw(st.integers(1, 6))):
        read = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        outs = tuple(
            Var(ArrayType((data.draw(st.integers(1, 9)),), F32))
            for _ in range(data.draw(st.integers(1, 2)))
        )
        makers.update(dict.fromkeys(outs, Eqn(BY_NAME["add"], tuple(read), outs)))
        values += outs
    eqns = list(dict.fromkeys(makers.values()))
    efforts = {e: data.draw(st.sampled_from((0, 1, 3, 8, 20, NEVER))) for e in eqns}
    pairs = [(a, b) for i, a in enumerate(eqns) for b in eqns[i + 1 :]]
    linked: dict[Eqn, list[Eqn]] = {}
    for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=2)) if pairs else []:
        linked.setdefault(a, []).append(b)
    wanted = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    price = lambda v: 0 if v in inputs else v.type.nbytes  # noqa: E731
    best = NEVER
    for chosen in product((False, True), repeat=len(eqns)):
        again = {e for e, c in zip(eqns, chosen, strict=True) if c}
        if any(b not in again for e in again for b in linked.get(e, ())):
            continue
        needed = {*wanted, *(a for e in again for a in e.inputs)}
        saved = {v for v in needed if makers.get(v) not in again}
        best = min(best, sum(map(price, saved)) + sum(efforts[e] for e in again))
    found = cheapest(wanted, makers, price, efforts.__getitem__, linked)
    assert found.price == best
    needed = {*wanted, *(a for e in found.again for a in e.inputs)}
    assert (
        sum(price(v) for v in needed if makers.get(v) not in found.again)
        + sum(map(efforts.get, found.again))
        == best
    )
    assert {v for v in needed if makers.get(v) not in found.again} == found.saved


def joint(f: Any, *args: Any) -> tuple[Graph, int, int]:
    graph = make_jaxpr(f)(*args).graph
    return (
        vjp_graph(graph, (True,) * len(graph.inputs), DERIVE),
        len(graph.inputs),
        len(graph.outputs),
    )


def saved_bytes(forward: Graph, count: int) -> int:
    """Of the residuals that are neither inputs nor results."""
    at = len(forward.outputs) - count
    held = {*forward.inputs, *forward.outputs[:at]}
    return sum(a.type.nbytes for a in set(forward.outputs[at:]) - held)


def test_a_chain_of_elementwise_work_is_computed_again_from_its_input():
    chain = lambda x: np.sin(np.exp(np.tanh(x)))  # noqa: E731
    forward, backward, count = partition(*joint(chain, np.ones(1000)))
    assert saved_bytes(forward, count) == 0
    assert {"tanh", "exp", "cos"} <= set(names(backward)) and "sin" not in names(backward)
    assert saved_bytes(*split(*joint(chain, np.ones(1000)))[::2]) == 3 * 8000


def test_a_matrix_product_is_saved_and_what_follows_it_is_not():
    layer = lambda x, w: np.sum(np.exp(np.sin(x @ w) * 3.0))  # noqa: E731
    whole = joint(layer, np.ones((50, 20)), np.ones((20, 30)))
    forward, backward, count = partition(*whole)
    assert saved_bytes(forward, count) == 50 * 30 * 8
    assert names(forward).count("dot_general") == 1 and names(backward).count("dot_general") == 2
    assert saved_bytes(*split(*whole)[::2]) == 2 * 50 * 30 * 8


def test_of_a_mask_only_its_bits_are_kept():
    relu = lambda x, w: np.sum(np.where(x @ w > 0, x @ w, 0.0) ** 2)  # noqa: E731
    forward, _, count = partition(*joint(relu, np.ones((50, 20)), np.ones((20, 30))))
    assert saved_bytes(forward, count) == 50 * 30 * 8
    positive = lambda x, w: np.sum(np.where(x @ w > 0, x @ w, 0.0))  # noqa: E731
    forward, _, count = partition(*joint(positive, np.ones((50, 20)), np.ones((20, 30))))
    assert [a.type.dtype for a in forward.outputs[-count:] if a not in forward.inputs] == [np.bool_]


def test_the_sum_of_a_row_is_saved_rather_than_summed_again():
    softmax = lambda x: np.exp(x) / np.sum(np.exp(x), axis=1, keepdims=True)  # noqa: E731
    forward, backward, count = partition(*joint(softmax, np.ones((40, 100))), held=(True, False))
    assert saved_bytes(forward, count) == 40 * 8
    assert "exp" in names(backward)
    sums = [e for e in backward.eqns if e.op.name == "reduce_sum"]
    forward_sums = [e for e in forward.eqns if e.op.name == "reduce_sum"]
    assert len(forward_sums) == 1 and forward_sums[0].inputs[0] not in {
        a for e in sums for a in e.inputs
    }


def test_what_is_held_anyway_is_free():
    step = lambda h: np.tanh(h * 2.0)  # noqa: E731
    whole = joint(step, np.ones(1000))
    _, backward, count = partition(*whole)
    assert count == 1 and "tanh" not in names(backward)  # the result itself
    forward, backward, count = partition(*whole, held=(True, False))
    assert forward.outputs[-1:] == forward.inputs and "tanh" in names(backward)
    forward, backward, count = partition(*whole, held=(False, False))
    assert (
        count == 1 and forward.outputs[-1] not in forward.inputs and "tanh" not in names(backward)
    )


def test_small_programs_run_op_by_op_compute_nothing_again():
    graph, known, outputs = joint(lambda x: np.sin(np.exp(np.tanh(x))), np.ones(4))
    _, backward, _ = partition(graph, known, outputs, dispatch=1024)
    assert not {"tanh", "exp"} & set(names(backward))


def test_random_bits_scans_and_sorts_are_not_repeated():
    def f(x):
        return np.sum(np.sin(np.cumsum(x) * np.sort(x)) ** 2)

    _, backward, _ = partition(*joint(f, np.ones(100)))
    assert not {"cumsum", "sort", "argsort"} & {
        e.op.name for e in backward.eqns if e.outs[0].type.dtype == F32
    }
    forward = partition(*joint(f, np.ones(100)))[0]
    before = {v for e in forward.eqns for v in e.outs}
    assert not any(
        e.op.name in ("cumsum", "sort", "argsort") and not before.isdisjoint(e.outs)
        for e in backward.eqns
    )


# ---------------------------------------------------------------------------------- the derivatives


@pytest.mark.parametrize("name", FUNCTIONS)
def test_never_more_bytes_and_the_same_derivative(name: str, rng: np.random.Generator):
    f, x = FUNCTIONS[name], points(rng)
    whole = joint(lambda x: f(x), x)
    found, plain = partition(*whole), split(*whole)
    assert saved_bytes(*found[::2]) <= saved_bytes(*plain[::2])
    again = {v for e in found[0].eqns for v in e.outs}
    dear = [
        e.op for e in found[1].eqns if not again.isdisjoint(e.outs) and isinstance(e.op, DotGeneral)
    ]
    assert not dear


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_derivative(name: str, rng: np.random.Generator):
    f, x = FUNCTIONS[name], points(rng)
    loss = lambda x: np.sum(np.sin(f(x)))  # noqa: E731
    y, pull = vjp(loss, x)
    close(pull(1.0)[0], grad(loss)(x))
    close(grad(ge2.jit(loss))(x), grad(loss)(x))
    close(ge2.jit(lambda x: vjp(loss, x)[1](1.0)[0])(x), grad(loss)(x))
    close(y, loss(x))


def test_a_jitted_function_takes_its_residuals_from_its_inputs():
    inner = ge2.jit(lambda x, w: np.tanh(x @ w))
    graph = make_jaxpr(lambda x, w: grad(lambda x: np.sum(inner(x, w)))(x))(
        np.ones((4, 4)), np.ones((4, 4))
    ).graph
    read = {a for e in graph.eqns for a in e.inputs}
    assert {*graph.inputs[-1:]} <= read
    (forward,) = (e for e in graph.eqns if e.op.name == "jit_saving")
    (backward,) = (e for e in graph.eqns if e.op.name == "jit" and e is not forward)
    assert graph.inputs[-1] in backward.inputs


def test_values_with_a_label_are_known_by_their_first_name():
    text = """{ lambda ; x:f32[8] ct:f32[8]. let
        y:f32[8] = sin x
        z:f32[8] = name[label=kept] y
        w:f32[8] = exp z
        a:f32[8] = mul ct z
        b:f32[8] = mul a y
      in (w, b) }"""
    price = lambda v: v.type.nbytes  # noqa: E731
    forward, backward, count = cut(parse(text, TABLE), 1, 1, price, constants)
    assert count == 1 and names(backward) == ["mul", "mul"] and "name" in names(forward)


def test_dear_operations():
    x = Var(ArrayType((4, 4), F32))
    op: Op
    for op in (DotGeneral(((1,), (0,)), ((), ())), TABLE["sort"](axis=0), TABLE["cumsum"](axis=0)):
        assert effort(Eqn(op, (x, x), (x,)), 0) == NEVER


def test_a_compiled_forward_half_copies_no_input(monkeypatch: pytest.MonkeyPatch):
    x, w = np.ones((4, 4)), np.eye(4)
    run = ge2.ops.graphs.control.EXECUTOR[0]
    results: list[int] = []

    def counting(call: Any, arrays: Any) -> Any:
        results.append(len(call.jaxpr.outputs))
        return run(call, arrays)

    monkeypatch.setattr(ge2.ops.graphs.control, "EXECUTOR", [counting])
    found = grad(lambda x: np.sum(ge2.jit(lambda x, w: np.tanh(x @ w))(x, w)))(x)
    assert results == [1, 1]  # the result, which is the residual too; then the cotangent
    close(found, grad(lambda x: np.sum(np.tanh(x @ w)))(x))


def test_in_one_program_nothing_is_computed_twice():
    """Only where forward and backward run apart (branches, loops, vjp by
    itself) does repeating pay.
    """
    w = np.eye(4)
    chain = lambda x: np.exp(np.sin(np.tanh(x @ w) * x))  # noqa: E731
    loss = lambda f: lambda x: np.sum(f(f(x)))  # noqa: E731
    plain = ge2.jit(grad(loss(chain))).lower(w).as_text()
    nested = ge2.jit(grad(loss(ge2.jit(chain)))).lower(w).as_text()
    for op in ("dot_general", "exp", "sin", "cos", "tanh"):
        assert nested.count(f"= {op} ") == plain.count(f"= {op} ")


def test_a_value_and_the_largest_of_it_are_repeated_together():
    """Else x == max(x), asked of an x that was computed again, might hold nowhere."""
    f = lambda x: np.sum(np.max(np.sin(x), axis=1) ** 2)  # noqa: E731
    _, backward, _ = partition(*joint(f, np.ones((30, 40))))
    again = names(backward)
    assert again.count("reduce_max") == again.count("sin")

    def g(x):
        return np.sum(np.cumprod(np.sin(x), axis=1)) + np.sum(
            np.maximum.accumulate(np.sin(x), axis=1)
        )

    for h in (f, g):
        found = twins(joint(h, np.ones((30, 40)))[0].eqns)
        assert [(a.op.name, [b.op.name for b in choices]) for a, choices in found.items()][:1] in (
            [("sin", ["reduce_max"])],
            [("sin", ["cummax"])],
        )
    policy = ge2.checkpoint_policies.save_only_these_names("most")
    block = ge2.checkpoint(
        lambda x: ge2.checkpoint_name(np.max(np.sin(x), axis=1), "most") ** 2, policy=policy
    )
    (eqn,) = make_jaxpr(block)(np.ones((3, 4))).graph.eqns
    saving: Any = eqn.op.saving((True,), DERIVE)
    assert names(saving.backward).count("reduce_max") == names(saving.backward).count("sin") == 1
