"""PyTorch's tensors in and out of functions, with gradients of first and second order."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.errors import DeviceError, InputError

try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")
if torch is not None:
    bridge = ge2.io.torch.function


@pytest.fixture(autouse=True)
def seed():
    if torch is not None:
        torch.manual_seed(0)


def tensor(*shape, dtype=None, grad=True):
    return torch.randn(*shape, dtype=dtype or torch.float64, requires_grad=grad)


def layer(x, w, b):
    return np.tanh(x @ w + b).sum(1)


def test_without_pytorch_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    ge2.io.torch.module.cache_clear()
    with pytest.raises(DeviceError, match="try  pip install torch"):
        ge2.io.torch.function(np.sin)(1.0)


@needs_torch
def test_results_and_gradients_are_pytorchs():
    x, w, b = tensor(4, 3), tensor(3, 5), tensor(5)
    mine, theirs = bridge(layer)(x, w, b), torch.tanh(x @ w + b).sum(1)
    torch.testing.assert_close(mine, theirs)
    ct = torch.randn(4, dtype=torch.float64)
    grads = [torch.autograd.grad(y, (x, w, b), ct, retain_graph=True) for y in (mine, theirs)]
    torch.testing.assert_close(*grads)
    (other,) = torch.autograd.grad(bridge(layer)(x, w.detach(), b.detach()).sum(), x)
    torch.testing.assert_close(other, torch.autograd.grad(theirs.sum(), x)[0])


@needs_torch
def test_derivatives_of_both_orders():
    args = tensor(2, 3), tensor(3, 2), tensor(2)
    f = bridge(lambda x, w, b: (np.exp(layer(x, w, b)), (x * x).sum()))
    assert torch.autograd.gradcheck(f, args)
    assert torch.autograd.gradgradcheck(f, args)
    z = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    for g in (lambda z: np.abs(z * z + 1), lambda z: z * np.exp(1j * z), lambda z: z.real * z.imag):
        assert torch.autograd.gradcheck(bridge(g), z)
        assert torch.autograd.gradgradcheck(bridge(g), z)


@needs_torch
def test_containers_numbers_and_what_has_no_gradient():
    def f(p, by, mode):
        return {"y": p["x"] * by, "up": p["x"] > 0, "n": p["n"] + 1, "three": 3, "none": None}

    p = {"x": tensor(3), "n": torch.arange(3)}
    found = bridge(f)(p, 2.0, mode="m")
    assert found["three"] == 3
    assert found["none"] is None
    assert found["n"].tolist() == [1, 2, 3]
    assert not found["up"].requires_grad
    found["y"].sum().backward()
    assert p["x"].grad.tolist() == [2.0] * 3
    with torch.no_grad():
        assert bridge(f)(p, 2.0, "m")["y"].grad_fn is None
    assert bridge(f)({"x": 2.0, "n": 1}, 2.0, "m")["y"] == 4.0


@needs_torch
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int8", "uint8", "bool", "complex64"])  # fmt: skip
def test_every_dtype_goes_in_and_out(name):
    x = torch.tensor([[1, 0, 1]]).to(getattr(torch, name))
    for y in (x, x.T, x.expand(2, 3), x[0, 0], x[:, :0]):
        found = bridge(lambda x: x)(y)
        assert found.dtype == y.dtype
        assert torch.equal(found, y)
        assert np.array_equal(ge2.jit(lambda x: x)(y), ge2.io.torch.array(y))
    assert ge2.io.torch.tensor(ge2.io.torch.array(x)).data_ptr() == x.data_ptr()


@needs_torch
def test_half_types_have_gradients_and_float8_travels():
    x = tensor(5, dtype=torch.bfloat16)
    bridge(np.sin)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x.detach()))
    low = torch.randn(4).to(torch.float8_e4m3fn)
    assert ge2.jit(lambda x: x)(low).dtype.name == "float8_e4m3fn"
    assert bridge(lambda x: x)(low).dtype == low.dtype
    z = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    assert ge2.jit(lambda z: z)(z) == 1 - 2j


@needs_torch
def test_arguments_are_not_copied_and_their_change_is_noticed():
    x, w, b = tensor(4, 3), tensor(3, 5), tensor(5)
    y = bridge(layer)(x, w, b)
    assert len(y.grad_fn.kept.arrays) < len(y.grad_fn.kept.places)
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    same = bridge(lambda x: x)(w)
    assert same.data_ptr() != w.data_ptr()


@needs_torch
def test_compiles_once_for_a_training_loop():
    calls = []

    def loss(p, x):
        calls.append(None)
        return (np.tanh(x @ p["w"]) ** 2).mean()

    f, p = bridge(loss), {"w": tensor(3, 2)}
    optimizer = torch.optim.SGD(p.values(), lr=0.5)
    x = tensor(8, 3, grad=False)
    first = f(p, x)
    for _ in range(5):
        optimizer.zero_grad()
        value = f(p, x)
        value.backward()
        optimizer.step()
    assert value < first
    assert len(calls) <= 2  # for the types, and for both halves


@needs_torch
def test_what_a_jitted_function_does_not_take_is_said():
    f = ge2.jit(lambda x: x + 1)
    with pytest.raises(InputError, match=r"a gradient(.|\n)*try  ge2.io.torch.function\(f\)"):
        f(tensor(3))
    for bad in (torch.ones(2, 2).to_sparse(), torch.ones(3, device="meta")):
        with pytest.raises(InputError, match="x of .* is a Tensor, which gives no array by DLPack"):
            f(bad)
        with pytest.raises(InputError, match="has no array"):
            bridge(lambda x: x)(bad)
    with pytest.raises(ge2.errors.TraceError, match="truth of flag"):
        bridge(lambda x, flag: x if flag else -x)(tensor(3), True)
    with pytest.raises(InputError, match="no torch.func"):
        torch.func.vmap(bridge(np.sin))(torch.ones(2))
    with pytest.raises(InputError, match="Tensor is neither an array nor a number"):
        ge2.jit(lambda x: x + torch.ones(3))(np.ones(3))
