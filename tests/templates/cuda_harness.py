"""Functions of the CUDA headers as functions of arrays: compiled as C++
for the CPU, by NVRTC for GPUs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import pytest

from ge2.base.arrays import BOOL, COMPLEX, FLOAT32, FLOAT64, HALF, INTEGERS, SHORT
from ge2.ir import ArrayType
from ge2.ops.elementwise import BY_NAME, COMPLEX_OF, ELEMENTWISE, LDEXP, IntegerPow
from ge2.ops.pointlike import kind
from ge2.targets.cuda.emit.words import HELD, STORED, expression, headers
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load.gpu import gpu
from ge2.targets.cuda.load.nvrtc import Binary, compile
from tests.templates.harness import Loop

Key = TypeVar("Key", bound=Hashable)
TEMPLATES = Path(__file__).parents[2] / "templates"
INCLUDE = TEMPLATES / "cuda" / "include"
SHIM = INCLUDE.parent / "shim"
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = [
    "-std=c++17", "-O1", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-Wall",
    "-Wextra",
]  # fmt: skip
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
GPUS = (found := driver()) is not None and bool(found.gpus)
LACKS = "no GPU" if not GPUS else "" if importlib.util.find_spec("cupy") else "no CuPy"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")

# ------------------------------------------------------------------------------------ what is there

CLAIM = re.compile(r"^GE2_(?:UNARY|BINARY)\((\w+), .*\) */\* (\d+), (\d+)", re.MULTILINE)


@cache
def claims() -> dict[str, dict[np.dtype, int]]:
    """The errors, in units of the last place of the right result, that
    float.cuh says its functions have.
    """
    text = (INCLUDE / "ge2" / "float.cuh").read_text()
    return {name: {FLOAT32: int(a), FLOAT64: int(b)} for name, a, b in CLAIM.findall(text)}


@final
@dataclass(frozen=True, slots=True)
class Function:
    """An expression of {0}, {1}, ... in values as kernels hold them;
    half types are their bits here.
    """

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


def op_of(name: str) -> Any:
    """The op whose name in ops_of is that."""
    return BY_NAME.get(name) or IntegerPow(int(name[4:]))


@cache
def ops_of(dtype: np.dtype) -> dict[str, Function]:
    """Every elementwise op that takes that dtype, by its name; powers are pow_3 and so on."""
    found = {
        op.name: of_op(op, *[dtype] * count(op)) for op in ELEMENTWISE if kind(dtype) in op.takes
    }
    if dtype != BOOL:
        powers = [p for p in POWERS if p.y >= 0 or kind(dtype) != "i"]
        found.update((f"pow_{p.y}", of_op(p, dtype)) for p in powers)
    if dtype in (FLOAT32, FLOAT64):
        found["complex"] = of_op(COMPLEX_OF, dtype, dtype)
        found.update(
            (f"ldexp_{d}", of_op(LDEXP, dtype, d)) for d in (np.dtype("i4"), np.dtype("i8"))
        )
    return found


def casts_of(source: np.dtype) -> dict[np.dtype, Function]:
    short = SHORT[source]
    return {to: Function(f"ge2_cast_{short}_{SHORT[to]}({{0}})", (source,), to) for to in SHORT}


# ------------------------------------------------------------------------------------- compiling it


def held(dtype: np.dtype) -> str:
    return STORED[dtype] if dtype in HALF else HELD[dtype]


ALONE = "for (int64_t i = 0; i < n; i++)"
TOGETHER = '_Pragma("unroll 1") for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)'


def source(functions: Iterable[Function], kernels: bool) -> str:
    """A loop a function: loop_0, loop_1, ...; or a kernel."""
    parts = []
    for i, f in enumerate(functions):
        names = "abcdef"[: len(f.takes)]
        given = [f"const {STORED[t]} *x{n}" for n, t in zip(names, f.takes, strict=True)]
        parameters = ", ".join(["int64_t n", *given, f"{STORED[f.gives]} *y"])
        loads = [f"const {held(t)} {n} = x{n}[i];" for n, t in zip(names, f.takes, strict=True)]
        body = " ".join([*loads, f"y[i] = {f.text.format(*names)};"])
        head = "__global__ void __launch_bounds__(256)" if kernels else "void"
        loop = TOGETHER if kernels else ALONE
        parts.append(f'extern "C" {head} loop_{i}({parameters}) {{ {loop} {{ {body} }} }}')
    included = [f'#include "ge2/{name}.cuh"' for name in headers("\n".join(parts))]
    return "\n".join([*included, *parts]) + "\n"


def built(text: str, folder: Path, flags: Sequence[str] = ()) -> Any:
    """The library made of a C++ text. It must compile without a warning."""
    file, library = folder / "loops.cc", folder / "loops.so"
    file.write_text(text)
    # whose own warnings are not ours
    shim = ["-isystem", SHIM, "-include", "shim.h", f"-I{INCLUDE}", f"-I{TEMPLATES / 'include'}"]
    command = [str(COMPILER), *FLAGS, *flags, *shim, "-o", library, file, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return ctypes.CDLL(str(library))


@final
@dataclass(frozen=True, slots=True)
class OnGpu:
    """A kernel as a function of NumPy's arrays, all of one size."""

    kernel: Any
    takes: tuple[np.dtype, ...]
    gives: np.dtype

    def __call__(self, *arrays: Any) -> np.ndarray:
        device, xs = gpu(0), np.broadcast_arrays(*(np.asarray(x) for x in arrays))
        given = [np.ascontiguousarray(x, dtype=t) for x, t in zip(xs, self.takes, strict=True)]
        n, up = xs[0].size, device.xp.asarray
        with device.here():
            y = device.xp.empty(n * self.gives.itemsize, np.uint8)
            arguments = (np.int64(n), *(up(x.reshape(-1).view(np.uint8)) for x in given), y)
            self.kernel((max(1, min(-(-n // 256), 1 << 20)),), (256,), arguments)
        return device.xp.asnumpy(y).view(self.gives).reshape(xs[0].shape)


def elementwise(functions: Mapping[Key, Function], place: str) -> dict[Key, Any]:
    """The functions as functions of arrays, on the CPU or on the GPU."""
    if place == "gpu":
        module = gpu(0).module(source(functions.values(), True))
        kernels = [module.get_function(f"loop_{i}") for i in range(len(functions))]
        return {
            key: OnGpu(kernel, f.takes, f.gives)
            for kernel, (key, f) in zip(kernels, functions.items(), strict=True)
        }
    loops = {}
    with tempfile.TemporaryDirectory() as folder:
        library = built(source(functions.values(), False), Path(folder))
    for i, (key, f) in enumerate(functions.items()):
        run = library[f"loop_{i}"]
        run.argtypes, run.restype = [ctypes.c_int64] + [ctypes.c_void_p] * (len(f.takes) + 1), None
        loops[key] = Loop(run, f.takes, f.gives)
    return loops


def launched(
    place: str, text: str, name: str, threads: int, args: Sequence[Any], seed: int = 0
) -> list[Any]:
    """The arguments after one block of a kernel has run.

    `seed`: of the order of threads on the CPU.
    """
    device: Any = gpu(0) if place == "gpu" else ShimDevice(seed=seed)
    with device.here() if place == "gpu" else nullcontext():
        given = [device.xp.array(x) if isinstance(x, np.ndarray) else x for x in args]
        device.module(text).get_function(name)((1,), (threads,), tuple(given))
        return [x.get() if hasattr(x, "get") else x for x in given]


def compiled(text: str, architecture: str) -> Binary:
    """What NVRTC makes of a text, of which it must not warn."""
    found = compile(text, architecture)
    assert "warning" not in found.log.lower(), found.log
    return found
