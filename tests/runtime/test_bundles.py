"""Small launches of one kernel are one launch where none waits for another, with the same bits."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ge2
from ge2 import optim
from ge2.base.config import config
from ge2.base.errors import VerifyError
from ge2.base.source import templates
from ge2.codegen.text import Argument
from ge2.program import Concurrent
from ge2.targets.cuda.assemble import steps
from ge2.targets.cuda.emit import ASKING, CudaKernel
from ge2.targets.cuda.launch import Launch
from ge2.targets.cuda.launch.graph import Access
from ge2.targets.cuda.launch.template import Bundling, Entry, memories_of
from ge2.targets.cuda.limits import H200, PARAMETERS
from ge2.targets.cuda.load.kernels import ProgramKernels
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from ge2.targets.cuda.tuning import Launches
from tests.nvrtc import needs_nvrtc

APART = replace(H200, tuning=replace(H200.tuning, launches=Launches(bundled=1 << 20)))
RNG = np.random.default_rng(0)
LAUNCH = re.compile(r"# (\w+)<<<([\dx ]+), ")


def launches(f, *args):
    """The launches of a program, as its text has them."""
    with config.using(executor="shim"):
        return LAUNCH.findall(ge2.jit(f).lower(*args).as_text("python"))


def tree(count, *more):
    shapes = [(64 + i % 2,) for i in range(count)] + [*more]
    return {f"p{i}": RNG.normal(size=s).astype("f4") for i, s in enumerate(shapes)}


def both(f, *args):
    """What a program gives with bundles, and with each launch by itself."""
    with config.using(executor="shim"):
        found = ge2.jit(f)(*args)
    with config.using(executor="shim", tuning=(APART,)):
        return found, ge2.jit(lambda *xs: f(*xs))(*args)


def test_the_update_of_many_parameters_is_few_launches_with_the_same_bits():
    optimizer = optim.adamw(1e-2, mask=optim.matrices)
    step = lambda g, s, p: optimizer.update(optim.clip_by_global_norm(g, 1.0), s, p)  # noqa: E731
    params = tree(8, *((640, 100 + i) for i in range(5)))
    args = (tree(8, *((640, 100 + i) for i in range(5))), optimizer.init(params), params)
    # squares of short and of long arrays, merged; their sum; updates with decay and without
    assert len(launches(step, *args)) <= 8
    found, apart = (ge2.tree.leaves(y) for y in both(step, *args))
    for y, z, w in zip(found, apart, ge2.tree.leaves(step(*args)), strict=True):
        np.testing.assert_array_equal(y, z)
        np.testing.assert_allclose(y, w, rtol=1e-5, atol=1e-6)


def test_parameters_of_a_kernel_have_so_many_bytes():
    """Of which each of these takes 8 for its array, its result, its size and its end."""
    xs = [np.ones(64, np.float32)] * 12
    small = replace(H200, tuning=replace(H200.tuning, launches=Launches(parameters=200)))
    with config.using(tuning=(small,)):
        found = launches(lambda xs: [np.tanh(x) for x in xs], [x.copy() for x in xs])
    assert [blocks for _, blocks in found] == ["6 x 1", "6 x 1"]


def test_an_old_driver_takes_fewer_bytes_of_parameters():
    """And the emulator calls a kernel of a thousand."""
    xs = [np.full(64, i, np.float32) for i in range(300)]
    f = lambda xs: [x + 1 for x in xs]  # noqa: E731
    assert [blocks for _, blocks in launches(f, xs)] == ["300 x 1"]
    with config.using(tuning=(replace(H200, parameters=PARAMETERS),)):
        assert len(launches(f, xs)) == 3
    with config.using(executor="shim"):
        for i, y in enumerate(ge2.jit(f)(xs)):
            np.testing.assert_array_equal(y, np.full(64, i + 1, np.float32))


def test_one_launch_more_is_the_same_text():
    """Members without blocks fill a bundle up to a power of two, as far as parameters have bytes."""

    def text(count, **limits):
        chip = replace(H200, tuning=replace(H200.tuning, launches=Launches(**limits)))
        xs = [np.ones(64, np.float32)] * count
        with config.using(executor="shim", tuning=(chip,)):
            return ge2.jit(lambda xs: [np.tanh(x) for x in xs]).lower(xs).as_text("cuda")

    assert text(5) == text(6) == text(8) != text(9)
    assert text(5, parameters=200) == text(6, parameters=200) != text(5)


def test_a_chain_and_what_reads_the_memory_of_others_keep_their_order():
    def f(xs):
        ys = [x * 2.0 for x in xs]
        chain = xs[0]
        for _ in range(6):
            chain = np.flip(chain * 2.0)  # each waits for the one before
        return ys, [y[::-1] @ y for y in ys], chain

    xs = [RNG.normal(size=300).astype("f4") for _ in range(5)]
    for y, z, w in zip(*(ge2.tree.leaves(y) for y in (*both(f, xs), f(xs))), strict=True):
        np.testing.assert_array_equal(y, z)
        np.testing.assert_allclose(y, w, rtol=1e-5, atol=1e-5)


def test_donated_arrays_and_their_readers():
    def f(ps, x):
        return [p - 0.1 * q.sum() for p, q in zip(ps, ps[1:] + ps[:1], strict=True)], x * 2

    for _ in range(2):
        ps = [RNG.normal(size=200 + i).astype("f4") for i in range(6)]
        wanted = f(ps, ps[0])[0]
        with config.using(executor="shim"):
            found, _ = ge2.jit(f, donate_argnums=0)([p.copy() for p in ps], ps[0])
        for y, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-5, atol=1e-5)


def test_a_grid_has_so_many_blocks_along_its_other_axes():
    kernel = CudaKernel("reduce", "", (Argument("int n", "size", 1),), (), 32, (1, 30000))
    kernels = ProgramKernels()
    number, _ = kernels.number(kernel)
    items = [Launch(number, (1, 30000), (32,), 0, (np.int32(1),), "k") for _ in range(6)]
    found = Bundling(kernels, Launches(bundled=2), 1 << 20).launches(items, lambda item: [])
    assert [each.grid for each in found] == [(1, 60000)] * 3
    assert found[0].arguments == (1, 30000, 1, 60000)


def test_launches_with_blocks_along_two_axes_are_one_too():
    """Sums of columns, in parts, and what merges those."""
    xs = [RNG.normal(size=(4000 + 100 * (i % 2), 140)).astype("f4") for i in range(4)]
    f = lambda xs: [np.tanh(x).sum(0) for x in xs]  # noqa: E731
    names = [name.split("_")[0] for name, _ in launches(f, xs)]
    assert names == ["reduce", "finish"]
    for y, z, w in zip(*both(f, xs), f(xs), strict=True):
        np.testing.assert_array_equal(y, z)
        np.testing.assert_allclose(y, w, rtol=1e-4, atol=1e-4)


def layers(x, ws):
    """Each layer waits for the one before; a sum of each is a result alone."""
    sums = []
    for w in ws:
        x = x * w
        x = x - x.mean(axis=1, keepdims=True)
        sums.append(x.sum(0))
        x = np.cumsum(x, 0) / 64
    return x, sums


def test_small_arrays_of_a_chain_let_their_launches_be_one():
    """Counters are cleared at the start, and sums of parts merged at the end: none of their arrays is
    where another is in between.
    """
    args = RNG.normal(size=(700, 96)).astype("f4"), [np.full(96, 1 + i / 8, "f4") for i in range(6)]
    names = Counter(name.split("_")[0] for name, _ in launches(layers, *args))
    assert names["finish"] == 2  # that of the first layer, which is another kernel, and the others
    assert names["clear"] == 1 and names["cumsum"] == 6
    for y, z in zip(*(ge2.tree.leaves(y) for y in both(layers, *args)), strict=True):
        np.testing.assert_array_equal(y, z)


def test_no_array_waits_where_memory_is_short():
    args = RNG.normal(size=(700, 96)).astype("f4"), [np.full(96, 1 + i / 8, "f4") for i in range(6)]
    short = Concurrent(unhurried=0, more=0)
    with config.using(tuning=(replace(H200, tuning=replace(H200.tuning, concurrent=short)),)):
        names = Counter(name.split("_")[0] for name, _ in launches(layers, *args))
    assert names["finish"] == names["clear"] == 6


def test_who_stood_between_two_may_have_gone():
    """Of a chain of layers `a`, what reads each is one launch, though its own reader came before the
    next layer.
    """
    kernels, items, memory = ProgramKernels(), [], {}
    kinds = kernels_of(kernels, "abc")
    for layer in range(4):
        # each writes its own, and reads that of the one before; layers also wait for each other
        for at, kind in enumerate("abc"):
            item = Launch(kinds[kind], (5 + layer,), (32,), 0, (np.int32(layer),), kind)
            own, before = 3 * layer + at, 3 * layer + at - 1
            memory[id(item)] = [Access("arena", own, own + 1, written=True)]
            memory[id(item)] += [Access("arena", before, before + 1, written=False)] if at else []
            memory[id(item)] += [] if at else [Access("x", 0, 1, written=True)]
            items.append(item)
    found = Bundling(kernels, Launches(bundled=2), 1 << 20).launches(items, lambda i: memory[id(i)])
    assert [each.name.split("_")[0] for each in found] == [*"aaaa", "b", "c"]


def kernels_of(kernels, kinds):
    """The numbers of kernels of one size argument."""
    size = (Argument("int n", "size", 1),)
    return {k: kernels.number(CudaKernel(k, f"// {k}", size, (), 32, (1,)))[0] for k in kinds}


@pytest.mark.parametrize("seed", range(20))
def test_launches_that_wait_for_each_other_are_neither_one_nor_in_another_order(seed):
    """Also where another one that the later waits for stands between them."""
    rng, kernels = np.random.default_rng(seed), ProgramKernels()
    numbers, items, memory = kernels_of(kernels, "ab"), list[Launch](), {}
    for n in range(12):
        kind = "ab"[rng.integers(2)]
        items.append(Launch(numbers[kind], (5 + n,), (32,), 0, (np.int32(n),), kind))
        places = rng.integers(0, 8, 2)
        memory[id(items[-1])] = [
            Access("arena", int(at), int(at) + 1, written=not i) for i, at in enumerate(places)
        ]
    bundling = Bundling(kernels, Launches(bundled=2), 1 << 20)
    entries = [bundling.entry(each, *memories_of(memory[id(each)])) for each in items]
    found = bundling.gathered(entries, {*map(id, items)})
    place = {id(launch): n for n, entry in enumerate(found) for launch in entry.launches}
    alone = [bundling.entry(each, *memories_of(memory[id(each)])) for each in items]
    for later, new in enumerate(alone):
        for before in (each for each in alone[:later] if each.touches(new)):
            assert place[id(before.launches[0])] < place[id(new.launches[0])]


def test_a_bundle_whose_members_wait_for_each_other_is_found(monkeypatch):
    """As it was made before bundles knew of others between, which the emulator ran in order."""
    kernels = ProgramKernels()
    (number,) = kernels_of(kernels, "a").values()
    items = [Launch(number, (5 + n,), (32,), 0, (np.int32(n),), "a") for n in range(6)]
    memory = {
        id(each): [Access("arena", n, n + 1, False), Access("arena", n + 1, n + 2, True)]
        for n, each in enumerate(items)
    }
    bundled = lambda: Bundling(kernels, Launches(bundled=2), 1 << 20).launches(  # noqa: E731
        items, lambda item: memory[id(item)]
    )
    assert bundled() == items
    monkeypatch.setattr(Entry, "touches", lambda *_: False)
    with pytest.raises(VerifyError, match="a does not wait for a"):
        bundled()


def test_the_longest_text_is_compiled_first():
    kernels, order = ProgramKernels(), []
    for n in (2, 9, 5):
        kernels.number(CudaKernel("map", "", (), (), 32, (1,), text=f"// {'x' * n}"))
    device = SimpleNamespace(prepare=lambda texts: order.extend(len(text) for text in texts))
    kernels.write()
    with config.using(threads=1):
        kernels.compile(device)
    assert order == [12, 8, 5]
    assert [had.name for had in kernels.had] == ["map_0", "map_1", "map_2"]


def test_equal_steps_of_equal_lines_are_written_once(monkeypatch):
    asked, kept = [], steps.written
    monkeypatch.setattr(steps, "written", lambda *given: asked.append(0) or kept(*given))

    def count(layers):
        def deep(x):
            for _ in range(layers):
                x = np.sort(x, axis=0)[::-1]
            return x

        asked.clear()
        text = ge2.jit(deep).lower(x).as_text("python")
        assert text.count("<<<") >= layers
        return len(asked)

    x = RNG.normal(size=(8, 3)).astype("f4")
    with config.using(executor="shim", passes_off=("roll",)):
        assert count(4) == count(7)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_a_bundle_compiles_for_gpus(architecture):
    like = [ge2.ShapeDtypeStruct((64,), np.float32)] * 5
    with config.using(executor="shim"):
        low = ge2.jit(lambda xs: [np.tanh(x) for x in xs]).lower(like)
        sources = re.split(r"\n(?=/\* A)", low.as_text("cuda"))
    bundle = next(text for text in sources if "for up to 8 steps at once" in text)
    (made,) = compile_all([Order(bundle, architecture)])
    assert made.cubin


def test_headers_that_ask_for_the_number_of_a_block_are_known() -> None:
    """Their functions would be given that of the whole launch."""
    folder = Path(templates(), "cuda", "include", "ge2")
    found = {
        path.stem
        for path in folder.glob("*.cuh")
        if re.search(r"blockIdx|gridDim", path.read_text())
    }
    assert found - {"core"} == set(ASKING)  # core looks at how many threads all have
