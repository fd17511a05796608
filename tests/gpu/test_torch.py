"""PyTorch's tensors on a GPU: work is on the stream that PyTorch has."""

from __future__ import annotations

import numpy as np
import pytest

import ge2

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU")


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_on_a_gpu_by_pytorchs_current_stream(name):
    dtype, stream = getattr(torch, name), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, w = (torch.randn(512, 512, device="cuda", dtype=dtype, requires_grad=True) for _ in "xw")
        torch.cuda._sleep(50_000_000)
        with torch.no_grad():
            x *= 2  # after the pause: who does not wait on the stream reads what was before
        y = ge2.io.torch.function(lambda x, w: np.tanh(x * w))(x, w)
        y.sum().backward()
        mine = y.detach(), x.grad, w.grad
        exact = [a.detach().double().requires_grad_() for a in (x, w)]
        z = torch.tanh(exact[0] * exact[1])
        z.sum().backward()
    stream.synchronize()
    # A kept tanh is off by half a unit: 1 - y * y by a whole one, which the other factor multiplies.
    unit = torch.finfo(dtype).eps
    off = [unit, *(2 * unit * a.detach().abs().max().item() for a in exact[::-1])]
    for a, b, atol in zip(mine, (z.detach(), exact[0].grad, exact[1].grad), off, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2 * unit, atol=atol)
    assert type(ge2.jit(lambda x: x)(x.detach())).__module__.startswith("cupy")
