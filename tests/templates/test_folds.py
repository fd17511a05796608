"""States of reductions in C and in CUDA: as NumPy's max, min, argmax and argmin, for any
split of the elements.
"""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.arrays import BOOL, COMPLEX, INTEGERS, SHORT
from ge2.targets.cuda.emit.words import HELD, STORED, headers
from tests.exhaustive import examples
from tests.templates import cuda_harness
from tests.templates.cuda_harness import ALL, REAL
from tests.templates.harness import COMPILER, DTYPES, build, needs_compiler

GCC = "gcc" in str(COMPILER) and platform.machine() == "x86_64"
KINDS = {"max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}
START = {"max": "lowest", "min": "highest"}
C_TYPES = {dtype: text for text, dtype in DTYPES.items() if text != "int"} | {BOOL: "uint8_t"}

ROW = "{T} row_{kind}_{t}(const {T} *x, int64_t n) {{ return ge2_row_{kind}_{t}(x, n); }}"
ROW_INDEX = "int64_t row_{kind}_{t}(const {T} *x, int64_t n) {{ return ge2_row_{kind}_{t}(x, n); }}"
LOOP = """
{api} {S} loop_{kind}_{t}(const {S} *x, int64_t n) {{
    {T} m = ge2_{start}_{t}();
    {simd}
    for (int64_t i = 0; i < n; i++) m = ge2_{kind}_{t}(m, x[i]);
    return m;
}}"""
PARTS = """
static ge2_indexed_{t} part_{kind}_{t}(const {S} *x, int64_t first, int64_t last, uint64_t seed) {{
    if (last - first < 2) return first < last ? ge2_at_{t}(x[first], first) : ge2_first_{t}();
    const int64_t at = first + (int64_t)((seed >> 33) % (uint64_t)(last - first + 1));
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    if (at == first || at == last) return part_{kind}_{t}(x, first, last, seed);
    const ge2_indexed_{t} a = part_{kind}_{t}(x, first, at, seed), b = part_{kind}_{t}(x, at, last, seed);
    return seed >> 40 & 1 ? ge2_{kind}_{t}(a, b) : ge2_{kind}_{t}(b, a);
}}
{api} int64_t parts_{kind}_{t}(const {S} *x, int64_t n, uint64_t seed) {{
    return part_{kind}_{t}(x, 0, n, seed).index;
}}"""


SIMD = '_Pragma("omp simd reduction(ge2_{kind}_{t} : m)")'


def text() -> str:
    lines = [f'#include "ge2/{name}.h"' for name in ("bool", "integer", "fold", "complex")]
    for dtype in ALL:
        for kind in KINDS:
            forms = (ROW_INDEX, PARTS) if kind.startswith("arg") else (ROW, LOOP)
            if dtype in COMPLEX:
                forms = (PARTS,) if kind.startswith("arg") else ()
            names = {"S": C_TYPES[dtype], "T": C_TYPES[dtype], "t": SHORT[dtype], "kind": kind}
            names |= {"start": START.get(kind), "api": "", "simd": SIMD.format(**names)}
            lines += [form.format(**names) for form in forms]
    return "\n".join(lines) + "\n"


def cuda_text() -> str:
    lines, fixed = [], {"api": 'extern "C"', "simd": ""}
    for dtype in ALL:
        for kind in KINDS:
            form = PARTS if kind.startswith("arg") else LOOP
            names = {"S": STORED[dtype], "T": HELD[dtype], "t": SHORT[dtype], "kind": kind}
            if form is PARTS or dtype in REAL:
                lines.append(form.format(**names, **fixed, start=START.get(kind)))
    body = "\n".join(lines)
    return "\n".join(f'#include "ge2/{name}.cuh"' for name in headers(body)) + body + "\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    flags = ["-fopt-info-vec"] if GCC else []
    return build(text(), tmp_path_factory.mktemp("folds"), flags)


@pytest.fixture(scope="module")
def in_c(built: tuple[Path, str]) -> Any:
    return ctypes.CDLL(str(built[0]))


@pytest.fixture(scope="module")
def in_cuda(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cuda_harness.built(cuda_text(), tmp_path_factory.mktemp("states"))


WHERE = [
    pytest.param("in_c", marks=needs_compiler),
    pytest.param("in_cuda", marks=cuda_harness.needs_compiler),
]


@pytest.fixture(scope="module", params=WHERE)
def library(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def called(library: Any, form: str, kind: str, x: np.ndarray, *seed: int) -> Any:
    run = library[f"{form}_{kind}_{SHORT[x.dtype]}"]
    gives = np.dtype(np.int64) if kind.startswith("arg") else x.dtype
    run.restype = np.ctypeslib.as_ctypes_type(np.uint8 if gives == BOOL else gives)
    run.argtypes = [ctypes.c_void_p, ctypes.c_int64] + [ctypes.c_uint64] * len(seed)
    return run(x.ctypes.data, x.size, *seed)


def drawn(dtype: np.dtype, size: int, seed: int) -> np.ndarray:
    """Many equals; of floats now and then NaN, infinities and zeros of both
    signs, which are equal.
    """
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.random(size) < 0.5
    if dtype in INTEGERS:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        edges = rng.choice(np.array([least, most, 0, 1], dtype), size)
        return np.where(rng.random(size) < 0.5, edges, rng.integers(least, most, size, dtype, True))
    values = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf] + [1 + 2j, 1 - 2j, complex(1, np.inf)] * (
        dtype in COMPLEX
    )
    x = rng.choice(np.array(values, dtype), size)
    x[rng.random(size) < rng.choice([0, 0.01, 0.3])] = np.nan
    return x


def equal_numpy(library: Any, form: str, kinds: Any, dtype: np.dtype) -> None:
    for n in (1, 2, 3, 15, 16, 17, 100, 511, 512, 513, 1024, 1500):
        for seed in range(4):
            x = drawn(dtype, n, seed)
            for kind in kinds:
                found = called(library, form, kind, x)
                np.testing.assert_array_equal(found, KINDS[kind](x), f"{form} {kind} of {n}")


@needs_compiler
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_rows_equal_numpy(dtype: np.dtype, in_c: Any) -> None:
    equal_numpy(in_c, "row", KINDS, dtype)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_loops_equal_numpy(dtype: np.dtype, library: Any) -> None:
    equal_numpy(library, "loop", START, dtype)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(ALL), st.integers(1, 40), st.integers(0, 2**32), st.integers(0, 2**63))
def test_states_merge_in_any_order(
    library: Any, dtype: np.dtype, n: int, seed: int, split: int
) -> None:
    x = drawn(dtype, n, seed)
    for kind in ("argmax", "argmin"):
        assert called(library, "parts", kind, x, split) == KINDS[kind](x)


def test_starts_are_the_bounds_of_the_dtype(library: Any) -> None:
    for dtype in REAL:
        nothing = np.empty(0, dtype)
        if dtype in INTEGERS:
            bounds = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        else:
            bounds = (0, 1) if dtype == BOOL else (-np.inf, np.inf)
        assert (
            called(library, "loop", "max", nothing),
            called(library, "loop", "min", nothing),
        ) == bounds


@pytest.mark.skipif(not GCC, reason="reads what gcc reports")
def test_the_loops_are_vectorised(built: tuple[Path, str]) -> None:
    vectorised = {int(n) for n in re.findall(r"loops\.c:(\d+):.*loop vectorized", built[1])}
    lines = text().splitlines()
    for t in ("f32", "f64", "i32"):
        for kind in ("max", "min"):
            loop = next(
                i for i, line in enumerate(lines, 1) if f"m = ge2_{kind}_{t}(m, x[i])" in line
            )
            assert {loop, loop - 1} & vectorised, f"{kind} of {t}"
