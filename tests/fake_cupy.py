"""A stand-in for CuPy on machines without a GPU: its arrays hold NumPy's memory
and are as strict as CuPy's.

They never become NumPy's by themselves, `numpy.*` functions that meet them come back here, flags
and addresses are found where CuPy has them, and a view made of an address knows no base. `StandIn`
is a GPU that has them: it runs kernels through the shim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ge2.base.arrays import FP8
from ge2.targets.cuda.device import Device as Contract
from ge2.targets.cuda.emulator import ShimDevice, ShimStream
from ge2.targets.cuda.launch.graph import call
from ge2.targets.cuda.limits import H200, Limits
from ge2.targets.cuda.load.arena import Scratch

REFUSED = "Implicit conversion to a NumPy array is not allowed. Please use `.get()`"


class MemoryPointer:
    """An address within memory that somebody keeps."""

    def __init__(self, memory: np.ndarray, offset: int = 0, device_id: int = 0) -> None:
        self.memory, self.offset, self.device_id = memory, offset, device_id

    @property
    def mem(self) -> Any:
        """What was allocated."""
        found = self.memory
        while isinstance(found.base, np.ndarray):
            found = found.base
        return found

    @property
    def ptr(self) -> int:
        return int(self.memory.ctypes.data) + self.offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.memory, self.offset + offset, self.device_id)


class Flags:
    def __init__(self, of: ndarray) -> None:
        found = of._host.flags
        self.c_contiguous, self.f_contiguous = found.c_contiguous, found.f_contiguous
        self.owndata = of.base is None


class ndarray:
    """`ndarray(shape, dtype, memptr, strides)`, as CuPy's."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype, self.base, self._number = known(np.dtype(dtype)), None, current[0]
        if memptr is None:
            self._host = np.empty(shape, dtype, order=order)  # type: ignore[call-overload]
            return
        whole = memptr.memory.reshape(-1).view(np.uint8)
        start = (
            np.ndarray((), dtype, whole, memptr.offset) if 0 not in shape else np.empty((), dtype)
        )
        strided = np.lib.stride_tricks.as_strided
        self._host = (
            strided(start, shape, strides)
            if strides is not None
            else np.ndarray(shape, dtype, whole, memptr.offset)
        )

    # -- what an array tells

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    strides = property(lambda self: self._host.strides)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    flags = property(Flags)
    _c_contiguous = property(lambda self: self._host.flags.c_contiguous)
    T = property(lambda self: wrap(self._host.T, self))
    real = property(lambda self: wrap(self._host.real, self))
    imag = property(lambda self: wrap(self._host.imag, self))

    @property
    def data(self) -> MemoryPointer:
        memory = self._host
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        if not memory.flags.c_contiguous:  # its own memory, in another order
            memory = memory.T
        return MemoryPointer(memory, self._host.ctypes.data - memory.ctypes.data, self._number)

    @property
    def device(self) -> Any:
        return Device(self._number)

    @property
    def __cuda_array_interface__(self) -> Any:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
        }

    # -- the way to the host

    def get(self, stream: Any = None) -> Any:
        return np.array(self._host)

    def item(self) -> Any:
        return self._host.item()

    def tolist(self) -> Any:
        return self._host.tolist()

    def set(self, values: Any, stream: Any = None) -> None:
        self._host[...] = values

    __bool__ = lambda self: bool(self._host)  # noqa: E731
    __int__ = lambda self: int(self._host)  # noqa: E731
    __float__ = lambda self: float(self._host)  # noqa: E731
    __complex__ = lambda self: complex(self._host)  # noqa: E731
    __index__ = lambda self: self._host.__index__()  # noqa: E731

    def __array__(self, dtype: Any = None) -> Any:
        raise TypeError(REFUSED)

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("a GPU's memory is not the CPU's")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._number

    # -- functions

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        return wrap(self._host[bare(key)], self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._host[bare(key)] = bare(value)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """As CuPy's (cupy/_core/core.pyx): what passes for NumPy's array goes
        into CuPy's own function.
        """
        outs = kwargs.pop("out", ())
        if not all(map(taken, (*args, *outs))):
            return NotImplemented
        if method == "__call__":
            return function(ufunc.__name__)(*args, **kwargs, **({"out": outs[0]} if outs else {}))
        given = {k: bare(v) for k, v in kwargs.items()} | (
            {"out": tuple(map(bare, outs))} if outs else {}
        )
        found = getattr(ufunc, method)(*map(bare, args), **given)
        return outs[0] if outs else wrap(found)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not all(issubclass(t, ndarray | np.ndarray) for t in types):
            return NotImplemented
        return wrap(function(*map(bare, args), **{k: bare(v) for k, v in kwargs.items()}))

    def astype(self, dtype: Any, copy: bool = True, order: str = "K") -> Any:
        return wrap(self._host.astype(dtype, copy=copy, order=order), self)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        return f"stand-in {self._host!r}"


ndarray.__module__ = "cupy"

METHODS = (
    "reshape", "transpose", "view", "copy", "sum", "max", "min", "mean", "argmax", "all", "any", "ravel",
    "squeeze", "fill", "dot", "prod", "std", "var", "clip", "conj",
)  # fmt: skip
OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "eq": "equal", "ne": "not_equal",
}  # fmt: skip


def method(name: str) -> Callable[..., Any]:
    def run(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        return wrap(getattr(self._host, name)(*map(bare, args), **kwargs), self)

    return run


def operator(name: str) -> Callable[..., Any]:
    """`x + y` of CuPy's array and anything else (cupy/_core/core.pyx:

    `__add__`, ..., `__richcmp__`).
    """

    def run(self: ndarray, other: Any) -> Any:
        if isinstance(other, ndarray):
            return function(name)(self, other)
        if left_to_the_right(self, other):
            return NotImplemented
        if name in ("equal", "not_equal") and (
            other is None or type(other).__eq__ is object.__eq__
        ):
            return wrap(np.full(self.shape, name == "not_equal"))
        return getattr(np, name)(self, other)

    return run


def left_to_the_right(x: Any, y: Any) -> bool:
    """`_should_use_rop` of cupy/_core/core.pyx, which asks the value, not its
    class as NumPy does.
    """
    asked = getattr(y, "__array_ufunc__", run_out)
    if asked is not run_out:
        return asked is None
    return getattr(x, "__array_priority__", 0) < getattr(y, "__array_priority__", 0)


run_out = object()


def reflected(name: str) -> Callable[..., Any]:
    """CuPy's operator is asked last, so it leaves the work to nobody."""
    return lambda self, other: function(name)(other, self)


def in_place(name: str) -> Callable[..., Any]:
    return lambda self, other: function(name)(self, other, self)


for _name in METHODS:
    setattr(ndarray, _name, method(_name))
for _name, _function in OPERATORS.items():
    setattr(ndarray, f"__{_name}__", operator(_function))
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(ndarray, f"__r{_name}__", reflected(_function))
        if _name not in ("matmul", "divmod"):  # `x @= y` is `x = x @ y`
            setattr(ndarray, f"__i{_name}__", in_place(_function))
for _name in ("neg", "abs", "invert"):
    setattr(
        ndarray,
        f"__{_name}__",
        lambda self, _n=f"__{_name}__": wrap(getattr(self._host, _n)(), self),
    )


def function(name: str) -> Callable[..., Any]:
    """`cupy.add` and its like, which ask what they are given (cupy/_core/_kernel.pyx), and
    `cupy.matmul`, which is typed (cupy/_core/_routines_linalg.pyx).
    """
    ufunc = getattr(np, name)
    kernel = SimpleNamespace(
        name="cupy_true_divide" if name == "divide" else f"cupy_{name}", nin=ufunc.nin
    )

    def run(*args: Any, **kwargs: Any) -> Any:
        if name == "matmul":
            return matmul(*args, **kwargs)
        for x in args:
            if hasattr(x, "__cupy_override_elementwise_kernel__"):
                return x.__cupy_override_elementwise_kernel__(kernel, *args, **kwargs)
        out = kwargs.pop("out", None) if len(args) == ufunc.nin else args[ufunc.nin]
        given = {k: bare(v) for k, v in kwargs.items()} | (
            {} if out is None else {"out": bare(out)}
        )
        found = ufunc(*map(bare, args[: ufunc.nin]), **given)
        return wrap(found) if out is None else out

    return run


def taken(x: Any) -> bool:
    """Whether CuPy's `__array_ufunc__` goes on: scalars, arrays, and all that
    say they are NumPy's.
    """
    return (
        type(x) in SCALARS
        or isinstance(x, ndarray | np.ndarray)
        or hasattr(x, "__cuda_array_interface__")
    )


SCALARS = {int, float, complex, bool, *np.sctypeDict.values()}


def bare(x: Any) -> Any:
    """What NumPy is given for an argument; its own arrays are none that a GPU reads."""
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    if isinstance(x, tuple | list):
        return type(x)(map(bare, x))
    return x._host if isinstance(x, ndarray) else x


def known(dtype: np.dtype) -> np.dtype:
    if dtype in FP8:
        raise TypeError(f"Unsupported dtype {dtype}")
    return dtype


def wrap(x: Any, of: ndarray | None = None) -> Any:
    if of is not None and x is of._host:
        return of
    if isinstance(x, tuple | list):
        return type(x)(wrap(each, of) for each in x)
    if not isinstance(x, np.ndarray | np.generic):
        return x
    made = object.__new__(ndarray)
    made._host = np.asarray(x)  # CuPy's scalars are arrays
    known(made._host.dtype)
    made._number = current[0] if of is None else of._number
    made.base = of if of is not None and np.may_share_memory(made._host, of._host) else None
    return made


# --------------------------------------------------------------------------------------- the module

current = [0]


class Device:
    def __init__(self, number: int = 0) -> None:
        self.number = self.id = number

    def __enter__(self) -> Device:
        self.before, current[0] = current[0], self.number
        return self

    def __exit__(self, *_: object) -> None:
        current[0] = self.before

    def synchronize(self) -> None:
        """Nothing is under way."""


def array(x: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> Any:
    """As CuPy's, which alone takes NumPy's arrays."""
    if isinstance(x, list | tuple):
        x = [each._host if isinstance(each, ndarray) else each for each in x]
    host = x._host if isinstance(x, ndarray) else np.asarray(x)
    if not copy and isinstance(x, ndarray) and dtype in (None, host.dtype):
        return x
    return wrap(np.array(host, dtype, order=order, copy=True))  # type: ignore[call-overload]


def asarray(x: Any, dtype: Any = None) -> Any:
    return array(x, dtype, copy=False)


def ascontiguousarray(x: Any) -> Any:
    return x if x.flags.c_contiguous else array(x, order="C")


def asnumpy(x: Any) -> Any:
    return x.get() if isinstance(x, ndarray) else np.asarray(x)


def copyto(to: Any, x: Any) -> None:
    np.copyto(bare(to), bare(x))


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    for x, name in ((a, "a"), (b, "b")):
        if not issubclass(type(x), ndarray):
            wanted = "cupy._core.core._ndarray_base"
            got = type(x).__name__
            raise TypeError(f"Argument '{name}' has incorrect type (expected {wanted}, got {got})")
    return wrap(np.matmul(bare(a), bare(b), out=None if out is None else bare(out)))


def maker(name: str, of: Any = np) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        found = getattr(of, name)(*map(bare, args), **kwargs)
        return tuple(map(wrap, found)) if isinstance(found, tuple) else wrap(found)

    return run


LINALG = ("solve", "pinv", "det", "slogdet", "cholesky", "qr", "eigh", "eigvalsh", "svd")
FFT = ("fftn", "ifftn", "rfft", "irfft")


def module() -> ModuleType:
    """What `import cupy` gives."""
    made = ModuleType("cupy")
    for f in (ndarray, array, asarray, ascontiguousarray, asnumpy, copyto, matmul):
        setattr(made, f.__name__, f)
    for name in (
        "empty", "zeros", "ones", "full", "arange", "eye", "linspace", "stack", "concatenate",
    ):  # fmt: skip
        setattr(made, name, maker(name))
    made.sort = lambda x, axis=-1: wrap(np.sort(bare(x), axis, kind="stable"))  # type: ignore[attr-defined]
    made.argsort = lambda x, axis=-1: wrap(np.argsort(bare(x), axis, kind="stable"))  # type: ignore[attr-defined]
    for name in ("searchsorted", "take_along_axis", "where"):
        setattr(made, name, maker(name))
    for name in ("minimum", "maximum", "exp", "sqrt", *OPERATORS.values()):
        setattr(made, name, function(name))
    for name in ("empty_like", "zeros_like", "ones_like", "all", "any"):
        setattr(made, name, maker(name))
    made.log = function("log")  # type: ignore[attr-defined]
    made.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 0)  # type: ignore[attr-defined]
    for part, names in (("linalg", LINALG), ("fft", FFT)):
        found = getattr(np, part)
        setattr(made, part, SimpleNamespace(**{name: maker(name, found) for name in names}))
    for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "bool_", "newaxis"):
        setattr(made, name, getattr(np, name))
    made.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        Device=Device,
        get_current_stream=ShimStream,
        runtime=SimpleNamespace(getDevice=lambda: current[0], getDeviceCount=lambda: 2),
    )
    return made


# ------------------------------------------------------------------------------------------ the GPU


class Launched:
    """A kernel, which is given CuPy's arrays."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __call__(
        self, grid: Any, block: Any, args: Sequence[Any], shared_mem: int = 0, **more: bool
    ) -> None:
        for x in args:
            assert not isinstance(x, np.ndarray) or x.shape == (), "an array of the CPU in a launch"
        given = [x._host if isinstance(x, ndarray) else x for x in args]
        self.kernel(grid, block, given, shared_mem=shared_mem, **more)


class StandIn(Contract):
    """A GPU's place: its arrays are the stand-ins of CuPy's, its kernels run on the CPU."""

    number: int = 0
    xp: ModuleType = None  # type: ignore[assignment]
    limits: Limits = H200
    scratch: Scratch = None  # type: ignore[assignment]

    def __init__(self, number: int, xp: ModuleType, limits: Limits = H200) -> None:
        self.number, self.xp, self.limits, self.shim = number, xp, limits, ShimDevice()
        self.scratch = Scratch(lambda nbytes: xp.empty(nbytes, np.dtype(np.uint8)), lambda: 0)

    def here(self) -> Device:
        return Device(self.number)

    def memory(self) -> tuple[int, int]:
        return self.limits.memory, self.limits.memory

    def product(self, wanted: Any) -> Any:
        return self.shim.product(wanted)

    def launches(self, work: Any) -> Any:
        return self.shim.launches(work)

    def call(self, work: Any, otherwise: Any) -> Any:
        return call(self, work, otherwise)  # type: ignore[arg-type]

    def stream(self) -> ShimStream:
        return self.shim.stream()

    def span(self, name: str) -> Any:
        return self.shim.span(name)

    def prepare(self, sources: list[str]) -> None:
        self.shim.prepare(sources)

    def missing(self, sources: list[str]) -> int:
        return self.shim.missing(sources)

    def module(self, source: str) -> Any:
        found = self.shim.module(source)
        return SimpleNamespace(get_function=lambda name: Launched(found.get_function(name)))


@contextmanager
def stand_in(monkeypatch: Any) -> Iterator[ModuleType]:
    """CuPy and its GPUs, replaced."""
    from ge2.dispatch import cache
    from ge2.targets.cuda.load import gpu

    xp = module()
    gpus = {n: StandIn(n, xp) for n in range(2)}
    monkeypatch.setattr(gpu, "gpu", gpus.__getitem__)
    monkeypatch.setattr(gpu, "cupy", lambda: xp)
    monkeypatch.setattr(gpu, "current_gpu", lambda: gpus[current[0]])
    monkeypatch.setitem(sys.modules, "cupy", xp)
    cache.forget()
    yield xp
    cache.forget()
