"""`sum(tanh(x*w+b)**2)` over ten million floats: one read of `x`, no temporaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.peers import peer
from benchmarks.record import Row, Target
from benchmarks.timing import medians


def squares(x: Any, w: Any, b: Any) -> Any:
    return (np.tanh(x * w + b) ** 2).sum()


def run(quick: bool = False) -> list[Row]:
    size = 100_000 if quick else 10_000_000
    x = np.random.default_rng(0).standard_normal(size, np.float32)
    w, b = np.float32(0.7), np.float32(0.1)
    compiled = ge2.jit(squares)
    candidates: dict[str, Callable[[], object]] = {
        "ge2": lambda: compiled(x, w, b),
        "numpy": lambda: squares(x, w, b),
        **jax_candidate(x, w, b),
        **torch_candidate(x, w, b),
    }
    expected = squares(x.astype(np.float64), 0.7, 0.1)
    for name, call in candidates.items():
        np.testing.assert_allclose(float(call()), expected, rtol=1e-4, err_msg=name)  # type: ignore[arg-type]
    times = medians(candidates, rounds=3 if quick else 11)
    target = None if quick else Target(3.5, "numpy")
    work = f"sum(tanh(x*w+b)**2), {size / 1e6:g} M floats"
    return [Row(work, "seconds", times.pop("ge2"), times, target, "float32", {"x": [size]})]


def jax_candidate(x: Any, w: Any, b: Any) -> dict[str, Callable[[], object]]:
    jax = peer("jax")
    if jax is None:
        return {}
    jnp = jax.numpy
    compiled = jax.jit(lambda x, w, b: (jnp.tanh(x * w + b) ** 2).sum())
    on_device = jnp.asarray(x)
    return {"jax": lambda: compiled(on_device, w, b).block_until_ready()}


def torch_candidate(x: Any, w: Any, b: Any) -> dict[str, Callable[[], object]]:
    torch = peer("torch")
    if torch is None:
        return {}
    compiled = torch.compile(lambda x, w, b: (torch.tanh(x * w + b) ** 2).sum())
    tensors = torch.from_numpy(x), torch.tensor(w), torch.tensor(b)
    return {"torch": lambda: compiled(*tensors)}
