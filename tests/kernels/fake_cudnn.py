"""What stands in place of NVIDIA's front end of cuDNN: it notes what is asked for, and computes it by
NumPy at the addresses that it is handed.
"""

from __future__ import annotations

import ctypes
from enum import Enum
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

Types = Enum("Types", ("HALF", "BFLOAT16", "FLOAT"))
DTYPES = {
    Types.HALF: np.dtype("f2"),
    Types.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    Types.FLOAT: np.dtype("f4"),
}


class NotSupportedError(Exception):
    """What the front end raises where cuDNN has no such graph."""


class Tensor:
    def __init__(self, **given: Any) -> None:
        self.given = given

    def set_output(self, value: bool) -> Tensor:
        self.given["output"] = value
        return self

    def set_dim(self, value: list[int]) -> Tensor:
        self.given["dim"] = value
        return self

    def set_stride(self, value: list[int]) -> Tensor:
        self.given["stride"] = value
        return self

    def set_data_type(self, value: Types) -> Tensor:
        self.given["data_type"] = value
        return self

    def at(self, place: int) -> Any:
        """The array at an address."""
        dtype, dims, strides = (
            DTYPES[self.given["data_type"]],
            self.given["dim"],
            self.given["stride"],
        )
        memory: Any = (ctypes.c_char * dtype.itemsize).from_address(place)
        one = np.ndarray((1,), dtype, memory)
        nbytes = [s * dtype.itemsize for s in strides]
        return np.lib.stride_tricks.as_strided(one, dims, nbytes)


class Graph:
    """A graph of one operation: `name`, its tensors, and what else it is told."""

    def __init__(self, module: FakeCudnn, **given: Any) -> None:
        self.module, self.given = module, given
        self.name, self.tensors, self.about = "", (), {}  # type: ignore[var-annotated]
        self.made: tuple[Tensor, ...] = ()
        module.graphs.append(self)

    def tensor(self, **given: Any) -> Tensor:
        return Tensor(**given)

    def sdpa(self, *tensors: Tensor, **about: Any) -> tuple[Tensor, Tensor | None]:
        self.name, self.tensors, self.about = "sdpa", tensors, about
        self.made = (Tensor(), Tensor()) if about["generate_stats"] else (Tensor(),)
        return self.made[0], self.made[1] if len(self.made) > 1 else None

    def sdpa_backward(self, *tensors: Tensor, **about: Any) -> tuple[Tensor, ...]:
        self.name, self.tensors, self.about = "sdpa_backward", tensors, about
        self.made = Tensor(), Tensor(), Tensor()
        return self.made

    def validate(self) -> None:
        if self.module.trouble is not None:
            raise self.module.trouble

    def build_operation_graph(self) -> None: ...
    def create_execution_plans(self, modes: list[str]) -> None: ...
    def check_support(self) -> None: ...
    def build_plans(self) -> None: ...

    def get_workspace_size(self) -> int:
        return self.module.scratch

    def execute(self, pack: dict[Tensor, int], workspace: int, handle: Any) -> None:
        assert (handle, self.module.stream is not None) == ("handle", True)
        assert bool(workspace) == bool(self.module.scratch)
        if self.module.failure is not None:
            raise self.module.failure
        given, made = ([x.at(pack[x]) for x in some] for some in (self.tensors, self.made))
        found = self.backward(*given) if self.name == "sdpa_backward" else self.forward(*given)
        for to, x in zip(made, found, strict=False):
            to[...] = x.astype(to.dtype)
        self.module.runs += 1

    def scores(self, q: Any, k: Any) -> Any:
        s = q @ np.swapaxes(k, -1, -2) * self.about["attn_scale"]
        i, j = np.ogrid[: s.shape[-2], : s.shape[-1]]
        right, left = (self.about.get(f"diagonal_band_{x}_bound") for x in ("right", "left"))
        seen = np.ones(s.shape[-2:], bool)
        if right is not None:
            seen &= j <= i + right
        if left is not None:
            seen &= j + left > i
        return np.where(seen, s, -np.inf)

    def alike(self, q: Any, *xs: Any) -> list[Any]:
        """Arrays of heads that share keys, as if these were repeated, in float32."""
        return [np.repeat(x, q.shape[1] // x.shape[1], axis=1).astype("f4") for x in (q, *xs)]

    def forward(self, *given: Any) -> tuple[Any, Any]:
        q, k, v = self.alike(*given)
        s = self.scores(q, k)
        sums = np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True))
        sums = sums + s.max(-1, keepdims=True)
        return np.exp(s - sums) @ v, sums

    def backward(self, *given: Any) -> list[Any]:
        heads = given[1].shape[1]
        q, k, v, y, ct, sums = self.alike(*given)
        p = np.exp(self.scores(q, k) - sums)
        ds = p * (ct @ np.swapaxes(v, -1, -2) - (ct * y).sum(-1, keepdims=True))
        ds = ds * self.about["attn_scale"]
        found = [ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ ct]
        b, h, n, d = found[1].shape
        return [found[0], *(x.reshape(b, heads, h // heads, n, d).sum(2) for x in found[1:])]


class FakeCudnn:
    """The module. `trouble` is raised where a graph is validated, `failure` where it is executed."""

    data_type = Types
    heur_mode = SimpleNamespace(A="A", FALLBACK="fallback")
    diagonal_alignment = SimpleNamespace(TOP_LEFT="top left")
    cudnnGraphNotSupportedError = NotSupportedError

    def __init__(self, scratch: int = 64, version: int = 91900) -> None:
        self.scratch, self.version = scratch, version
        self.graphs: list[Graph] = []
        self.trouble: Exception | None = None
        self.failure: Exception | None = None
        self.stream: int | None = None
        self.runs = 0

    def backend_version(self) -> int:
        return self.version

    def create_handle(self) -> str:
        return "handle"

    def set_stream(self, handle: str, stream: int) -> None:
        self.stream = stream

    def pygraph(self, **given: Any) -> Graph:
        return Graph(self, **given)
