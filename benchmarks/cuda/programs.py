"""Whole programs on a GPU beside JAX and torch: what a call costs the host, and
steps that follow each other.

Host time is what passes until a call returns, with the GPU never waited for; a step's is that of
many in a row, waited for once.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import back, leaves, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import difference, finish, rounds
from benchmarks.cuda.peaks import measured
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed, peer
from benchmarks.record import AtMost, Failure, Faster, Row, Target

CALLS, TIMES, FEW = 100, 31, 3
ARRAYS, STAGES = 30, 50
WIDTHS, BATCH = (784, 1024, 1024, 10), 256
TIME, RNN_BATCH, RNN_WIDTH = 512, 32, 256
TINY = 10_000
Call = Callable[[], Any]


def run(options: Options = USUAL) -> Iterator[Row | Failure]:
    at = machine(options.quick)
    lines = {
        "call": call, "replay": replay, "mlp": mlp, "memory": memory,
        "rnn-scan": partial(rnn, in_python=False), "rnn-loop": partial(rnn, in_python=True),
        "while": whiles, "cond": conds,
    }  # fmt: skip
    for name, line in lines.items():
        if options.wants("programs", name):
            began = time.perf_counter()
            try:
                yield from line(options, at)
            except Exception as error:  # noqa: BLE001 whatever it is: time on a GPU is not spent twice
                traceback.print_exc()
                yield Failure(f"programs: {name}", f"{type(error).__name__}: {error}")
            at.release()
            print(f"  {name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------- the host's time


def host_time(call: Call, wait: Call, options: Options, count: int = CALLS) -> float:
    """Seconds until a call returns."""
    found = []
    for _ in range(FEW if options.quick else TIMES):
        wait()
        began = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - began) / count)
    wait()
    return median(found)


def launched(f: Any) -> str:
    """How a jitted function's launches went so far, and how many kernels it has."""
    report = f.report()
    return "; ".join([f"{len(report.kernels)} kernels", *report.launches])


def call(options: Options, at: Machine) -> Iterator[Row]:
    """`x * 2 + 1` on 8 floats."""
    f, x = lambda x: x * 2 + 1, at.xp.ones(8, np.float32)
    compiled = ge2.jit(f)
    calls: dict[str, Call] = {
        "ge2": lambda: compiled(x),
        "cupy" if at.is_gpu else "numpy": lambda: f(x),
    }
    if (jax := peer("jax")) is not None:
        theirs, y = jax.jit(f), to_jax(jax, x)
        calls["jax"] = lambda: theirs(y)
    if (torch := peer("torch")) is not None:
        z = to_torch(torch, x)
        calls["torch eager"] = lambda: f(z)
        calls["torch"] = torch.compile(lambda: f(z))
    for each in calls.values():
        for _ in range(3):
            each()
    times = {name: host_time(each, at.wait, options) for name, each in calls.items()}
    ours = times.pop("ge2")
    targets: tuple[Target, ...] = () if options.quick else (AtMost(8e-6), Faster(2.5, "jax"))
    yield Row("call of x*2+1 on 8 floats, host", "seconds", ours, times, targets, "float32")


def chain(*xs: Any) -> Any:
    """Running sums along one axis, then the other, which do not fuse: a kernel each."""
    y = xs[0]
    for i in range(STAGES):
        y = (y * xs[i % len(xs)]).cumsum(i % 2) * 0.125
    return y


def replay(options: Options, at: Machine) -> Iterator[Row]:
    """A hundred kernels, thirty arrays: the same each time, and others each time."""
    rng = np.random.default_rng(0)
    sets = [
        [at.xp.asarray(rng.standard_normal((64, 64)).astype(np.float32)) for _ in range(ARRAYS)]
        for _ in range(7)
    ]
    compiled = ge2.jit(chain)
    turn = iter(range(1 << 60))
    same: dict[str, Call] = {"ge2": lambda: compiled(*sets[0])}
    other: dict[str, Call] = {"ge2": lambda: compiled(*sets[next(turn) % 7])}
    if (jax := peer("jax")) is not None:
        theirs, lists = jax.jit(chain), [[to_jax(jax, x) for x in each] for each in sets]
        same["jax"] = lambda: theirs(*lists[0])
        other["jax"] = lambda: theirs(*lists[next(turn) % 7])
    for title, calls, bound in (("unchanged", same, 15e-6), ("all changed", other, 45e-6)):
        for each in calls.values():
            for _ in range(10):
                each()
        times = {name: host_time(each, at.wait, options, 20) for name, each in calls.items()}
        said = launched(compiled)
        notes = {"ge2": said}
        targets = () if options.quick else (AtMost(bound),)
        title = f"replay of 100 kernels, {ARRAYS} arrays, host; pointers {title}"
        yield Row(title, "seconds", times.pop("ge2"), times, targets, "float32", {}, notes)


# ----------------------------------------------------------------------------------- training steps


def product(lib: Any, a: Any, b: Any) -> Any:
    return ge2.numpy.matmul(a, b, precision="tf32") if lib is ge2 else a @ b


def loss(lib: Any, xp: Any, params: Any, x: Any, y: Any) -> Any:
    *hidden, (w, b) = params
    for v, c in hidden:
        x = xp.maximum(product(lib, x, v) + c, 0)
    z = product(lib, x, w) + b
    top = lib.lax.stop_gradient(z.max(-1, keepdims=True))
    logs = xp.log(xp.exp(z - top).sum(-1)) + top[:, 0]
    return (logs - xp.take_along_axis(z, y[:, None], -1)[:, 0]).mean()


def adamw(lib: Any, xp: Any, state: Any, x: Any, y: Any) -> Any:
    params, ms, vs, t = state
    value, grads = lib.value_and_grad(partial(loss, lib, xp))(params, x, y)
    t = t + 1
    first, second = 1 - 0.9**t, 1 - 0.999**t

    def update(p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * (m / first / (xp.sqrt(v / second) + 1e-8) + 0.01 * p), m, v

    found = [
        [update(*parts) for parts in zip(*layers, strict=True)]
        for layers in zip(params, grads, ms, vs, strict=True)
    ]
    new = [tuple(tuple(part[k] for part in layer) for layer in found) for k in range(3)]
    return (*new, t), value


def start(rng: Any, to: Callable[[Any], Any]) -> Any:
    def layer(n: int, m: int) -> tuple[Any, Any]:
        w = (rng.standard_normal((n, m)) / np.sqrt(n)).astype(np.float32)
        return to(w), to(np.zeros(m, np.float32))

    params = tuple(layer(n, m) for n, m in pairwise(WIDTHS))
    zeros = tuple(tuple(to(np.zeros(p.shape, np.float32)) for p in layer) for layer in params)
    more = tuple(tuple(to(np.zeros(p.shape, np.float32)) for p in layer) for layer in params)
    return params, zeros, more, to(np.zeros((), np.float32))


def stepper(step: Callable[..., Any], state: Any, *data: Any) -> Call:
    def go() -> Any:
        nonlocal state
        state, value = step(state, *data)
        return value

    return go


def mlp_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((BATCH, WIDTHS[0])).astype(np.float32), rng.integers(0, 10, BATCH)


def mlp_of_ge2(xp: Any, x: Any, y: Any) -> tuple[Any, Call]:
    """The jitted function, and a step with it."""
    ours = ge2.jit(partial(adamw, ge2, np), donate_argnums=0)
    return ours, stepper(
        ours, start(np.random.default_rng(1), xp.asarray), xp.asarray(x), xp.asarray(y)
    )


def mlp_of_jax(jax: Any, x: Any, y: Any) -> Call:
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    theirs = jax.jit(partial(adamw, jax, jax.numpy), donate_argnums=0)
    state = start(np.random.default_rng(1), jax.numpy.asarray)
    return stepper(theirs, state, jax.numpy.asarray(x), jax.numpy.asarray(y))


def mlp(options: Options, at: Machine) -> Iterator[Row]:
    x, y = mlp_data()
    ours, step = mlp_of_ge2(at.xp, x, y)
    calls = {"ge2": step}
    if (jax := peer("jax")) is not None:
        calls["jax"] = mlp_of_jax(jax, x, y)
    if (torch := peer("torch")) is not None and at.is_gpu:
        calls["torch graphs"] = torch_mlp(torch, x, y)
    losses = {name: [float(step()) for _ in range(3)] for name, step in calls.items()}
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["ge2"], rtol=5e-3, err_msg=name)
    host = host_time(calls["ge2"], at.wait, options, 20)
    times = rounds(calls, at.wait, options.rounds_or(9))
    if jax is not None:
        jax.config.update("jax_default_matmul_precision", None)
    notes = {"ge2": f"host {host * 1e6:.1f} us; {launched(ours)}"}
    targets = () if options.quick else (AtMost(0.12e-3),)
    title = "MLP 784-1024-1024-10, batch 256, tf32, cross-entropy, AdamW, donated"
    yield Row(
        title, "seconds", times.pop("ge2"), times, targets, "float32", {"batch": BATCH}, notes
    )


def memory(options: Options, at: Machine) -> Iterator[Row]:
    """The most memory of that step; without a GPU what is planned for it."""
    title = "peak memory of that step, with weights, moments and data"
    if not at.is_gpu:
        ours, step = mlp_of_ge2(at.xp, *mlp_data())
        step()
        planned = ours._last.executable.memory_analysis()
        yield Row(title, "bytes", planned.arguments + planned.peak, layout="float32")
        return
    found = {name: measured(name) for name in ("ge2", *installed(("jax", "torch")))}
    notes = {name: note for name, (_, note) in found.items()}
    others = {name: float(nbytes) for name, (nbytes, _) in found.items() if name != "ge2"}
    targets = () if options.quick or not others else (AtMost(min(others.values())),)
    yield Row(title, "bytes", found["ge2"][0], others, targets, "float32", {"batch": BATCH}, notes)


def torch_mlp(torch: Any, x: Any, y: Any, mode: str = "reduce-overhead") -> Call:
    """The step with torch's compiler and, by that mode, its graphs."""
    torch.set_float32_matmul_precision("high")
    params, *_ = start(np.random.default_rng(1), lambda a: torch.tensor(a, device="cuda"))
    flat = [p.requires_grad_() for layer in params for p in layer]
    optimizer = torch.optim.AdamW(
        flat, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True
    )
    data = torch.tensor(x, device="cuda"), torch.tensor(y, device="cuda")

    @torch.compile(mode=mode)
    def value(x: Any, y: Any) -> Any:
        for w, b in zip(flat[:-2:2], flat[1:-2:2], strict=True):
            x = torch.relu(x @ w + b)
        return torch.nn.functional.cross_entropy(x @ flat[-2] + flat[-1], y)

    def go() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        found = value(*data)
        found.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # they lie in the graph's memory
        return found.detach().clone()  # as above

    return go


# ------------------------------------------------------------------------------------- control flow


def rnn_loss(lib: Any, xp: Any, in_python: bool, weights: Any, xs: Any, h: Any) -> Any:
    by_x, by_h, bias = weights
    inputs = product(lib, xs, by_x) + bias

    def step(h: Any, x: Any) -> Any:
        h = xp.tanh(x + product(lib, h, by_h))
        return h, h

    if not in_python:
        return (lib.lax.scan(step, h, inputs)[1] ** 2).mean()
    total = 0.0
    for t in range(xs.shape[0]):
        h, y = step(h, inputs[t])
        total = total + (y * y).mean()
    return total / xs.shape[0]


def rnn(options: Options, at: Machine, in_python: bool) -> Iterator[Row]:
    rng, steps = np.random.default_rng(0), 16 if options.quick else TIME
    n, b = RNN_WIDTH, RNN_BATCH
    draw = [(n, n), (n, n), (n,), (steps, b, n), (b, n)]
    arrays = [(rng.standard_normal(s) / 16).astype(np.float32) for s in draw]

    def gradient(lib: Any, xp: Any, form: bool) -> Callable[..., Any]:
        return lib.grad(partial(rnn_loss, lib, xp, form))

    def call(f: Callable[..., Any], to: Callable[[Any], Any]) -> Call:
        a, b, c, xs, h = map(to, arrays)
        return lambda: f((a, b, c), xs, h)

    began = time.perf_counter()
    compiled = ge2.jit(gradient(ge2, np, in_python))
    calls = {"ge2": call(compiled, at.xp.asarray)}
    wanted = [back(at.xp, y) for y in leaves(calls["ge2"]())]
    at.wait()
    first = time.perf_counter() - began
    if (jax := peer("jax")) is not None:
        jax.config.update("jax_default_matmul_precision", "tensorfloat32")
        calls["jax"] = call(jax.jit(gradient(jax, jax.numpy, False)), jax.numpy.asarray)
        for y, w in zip([back(at.xp, y) for y in leaves(calls["jax"]())], wanted, strict=True):
            worst, largest = difference(y, w)
            assert worst <= 3e-2 * largest, f"JAX differs by {worst} of {largest}"
    calls["ge2"]()
    host = host_time(calls["ge2"], at.wait, options, 3)
    times = rounds(calls, at.wait, options.rounds_or(7))
    if jax is not None:
        jax.config.update("jax_default_matmul_precision", None)
    said = f"first call {first:.2f} s; host {host * 1e6:.0f} us; {launched(compiled)}"
    notes = {"ge2": said, **({"jax": "as scan"} if "jax" in calls else {})}
    form, bound = ("a Python loop", 6e-3) if in_python else ("scan", 5e-3)
    targets = () if options.quick else (AtMost(bound),)
    title = f"gradient of a {steps}-step tanh RNN, width 256, batch 32, tf32, as {form}"
    yield Row(title, "seconds", times.pop("ge2"), times, targets, "float32", {}, notes)


def tiny_while(lib: Any, xp: Any, x: Any) -> Any:
    def step(carry: Any) -> Any:
        count, x = carry
        return count + 1, x * 0.999 + 1.0

    return lib.lax.while_loop(lambda carry: carry[0] < TINY, step, (xp.int32(0), x))[1]


def either(lib: Any, xp: Any, x: Any) -> Any:
    for _ in range(10):
        x = lib.lax.cond(x.sum() > 0, lambda x: x * 0.5 - 1, lambda x: x * 2.0 + 1, x)
    return x


def compared(title: str, f: Callable[..., Any], options: Options, at: Machine) -> Iterator[Row]:
    x = at.xp.ones(64, np.float32)
    compiled = ge2.jit(partial(f, ge2, np))
    calls: dict[str, Call] = {"ge2": lambda: compiled(x)}
    if (jax := peer("jax")) is not None:
        theirs, given = jax.jit(partial(f, jax, jax.numpy)), to_jax(jax, x)
        calls["jax"] = lambda: theirs(given)
    found = [back(at.xp, leaves(each())[0]) for each in calls.values()]
    for y in found[1:]:
        assert difference(y, found[0])[0] <= 1e-3 * difference(y, found[0])[1]
    finish(calls["ge2"](), at.wait)
    times = rounds(calls, at.wait, options.rounds_or(5))
    targets = () if options.quick else (Faster(2, "jax"),)
    yield Row(title, "seconds", times.pop("ge2"), times, targets, "float32")


def whiles(options: Options, at: Machine) -> Iterator[Row]:
    yield from compared(f"a while loop of {TINY} tiny steps", tiny_while, options, at)


def conds(options: Options, at: Machine) -> Iterator[Row]:
    yield from compared("ten conds", either, options, at)
