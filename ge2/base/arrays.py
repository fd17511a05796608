"""Dtypes that ge2 knows, and arrays on a GPU, known with no CUDA imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, final

import ml_dtypes
import numpy as np

from ge2.base.config import config
from ge2.base.record import holding

# -------- The dtypes that ge2 knows, their short names, and how they promote: as in NumPy, half
# types all of one rank.
# bfloat16 and the fp8 types come from `ml_dtypes`; NumPy does not know their kind, so every
# question about a dtype is asked here.


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FP8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
COMPLEX64, COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)
BOOL, INT64, UINT8 = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint8)
INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)

SHORT: dict[np.dtype, str] = {
    BOOL: "bool",
    **{np.dtype(f"i{n}"): f"i{8 * n}" for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): f"u{8 * n}" for n in (1, 2, 4, 8)},
    FLOAT16: "f16", FLOAT32: "f32", FLOAT64: "f64", BFLOAT16: "bf16",
    FP8[0]: "f8_e4m3fn", FP8[1]: "f8_e5m2",
    COMPLEX64: "c64", COMPLEX128: "c128",
}  # fmt: skip
LONG = {short: dtype for dtype, short in SHORT.items()}

EXTENDED = frozenset((BFLOAT16, *FP8))  # those NumPy knows no kind of
HALF = frozenset((FLOAT16, *EXTENDED))
FLOATS = frozenset((FLOAT32, FLOAT64, *HALF))
COMPLEX: frozenset[np.dtype] = frozenset((COMPLEX64, COMPLEX128))
INEXACT = FLOATS | COMPLEX
BYTES = frozenset((INT8, UINT8))  # integers that tensor cores multiply
INTEGERS: frozenset[np.dtype] = frozenset(d for d in SHORT if d.kind in "iu")

PYTHON: dict[type, np.dtype] = {bool: BOOL, int: INT64, float: FLOAT64, complex: COMPLEX128}
NUMBERS = (bool, int, float, complex)


def known(dtype: np.dtype) -> bool:
    """True if ge2 computes with arrays of this dtype; byte order other than the machine's does not
    count.
    """
    return dtype in SHORT and dtype.isnative


def short(dtype: np.dtype) -> str:
    """
    >>> short(np.dtype("float32"))
    'f32'
    """
    return SHORT.get(dtype) or dtype.name


def python_type(dtype: np.dtype) -> type:
    """The Python number that a weak value of this dtype is."""
    if dtype == BOOL:
        return bool
    return int if dtype in INTEGERS else complex if dtype in COMPLEX else float


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which sums and products of `dtype` are accumulated: float32 for half types."""
    return FLOAT32 if dtype in HALF else dtype


def real_part(dtype: np.dtype) -> np.dtype:
    """The dtype of `abs` of a complex dtype; any other dtype is its own."""
    return {COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}.get(dtype, dtype)


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype whose parts hold `dtype`."""
    if dtype in COMPLEX:
        return dtype
    return COMPLEX128 if dtype == FLOAT64 or dtype in INTEGERS else COMPLEX64


@cache
def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype that holds both, as `np.promote_types`; bfloat16 and fp8 promote as float16 does.

    >>> promote(BFLOAT16, FLOAT16)
    dtype('float32')
    """
    if a == b:
        return a
    if (a in EXTENDED and b in HALF) or (b in EXTENDED and a in HALF):
        return FLOAT32
    plain = np.promote_types(FLOAT16 if a in EXTENDED else a, FLOAT16 if b in EXTENDED else b)
    if plain == FLOAT16:
        return a if a in HALF else b
    return plain


@cache
def with_number(dtype: np.dtype, number: type) -> np.dtype:
    """The dtype of an array of `dtype` beside a weak Python number (NEP 50).

    >>> with_number(np.dtype("int8"), float)
    dtype('float64')
    """
    if dtype in EXTENDED:
        return COMPLEX64 if number is complex else dtype
    return np.result_type(dtype, number(0))


@cache
def can_cast(source: np.dtype, target: np.dtype, casting: str) -> bool:
    """`np.can_cast`, with half types of the same rank as float16."""
    if source == target:
        return True
    a, b = (FLOAT16 if d in EXTENDED else d for d in (source, target))
    if a == b:
        return casting in ("same_kind", "unsafe")
    return np.can_cast(a, b, casting)  # type: ignore[arg-type]


# -------- Arrays on a GPU, known by their class: no CUDA is imported to find that there are none.


_known: dict[type, bool] = {}


def on_gpu(x: Any) -> bool:
    """True if it is an array of CuPy's.

    >>> on_gpu(3.0)
    False
    """
    cls = type(x)
    found = _known.get(cls)
    if found is None:
        names = [(c.__module__.partition(".")[0], c.__name__) for c in cls.__mro__]
        found = _known[cls] = ("cupy", "ndarray") in names
    return found


def host(x: Any) -> Any:
    """The elements of an array of a GPU as NumPy's, which waits for them;
    anything else as it is.
    """
    return x.get() if on_gpu(x) else x


def beside(x: Any, other: Any) -> Any:
    """NumPy's array on the GPU of `other`, if that is on one; anything else as it is."""
    if not on_gpu(other) or not hasattr(x, "dtype") or on_gpu(x):
        return x
    cupy = sys.modules[type(other).__module__.partition(".")[0]]
    kept = x.view("u1") if x.dtype in FP8 else x  # CuPy has no fp8, but their bytes
    with other.device:
        return cupy.asarray(kept)


def gpu_of(x: Any) -> int:
    """The number of the GPU that an array is on."""
    return int(x.data.device_id)  # `x.device` makes an object each time


PART: Final = 512  # bytes, of which what CuPy's pool gives out is a multiple


def reserve(x: Any, sizes: Iterable[int]) -> None:
    """Has CuPy's pool ask for the memory of arrays of so many bytes at once, on the GPU of `x`.

    CUDA gives memory in pages of 2 MiB, and CuPy asks for each array's by itself: the rest of the
    last page of each is lost, 120 MiB of the state of a model of 124M parameters by their sizes. Of a
    block that is there each array takes a part. Nothing happens if `x` is on no GPU, or there is no
    such block to be had.
    """
    if not on_gpu(x):
        return
    cupy = sys.modules[type(x).__module__.partition(".")[0]]
    with x.device, suppress(MemoryError):
        wanted = sum(-(-nbytes // PART) * PART for nbytes in sizes)
        short = wanted - cupy.get_default_memory_pool().free_bytes()
        if short > 0:
            cupy.empty(short, "u1")  # which is free again at once, and the pool's


_expected: ContextVar[str] = ContextVar("ge2_architecture", default="")


def expecting(architecture: str) -> AbstractContextManager[str]:
    """Traces, within it, as for a GPU of an architecture, which need not be at hand."""
    return holding(_expected, architecture)


AMPERE: Final = 80  # the first generation whose warps have tensor cores that kernels of ours use
HOPPER: Final = 90  # the only generation whose warp groups multiply


def has_tensor_cores() -> bool:
    """True if an array may be on a GPU of compute capability 8.0 or newer, or on an emulator."""
    if config.executor == "emulator" or _is_new(_expected.get().strip("sm_af")):
        return True
    for cuda in loaded("cupy", "cuda"):
        if id(cuda) not in _new:
            _new[id(cuda)] = cuda, _has_new(cuda)
        return _new[id(cuda)][1]
    return False


_new: dict[int, tuple[Any, bool]] = {}  # of modules of CuPy's, kept: an id is given again


def _is_new(capability: str) -> bool:
    return capability.isdigit() and int(capability) >= AMPERE


def _has_new(cuda: Any) -> bool:
    try:
        devices = map(cuda.Device, range(cuda.runtime.getDeviceCount()))
        return any(_is_new(getattr(device, "compute_capability", "")) for device in devices)
    except RuntimeError:  # CuPy's, without a driver
        return False


def gpu_key(x: Any) -> tuple[Any, ...] | None:
    """Shape, dtype and GPU of an array of a class that was met before and is
    on one; None for all else.
    """
    return (x.shape, x.dtype, x.data.device_id) if _known.get(type(x)) else None


@final
class Look:
    """A check of several arrays together: one by one, until an extension does it at once."""

    __slots__ = ("same", "stands")

    def __init__(self) -> None:
        self.same: Callable[[tuple[Any, ...], tuple[Any, ...]], bool] = same
        self.stands: Callable[[Sequence[Any], frozenset[int], tuple[Any, ...]], bool] | None = None


def same(arrays: tuple[Any, ...], keys: tuple[Any, ...]) -> bool:
    """True if there are as many, and all are on a GPU, each with that `gpu_key`."""
    if len(arrays) != len(keys):
        return False
    return all(gpu_key(x) == key for x, key in zip(arrays, keys, strict=True))


look: Final = Look()


def look_by(extension: Any) -> None:
    """Has an extension look, which is given the classes met so far, and of later ones."""
    extension.know(_known)
    look.same, look.stands = extension.same, extension.stands


# -------------------------------------------------------------------------------- optional modules
# Things of modules that may not be imported: what nobody has imported, no value is of.


def loaded(module: str, *names: str) -> tuple[Any, ...]:
    """The things that a module has under these names; nothing if nobody has imported it, which
    takes time.

    >>> isinstance(1, loaded("numpy.no_such_module", "MaskedArray")), loaded("sys", "path") == (sys.path,)
    (False, True)
    """
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))


def is_masked(x: object) -> bool:
    """True if it is one of NumPy's masked arrays."""
    return isinstance(x, loaded("numpy.ma", "MaskedArray"))


def as_array(x: object, name: str) -> str:
    """The code that makes an array of an object that is `name` in a call;
    nothing if no plain way does.

    >>> from fractions import Fraction
    >>> as_array(Fraction(1, 2), "x"), as_array({1}, "x")
    ('float(x)', 'np.array(sorted(x))')
    """
    cls = type(x)
    if hasattr(cls, "to_numpy"):  # a DataFrame, Series or Index
        return f"{name}.to_numpy()"
    if isinstance(x, Mapping):  # what `np.load` makes of an npz, and others that are no dict
        return f"dict({name})"
    if hasattr(cls, "__float__") and not hasattr(cls, "dtype"):
        return f"float({name})"
    return f"np.array(sorted({name}))" if isinstance(x, set | frozenset) else ""


def numpy_generators() -> tuple[type, ...]:
    """The classes of NumPy's generators of random numbers, if there can be any."""
    return loaded("numpy.random", "Generator", "RandomState")


# ------------------------------------------------------------------------------------ float errors
# Silence about floating point, as `np.errstate(all="ignore")` gives it, at an eighth of its price.


def _direct() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    from numpy._core import umath

    silent, variable = umath._make_extobj(all="ignore"), umath._extobj_contextvar
    return lambda: variable.set(silent), variable.reset


def _public() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: np.seterr(all="ignore"), lambda old: np.seterr(**old)


try:
    hush, restore = _direct()
    restore(hush())
except (ImportError, AttributeError, TypeError):  # these names are NumPy's own, and may change
    hush, restore = _public()
