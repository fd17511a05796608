"""Every CUDA kernel that the laws render is compiled, for three generations of
GPUs: no warning, no spill.

A kernel meets one of the three, chosen by its text; `--all` compiles all for all, in minutes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from ge2.base.errors import CompileError
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.ir import Graph
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.emulator.shim import KERNEL
from ge2.targets.cuda.load import nvrtc
from ge2.targets.cuda.load.nvrtc import Binary, Order, compile_all
from ge2.test_util.laws import graph_of, types_of
from tests.exhaustive import SAMPLING, sampled
from tests.laws.batched import Batch, rng_of
from tests.laws.batched import batch as batch
from tests.laws.batched import selected as selected
from tests.laws.test_laws import every_op
from tests.laws.test_targets import chosen, derivatives, differentiated, operations
from tests.nvrtc import needs_nvrtc
from tests.together_in_cuda import one_file

pytestmark = needs_nvrtc
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
AGAIN = 40  # of so many kernels one is compiled twice

# Spilled bytes that are known: for which GPU, what is in the kernel's graph, how many; and why.
KNOWN = (
    ("sm_", "f64.* = (sin|cos) ", 16),  # the slow path of large arguments saves what it overwrites
    # a loop over the bits of the power with four doubles in hand
    ("sm_", "c128.* = integer_pow", 16),
    # For eight or sixteen elements of a thread, ptxas takes no more than 32 registers.
    ("sm_100", r"\b(f8_\w+|[fiu]16|bf16|[iu]8)\[.* = (sin|cos|tan) ", 64),
    ("sm_100", "[iu](8|16).*dtype=c128", 64),
)


def graphs(name: str, rng: np.random.Generator) -> list[Graph]:
    """Of an operation and of its derivative: of the tenths that others run, some again, or one."""
    operations = [graph_of(sample.op, types_of(arrays)) for sample, arrays in chosen(name, rng)]
    derivatives = [joint for _, _, joint in differentiated(name, rng)]
    return sampled([*operations, *derivatives])


def orders(name: str, rng: np.random.Generator) -> list[Order]:
    found: dict[str, str] = {}
    for graph in graphs(name, rng):
        for assembler in assemblers(
            compile_graph(graph, device=OfflineDevice(limits_of("sm_90a")))
        ):
            found |= {code: source.text() for code, source in assembler.kernels.sources.items()}
    return [Order(text, arch) for text in found.values() for arch in architectures(text)]


@pytest.mark.exhaustive
@every_op
def test_kernels_are_compiled(batch: Batch) -> None:
    batch.check(orders, compiled)


@every_op
def test_programs_are_planned(name: str) -> None:
    """All of them, sampled nowhere, for a GPU that is not there: each family of kernels is asked."""
    device = OfflineDevice(limits_of("sm_90a"))
    for case in (*operations(name, rng_of(name)), *derivatives(name, rng_of(name))):
        compile_graph(case.graph, device=device).written(run=False)


def compiled(orders: list[Order]) -> list[str]:
    """The faults of each kernel, which are compiled as one file for each architecture: NVRTC takes
    longer to begin and to read the headers than for most of them. Where the file has a fault, and
    where spilled bytes are known, each is compiled by itself; some are compiled twice.
    """
    alone = [order for order in orders if known(order)]
    for arch in ARCHITECTURES:
        some = [order for order in orders if order.arch == arch and not known(order)]
        if some and not is_faultless(some):
            alone += some
    errors = dict.fromkeys(orders, "")
    for order, binary in zip(alone, compile_all(alone), strict=True):
        errors[order] = "\n".join(faults(order, binary))
    for order in orders[::AGAIN]:
        first = compile_all([order])[0]
        if nvrtc._asked(nvrtc.loaded_nvrtc(), order) != (first.cubin, first.log):
            errors[order] += f"{order.file} for {order.arch} is another the second time"
    return [errors[order] for order in orders]


def is_faultless(orders: list[Order]) -> bool:
    """Whether sources for one architecture compile as one file without a fault."""
    text = "\n".join(one_file([order.source for order in orders]))
    try:
        (binary,) = compile_all([Order(text, orders[0].arch, name="together")])
    except CompileError:
        return False
    assert len(binary.kernels) == sum(len(KERNEL.findall(order.source)) for order in orders)
    return not list(faults(orders[0], binary))


def architectures(text: str) -> tuple[str, ...]:
    one = ARCHITECTURES[zlib.crc32(text.encode()) % len(ARCHITECTURES)]
    return ARCHITECTURES if SAMPLING.every else (one,)


def faults(order: Order, binary: Binary) -> Iterator[str]:
    where = f"{order.file} for {order.arch}\n{order.source}"
    if "warning" in binary.log:
        yield f"{binary.log}\n{where}"
    for usage in binary.kernels:
        if usage.spills > known(order):
            yield f"{usage.spills} bytes are spilled, of {usage.registers} registers: {where}"


def known(order: Order) -> int:
    graph = " ".join(order.source.partition("*/")[0].split())
    found = (
        most
        for arch, words, most in KNOWN
        if order.arch.startswith(arch) and re.search(words, graph)
    )
    return max(found, default=0)


TIGHT = """
extern "C" __global__ void __launch_bounds__(1024) f(const float *a, float *b, int n) {
    float t[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) t[i] = a[i * n];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; i++) b[i * n] = t[63 - i] * t[i * 7 % 64];
}
"""


def test_faults_are_seen() -> None:
    quiet = 'extern "C" __global__ void f(float *a) { a[0] = 1.0f; }'
    loud = quiet.replace("a[0]", "int unused; a[0]")
    orders = [Order(quiet, "sm_90a"), Order(loud, "sm_90a"), Order(TIGHT, "sm_90a")]
    found = [
        list(faults(order, binary))
        for order, binary in zip(orders, compile_all(orders), strict=True)
    ]
    assert [len(each) for each in found] == [0, 1, 1]
    assert compiled(orders) == ["", *("".join(each) for each in found[1:])]
    assert "never referenced" in found[1][0]
    assert "bytes are spilled" in found[2][0]
    text = "{ lambda ; a:f64[3]. let\n    b:f64[3] = sin a\n  in (b,) } */"
    assert known(Order(text, "sm_80")) == 16
    assert known(Order(text.replace("f64", "f32"), "sm_80")) == 0
    narrow = text.replace("f64", "f8_e5m2")
    assert (known(Order(narrow, "sm_100")), known(Order(narrow, "sm_90a"))) == (64, 0)
