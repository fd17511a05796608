"""Folds over windows are folds of slices, and mean what they meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view as windows

import ge2
from ge2.compile import compile_graph
from ge2.ir import verify
from ge2.passes.split_edges import Windowed, written_windows
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200
from tests.compared import all_close, all_equal
from tests.kernels.programs import needs_compiler

X = np.random.default_rng(0).standard_normal((2, 9, 11, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)

WRITTEN = {
    "pooling": lambda x, w: windows(x, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(-1, -2)),
    "padded": lambda x, w: windows(np.pad(x, 1), (2, 4), axis=(1, 2)).min(axis=(-2, -1)),
    "squares": lambda x, w: (windows(x, (2, 4), axis=(1, 2)) ** 2).mean(axis=(-1, -2)),
    "filter": lambda x, w: (windows(x, (3, 3), axis=(1, 2)) * w).sum(axis=(-1, -2)),
    "lines": lambda x, w: windows(x, 5, axis=1).sum(-1) - windows(x, 5, axis=1).prod(-1),
    "deviation": lambda x, w: windows(x, (3, 3), axis=(1, 2)).std(axis=(-1, -2)),
    "products": lambda x, w: np.einsum("bijckl,kl->bcij", windows(x, (3, 3), axis=(1, 2)), w),
    "a product by channels": lambda x, w: np.einsum(
        "bijckl,kc->bcij", windows(x, (3, 2), axis=(1, 2)), w
    ),
    "a product with a vector": lambda x, w: windows(x[0, 0, :, 0], 3)[::2] @ w[0],
    "turned": lambda x, w: windows(x[0, :, :, 0].T, (2, 2))[1::3, ::2].sum(axis=(2, 3)),
    "places of windows": lambda x, w: windows(x, 3, axis=1).sum(axis=1),
}
LEFT = {
    "one axis of two": lambda x, w: windows(x, (3, 3), axis=(1, 2)).max(-1),
    "half types": lambda x, w: windows(x.astype(ge2.bfloat16), 3, axis=1).sum(-1),
    "long": lambda x, w: windows(x.reshape(-1), 100).sum(-1),
}

V = np.random.default_rng(2).standard_normal((4, 3, 2, 3)).astype(np.float32)


def convolved(x: Any, v: Any, step: int = 1, apart: int = 1, of: str = "nhwcij,ocij->nohw") -> Any:
    spans = tuple(apart * (n - 1) + 1 for n in v.shape[2:])
    seen = windows(x, spans, axis=(1, 2))[:, ::step, ::step, :, ::apart, ::apart]
    return np.einsum(of, seen, v)


MULTIPLIED = {
    "convolution": convolved,
    "with steps": lambda x, v: convolved(x, v, 3),
    "dilated": lambda x, v: convolved(np.pad(x, ((0, 0), (2, 1), (1, 1), (0, 0))), v, 2, 3),
    "features last": lambda x, v: convolved(x, v, of="nhwcij,ocij->nhwo"),
    "features first": lambda x, v: convolved(np.moveaxis(np.moveaxis(x, 3, 1), 1, 3), v, 2),
    "of one axis": lambda x, v: np.einsum("nhwci,oci->nowh", windows(x, 3, axis=1), v[:, :, 0]),
    "by columns": lambda x, v: windows(x, (2, 3), axis=(1, 2)).reshape(-1, 18) @ v.reshape(4, 18).T,
    "twice": lambda x, v: (convolved(x, v), convolved(x, v, 2), windows(x, (9, 9), axis=(1, 2)).sum((4, 5))),
}  # fmt: skip


def graphs(f: Any) -> tuple[Any, Any]:
    graph = ge2.make_jaxpr(f)(X, W).graph
    return graph, verify(written_windows(graph))


@pytest.mark.exhaustive
@pytest.mark.parametrize("f", WRITTEN.values(), ids=WRITTEN)
def test_windows_are_slices(f: Any) -> None:
    graph, found = graphs(f)
    assert "gather" not in [e.op.name for e in found.eqns]
    all_close(found(X, W), graph(X, W), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(ge2.jit(f)(X, W), f(X, W), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("f", LEFT.values(), ids=LEFT)
def test_other_windows_are_views(f: Any) -> None:
    graph, found = graphs(f)
    names = [e.op.name for e in found.eqns]
    assert "windows" in names and "gather" not in names
    all_equal(found(X, W), graph(X, W))


READ = {
    **{name: f for name, f in LEFT.items() if name != "half types"},  # whose sums NumPy rounds oftener
    "every third, of every second": lambda x, w: windows(x, (5, 9), axis=(1, 2))[:, ::3, ..., ::2, 1::3].mean((-1, -2)),
    "a product": lambda x, w: windows(x, (3, 3), axis=(1, 2)).reshape(2, 7, 9, 3, 9) @ w.reshape(9),
    "a product with a matrix": lambda x, w: windows(x[0, 0, :, 0], 3) @ w,
    "a product of two": lambda x, w: windows(x[0, 0, :, 0], 4).T @ windows(x[0, 0, :, 1], 4),
    "sums of products": lambda x, w: np.einsum("bijckl,kd->bdij", windows(x, (3, 3), axis=(1, 2)), w),
    "a row of one place": lambda x, w: windows(x[0, 0, :, 0], 1) * 2,
    "one window": lambda x, w: windows(x[0, 0, :, 0], 11) * 2,
    "of what is made": lambda x, w: (windows(np.tanh(x) * 2, 4, axis=2) - x[:, :, :8, :, None]).max((1, -1)),
    "returned": lambda x, w: (windows(x, 4, axis=2), windows(x, 4, axis=2)[..., ::-1] + 1),
    "sorted": lambda x, w: np.sort(windows(x, 5, axis=1), -1)[..., 2],
    "backwards": lambda x, w: windows(x[:, ::-1], 4, axis=1)[..., ::-1].cumsum(-1),
    "written over": lambda x, w: windows(x * 2, 4, axis=1) + windows(x * 2, 4, axis=1)[..., ::-1],
    "joined": lambda x, w: np.concatenate([windows(x, 4, axis=1)[..., :2], windows(x, 4, axis=1)[..., 2:] * 2], -1),
}  # fmt: skip


@needs_compiler
@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "shim", "blocked"])
@pytest.mark.parametrize("f", READ.values(), ids=READ)
def test_windows_are_read_where_they_are(f: Any, executor: str) -> None:
    with ge2.config.using(executor=executor):
        found = ge2.jit(f)(X, W)
    wanted = f(X, W)
    several = isinstance(wanted, tuple)
    for y, z in zip(found if several else (found,), wanted if several else (wanted,), strict=True):
        assert y.dtype == z.dtype
        np.testing.assert_allclose(y.astype("f4"), z.astype("f4"), rtol=2e-5, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["sums of products", "every third, of every second", "long"])
def test_gradients_of_windows(name: str) -> None:
    slope = ge2.grad(lambda x, w: (READ[name](x, w) ** 2).sum())
    with ge2.config.using(executor="c"):
        np.testing.assert_allclose(ge2.jit(slope)(X, W), slope(X, W), rtol=2e-4, atol=2e-4)


def test_windows_are_never_in_memory() -> None:
    """Of large ones a kernel reads each element where it is."""
    f = lambda x: windows(x, (11, 11), axis=(2, 3))[:, :, ::11, ::11].mean((-1, -2))  # noqa: E731
    graph = ge2.make_jaxpr(f)(ge2.ShapeDtypeStruct((16, 8, 512, 512), np.float32)).graph
    low = compile_graph(graph, name="f", device=OfflineDevice(H200))
    assert len(low.kernels) == 1


@needs_compiler
@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize("f", MULTIPLIED.values(), ids=MULTIPLIED)
def test_products_of_windows(f: Any, executor: str) -> None:
    with ge2.config.using(executor=executor):
        jitted = ge2.jit(f)
        found, steps = jitted(X, V), jitted.lower(X, V).executable.program.steps
    all_close(ge2.tree.leaves(found), ge2.tree.leaves(f(X, V)), rtol=2e-5, atol=1e-5)
    assert "gather" not in [s.name for s in steps]


def test_products_take_windows_as_they_lie_on_a_gpu() -> None:
    """The windows of a convolution are in memory once, in an order that is not copied again."""
    for of in ("nchwij,ocij->nohw", "nchwij,ocij->nhwo", "nchwij,cijo->onhw"):

        def f(x: Any, w: Any, of: str = of) -> Any:
            return np.einsum(of, windows(x, (3, 3), axis=(2, 3)), w)

        filters = (64, 3, 3, 64) if "cijo" in of else (64, 64, 3, 3)
        steps = planned(f, ((8, 64, 58, 58), "f4"), (filters, "f4")).kernels
        assert [k.kind for k in steps][:1] == ["pointwise"]
        assert not any("dot_general" in k.ops for k in steps)  # whose operands would be copied


def planned(f: Any, *shapes: tuple[tuple[int, ...], str]) -> Any:
    """The program of such arrays for an H200, of which none is made."""
    arrays = [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in shapes]
    graph = ge2.make_jaxpr(f)(*arrays).graph
    return compile_graph(graph, name="f", device=OfflineDevice(H200))


def test_windows_of_windows_are_not_computed_again() -> None:
    """Seven rows of seven columns are two kernels of seven reads each, not one of 49."""

    def dilated(a: Any) -> Any:
        p, n = np.pad(a, 3, mode="edge"), a.shape[0]
        rows = p[:, :n]
        for s in range(1, 7):
            rows = np.maximum(rows, p[:, s : s + n])
        found = rows[:n]
        for s in range(1, 7):
            found = np.maximum(found, rows[s : s + n])
        return found

    steps = planned(dilated, ((2048, 2048), "u1")).program.steps
    assert [s.name for s in steps if s.kind == "kernel"] == ["pointwise", "pointwise"]


def test_few_elements_that_are_folded_twice_are_two_kernels() -> None:
    """A block would have 3 x 2 elements of each of a million triangles."""

    def stiffness(edges: Any, u: Any) -> Any:
        return np.einsum("mij,mj->mi", np.einsum("mid,mjd->mij", edges, edges) / 4.0, u)

    found = planned(stiffness, ((1 << 20, 3, 2), "f8"), ((1 << 20, 3), "f8"))
    (choice,) = [k.choice for k in found.kernels]
    assert str(choice).startswith("region in CUDA, in two")


def test_a_fold_without_windows_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction over 50 places was written out 50 times to find that none reads windows."""
    parts = []
    part = Windowed.part

    def counted(self: Windowed, x: Any, fixed: dict[int, int]) -> Any:
        parts.append(fixed)
        return part(self, x, fixed)

    monkeypatch.setattr(Windowed, "part", counted)
    x, i = np.ones((9, 5)), np.arange(3)
    jaxpr = ge2.make_jaxpr(lambda x, i: np.sum(np.sin(x) * 2, axis=0) + x[i[0]])(x, i)
    assert written_windows(jaxpr.graph) is not None
    assert 0 < len(parts) <= 4
