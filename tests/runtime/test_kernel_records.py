"""What is told of kernels and of a call's memory and work: for people, and true."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import InputError
from ge2.base.source import Source
from ge2.program.records import Kernels, places
from ge2.targets.c.launcher import EXTENSION

needs_compiler = pytest.mark.skipif(toolchain() is None, reason="no C compiler")
EXECUTORS = [pytest.param("c", marks=needs_compiler), "blocked"]
X, W, B = (np.ones(shape, np.float32) for shape in ((32, 20), (20, 24), (24,)))


def two_layers(x, w, b):
    h = np.tanh(x @ w + b)
    return np.tanh(h.T @ h), h.sum(axis=1)


def lowered(f, *args, executor="c", **options):
    with ge2.config.using(executor=executor):
        return ge2.jit(f, **options).lower(*args)


@pytest.fixture(scope="module", params=EXECUTORS)
def low(request):
    return lowered(two_layers, X, W, B, executor=request.param)


# ------------------------------------------------------------------------------------------ kernels


def test_a_record_tells_what_its_kernel_computes(low):
    fused = next(k for k in low.kernels if "reduce_sum" in k.ops)
    assert [op for op in fused.ops if op != "broadcast_in_dim"] == ["add", "tanh", "reduce_sum"]
    assert len(fused.equations) == len(fused.ops)
    assert re.fullmatch(
        r"\w+:f32\[32,24\] = tanh \w+", next(e for e in fused.equations if "tanh" in e)
    )
    assert {line.partition(" in ")[2] for line in fused.lines} == {"two_layers"}
    assert (fused.read, fused.written) == (4 * (32 * 24 + 24), 4 * (32 * 24 + 32))
    assert fused.nbytes == fused.read + fused.written
    assert fused.operations == 3 * 32 * 24
    assert fused.region.startswith("{ lambda ; a:f32[32,24] b:f32[24].")


def test_a_kernel_prints_as_code_with_its_graph_on_top_and_op_names_in_the_margin(low):
    fused = next(k for k in low.kernels if "reduce_sum" in k.ops)
    text = str(fused)
    in_the_margin = re.search(r"  (# \w+ = tanh \w+|/\* \w+ = tanh \w+ \*/)$", text, re.MULTILINE)
    assert in_the_margin is not None
    assert text.index("test_kernel_records.py:") < text.index("{ lambda ;") < in_the_margin.start()
    assert text.endswith(fused.source)
    assert "reads 3.1 KB, writes 3.1 KB, 2.3 k operations" in text


def test_the_kernels_print_as_a_table(low):
    text = str(low.kernels)
    head, *rows, total = text.splitlines()
    assert head.split() == ["kernel", "computes", "reads", "writes", "operations", "of"]
    assert [row.split()[0] for row in rows] == [k.name for k in low.kernels]
    assert f"{len(low.kernels)} kernels" in total
    assert max(map(len, text.splitlines())) <= 130


def test_reprs_are_short(low):
    assert (
        repr(low.kernels)
        == f"<{len(low.kernels)} kernels: {', '.join(k.name for k in low.kernels)}>"
    )
    assert all(len(repr(k)) <= 80 for k in low.kernels)
    assert repr(Kernels()) == "<no kernels>"
    assert str(Kernels()) == "no kernels"


def test_names_are_unique_and_find_their_kernel(low):
    names = [k.name for k in low.kernels]
    assert len(set(names)) == len(names)
    assert low.kernels.named(names[-1]) == low.kernels[-1]
    with pytest.raises(KeyError, match=names[0]):
        low.kernels.named("nonsense")


@needs_compiler
def test_steps_that_share_a_function_show_their_own_graphs():
    low = lowered(lambda x, w, b: np.tanh((x @ w + b).T @ (x @ w - b)), X, W, B)
    first, second = (k for k in low.kernels if k.kind == "product")
    assert first.function == second.function == first.name
    assert second.name == f"{first.name}.2"
    assert first.calls == second.calls == 2
    assert "f32[32,20], f32[20,24]" in first.source
    assert "f32[24,32], f32[32,24]" in second.source
    assert "serves 2 steps" in str(second)
    assert low.as_text("c").count(f"\nGE2_SINGLE void {first.function}(") == 1


@needs_compiler
def test_no_line_of_c_is_too_long():
    kernels = lowered(two_layers, X, W, B).kernels
    codes = [re.sub(r"/\*.*?\*/", "", str(k), flags=re.DOTALL) for k in kernels]
    assert max(len(line) for code in codes for line in code.splitlines()) <= 110


def test_lines_of_one_function_stand_together():
    code = compile("a = 1\nb = 2\nc = 3\n\n\nd = 4\n", "model.py", "exec")
    found = {line: start for start, _, line in code.co_lines() if line}
    assert places(Source(code, found[n]) for n in (3, 1, 2, 6)) == ["model.py:1-3,6 in <module>"]


def test_an_oracle_runs_no_kernels():
    low = lowered(two_layers, X, W, B, executor="reference")
    assert low.kernels == ()
    assert low.memory_analysis().arena == 0


# -------------------------------------------------------------------------------------------- texts


@needs_compiler
def test_the_program_in_its_languages():
    low = lowered(two_layers, X, W, B)
    assert low.as_text() == str(low) == low.as_text("jaxpr")
    assert low.as_text("c").startswith("/* two_layers")
    assert low.compile().as_text("c") == low.as_text(dialect="c")
    with pytest.raises(InputError, match="runs no python"):
        low.as_text("python")
    with pytest.raises(InputError, match="no text 'jaxp': .*\n.*\n.*'jaxpr'"):
        low.as_text("jaxp")
    with pytest.raises(InputError, match="no text 'banana': .*\n.*\n.*'c'"):  # of those that it has
        low.as_text("banana")


def test_without_c_there_is_python():
    low = lowered(two_layers, X, W, B, executor="blocked")
    assert "def run(" in low.as_text("python")
    with pytest.raises(InputError, match="try  'python'"):
        low.as_text("c")


@needs_compiler
def test_a_dump_has_files_of_the_right_kind(tmp_path):
    with ge2.config.using(dump=str(tmp_path)):
        lowered(lambda x, n: np.tanh(x) * (n + 1) - 0.75, X, 2)
        lowered(lambda x, n: np.tanh(x) * (n + 1) - 0.75, X, 2, executor="blocked")
    names = {path.name for path in tmp_path.iterdir()}
    assert {
        f"{name}-{what}.{suffix}"
        for name, suffix in (("lambda", "c"), ("lambda.2", "py"))
        for what in ("program", "pointwise_0")
    } <= names
    assert (tmp_path / "lambda-program.c").read_text().startswith("/* ")
    compile((tmp_path / "lambda.2-program.py").read_text(), "program", "exec")
    compile((tmp_path / "lambda.2-pointwise_0.py").read_text(), "kernel", "exec")


# ------------------------------------------------------------------------------------- memory, work


def allocated(f, *args):
    """The most bytes that Python and NumPy had at once during a call, over those before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = f(*args)
        return tracemalloc.get_traced_memory()[1] - before, result
    finally:
        tracemalloc.stop()


def with_sort(x, w, b):  # what Python does between two functions in C
    h = np.sort(np.tanh(x @ w), axis=0)
    return np.tanh(h @ w.T) + b.sum()


SLACK = 6000  # bytes of lists, frames and the headers of arrays


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_call_allocates_its_outputs_and_nothing_else(executor):
    x, w = np.ones((100, 60), np.float32), np.ones((60, 100), np.float32)
    with ge2.config.using(executor=executor):
        f = ge2.jit(two_layers)
        memory = f.lower(x, w, np.ones(100, np.float32)).memory_analysis()
        args = (x, w, np.ones(100, np.float32))
        f(*args), f(*args)
        peak, _ = allocated(f, *args)
    assert memory.outputs == 4 * (100 * 100 + 100)
    assert memory.arguments == 4 * (6000 + 6000 + 100)
    assert memory.arena >= 4 * 100 * 100
    assert memory.outputs <= peak <= memory.outputs + SLACK


@needs_compiler
def test_the_arena_is_what_the_launcher_allocates(monkeypatch):
    monkeypatch.setattr(EXTENSION, "made", {config.cc: None})  # by ctypes, whose arena is seen
    f = ge2.jit(lambda x, w: np.tanh(x @ w) @ w.T - 0.7)
    args = np.ones((100, 60), np.float32), np.ones((60, 100), np.float32)
    low = f.lower(*args)
    memory = low.memory_analysis()
    assert memory.arena >= 4 * 100 * 100
    first, y = allocated(f, *args)
    assert memory.arena + y.nbytes <= first <= memory.arena + y.nbytes + 30_000
    later, y = allocated(f, *args)
    assert y.nbytes <= later <= y.nbytes + SLACK


@pytest.mark.parametrize("executor", EXECUTORS)
def test_segments_take_their_arena_from_python(executor):
    def f(x):
        return np.linalg.norm(np.tanh(x * 1.3)) * np.exp(x @ x.T).sum(axis=0)

    x = np.ones((100, 60), np.float32)
    low = lowered(f, x, executor=executor)
    assert low.memory_analysis().arena >= 4 * 100 * 100
    assert low.memory_analysis().outputs == 400


@pytest.mark.parametrize("executor", EXECUTORS)
def test_donated_and_kept_memory(executor):
    x = np.ones((300, 300), np.float32)
    f = lambda x: (np.tanh(x), x.sum())  # noqa: E731
    plain = lowered(f, x, executor=executor).memory_analysis()
    donated = lowered(f, x, executor=executor, donate_argnums=0).memory_analysis()
    assert (plain.outputs, plain.donated, plain.kept) == (x.nbytes + 4, 0, 2 * x.nbytes)
    assert (donated.outputs, donated.donated, donated.kept) == (x.nbytes + 4, x.nbytes, 0)
    assert donated.alias_size_in_bytes == x.nbytes
    assert plain.temp_size_in_bytes == plain.arena
    assert "outputs 351.6 KB, donated 351.6 KB" in str(donated)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_branches_of_a_cond_have_memory_too(executor):
    def f(x):
        return ge2.lax.cond(x[0, 0] > 0, lambda x: np.tanh(x @ x.T) @ x, lambda x: x, x)

    memory = lowered(f, np.ones((50, 40), np.float32), executor=executor).memory_analysis()
    assert memory.arena >= 4 * 50 * 50


def test_work_is_counted_as_jax_counts_it():
    found = lowered(two_layers, X, W, B, executor="blocked").cost_analysis()
    products, elements = 2 * 32 * 20 * 24 + 2 * 24 * 32 * 24, 32 * 24
    assert found["flops"] == products + 2 * elements  # the bias, the sum
    assert found["transcendentals"] == elements + 24 * 24
    moved = [
        X.size + W.size + elements,
        2 * elements + 24 + 32,
        2 * elements + 24 * 24,
        2 * 24 * 24,
    ]
    assert found["bytes accessed"] == 4 * sum(moved)


def test_the_work_of_the_kernels_is_that_of_the_program(low):
    found = low.cost_analysis()
    if all(k.language == "c" for k in low.kernels):
        assert sum(k.operations for k in low.kernels) == found["flops"] + found["transcendentals"]
        assert sum(k.nbytes for k in low.kernels) == found["bytes accessed"]
    assert low.compile().cost_analysis() == found
