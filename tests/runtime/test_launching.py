"""Launches of a program in any order that a graph may have them in give the same bits."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import KernelError, VerifyError
from ge2.compile.catalog import manner
from ge2.dispatch import cache
from ge2.targets.cuda.assemble import check_owners
from ge2.targets.cuda.launch import Address, Launch, TensorMap, Tiles, While, graph, in_any_order
from ge2.targets.cuda.launch.graph import Access, check_places, checked_waits, conflicts, waits
from ge2.targets.cuda.launch.template import Group, accesses, rebound

SEEDS = range(1, 9)


def pending(*arguments, written):
    return Launch(0, (1,), (32,), 0, arguments, "kernel", "", frozenset(written))


def in_order(f, seed):
    """What `f` computes in the shim, where launches come in the order of a
    seed; 0: in their own.
    """
    cache.forget()
    with config.using(executor="shim", shim_seed=seed):
        return f()


def test_a_result_in_the_memory_of_an_argument_waits_for_its_readers():
    """The new value of a donated array, and what reads the old one in another branch."""
    launches = [
        pending(Address("w"), Address("h", in_arena=True), written=[1]),
        pending(Address("w_new"), written=[0]),
    ]
    spans = {"h": (0, 64)}
    assert waits([accesses(each, spans, {}) for each in launches]) == [(), ()]
    assert waits([accesses(each, spans, {"w_new": "w"}) for each in launches]) == [(), (0,)]


def test_a_tensor_map_reads_or_writes_what_it_is_made_of():
    tiles = Tiles(np.dtype(np.float32), (8, 8), (8, 1), (2, 4))
    read, other = TensorMap(Address("h", 16, in_arena=True), tiles), TensorMap(Address("y"), tiles)
    launch = pending(read, other, written=[1])
    assert accesses(launch, {"h": (256, 64)}, {}) == [
        Access("arena", 256, 320, False),
        Access("y", 0, 1, True),
    ]
    moved = rebound(launch, lambda a: Address("z", 4), lambda each: each)
    assert moved.arguments == (TensorMap(Address("z", 4), tiles),) * 2
    assert str(launch) == "kernel<<<1, 32>>>(tiles of 2x4 of h + 16, tiles of 2x4 of y)"
    group = Group(0, launches=[launch])
    assert group.bases == ["arena", "y"] and group.numbers == []


def chain(*pairs):
    """Launches that each write an array and read another, and the arrays of the arena, one by one."""
    made = [
        pending(Address(y, in_arena=True), Address(x, in_arena=True), written=[0]) for y, x in pairs
    ]
    names = dict.fromkeys(name for pair in pairs for name in pair)
    return made, {name: (64 * n, 64) for n, name in enumerate(names)}


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([[0], [1], [2]], None),
        ([[0], [1, 2]], "kernel does not wait for kernel"),  # a member reads what another writes
        ([[1], [0, 2]], "kernel does not wait for kernel"),  # or comes too late
    ],
)
def test_launches_in_other_places_are_checked(places, why):
    """Whatever the order is in which the emulator begins their blocks."""
    items, spans = chain("ba", "cb", "dc")
    touched = [accesses(each, spans, {}) for each in items]
    given = [[items[n] for n in place] for place in places]
    expected = nullcontext() if why is None else pytest.raises(VerifyError, match=why)
    with config.using(check=True), expected:
        check_places(items, touched, given)


def test_what_does_not_wait_is_found(monkeypatch):
    items, spans = chain("ba", "cb", "dc", "da")
    touched = [accesses(each, spans, {}) for each in items]
    with config.using(check=True):
        assert checked_waits(items, touched, 1) == [(), (0,), (1,), (2,)]
        monkeypatch.setattr(graph, "waits", lambda *_: [(), (0,), (0,), (2,)])
        with pytest.raises(VerifyError, match="kernel does not wait for kernel"):
            checked_waits(items, touched, 1)


def test_an_array_that_is_read_is_still_there():
    """In the memory that it has for some time: also in a loop, whose second round reads what the first
    has written elsewhere.
    """
    items, spans = chain("ba", "cb", "db")
    check_owners(items, spans, set())
    spans["c"] = spans["b"]
    with pytest.raises(VerifyError, match="reads b where c was written since"):
        check_owners(items, spans, set())
    check_owners(items, spans, {"b"})  # which the host may write again
    items, spans = chain("ba", "cb")
    loop = While((), tuple(items), Address("going"), "loop")
    check_owners([loop], spans, set())
    spans["c"] = spans["a"]
    check_owners(items, spans, set())
    with pytest.raises(VerifyError, match="reads a where c was written since"):
        check_owners([loop], spans, set())


def test_what_touches_a_part_is_before_too():
    """Of all that was there before, however it is cut."""
    rng = np.random.default_rng(0)
    launches = [
        [
            Access("arena", int(a), int(a + n), bool(w))
            for a, n, w in zip(*rng.integers((0, 1, 0), (12, 5, 2), (3, 3)).T, strict=True)
        ]
        for _ in range(60)
    ]
    found = conflicts(launches)
    for i, each in enumerate(launches):
        for n in range(i):
            met = any(
                x.first < y.last and y.first < x.last and (x.written or y.written)
                for x in each
                for y in launches[n]
            )
            assert met == bool(found[i] >> n & 1)


def steps():
    """Training of layers whose derivatives need the weights that a step replaces."""

    def step(params, x, y):
        def loss(params):
            h = x
            for w in params:
                h = np.tanh(h @ w)
            return ((h - y) ** 2).mean()

        grads = ge2.grad(loss)(params)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)]

    rng = np.random.default_rng(0)
    params = [rng.standard_normal((16, 16)).astype(np.float32) for _ in range(4)]
    x, y = (rng.standard_normal((8, 16)).astype(np.float32) for _ in range(2))
    run = ge2.jit(step, donate_argnums=0)
    for _ in range(3):
        params = run(params, x, y)
    return params


def loop():
    """The derivative of a scan, and of work that needs nothing of it."""

    def f(w, xs, h):
        def turn(h, x):
            h = np.tanh(h @ w + x)
            return h, h

        _, ys = ge2.lax.scan(turn, h, xs)
        return (ys * ys).sum() + np.cumsum(xs, 0).max() + (w @ w).sum()

    rng = np.random.default_rng(1)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((8, 8), (12, 4, 8), (4, 8))]
    return ge2.jit(ge2.grad(f, argnums=(0, 1)))(*args)


@pytest.mark.exhaustive("program")
@pytest.mark.parametrize("program", [steps, loop])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_gives_the_same_bits(program, seed):
    for found, exact in zip(in_order(program, seed), in_order(program, 0), strict=True):
        np.testing.assert_array_equal(found, exact)


def test_the_order_is_another():
    """Else the tests above would show nothing."""
    needs = [(), (), (0,), (1,), (2, 3)]
    made = [Launch(None, (1,), (1,), 0, (), str(i), after=after) for i, after in enumerate(needs)]
    orders = {tuple(int(each.name) for each in in_any_order(made, seed)) for seed in range(50)}
    assert len(orders) > 3
    assert all(order[-1] == 4 and order.index(0) < order.index(2) for order in orders)
    assert in_any_order(made, 7) == in_any_order(made, 7)
    assert [each.name for each in in_any_order(made, 1)] == [*"13024"]


def test_a_report_says_how_launches_went():
    """Of each group: calls, graphs, patches, and why there is no graph."""
    f = ge2.jit(lambda x: np.cumsum(np.sort(x * 3) * 2))
    with config.using(executor="shim"):
        f(np.arange(8192.0))  # more than a kernel sorts
        report = f.report()
    first, between, last = report.launches
    assert first == "launches_0: launched one by one, from Python"
    assert between.startswith("sort, which NumPy computes, at ") and "test_launching.py:" in between
    assert last == "launches_1: launched one by one, from Python"
    assert between in str(report)
    none = {"choices": (0, 0), "early": 0, "whole": None, "trouble": None}
    run = SimpleNamespace(**none | {"counts": (9, 1, 4, 3)})
    assert manner(run) == "1 of 9 calls one by one, 4 captured graphs, 3 patches"
    run.trouble = KernelError("cuGraphCreate fails")
    assert manner(run).endswith("; no graph, for cuGraphCreate fails")
    run = SimpleNamespace(**none | {"counts": (9, 1, 4, 0), "choices": (2, 5)})
    assert manner(run).endswith(
        "4 captured graphs, 0 patches, 2 conditional nodes, 5 graphs made anew"
    )
    run = SimpleNamespace(**none | {"counts": (9, 9, 0, 0), "choices": (2, 0)})
    assert manner(run).endswith("0 captured graphs, 0 patches, 2 loops and branches by the host")
