"""Functions of the CUDA headers as functions of arrays: compiled as C++ for the CPU, by NVRTC for GPUs."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import pytest

from ge2.base.dtypes import BOOL, COMPLEX, FLOAT32, FLOAT64, HALF, INTEGERS, SHORT
from ge2.codegen.cuda.typed import HELD, STORED, expression, headers
from ge2.ir import ArrayType
from ge2.ops.elementwise import COMPLEX_OF, ELEMENTWISE, LDEXP, IntegerPow, kind
from tests.templates.harness import Loop

Key = TypeVar("Key", bound=Hashable)
INCLUDE = Path(__file__).parents[2] / "templates" / "cuda" / "include"
SHIM = INCLUDE.parent / "shim"
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra"]
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
NVRTC_FLAGS = (
    "-std=c++17",
    "-lineinfo",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
)

# -------------------------------------------------------------------------------------------- what is there


@final
@dataclass(frozen=True, slots=True)
class Function:
    """An expression of {0}, {1}, ... in values as kernels hold them; half types are their bits here."""

    text: str
    takes: tuple[np.dtype, ...]
    gives: np.dtype


def count(op: Any) -> int:
    return len(op.partials) if hasattr(op, "partials") else 1


def of_op(op: Any, *takes: np.dtype) -> Function:
    """What kernels write for an op of operands of those dtypes."""
    gives = op.infer(*(ArrayType((), d) for d in takes))[0].dtype
    holes = [f"{{{i}}}" for i in range(len(takes))]
    return Function(expression(op.lowering.expression, holes, takes[0], gives), takes, gives)


POWERS = tuple(IntegerPow(n) for n in (-5, -2, -1, 0, 1, 2, 3, 4, 7, 11, 64, 255))
REAL = sorted((BOOL, *INTEGERS, FLOAT32, FLOAT64), key=SHORT.__getitem__)
ALL = [*REAL, *sorted(COMPLEX, key=str)]


@cache
def ops_of(dtype: np.dtype) -> dict[str, Function]:
    """Every elementwise op that takes that dtype, by its name; powers are pow_3 and so on."""
    found = {op.name: of_op(op, *[dtype] * count(op)) for op in ELEMENTWISE if kind(dtype) in op.takes}
    if dtype != BOOL:
        powers = [p for p in POWERS if p.y >= 0 or kind(dtype) != "i"]
        found.update((f"pow_{p.y}", of_op(p, dtype)) for p in powers)
    if dtype in (FLOAT32, FLOAT64):
        found["complex"] = of_op(COMPLEX_OF, dtype, dtype)
        found.update((f"ldexp_{d}", of_op(LDEXP, dtype, d)) for d in (np.dtype("i4"), np.dtype("i8")))
    return found


def casts_of(source: np.dtype) -> dict[np.dtype, Function]:
    short = SHORT[source]
    return {to: Function(f"ge2_cast_{short}_{SHORT[to]}({{0}})", (source,), to) for to in SHORT}


# -------------------------------------------------------------------------------------------- compiling it


def held(dtype: np.dtype) -> str:
    return STORED[dtype] if dtype in HALF else HELD[dtype]


def source(functions: Iterable[Function], kernels: bool) -> str:
    """A loop a function, or a kernel: loop_0, loop_1, ..."""
    parts = []
    for i, f in enumerate(functions):
        names = "abcdef"[: len(f.takes)]
        given = [f"const {STORED[t]} *x{n}" for n, t in zip(names, f.takes, strict=True)]
        parameters = ", ".join([*given, f"{STORED[f.gives]} *y"])
        loads = [f"const {held(t)} {n} = x{n}[i];" for n, t in zip(names, f.takes, strict=True)]
        body = " ".join([*loads, f"y[i] = {f.text.format(*names)};"])
        head = f"__global__ void loop_{i}({parameters}) {{ const int i = (int)threadIdx.x;"
        if not kernels:
            head = f"void loop_{i}(int64_t n, {parameters}) {{ for (int64_t i = 0; i < n; i++) {{"
        parts.append(f'extern "C" {head} {body} }}' + "}" * (not kernels))
    included = [f'#include "ge2/{name}.cuh"' for name in headers("\n".join(parts))]
    return "\n".join([*included, *parts]) + "\n"


def built(text: str, folder: Path, flags: Sequence[str] = ()) -> Any:
    """The library made of a C++ text. It must compile without a warning."""
    file, library = folder / "loops.cc", folder / "loops.so"
    file.write_text(text)
    folders = ["-isystem", SHIM, "-include", "shim.h", f"-I{INCLUDE}"]  # whose own warnings are not ours
    command = [str(COMPILER), *FLAGS, *flags, *folders, "-o", library, file, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return ctypes.CDLL(str(library))


def elementwise(functions: Mapping[Key, Function]) -> dict[Key, Loop]:
    """The functions as functions of arrays, on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        shared, loops = built(source(functions.values(), False), Path(folder)), {}
    for i, (key, f) in enumerate(functions.items()):
        run = shared[f"loop_{i}"]
        run.argtypes, run.restype = [ctypes.c_int64] + [ctypes.c_void_p] * (len(f.takes) + 1), None
        loops[key] = Loop(run, tuple(f.takes), f.gives)
    return loops


@cache
def nvrtc() -> Any:
    """The module of NVRTC; without it, or without the library, the test is skipped."""
    module = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        module.nvrtcVersion()
    except (RuntimeError, OSError) as e:
        pytest.skip(f"NVRTC does not load: {e}")
    return module


def compiled(text: str, architecture: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """The machine code that NVRTC makes of a text, and the PTX. It must say nothing."""
    lib, files = nvrtc(), sorted((INCLUDE / "ge2").glob("*.cuh"))
    texts, names = [f.read_bytes() for f in files], [f"ge2/{f.name}".encode() for f in files]
    program = checked(lib.nvrtcCreateProgram(text.encode(), b"test.cu", len(files), texts, names))
    flags = [f"--gpu-architecture={architecture}", *NVRTC_FLAGS, *options]
    code = lib.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
    said = fetched(program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog).decode().strip("\0 \n")
    assert (int(code), said) == (0, "")
    machine = fetched(program, lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN)
    ptx = fetched(program, lib.nvrtcGetPTXSize, lib.nvrtcGetPTX).decode()
    checked(lib.nvrtcDestroyProgram(program))
    return machine, ptx


def checked(answer: Any) -> Any:
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) > 1 else None


def fetched(program: Any, size: Callable[..., Any], get: Callable[..., Any]) -> bytes:
    data = b" " * checked(size(program))
    checked(get(program, data))
    return data
