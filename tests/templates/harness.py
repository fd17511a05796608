"""Functions of the C headers as functions of arrays: loops around them,
compiled as the C target does.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from tests.exhaustive import sampled

TEMPLATES = Path(__file__).parents[2] / "templates"
INCLUDE = TEMPLATES / "c" / "include"
FLAGS = ["-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
COMPILER = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
IS_GCC = COMPILER is not None and Path(COMPILER).name == "gcc"
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

DTYPES: dict[str, np.dtype] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "float _Complex": np.dtype(np.complex64),
    "double _Complex": np.dtype(np.complex128),
    "int": np.dtype(np.int32),
} | {f"{u}int{bits}_t": np.dtype(f"{u}int{bits}") for u in ("", "u") for bits in (8, 16, 32, 64)}

# a name or an expression of {0}, ...; argument types; result type
Function = tuple[str, Sequence[str], str]


@final
@dataclass(frozen=True, slots=True)
class Loop:
    """A compiled loop over arrays of one size; bool arrays are passed as bytes."""

    run: Any
    takes: tuple[np.dtype, ...]
    gives: np.dtype

    def __call__(self, *arrays: Any) -> np.ndarray:
        xs = np.broadcast_arrays(*(np.asarray(x) for x in arrays))
        given = [np.ascontiguousarray(x, dtype=t) for x, t in zip(xs, self.takes, strict=True)]
        y = np.empty(xs[0].shape, self.gives)
        self.run(y.size, *(a.ctypes.data for a in (*given, y)))
        return y

    def seconds(self, *arrays: np.ndarray, repeats: int = 5, rounds: int = 200) -> float:
        """The best time of one element."""
        y = np.empty(arrays[0].shape, self.gives)
        pointers = [a.ctypes.data for a in (*arrays, y)]
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(rounds):
                self.run(y.size, *pointers)
            best = min(best, time.perf_counter() - start)
        return best / rounds / y.size


def source(functions: Iterable[Function], headers: Sequence[str]) -> str:
    """One loop a function, named loop_0, loop_1, ...; the body of loop i
    stands alone in its line.
    """
    lines = [f'#include "{header}"' for header in headers]
    for i, (name, takes, gives) in enumerate(functions):
        operands = [f"x{k}[i]" for k in range(len(takes))]
        body = name.format(*operands) if "{" in name else f"{name}({', '.join(operands)})"
        parameters = [f"const {t} *restrict x{k}" for k, t in enumerate(takes)]
        lines += [
            f"void loop_{i}(int64_t n, {', '.join(parameters)}, {gives} *restrict y) {{",
            '    _Pragma("omp simd")',
            f"    for (int64_t i = 0; i < n; i++) y[i] = {body};",
            "}",
        ]
    return "\n".join(lines) + "\n"


def build(text: str, folder: Path, flags: Sequence[str] = ()) -> tuple[Path, str]:
    """The library made of a C text, and what the compiler said.

    It must compile without a warning.
    """
    file, library = folder / "loops.c", folder / "loops.so"
    file.write_text(text)
    command = [
        str(COMPILER), *FLAGS, "-Wall", "-Wextra", *flags, f"-I{INCLUDE}",
        f"-I{TEMPLATES / 'include'}", "-o", library, file, "-lm",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "warning:" not in done.stderr, done.stderr
    return library, done.stderr


def load(library: Path, functions: Sequence[Function]) -> dict[str, Loop]:
    """The loops of a library made of `source(functions, ...)`, by name."""
    shared, loops = ctypes.CDLL(str(library)), {}
    for i, (name, takes, gives) in enumerate(functions):
        run = shared[f"loop_{i}"]
        run.argtypes, run.restype = [ctypes.c_int64] + [ctypes.c_void_p] * (len(takes) + 1), None
        loops[name] = Loop(run, tuple(DTYPES[t] for t in takes), DTYPES[gives])
    return loops


def elementwise(
    functions: Sequence[Function], headers: Sequence[str], flags: Sequence[str] = ()
) -> dict[str, Loop]:
    """`functions` as functions of arrays, by name, compiled together: a seeded tenth of them (all
    under `--all`) with the vectors that users have, the others in a fifth of the time.

    A function is ("ge2_tanh_f32", ["float"], "float"), or an expression for a
    name: "ge2_neg_f32({0}) + 1".
    """
    drawn = sampled(functions, str)
    rest = [each for each in functions if each not in drawn]
    loops: dict[str, Loop] = {}
    for some, level in ((drawn, flags), (rest, (*flags, "-Og"))):
        with tempfile.TemporaryDirectory() as folder:
            loops |= load(build(source(some, headers), Path(folder), level)[0], some)
    return loops


def ordered(x: np.ndarray) -> np.ndarray:
    """Floats as integers of the same order; neighbours differ by 1, and both zeros are 0."""
    bits = x.view(np.int32 if x.dtype == np.float32 else np.int64).astype(np.int64)
    low = np.int64(-(2**31)) if x.dtype == np.float32 else np.iinfo(np.int64).min
    return np.where(bits < 0, low - bits, bits)
