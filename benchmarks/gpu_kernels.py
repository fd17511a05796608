"""Single kernels on a GPU beside JAX and torch.compile: the same buffers, output dtypes and moment.

A figure is the median time of a call when the GPU is kept busy: many calls are launched, then waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from types import ModuleType
from typing import Any, final

import ml_dtypes
import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row, Target

ROUNDS, SAMPLE = 15, 0.02  # seconds of work that are launched at once
MS = 1e-3
BF16 = ml_dtypes.bfloat16
Call = Callable[[], Any]


# ------------------------------------------------------------------------------------------- what is computed


def bias_gelu(xp: Any, x: Any, b: Any) -> Any:
    y = x + b
    return 0.5 * y * (1 + xp.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))


def adam(xp: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.001 * m / (xp.sqrt(v) + 1e-8), m, v


def sum_of_squares(xp: Any, x: Any) -> Any:
    return (x * x).sum()


def layernorm(xp: Any, x: Any, g: Any, b: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return d / xp.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * g + b


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_columns(xp: Any, x: Any) -> Any:
    return xp.tanh(softmax(xp, x * 0.5 + 1)).sum(0)


def cross_entropy(lib: Any, xp: Any, z: Any, y: Any) -> Any:
    z = z.astype(xp.float32)
    top = lib.lax.stop_gradient(z.max(-1, keepdims=True))  # as in the libraries' own
    logs = xp.log(xp.exp(z - top).sum(-1)) + top[:, 0]
    return (logs - xp.take_along_axis(z, y[:, None], -1)[:, 0]).mean()


def cumsum(xp: Any, x: Any) -> Any:
    return xp.cumsum(x)


def column_sums(xp: Any, x: Any) -> Any:
    return x.sum(0)


def transposed(xp: Any, x: Any) -> Any:
    return x.T.copy()


def layernorm_gradients(lib: Any, xp: Any, x: Any, g: Any, b: Any, ct: Any) -> Any:
    y, back = lib.vjp(partial(layernorm, xp), x, g, b)
    return (y, *back(ct))


def loss_and_gradient(lib: Any, xp: Any, z: Any, y: Any) -> Any:
    return lib.value_and_grad(partial(cross_entropy, lib, xp))(z, y)


# ------------------------------------------------------------------------------------------- the works


@final
@dataclass(frozen=True, slots=True)
class Work:
    title: str
    function: Callable[..., Any]  # of a library, its array module, and arrays
    arguments: Callable[[Any], tuple[Any, ...]]
    targets: tuple[Target, ...]
    torch: Callable[..., Any]
    nbytes: int  # that must be read and written
    tolerance: float = 1e-4


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda lib, xp, *xs: function(xp, *xs)


def torch_gelu(torch: Any, x: Any, b: Any) -> Any:
    return torch.nn.functional.gelu(x + b, approximate="tanh")


def torch_layernorm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def torch_layernorm_gradients(torch: Any, x: Any, g: Any, b: Any, ct: Any) -> Any:
    xs = [a.detach().requires_grad_() for a in (x, g, b)]
    y = torch_layernorm(torch, *xs)
    return (y, *torch.autograd.grad(y, xs, ct))


def torch_cross_entropy(torch: Any, z: Any, y: Any) -> Any:
    z = z.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(z.float(), y)
    return loss, *torch.autograd.grad(loss, z)


def torch_softmax(torch: Any, x: Any) -> Any:
    return torch.softmax(x, -1)


def normal(rng: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape, np.float32).astype(dtype)


def most(ms: float) -> tuple[Target, ...]:
    return (AtMost(ms * MS),)


def works(quick: bool) -> dict[str, Work]:
    def n(size: int) -> int:
        return min(size, 256) if quick else size

    rows, wide, long = n(16384), n(4096), n(8192)
    huge, adams = (4096, 4096) if quick else (1 << 28, 1 << 27)
    words, vocabulary = n(8192), n(50304)

    def norms(rng: Any) -> tuple[Any, ...]:
        return tuple(normal(rng, *s, dtype=BF16) for s in ((rows, wide), (wide,), (wide,)))

    def square(rng: Any) -> tuple[Any, ...]:
        return (normal(rng, rows, long),)

    def whole(rng: Any) -> tuple[Any, ...]:
        return (normal(rng, huge),)

    return {
        "gelu": Work(
            "bias+gelu f32 16384x4096", plain(bias_gelu), lambda r: (normal(r, rows, wide), normal(r, wide)),
            most(0.128), torch_gelu, 8 * rows * wide,
        ),
        "adam": Work(
            "Adam update f32 2^27", plain(adam), lambda r: tuple(abs(normal(r, adams)) for _ in range(4)),
            most(0.888), partial(adam), 28 * adams,
        ),
        "squares": Work(
            "sum of squares f32 2^28", plain(sum_of_squares), whole, most(0.246),
            lambda torch, x: (x * x).sum(), 4 * huge, 1e-3,
        ),
        "layernorm": Work(
            "layernorm bf16 16384x4096", plain(layernorm), norms, most(0.070), torch_layernorm,
            4 * rows * wide, 2e-2,
        ),
        "layernorm-grad": Work(
            "layernorm bf16 16384x4096, forward and all gradients", layernorm_gradients,
            lambda r: (*norms(r), normal(r, rows, wide, dtype=BF16)), most(0.150), torch_layernorm_gradients,
            8 * rows * wide, 3e-2,
        ),
        "softmax": Work(
            "softmax f32 16384x8192", plain(softmax), square, most(0.265), torch_softmax, 8 * rows * long,
        ),
        "softmax-columns": Work(
            "tanh(softmax(x*0.5+1)).sum(0) f32 16384x8192", plain(softmax_columns), square, most(0.20),
            lambda torch, x: torch.tanh(torch.softmax(x * 0.5 + 1, -1)).sum(0), 4 * rows * long,
        ),
        "cross-entropy": Work(
            "cross-entropy and its gradient, bf16 8192x50304", loss_and_gradient,
            lambda r: (normal(r, words, vocabulary, dtype=BF16), r.integers(0, vocabulary, words)),
            most(0.50), torch_cross_entropy, 4 * words * vocabulary, 2e-2,
        ),
        "cumsum": Work(
            "cumsum f32 2^28", plain(cumsum), whole, most(0.63), lambda torch, x: torch.cumsum(x, 0),
            8 * huge, 1e-2,
        ),
        "columns": Work(
            "column sums f32 16384x8192", plain(column_sums), square, most(0.135), lambda torch, x: x.sum(0),
            4 * rows * long, 1e-3,
        ),
        "transpose": Work(
            "copy of the transpose f32 16384x8192", plain(transposed), square, most(0.28),
            lambda torch, x: x.T.contiguous(), 8 * rows * long,
        ),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- the candidates


def of_ge2(work: Work, arrays: tuple[Any, ...]) -> Call:
    compiled = ge2.jit(partial(work.function, ge2, np))
    return lambda: compiled(*arrays)


def of_jax(work: Work, arrays: tuple[Any, ...]) -> Call | None:
    jax = peer("jax")
    if jax is None:
        return None
    compiled = jax.jit(partial(work.function, jax, jax.numpy))
    given = [jax.dlpack.from_dlpack(x) for x in arrays]
    return lambda: compiled(*given)


def of_torch(work: Work, arrays: tuple[Any, ...]) -> Call | None:
    torch = peer("torch")
    if torch is None:
        return None
    given = [torch.from_dlpack(x) for x in arrays]
    torch.compiler.reset()
    compiled = torch.compile(lambda *xs: work.torch(torch, *xs))
    return lambda: compiled(*given)


def measure(work: Work, options: Options, cupy: ModuleType) -> Row:
    arrays = tuple(map(cupy.asarray, work.arguments(np.random.default_rng(0))))
    found = {"ge2": of_ge2(work, arrays), "jax": of_jax(work, arrays), "torch": of_torch(work, arrays)}
    calls = {name: call for name, call in found.items() if call is not None}
    agree(work, calls, cupy)
    times = rounds(calls, cupy, options.rounds_or(ROUNDS))
    notes = {"ge2": f"{work.nbytes / times['ge2'] / 1e9:.0f} GB/s of what must move"}
    sizes = {"arguments": [list(x.shape) for x in arrays]}
    layout = " and ".join(dict.fromkeys(str(x.dtype) for x in arrays))
    targets = () if options.quick else work.targets
    return Row(work.title, "seconds", times.pop("ge2"), times, targets, layout, sizes, notes)


def agree(work: Work, calls: dict[str, Call], cupy: ModuleType) -> None:
    """Every candidate must compute the same."""
    wanted = [floats(cupy, y) for y in leaves(calls["ge2"]())]
    for name, call in calls.items():
        for y, w in zip((floats(cupy, y) for y in leaves(call())), wanted, strict=True):
            worst, largest = float(abs(y - w).max()), float(abs(w).max())
            assert worst <= work.tolerance * largest, f"{work.title}: {name} differs by {worst} of {largest}"


def floats(cupy: ModuleType, y: Any) -> Any:
    y = y.detach() if hasattr(y, "detach") else y
    return (y if isinstance(y, cupy.ndarray) else cupy.from_dlpack(y)).astype(np.float32)


def leaves(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [leaf for each in result for leaf in leaves(each)]
    return [result]


def rounds(calls: dict[str, Call], cupy: ModuleType, count: int) -> dict[str, float]:
    """Interleaved: every candidate meets the same machine."""
    wait = cupy.cuda.runtime.deviceSynchronize
    repeats = {name: max(3, round(SAMPLE / sample(call, 3, wait))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, order = [*calls], Random(0)
    for _ in range(count):
        for name in order.sample(names, len(names)):
            times[name].append(sample(calls[name], repeats[name], wait))
    return {name: median(found) for name, found in times.items()}


def sample(call: Call, repeats: int, wait: Callable[[], Any]) -> float:
    call()
    wait()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - began) / repeats


def run(options: Options = USUAL) -> list[Row]:
    import cupy

    rows = []
    for name, work in works(options.quick).items():
        if options.wants("gpu_kernels", name):
            rows.append(measure(work, options, cupy))
            cupy.get_default_memory_pool().free_all_blocks()
    return rows
