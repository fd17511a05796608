"""Steps of any kind make their results where a join, a pad or a slice has them: no copies after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.program import Program
from tests.compared import all_close

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2, 24, 20))
ROWS = rng.integers(-24, 24, 9)


def exclusive(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([np.zeros_like(x[:, :1]), np.cumsum(x[:, :-1], 1)], 1)


def exclusive_down(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, 0)[:-1]])


def sorted_beside_order(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([np.sort(x, 1), np.argsort(y, 1).astype(float)], 1)


def orders(x: Any, y: Any, rows: Any) -> Any:
    return np.stack([np.argsort(x, 0), np.argsort(y, 0)], 1)


def gathered(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([x[rows], np.sin(y), y[:, ::-1][rows]])


def padded(x: Any, y: Any, rows: Any) -> Any:
    return np.pad(np.cumsum(x, 1), ((1, 2), (3, 0)))


def nested(x: Any, y: Any, rows: Any) -> Any:
    inner = np.concatenate([np.cumsum(x, 0), np.cos(y)], 1)
    return np.pad(np.concatenate([np.pad(np.sort(y, 0), ((1, 1), (4, 16))), inner]), 1)


def interleaved(x: Any, y: Any, rows: Any) -> Any:
    return np.stack([np.cumsum(x, 1), np.sin(y)], -1).reshape(24, 40)


def transposed(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([np.cumsum(x, 1).T, (np.sin(y) * x).T, y[rows].T], 1)


def copied(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([x.T.reshape(-1), np.cumsum(y)])


def copied_beside(x: Any, y: Any, rows: Any) -> Any:
    heads = [np.swapaxes(a.reshape(2, 12, 20), 0, 1).reshape(12, 40) for a in (np.sort(x, 1), y)]
    return np.concatenate([*heads, np.cumsum(x, 1)[::2]], 1)


def copied_apart(x: Any, y: Any, rows: Any) -> Any:
    return np.stack([x.T.reshape(24, 20), np.cumsum(y, 1).T.reshape(24, 20)], 2)


def counted(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([np.arange(7), np.argsort(x[0]), np.ones(5, int)])


def read_twice(x: Any, y: Any, rows: Any) -> Any:
    s = np.cumsum(x, 1)
    return np.concatenate([s, s], 1), np.concatenate([np.cumsum(y, 1), x]), s[3]


def written(x: Any, y: Any, rows: Any) -> Any:
    z = x * 2.0
    z[1:-1] = np.cumsum(y[1:-1], 0)
    z[:, 3] = np.sort(z[:, 4])
    return z


def written_around(x: Any, y: Any, rows: Any) -> Any:
    z = x.copy()
    z[3:9] = np.cumsum(y[3:9], 1)
    w = y.copy()
    w[2:-2, 5:] = np.sort(x[2:-2, 5:], 1)
    return z, w


def product(x: Any, y: Any, rows: Any) -> Any:
    return np.concatenate([x @ y.T, y @ x.T], 1), np.stack([x.T @ y, y.T @ x])


def updated_after(x: Any, y: Any, rows: Any) -> Any:
    z = np.concatenate([np.cumsum(x, 0), y])
    z[rows] = z[0] * 2.0
    return np.concatenate([z, np.sort(z, 0)], 1)


def written_and_padded(x: Any, y: Any, rows: Any) -> Any:
    z = np.zeros((47, 39))
    z[::2, ::2] = x
    return np.cumsum(np.pad(z, ((1, 2), (2, 0))), 1)


def written_and_joined(x: Any, y: Any, rows: Any) -> Any:
    z, w = np.cumsum(x, 1), np.sort(y, 1)
    z[3:-3] = y[3:-3]
    w[:, ::3] = x[:, ::3]
    return np.concatenate([z, np.cos(x), np.pad(w, ((2, 0), (1, 1)))[:, 1:-1]])


def in_a_loop(x: Any, y: Any, rows: Any) -> Any:
    def body(c: Any, t: Any) -> Any:
        s = np.concatenate([np.cumsum(c[:1], 1), np.sort(c[:-1], 1) + t])
        return s, s.sum()

    return ge2.lax.scan(body, x, np.arange(3.0))


def draw(programs: list[Any]) -> Any:
    return pytest.mark.parametrize("f", programs, ids=lambda f: f.__name__)


PROGRAMS = [
    exclusive, exclusive_down, sorted_beside_order, orders, gathered, padded, nested, interleaved,
    transposed, copied, copied_beside, copied_apart, counted, read_twice, written, written_around,
    product, updated_after, written_and_padded, written_and_joined,
]  # fmt: skip


def steps(f: Any, executor: str) -> Program:
    with config.using(executor=executor):
        return ge2.jit(f).lower(X, Y, ROWS).executable.program


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "shim"])
@draw([*PROGRAMS, in_a_loop])
def test_parts_made_in_place_mean_the_same(f: Any, executor: str) -> None:
    with config.using(executor=executor):
        found = ge2.jit(f)(X, Y, ROWS)
    with config.using(executor="blocked"):
        wanted = ge2.jit(f)(X, Y, ROWS) if f is in_a_loop else f(X.copy(), Y.copy(), ROWS)
    all_close(ge2.tree.leaves(found), ge2.tree.leaves(wanted), rtol=1e-12, atol=1e-12)


def is_move(step: Any) -> bool:
    """True of a step that copies parts which are not where they belong."""
    parts = len(step.eqn.inputs) if step.name in ("concatenate", "pad", "update_slice") else 0
    return step.kind == "kernel" and len(step.shared) < parts


@pytest.mark.parametrize("executor", ["c", "shim"])
def test_parts_are_not_copied(executor: str) -> None:
    """Nor are small ones, if one launch less is no launch more."""
    for f in (orders, padded, nested, copied, written, *[exclusive, gathered][: executor == "c"]):
        assert not any(map(is_move, steps(f, executor).steps)), f.__name__


def test_large_parts_are_not_copied_on_a_gpu() -> None:
    """Of a join of so many elements the launches are no longer what counts."""
    x = ge2.ShapeDtypeStruct((1024, 1024), "float32")
    with config.using(executor="shim"):
        for f in (exclusive, exclusive_down, sorted_beside_order, product):
            program = ge2.jit(f).lower(x, x, ROWS).executable.program
            assert not any(map(is_move, program.steps)), f.__name__


def test_what_is_read_twice_is_copied() -> None:
    assert sum(map(is_move, steps(read_twice, "c").steps)) == 2


IMAGES, LAYERS = rng.standard_normal((3, 5, 4, 6)), rng.standard_normal((7, 5))
TURNED = {
    "channels": lambda x, w: np.einsum("nchw,oc->nohw", x, w),
    "all turned": lambda x, w: np.einsum("nchw,oc->ohwn", x, w),
    "one of two": lambda x, w: np.einsum("nchw,oc->nhow", x, w),
    "many matrices": lambda x, w: w @ x[:, :, 0],
    "beside": lambda x, w: np.einsum("nchw,nc->hwn", x, x[:, :, 0, 0]),
    "reshaped": lambda x, w: (x[:, :, 0, 0] @ w.T).reshape(-1),
}


@pytest.mark.parametrize("f", TURNED.values(), ids=TURNED)
def test_products_are_made_as_they_are_returned_on_a_gpu(f: Any) -> None:
    """BLAS writes a result in the order of its axes that is asked for."""
    with config.using(executor="emulator"):
        jitted = ge2.jit(f)
        found, program = jitted(IMAGES, LAYERS), jitted.lower(IMAGES, LAYERS).executable.program
    np.testing.assert_allclose(found, f(IMAGES, LAYERS), rtol=1e-12, atol=1e-12)
    assert "copy" not in [s.kind for s in program.steps]


def test_products_are_turned_after_where_blas_would_be_called_often() -> None:
    """As are those that something else reads."""

    def often(x: Any, w: Any) -> Any:
        return np.einsum("nchw,oc->hnow", x, w)

    def twice(x: Any, w: Any) -> Any:
        y = np.einsum("nchw,oc->nhwo", x, w)
        return y.transpose(0, 3, 1, 2), y

    for f in (often, twice):
        with config.using(executor="emulator"):
            found = ge2.jit(f)(IMAGES, LAYERS)
            program = ge2.jit(f).lower(IMAGES, LAYERS).executable.program
        all_close(
            ge2.tree.leaves(found), ge2.tree.leaves(f(IMAGES, LAYERS)), rtol=1e-12, atol=1e-12
        )
        assert "copy" in [s.kind for s in program.steps]
