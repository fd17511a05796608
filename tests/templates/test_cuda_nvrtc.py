"""Every header and function of CUDA's vocabulary compiles for every
architecture, and NVRTC says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest

from ge2.base.arrays import SHORT
from ge2.codegen.user_kernels import NAMED
from ge2.targets.cuda.emit.words import headers
from tests.exhaustive import sampled
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import (
    ALL,
    ARCHITECTURES,
    INCLUDE,
    TEMPLATES,
    Function,
    casts_of,
    compiled,
    ops_of,
    source,
)

HEADERS = sorted(file.stem for file in (INCLUDE / "ge2").glob("*.cuh"))


def groups() -> Iterator[tuple[str, list[Function]]]:
    for dtype in ALL:
        yield SHORT[dtype], list(ops_of(dtype).values())
    yield "casts", [f for a in SHORT for f in casts_of(a).values()]


GROUPS = dict(groups())
# A register or two is put aside while angles beyond 2^20 or so are reduced,
# which is a call of CUDA's own.
SPILL = {("c128", "ge2_cosh_c128({0})")}


@pytest.mark.exhaustive("header")
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_stands_alone(header: str, architecture: str) -> None:
    text = (
        f'#include "ge2/{header}.cuh"\nextern "C" __global__ void nothing(int *x) {{ x[0] = 1; }}\n'
    )
    assert [kernel.name for kernel in compiled(text, architecture).kernels] == ["nothing"]


@cache
def drawn() -> dict[str, list[Function]]:
    """A tenth of each group; of each function, whatever its dtype, one or more."""
    cases = [(group, f) for group, listed in GROUPS.items() for f in listed]
    kept: dict[str, list[Function]] = {group: [] for group in GROUPS}
    for group, f in sampled(cases, lambda case: f"{case[0]} {case[1].text}", nameless):
        kept[group].append(f)
    return kept


def nameless(case: tuple[str, Function]) -> str:
    """A function without its dtype; of casts, that from which they are."""
    group, f = case
    return SHORT[f.takes[0]] if group == "casts" else f.text.replace(f"_{group}(", "(")


@pytest.mark.exhaustive("group")
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("group", GROUPS)
def test_every_function_compiles(group: str, architecture: str) -> None:
    functions = drawn()[group]
    found = compiled(source(functions, True), architecture)
    assert {kernel.name for kernel in found.kernels} == {f"loop_{i}" for i in range(len(functions))}
    spilling = [kernel for kernel in found.kernels if kernel.spills]
    assert all((group, functions[int(kernel.name[5:])].text) in SPILL for kernel in spilling), (
        spilling
    )


def included(name: str) -> str:
    """A header and all that it includes."""
    folder = INCLUDE if name.endswith(".cuh") else TEMPLATES / "include"
    text = (folder / "ge2" / name).read_text()
    return text + "".join(map(included, re.findall(r'#include "ge2/(\w+\.(?:cuh|h))"', text)))


@pytest.mark.parametrize("group", GROUPS)
def test_the_headers_of_a_text_define_what_it_names(group: str) -> None:
    for function in GROUPS[group]:
        text = "".join(included(f"{name}.cuh") for name in headers(function.text))
        for name, suffix in NAMED.findall(function.text):
            word = name.removeprefix("cast_")
            made = rf"\bge2_{name}_(?:{suffix}\b|##)|GE2_[A-Z0-9_]+\({name}\b"
            made += rf"|ge2_cast_##f##_##t.*GE2_\w+\({word}\b"
            assert re.search(made, text, re.DOTALL), function.text


def test_headers_by_name() -> None:
    assert headers("y[i] = x[i];") == ("core",)
    assert headers("y[i] = x[i] == ge2_complex_f32(1.0f, 0.0f);") == ("complex",)
    assert headers("ge2_warp_fold<32>(x, ge2_add_f32)") == ("float", "warp")
    assert headers("ge2_block_fold<256>(x, ge2_argmax_f32)") == ("fold", "warp")
    assert headers("ge2_sort_key_f16(x)") == ("sort",)
    assert headers("ge2_index_i64(i, n)") == ("index",)
    assert headers("ge2_random_block(k0, k1, i)") == ("random",)
    assert headers("ge2_first_c64()") == ("complex",)
    assert headers("ge2_exp_c64(x) + ge2_exp_f32(y)") == ("complex_maths", "float")
