"""A kernel waits for those before it, first of all: in its text, as compiled, and in the shim."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import extend, lax
from ge2.base.errors import KernelError
from ge2.base.source import templates
from ge2.targets.cuda.emit import Source, bare
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import loaded_nvrtc
from ge2.targets.cuda.load.nvrtc import Order, _built, _program, _read, flags
from tests.backends.test_shim import compiler  # noqa: F401 a fixture
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc

WAIT = "ge2_await_kernels();"
LET = "ge2_let_kernels();"
HEAD = re.compile(r'extern "C" __global__ [^{]*\{\n    (.*)\n    (.*)\n')
ACCESS = re.compile(r"\s(?:ld|st|atom|red|cp\.async|prefetch)(?:\.\w+)*\b.*;")
JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")
OWN = re.compile(r"\s(?:ld\.param|(?:ld|st)(?:\.\w+)*\.(?:shared|local)|mov)\b")


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def attention(q: Any, k: Any, v: Any) -> Any:
    z = q @ k.T
    e = np.exp(z - z.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


def layer(x: Any, w: Any, b: Any) -> Any:
    return (np.maximum(x @ w + b, 0) ** 2).sum()


def looped(x: Any) -> Any:
    return lax.fori_loop(0, 9, lambda i, x: np.tanh(x + i), x) + x.sum()


def scattered(x: Any, i: Any) -> Any:
    return ge2.grad(lambda x: (x[i] ** 2).sum())(x)


def counted(i: Any, w: Any) -> Any:
    return np.bincount(i, weights=w, minlength=20_000)


INTS = zeros(4000, dtype=np.int64)
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "pointwise": (lambda x, y: (x * y + 1, x - y), zeros(65, 3), zeros(3)),
    "rows": (
        ge2.grad(lambda x: (np.tanh(x) / np.exp(x).sum(-1, keepdims=True)).max()),
        zeros(33, 257),
    ),
    "columns": (lambda x: (x * x).sum(0), zeros(1000, 257)),
    "all": (lambda x: x.sum() / x.max(), zeros(100_000)),
    "running": (lambda x: (np.cumsum(x), np.cumsum(x.reshape(100, 40), 0)), zeros(4000)),
    "long running": (lambda x: np.cumsum(x), zeros(70_000)),
    "moves": (lambda x: np.concatenate([x.T, np.pad(x, 1)[:, :5]], 0), zeros(5, 3)),
    "transposed": (lambda x: x.T.copy(), zeros(100, 130)),
    "gather": (lambda x, i: x[i] * 2, zeros(4000), INTS),
    "scatter": (scattered, zeros(4000), INTS),
    "sums by rank": (counted, INTS, zeros(4000, dtype=np.float64)),
    "sums by digits": (counted, zeros(200_000, dtype=np.int64), zeros(200_000, dtype=np.float64)),
    "top": (lambda x: lax.top_k(x, 5), zeros(7, 300)),
    "loop": (looped, zeros(40)),
    "half products": (attention, *[zeros(40, 24, dtype=np.float16)] * 3),
    "complex": (lambda x: x * x.conj(), zeros(99, dtype=np.complex128)),
    "small product": (lambda x, w: x @ w, zeros(64, 300), zeros(300, 40)),
    "layer": (ge2.grad(layer, (1, 2)), zeros(64, 96), zeros(96, 40), zeros(40)),
    "strided": (lambda x: np.pad(x, ((0, 0), (0, 3))), zeros(2, 2)),
    "bytes": (lambda x: x + np.uint8(3), zeros(999, dtype=np.uint8)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_begins_with_its_wait(name: str) -> None:
    found = kernels(*PROGRAMS[name])
    assert any(WAIT in text for _, text in found)
    for kernel, text in found:
        ((first, second),) = HEAD.findall(text)
        assert first == LET and kernel.lets and text.count(LET) == 1, text
        assert (second == WAIT) == (WAIT in text) == ("__restrict__" not in text), text


def test_no_header_promises_that_nobody_writes() -> None:
    """Its functions become part of kernels that await others, and would read by the cache for
    constants what these write: so sums at indices read an order of other calls, and beyond it.
    """
    include = Path(templates(), "cuda", "include", "ge2")
    found = {path.name: path.read_text() for path in include.glob("*.cuh")}
    assert len(found) > 10
    assert not [name for name, text in found.items() if "__restrict__" in text]


def ptx(text: str) -> str:
    order = Order(text, "sm_90a")
    options = [o.replace("sm_90a", "compute_90a") for o in flags(order.arch, order.options)]
    with _program(loaded_nvrtc(), order) as program:
        _built(loaded_nvrtc(), program, order, [o.encode() for o in options if "ptxas" not in o])
        return _read(loaded_nvrtc(), program, "PTX").decode()


def jumps_over(before: str) -> list[str]:
    """The labels to which the lines before a wait jump beyond it."""
    return [to for to in JUMP.findall(before) if f"\n{to}:" not in before]


def touching(lines: str) -> list[str]:
    """The instructions that touch memory of the GPU, or may."""
    return [found[0].strip() for found in ACCESS.finditer(lines) if not OWN.match(found[0])]


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiler_moves_no_access_before_the_wait(name: str) -> None:
    """Nor does it read by the cache that sees no writes of others."""
    for _, text in kernels(*PROGRAMS[name]):
        if WAIT not in text:
            continue
        made = ptx(text)
        before, wait, after = made.partition("griddepcontrol.wait;")
        assert wait and "griddepcontrol" not in after and not touching(before), made
        assert before.count("griddepcontrol.launch_dependents;") == 1
        assert not jumps_over(before), made
        assert "ld.global.nc" not in made and touching(after), made


GOLDEN = sorted(Path(__file__).parents[1].joinpath("golden", "cuda").glob("*.txt"))
KERNEL = re.compile(r"^=+ kernel =+$\n(.*?)(?=^=+ \w|\Z)", re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_no_kernel_that_waits_reads_by_the_cache_for_constants(path: Path) -> None:
    """Of those that stand in golden files: of each family, in each variant. Tables of NVIDIA's
    functions are constants indeed, so kernels with one say nothing.
    """
    found = [ptx(text) for text in KERNEL.findall(path.read_text()) if WAIT in text]
    assert not [made for made in found if "ld.global.nc" in made and "__cudart_" not in made]


def test_golden_files_have_kernels_that_wait() -> None:
    found = [text for path in GOLDEN for text in KERNEL.findall(path.read_text())]
    assert sum(WAIT in text for text in found) > 100


def test_a_kernel_that_reads_and_writes_in_turns_does_not_wait() -> None:
    """Nothing but `__restrict__` has several rounds of its loop read before
    the first has written.
    """
    ((columns, text),) = kernels(lambda x: np.cumsum(x, 0), zeros(64, 64))
    assert columns.lets and LET in text and WAIT not in text
    assert text.count("__restrict__") == 2
    ((_, sums),) = kernels(lambda x: (x * x).sum(0), zeros(64, 64))
    assert WAIT in sums and "__restrict__" not in sums


def test_what_is_touched_is_found() -> None:
    lines = (
        "ld.param.u64 %rd1, [f_param_0];", "ld.global.v4.f32 {%f1}, [%rd1];", "st.shared.f32 [%r1], %f1;",
        "ld.f32 %f1, [%rd1];", "atom.global.add.u32 %r1, [%rd1], 1;", "bar.sync 0;",
    )  # fmt: skip
    assert touching("\n" + "\n".join(lines)) == [lines[1], lines[3], lines[4]]


def test_a_large_kernel_is_not_launched_early_and_has_the_text_of_a_small_one() -> None:
    """It is launched when all before it have ended; a new size is to compile nothing."""
    found = [kernels(lambda x: x * 2 + 1, zeros(n))[0] for n in (1 << 20, 1 << 21)]
    ((small, of_small), (large, of_large)) = found
    assert small.fits(H200.threads) and not large.fits(H200.threads)
    assert bare(of_small) == bare(of_large) and WAIT in of_large


SOURCE = """#include "ge2/core.cuh"
extern "C" __global__ void f(const float *a, float *b, int n) {{
    {before}
    {wait}
    if ((int)threadIdx.x < n) b[threadIdx.x] = a[threadIdx.x] + 1;
}}
"""
EARLY: dict[str, tuple[str, str, bool]] = {
    "reads": ("if (a[threadIdx.x] < 0) b = nullptr;", WAIT, True),
    "writes": ("b[threadIdx.x] = 0;", WAIT, True),
    "none waits": ("", f"if (n < 0) {WAIT}", True),
    "some end": ("if (threadIdx.x == 3) return;", WAIT, False),
}


def run(source: str, watch: bool) -> Any:
    a, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    ShimDevice(watch=watch).module(source).get_function("f")((1,), (8,), (a, b, np.int32(8)))
    return b


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("how", EARLY)
def test_the_shim_knows_a_kernel_that_does_not_wait(how: str) -> None:
    before, wait, seen = EARLY[how]
    source = SOURCE.format(before=before, wait=wait)
    with pytest.raises(
        KernelError, match="waits? for the kernels before this one|waited for the kernels"
    ):
        run(source, watch=seen)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("watch", [False, True])
def test_the_shim_takes_a_kernel_that_waits_or_that_never_does(watch: bool) -> None:
    for wait in (WAIT, ""):
        np.testing.assert_array_equal(
            run(SOURCE.format(before="", wait=wait), watch), np.arange(8) + 1
        )


@extend.op
class Twice(extend.Op):
    name = "test_cuda_twice"

    def infer(self, x: Any) -> Any:
        return (x,)

    def reference(self, x: Any) -> Any:
        return x * 2

    cuda = "y[thread] = x[thread] * 2;"


def test_a_kernel_of_a_users_keeps_its_text() -> None:
    found = {
        k.kind: (Source("f", k).waits, k.lets, LET in text or WAIT in text)
        for k, text in kernels(lambda x: Twice()(x) + 1, zeros(9))
    }
    assert found == {
        "test_cuda_twice kernel": (False, False, False),
        "pointwise": (True, True, True),
    }
