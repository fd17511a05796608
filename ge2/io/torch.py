"""PyTorch's tensors in and out of functions of arrays, and their gradients in PyTorch's graph.

`ge2.jit` takes tensors without gradients as it is; `function` gives tensors back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any, Final

import numpy as np

from ge2.base.arrays import COMPLEX, EXTENDED, on_gpu
from ge2.base.errors import DeviceError, InputError
from ge2.base.pytree import Structure, flatten, map_structure, register_leaf, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.dispatch import jit
from ge2.dispatch.signature import plain_tensor
from ge2.targets.cuda.load.gpu import cupy
from ge2.transforms.api import vjp
from ge2.transforms.arguments import eval_shape

__all__ = ["array", "function", "tensor"]
SAVED: Final = object()  # in the place of a tensor that PyTorch keeps


def function(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays as one of tensors, compiled, with its gradient in PyTorch's graph.

    Arguments and results are containers of tensors; numbers and static values may be among the
    arguments. Memory is shared, by DLPack, and work is on PyTorch's current stream of the GPU where
    the tensors are. What `backward` needs is what the compiled derivative keeps; a derivative of a
    derivative (`create_graph=True`) is computed anew. To change an argument in place before
    `backward` is the error that it is for PyTorch's own functions.

    DeviceError without PyTorch.

        layer = ge2.io.torch.function(lambda x, w: np.tanh(x @ w))
        layer(x, w).sum().backward()  # x.grad, w.grad
    """
    plain = jit(f)
    works: dict[Any, Work] = {}

    @wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        torch = module()
        leaves, structure = flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
            with stream_of(tensors):
                values = [array(x) if isinstance(x, torch.Tensor) else x for x in leaves]
                args, kwargs = unflatten(structure, values)
                return tensors_of(plain(*args, **kwargs))
        wanted = tuple(i for i, x in enumerate(leaves) if getattr(x, "requires_grad", False))
        work = works.get((structure, wanted))
        if work is None:
            with stream_of(tensors):
                values = [array(x) if isinstance(x, torch.Tensor) else x for x in leaves]
                args, kwargs = unflatten(structure, values)
                eval_shape(f, *args, **kwargs)  # so that errors of f name its own arguments
            work = works[structure, wanted] = Work(f, structure, wanted)
        others = [None if i in wanted else x for i, x in enumerate(leaves)]
        return work.called(others, [leaves[i] for i in wanted])

    return call


def array(x: Any) -> Any:
    """A tensor as an array of NumPy's or CuPy's of the same memory; its gradient is not recorded.

    bfloat16 and float8 are the types of ml_dtypes. InputError for what has no array.
    """
    plain, dtype = plain_tensor(x.detach())
    if plain.is_cuda:
        found = cupy().from_dlpack(plain)
    elif plain.device.type == "cpu" and not plain.is_sparse:
        try:
            found = plain.numpy()
        except RuntimeError as error:
            what = f"a {type(x).__name__} has no array: {error}"
            fix = "no torch.func and no torch.compile around a function of ge2's, which has its own"
            raise InputError(what, where=here(), fix=fix) from None
    else:
        what = f"a tensor of {plain.device} and layout {plain.layout} has no array"
        raise InputError(what, where=here(), fix="x.cpu(), or x.to_dense()")
    return found if dtype is None else found.view(dtype)


def tensor(x: Any) -> Any:
    """An array of NumPy's or CuPy's as a tensor of the same memory."""
    torch = module()
    if x.dtype in EXTENDED:
        whole = x.view(np.uint8 if x.dtype.itemsize == 1 else np.int16)
        return tensor(whole).view(getattr(torch, x.dtype.name))
    return torch.from_dlpack(x) if on_gpu(x) else torch.from_numpy(np.asarray(x))


# ------------------------------------------------------------------------------------------ module


@cache
def module() -> Any:
    """PyTorch. DeviceError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        what = f"PyTorch cannot be imported: {error}"
        raise DeviceError(what, where=here(), fix="pip install torch") from None
    return torch


@cache
def autograd() -> Any:
    """The class of the calls in PyTorch's graph."""

    class Ge2Call(module().autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, work: Work, others: list[Any], result: list[Any], *xs: Any) -> Any:
            return work.forward(ctx, others, result, xs)

        @staticmethod
        def backward(ctx: Any, *cts: Any) -> Any:
            return (None, None, None, *ctx.work.backward(ctx, cts))

    return Ge2Call


@contextmanager
def stream_of(tensors: Sequence[Any]) -> Iterator[None]:
    """Makes CuPy's current stream that of PyTorch, on the GPU where the tensors are."""
    device = next((x.device for x in tensors if x.is_cuda), None)
    if device is None:
        yield
        return
    cuda, stream = cupy().cuda, module().cuda.current_stream(device)
    with cuda.Device(device.index), taken_in(cuda, stream, device.index):
        yield


def taken_in(cuda: Any, stream: Any, device: int) -> Any:
    """A stream of PyTorch's as one of CuPy's; older ones know no protocol for streams."""
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(Foreign(stream.cuda_stream))
    return cuda.ExternalStream(stream.cuda_stream, device)


@dataclass(frozen=True)
class Foreign:
    """A stream by the protocol of CUDA's libraries: its version, and the address."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


# ----------------------------------------------------------------------------------------- gradient


@dataclass(frozen=True)
class Saved:
    """The residuals of a call: arrays, and for those that are arguments the number of one."""

    arrays: list[Any]
    structure: Structure = field(metadata={"static": True})
    places: tuple[int | None, ...] = field(metadata={"static": True})


@register_leaf
class Work:
    """A function whose derivative by some of its leaves is wanted, compiled in two halves."""

    def __init__(self, f: Callable[..., Any], structure: Structure, wanted: Sequence[int]) -> None:
        self.f, self.structure, self.wanted = f, structure, wanted
        self.forward_half, self.backward_half = jit(self.first), jit(self.second)
        self.gradient = function(self.anew)

    def first(self, others: list[Any], wanted: list[Any]) -> Any:
        """The result, and what the other half needs."""
        y, pull = vjp(partial(self.of, others), *wanted)
        leaves, structure = flatten(pull)
        known = [atom_of(x) for x in (*wanted, *others)]
        places = tuple(known.index(a) if (a := atom_of(x)) in known else None for x in leaves)
        kept = [leaf for leaf, i in zip(leaves, places, strict=True) if i is None]
        return y, Saved(kept, structure, places)

    def second(self, saved: Saved, others: list[Any], wanted: list[Any], ct: Any) -> Any:
        """The cotangents of the wanted leaves."""
        known, kept = [*wanted, *others], iter(saved.arrays)
        leaves = [next(kept) if i is None else known[i] for i in saved.places]
        return conjugate(unflatten(saved.structure, leaves)(conjugate(ct)))

    def anew(self, others: list[Any], wanted: list[Any], ct: Any) -> Any:
        """The same from the arguments alone, which has derivatives."""
        return conjugate(vjp(partial(self.of, others), *wanted)[1](conjugate(ct)))

    def of(self, others: list[Any], *wanted: Any) -> Any:
        leaves = list(others)
        for i, x in zip(self.wanted, wanted, strict=True):
            leaves[i] = x
        args, kwargs = unflatten(self.structure, leaves)
        return self.f(*args, **kwargs)

    def called(self, others: list[Any], wanted: list[Any]) -> Any:
        """The result as tensors, recorded by PyTorch."""
        result: list[Any] = []
        found = iter(autograd().apply(self, others, result, *wanted))
        leaves, structure = result
        return unflatten(structure, [next(found) if x is None else x for x in leaves])

    def forward(self, ctx: Any, others: list[Any], result: list[Any], xs: Sequence[Any]) -> Any:
        """Tensors of the arrays in the result; `result` receives its other leaves and structure."""
        given = [x for x in others if is_tensor(x)]
        ctx.save_for_backward(*xs, *given)  # which notices if one of them is changed in place
        with stream_of([*xs, *given]):
            y, ctx.kept = self.forward_half(arrays_of(others), arrays_of(xs))
            leaves, structure = flatten(y)
            found = [tensor(x) for x in leaves if is_array(x)]
        ctx.mark_non_differentiable(*(t for t in found if not is_inexact(t)))
        result += ([None if is_array(x) else x for x in leaves], structure)
        ctx.work, ctx.result = self, result
        ctx.others = [SAVED if is_tensor(x) else x for x in others]
        return tuple(found)

    def backward(self, ctx: Any, cts: Sequence[Any]) -> Any:
        """The cotangents of the wanted leaves, as tensors."""
        saved, found = iter(ctx.saved_tensors), iter(cts)
        wanted = [next(saved) for _ in self.wanted]
        others = [next(saved) if x is SAVED else x for x in ctx.others]
        leaves, structure = ctx.result
        ct = unflatten(structure, [next(found) if x is None else type(x)() for x in leaves])
        if module().is_grad_enabled():
            return self.gradient(others, wanted, ct)
        with stream_of(wanted):
            known = (arrays_of(x) for x in (others, wanted, ct))
            return tensors_of(self.backward_half(ctx.kept, *known))


def conjugate(tree: Any) -> Any:
    """Cotangents of complex numbers as PyTorch has them from ours, and back: the conjugates."""

    def of(x: Any) -> Any:
        return np.conj(x) if getattr(x, "dtype", None) in COMPLEX else x

    return map_structure(of, tree)


def atom_of(x: Any) -> Any:
    """The atom of a traced value in its graph; for anything else an object of its own."""
    return getattr(x, "atom", object())


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic) or on_gpu(x)


def is_tensor(x: Any) -> bool:
    return isinstance(x, module().Tensor)


def is_inexact(x: Any) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def tensors_of(tree: Any) -> Any:
    """A container with tensors in the place of its arrays."""
    return map_structure(lambda x: tensor(x) if is_array(x) else x, tree)


def arrays_of(tree: Any) -> Any:
    """A container with arrays in the place of its tensors."""
    return map_structure(lambda x: array(x) if is_tensor(x) else x, tree)


publish(globals())
