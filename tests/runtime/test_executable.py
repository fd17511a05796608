"""What a compiled graph owes its caller: ownership, memory, Python numbers, threads, errors."""

from __future__ import annotations

import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.compile import compile_graph
from ge2.compile.catalog import Reference
from ge2.compile.executable import Executable
from ge2.ir import parse
from ge2.passes import TABLE
from ge2.targets.c import launcher, linked
from ge2.targets.c.libraries import Blas
from tests.compared import all_close, all_equal
from tests.threads import on_threads

N = 1 << 21
SQUARES = f"""{{ lambda ; x:f32[{N}] w:f32[] b:f32[]. let
    a:f32[{N}] = mul x w
    c:f32[{N}] = add a b
    d:f32[{N}] = tanh c
    e:f32[{N}] = integer_pow[y=2] d
    f:f32[] = reduce_sum[axes=(0,)] e
  in (f, d) }}"""


@pytest.fixture(autouse=True, params=["c", "blocked"])
def executor(request):
    if request.param == "c" and toolchain() is None:
        pytest.skip("there is no C compiler")
    with config.using(executor=request.param):
        yield request.param


def compiled(text: str, **options: object) -> Executable:
    return compile_graph(parse(text, TABLE), **options)  # type: ignore[arg-type]


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------------------------- ownership


@pytest.mark.parametrize("executor", ["c", "blocked", "reference"])
def test_errors_of_values_have_the_line_of_the_user(executor):
    with ge2.config.using(executor=executor):
        with pytest.raises(IndexError) as caught:
            ge2.jit(lambda a, i: a[i] * 2)(np.arange(3.0), np.array([5]))
        with pytest.raises(np.linalg.LinAlgError) as singular:
            ge2.jit(lambda a: np.linalg.inv(a) * 2)(np.zeros((3, 3)))
    for error, words in ((caught.value, []), (singular.value, ["  try  "])):
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert all(each in text for each in ["  at   ", "test_executable.py", *words])


def test_results_are_fresh_arrays_that_alias_nothing():
    f = compiled("""{ lambda ; x:f32[3,4] y:f32[3,4]. let
        a:f32[3,4] = tanh x
        b:f32[4,3] = transpose[order=(1, 0)] a
        c:f32[3,4] = broadcast_in_dim[shape=(3, 4) dims=()] 1.0:f32[]
        d:i64[3] = iota[shape=(3,) axis=0 dtype=i64]
        e:f32[3,4] = sort[axis=0] x
      in (a, a, b, x, y, c, d, e, x, 2.0:f32[]) }""")
    arrays = [f32(3, 4), f32(3, 4)]
    first, second = f(*arrays), f(*arrays)
    everything = [*arrays, *first, *second]
    for i, y in enumerate(everything[2:], 2):
        assert type(y) is np.ndarray
        assert y.flags.owndata and y.flags.writeable and y.flags.c_contiguous
        assert not any(np.shares_memory(y, other) for other in everything[:i])


def test_results_survive_later_calls():
    f = compiled(SQUARES)
    x = f32(N)
    held = f(x, np.float32(1), np.float32(0))
    copies = [np.array(y) for y in held]
    for scale in (2, 3, 4):
        f(x, np.float32(scale), np.float32(0))
    all_equal(held, copies)


@pytest.mark.parametrize("order", ["C", "F", "strided", "read-only", "reversed"])
def test_arguments_of_any_layout(order):
    f = compiled("""{ lambda ; x:f32[6,5]. let
        a:f32[6,5] = tanh x b:f32[30] = reshape[shape=(30,)] x c:f32[6] = reduce_sum[axes=(1,)] a
        d:f32[5,6] = transpose[order=(1, 0)] x e:f32[5,5] = dot_general[contract=((1,), (0,))] d x
      in (a, b, c, e) }""")
    x = f32(6, 5)
    given = {
        "C": x,
        "F": np.asfortranarray(x),
        "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "read-only": x.copy(),
        "reversed": x[::-1].copy()[::-1],
    }[order]
    given.flags.writeable = order != "read-only"
    all_close(f(given), f(x), rtol=1e-6)


def test_a_donated_argument_becomes_the_result():
    text = """{ lambda ; x:f32[64] y:f32[64]. let a:f32[64] = mul x y b:f32[64] = add a x in (b, a) }"""
    f, plain = compiled(text, donated=(True, False)), compiled(text)
    x, y = f32(64), f32(64)
    want = plain(x, y)
    got = f(x, y)
    assert any(result is x for result in got)
    all_equal(got, want)


def test_a_donated_argument_that_cannot_hold_a_result_is_not_used():
    f = compiled("{ lambda ; x:f32[4,4]. let a:f32[4,4] = exp x in (a,) }", donated=(True,))
    x = np.asfortranarray(f32(4, 4))
    (y,) = f(x)
    assert not np.shares_memory(x, y)
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)


# ----------------------------------------------------------------------------------- Python numbers


def test_python_numbers_stay_python_numbers():
    f = compiled("""{ lambda ; n:~i64[] r:~f64[] x:f32[3]. let
        m:~i64[] = add n 1:~i64[]
        p:~f64[] = pow r 2.0:~f64[]
        s:f32[] = convert_element_type[dtype=f32 weak=False] p
        y:f32[3] = mul x s
        t:~bool[] = lt m 3:~i64[]
      in (m, p, y, t, n) }""")
    m, p, y, t, n = f(2**70, 0.5, f32(3))
    assert (m, p, t, n) == (2**70 + 1, 0.25, False, 2**70)
    assert [type(v) for v in (m, p, t, n)] == [int, float, bool, int]
    np.testing.assert_array_equal(y, f32(3) * np.float32(0.25))


def test_division_of_python_numbers_by_zero():
    f = compiled("{ lambda ; a:~f64[] b:~f64[]. let c:~f64[] = div a b in (c,) }")
    assert f(1.0, 0.0) == [np.inf]
    g = compiled("{ lambda ; a:~i64[] b:~i64[]. let c:~i64[] = floor_div a b in (c,) }")
    with pytest.raises(ZeroDivisionError):
        g(1, 0)


# ------------------------------------------------------------------------------------------ threads


def test_concurrent_calls_have_memory_of_their_own():
    f = compiled(SQUARES)
    x = f32(N)
    want = {s: [y.tobytes() for y in f(x, np.float32(s), np.float32(0.5))] for s in range(4)}
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(f, x, np.float32(i % 4), np.float32(0.5)) for i in range(32)]
        for i, future in enumerate(futures):
            assert [y.tobytes() for y in future.result()] == want[i % 4]


def test_the_first_calls_of_many_threads_build_once():
    f = compiled(SQUARES)
    barrier, runs = threading.Barrier(16), []

    def call() -> None:
        barrier.wait()
        f(f32(N), np.float32(1), np.float32(0))
        runs.append(f.build())

    on_threads(*[call] * 16)
    assert len(set(map(id, runs))) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_forked_child_computes():
    with config.using(threads=2):
        f = compiled(SQUARES)
    x = f32(N)
    want = f(x, np.float32(1), np.float32(0))[0].tobytes()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, f(x, np.float32(1), np.float32(0))[0].tobytes())
        os._exit(0)
    os.close(write)
    assert os.read(read, 100) == want
    os.waitpid(pid, 0)


def test_an_error_leaves_it_usable():
    f = compiled("""{ lambda ; x:f32[4] i:i64[2]. let
        a:f32[4] = exp x b:f32[2] = gather[axes=(0,)] a i c:f32[2] = tanh b in (c,) }""")
    with pytest.raises(IndexError):
        f(f32(4), np.array([0, 4]))
    np.testing.assert_allclose(
        f(f32(4), np.array([0, -1]))[0], np.tanh(np.exp(f32(4)[[0, -1]])), rtol=1e-6
    )


def test_an_error_in_a_worker_is_raised_by_the_caller():
    from ge2.targets.c.launcher import launch

    def kernel(parts, scratch):
        for part in parts:
            if part == 7:
                raise ValueError("block 7")

    with pytest.raises(ValueError, match="block 7"):
        launch(kernel, 64, (), (("a",), ("b",)))
    done = []
    launch(lambda parts, name: done.extend(parts), 64, (), (("a",), ("b",)))
    assert sorted(done) == list(range(64))


# ---------------------------------------------------------------------------------- silence, dtypes


def test_floating_point_is_silent_and_the_callers_setting_stays():
    f = compiled("{ lambda ; x:f32[3]. let a:f32[3] = log x b:f32[3] = div a x in (b,) }")
    with np.errstate(all="raise"):
        f(np.zeros(3, np.float32))
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8_e5m2"])
def test_half_types_are_rounded_once(dtype):
    f = compiled(f"""{{ lambda ; x:{dtype}[64]. let
        a:{dtype}[64] = mul x 3.0:{dtype}[] b:{dtype}[64] = sub a x c:{dtype}[] = reduce_sum[axes=(0,)] b
        e:{dtype}[64] = add b 1.0:{dtype}[]
      in (b, c, e) }}""")
    narrow = f.graph.inputs[0].type.dtype
    x = f32(64).astype(narrow)
    wide = x.astype(np.float32)
    b, c, e = f(x)
    np.testing.assert_array_equal(b, (wide * 2).astype(narrow))
    np.testing.assert_array_equal(e, (wide * 2 + 1).astype(narrow))
    np.testing.assert_allclose(
        c.astype(np.float32), (wide * 2).sum().astype(narrow).astype(np.float32)
    )


def test_a_cast_to_a_half_type_rounds_inside_a_region():
    f = compiled("""{ lambda ; x:f32[8]. let
        a:bf16[8] = convert_element_type[dtype=bf16 weak=False] x
        b:f32[8] = convert_element_type[dtype=f32 weak=False] a
      in (b,) }""")
    narrow = f.graph.eqns[0].op.graph.eqns[0].outs[0].type.dtype
    np.testing.assert_array_equal(f(f32(8))[0], f32(8).astype(narrow).astype(np.float32))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1,), (1, 1), ()])
def test_sizes_zero_and_one(shape):
    listed = ",".join(map(str, shape))
    axes = tuple(range(len(shape)))
    text = f"""{{ lambda ; x:f32[{listed}]. let a:f32[{listed}] = exp x
        b:f32[] = reduce_sum[axes={axes}] a c:f32[{listed}] = mul a b in (a, b, c) }}"""
    x = f32(*shape)
    for y, want in zip(compiled(text)(x), Reference(parse(text, TABLE))(x), strict=True):
        assert y.shape == want.shape
        np.testing.assert_allclose(y, want, rtol=1e-6)


def test_large_sums_lose_no_more_than_numpys():
    x = np.random.default_rng(1).random(4_000_000).astype(np.float32)
    text = "{ lambda ; x:f32[4000000]. let a:f32[] = reduce_sum[axes=(0,)] x in (a,) }"
    exact = x.sum(dtype=np.float64)
    ours, theirs = abs(compiled(text)(x)[0] - exact), abs(x.sum() - exact)
    assert ours <= max(theirs, 1e-7 * exact)


# ------------------------------------------------------------------------------------ what it tells


def test_it_tells_what_it_runs(executor):
    f = compiled("""{ lambda ; x:f32[8,8] n:~i64[]. let
        m:~i64[] = add n 1:~i64[]
        a:f32[8,8] = tanh x
        b:f32[8,8] = dot_general[contract=((1,), (0,))] a x
        c:f32[8,8] = exp b
        d:f32[8,8] = cumsum[axis=0 reverse=False] c
      in (d, m) }""")
    assert (f.regions, f.op_by_op) == (2, 2)
    kinds = [
        kernel.kind for kernel in f.kernels if kernel.kind in ("pointwise", "rowwise", "reduce")
    ]
    assert kinds == ["pointwise", "pointwise"]
    begins = '"""A pointwise region.' if executor == "blocked" else "/* A pointwise region."
    assert f.kernels[0].source.strip().startswith(begins)
    assert len(f.kernels[0].equations) == 1
    assert f.kernels[0].nbytes == 512
    if executor == "blocked":
        assert f.report().splitlines()[-1] == "1 host, 2 kernel, 1 library, 1 matmul"
    assert parse(f.as_text(), TABLE) == f.graph
    memory = f.memory_analysis()
    assert (memory.arguments, memory.outputs) == (264, 264)
    assert 0 < memory.arena <= 4 * 256


def test_nothing_but_results_is_made_on_a_call(executor):
    f = compiled(SQUARES)
    if executor == "c":
        inputs = [np.ones(v.type.shape, v.type.dtype) for v in f.graph.inputs]
        f(*inputs)
        assert not f.text("python")  # one function in C, so that Python makes nothing in between
        tracemalloc.start()
        results = f(*inputs)
        made = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert made <= sum(y.nbytes for y in results) + 2000
        return
    source = f.source()
    run = source[source.index("def run") :]
    assert run.count("empty(") == 1
    assert run.count("again_") == 1
    assert "ndarray(" not in run


# ----------------------------------------------------------------------------- graphs within graphs

COND = """{ lambda ; i:~i64[] x:f32[4]. let
    t:f32[4] = exp x
    a:f32[4] n:~i64[] = cond[branches=(
      { lambda ; p:f32[4]. let q:f32[4] = tanh p in (q, 1:~i64[]) },
      { lambda ; p:f32[4]. let q:f32[4] = square p r:f32[4] = add q p in (r, 2:~i64[]) },
      { lambda ; p:f32[4]. let in (p, 3:~i64[]) },
    )] i t
    b:f32[4] = mul a 2.0:f32[]
    m:~i64[] = add n 1:~i64[]
  in (b, a, m) }"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", [-1, 0, 1, 2, 9])
def test_a_cond_runs_one_compiled_branch(index):
    f = compiled(COND)
    x = f32(4)
    want = Reference(parse(COND, TABLE))(index, x)
    for _ in range(2):
        b, a, m = f(index, x)
        np.testing.assert_allclose(b, want[0], rtol=1e-6)
        np.testing.assert_allclose(a, want[1], rtol=1e-6)
        assert (m, type(m)) == (want[2], int)
        assert not np.shares_memory(a, x)
    assert [branch.regions for branch in f.branches[1]] == [1, 1, 0]


def test_barriers_pass_their_arrays_on():
    f = compiled("""{ lambda ; x:f32[4] y:f32[3]. let
        a:f32[4] b:f32[3] = barrier x y
        c:f32[4] = exp a d:f32[4] e:f32[3] = barrier c b in (a, d, e) }""")
    x, y = f32(4), f32(3)
    a, d, e = f(x, y)
    np.testing.assert_array_equal(a, x)
    np.testing.assert_allclose(d, np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(e, y)
    assert not np.shares_memory(a, x)
    assert not np.shares_memory(e, y)


def test_debug_prints_keep_their_order():
    """An operation with an effect is neither dropped nor moved before another."""
    from dataclasses import dataclass
    from typing import ClassVar

    from ge2.ir import Eqn, Graph, Op, Var

    seen = []

    @dataclass(frozen=True)
    class Note(Op):
        number: int
        name: ClassVar[str] = "note"
        effect: ClassVar[str] = "print"

        def infer(self, *types):
            return types

        def reference(self, *arrays):
            seen.append(self.number)
            return arrays[0]

    x = Var(parse("{ lambda ; x:f32[4]. let in (x,) }", TABLE).inputs[0].type)
    values = [Var(x.type) for _ in range(6)]
    eqns = [Eqn(Note(0), (x,), (values[0],)), Eqn(TABLE["exp"](), (x,), (values[1],))]
    eqns += [Eqn(Note(1), (values[1],), (values[2],)), Eqn(Note(2), (x,), (values[3],))]
    compile_graph(Graph((x,), tuple(eqns), (values[1],)))(f32(4))
    assert seen == [0, 1, 2]


def test_products_where_numpy_has_no_blas(monkeypatch, rng):
    """Of sizes that are arguments of the C, and of sizes that stand in the
    text, where a loop is small.
    """
    for module in (linked, launcher):
        monkeypatch.setattr(module, "services", Blas)
    a, b = rng.standard_normal((33, 41)), rng.standard_normal((41, 57))
    np.testing.assert_allclose(
        ge2.jit(lambda a, b: np.tanh(a @ b))(a, b), np.tanh(a @ b), rtol=0, atol=1e-14
    )
    w, x = rng.standard_normal((32, 32)) / 6, rng.standard_normal((16, 32))
    rounds = ge2.jit(lambda w, x: ge2.lax.fori_loop(0, 5, lambda i, x: np.tanh(x @ w), x))
    want = x
    for _ in range(5):
        want = np.tanh(want @ w)
    np.testing.assert_allclose(rounds(w, x), want, rtol=0, atol=1e-14)
