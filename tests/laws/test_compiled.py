"""What holds for compiled C: its text does not know the batch, its bits do not know the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.compiler import significant
from ge2.base.config import config
from tests.kernels.made_cases import softmax
from tests.together import needs_compiler, together
from tests.transforms.functions import FUNCTIONS, points

pytestmark = needs_compiler
Function = Callable[..., Any]


def layernorm(x):
    y = x - x.mean(-1, keepdims=True)
    return y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)


def standardised(x):
    return (x - x.mean(0)) / (x.std(0) + 1e-3)


def cross_entropy(z, y):
    top = z.max(-1, keepdims=True)
    logs = z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))
    return -logs[np.arange(z.shape[0]), y].mean()


def layer(x, w, b):
    return np.tanh(x @ w + b)


def loss(x, w, b):
    return (layer(x, w, b) ** 2).mean()


# ------------------------------------------------------------------------ the text of another batch

W, B = np.ones((20, 40), np.float32), np.ones(40, np.float32)
BATCHED: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "elementwise": (lambda x: np.tanh(x) * x + 1.0, ()),
    "bias": (lambda x: np.maximum(x + x.sum(1, keepdims=True), 0.0), ()),
    "softmax": (softmax, ()),
    "layernorm": (layernorm, ()),
    "standardised": (standardised, ()),
    "whole": (lambda x: (x * x).sum(), ()),
    "mean of rows": (lambda x: x.mean(0), ()),
    "argmax": (lambda x: np.argmax(x, 1), ()),
    "turned": (lambda x: x.T * 2.0, ()),
    "joined": (lambda x: np.concatenate([x[:, 10:], x[:, :10] * 2.0], 1), ()),
    "cumsum": (lambda x: np.cumsum(x, 1), ()),
    "layer": (layer, (W, B)),
    "gradient of a layer": (ge2.grad(loss, argnums=(1, 2)), (W, B)),
    "gradient of softmax": (ge2.grad(lambda x: (softmax(x) ** 2).sum()), ()),
    "vmapped": (ge2.vmap(lambda x, w, b: layer(x, w, b), in_axes=(0, None, None)), (W, B)),
}
INNER = frozenset(("turned",))  # where the batch is an inner axis, short ones are written out


@pytest.mark.parametrize("name", BATCHED)
def test_the_text_does_not_know_the_batch(name):
    f, more = BATCHED[name]
    batches = (128, 29, 64, *(() if name in INNER else (7,)))
    with together():
        texts = [text_of(f, np.ones((n, 20), np.float32), *more) for n in batches]
    assert texts[0]
    assert texts.count(texts[0]) == len(texts)


def test_the_text_of_a_loss_with_labels_does_not_know_the_batch():
    step = ge2.value_and_grad(cross_entropy)
    with together():
        texts = [
            text_of(step, np.ones((n, 10), np.float32), np.arange(n) % 10) for n in (128, 29, 7)
        ]
    assert texts.count(texts[0]) == len(texts)


def test_another_number_of_columns_may_be_another_text():
    with together():
        texts = [text_of(softmax, np.ones((64, n), np.float32)) for n in (3, 300)]
    assert texts[0] != texts[1]


def text_of(f: Function, *arrays: Any) -> str:
    return significant(ge2.jit(f).lower(*arrays).executable.text("c"))


# ----------------------------------------------------- long axes, any layout, any number of threads


def rows(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


# several runs, tasks, panels, and arrays off the stack
LONG: dict[str, tuple[Function, tuple[int, ...]]] = {
    "a long sum": (lambda x: (np.sum(np.tanh(x) ** 2), x.max(), x.min()), (3_000_017,)),
    "long rows": (lambda x: (x.sum(1), x.max(1), (x * x).mean(1)), (70, 5003)),
    "many columns": (lambda x: (x.sum(0), x.max(0), (x * x).sum(0)), (300, 5003)),
    "few columns": (lambda x: (x.sum(0), x.min(0)), (60_001, 7)),
    "a middle axis": (lambda x: (x.sum(1), x.mean((0, 2))), (40, 50, 301)),
    "softmax": (softmax, (300, 1025)),
    "long softmax": (softmax, (17, 20_011)),
    "layernorm": (layernorm, (257, 1030)),
    "standardised": (standardised, (5001, 67)),
    "standardised, wide": (standardised, (101, 4999)),
    "argmax": (lambda x: (np.argmax(x, 1), np.argmin(x, 0)), (301, 1027)),
    "turned": (lambda x: (x.T + 1.0, x.T.sum(0), x + x.T.T), (517, 1031)),
    "reversed": (lambda x: (x[::-1] * x, x[:, ::-1].sum(0), x[::3, 5::7] * 2.0), (600, 1001)),
    "shifted": (
        lambda x: x[1:-1, 1:-1] * -4.0 + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2],
        (700, 900),
    ),
    "beside": (lambda x: x[:, None, :] * x[None, :50, :], (60, 400)),
    "joined": (lambda x: np.concatenate([x[200:] * 2.0, x[:200]], 0), (999, 501)),
    "cumsum": (lambda x: (np.cumsum(x, 1), np.cumsum(x, 0), np.cumsum(x.ravel())), (150, 1501)),
    "sorted": (lambda x: np.sort(x, 1), (60, 1500)),
    "taken": (lambda x: x[np.arange(3000) * 7 % 500] * 2.0, (500, 101)),
    "permuted": (lambda x: x.transpose(2, 0, 1).sum(1) + x.sum(0).T, (50, 60, 70)),
    "a product": (lambda x: np.tanh(x @ x.T) + 1.0, (300, 200)),
}


@pytest.fixture(scope="module")
def long() -> dict[str, tuple[Any, list[Any]]]:
    """Arguments, and executables for 1, 2 and 3 threads, by name."""
    found = {}
    with together():
        for name, (f, shape) in LONG.items():
            x = rows(np.random.default_rng(len(name)), *shape)
            made = []
            for threads in (1, 2, 3):
                with config.using(threads=threads):
                    made.append(ge2.jit(f).lower(x).executable)
                    made[-1].build()
            found[name] = x, made
    return found


@pytest.mark.full_options  # errors of long sums are those of vectors
@pytest.mark.parametrize("name", LONG)
def test_long_axes_on_any_number_of_threads(name, long):
    f, _ = LONG[name]
    x, executables = long[name]
    exact, plain = results(f(x.astype(np.float64))), results(f(x))
    given = [np.arange(3000) * 7 % 500] if len(executables[0].graph.inputs) > 1 else []
    bits = set()
    for executable in (*executables, executables[-1]):
        got = executable(*given, x) if given else executable(x)
        bits.add(b"".join(y.tobytes() for y in got))
        for y, e, p in zip(got, exact, plain, strict=True):
            assert (y.shape, y.dtype) == (p.shape, p.dtype)
            if y.dtype.kind == "i":
                np.testing.assert_array_equal(y, e)
                continue
            ours, theirs = abs(y - e).max(), abs(p - e).max()
            assert ours <= 2 * theirs + 2 * np.finfo(y.dtype).eps * abs(e).max()
    assert len(bits) == 1


def results(y: Any) -> list[Any]:
    return [np.asarray(a) for a in (y if isinstance(y, tuple) else (y,))]


# ---------------------------------------------------------------------------------------- gradients


def gradients(f: Function) -> list[Function]:
    return [
        ge2.value_and_grad(lambda x: f(x).sum()),
        ge2.vmap(ge2.grad(lambda x: (f(x) * f(x)).sum())),
    ]


@pytest.fixture(scope="module")
def in_c() -> dict[str, list[Any]]:
    """Gradients of each function, compiled, and where they are taken."""
    x = points(np.random.default_rng(0), 3)
    found = {}
    with together("-O0"), config.using(threads=2):
        for name, f in FUNCTIONS.items():
            found[name] = [
                (g, ge2.jit(g), at) for g, at in zip(gradients(f), (x[0], x), strict=True)
            ]
            for _, jitted, at in found[name]:
                jitted.lower(at).executable.build()
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_reference(name, in_c):
    for g, jitted, at in in_c[name]:
        with config.using(executor="reference"):
            wanted = results(ge2.jit(g)(at))
        with config.using(threads=2):
            found = results(jitted(at))
        for y, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-12, atol=1e-13)
