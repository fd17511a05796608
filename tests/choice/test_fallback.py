"""A kernel that does not compile, or finds no memory: the next candidate serves, with one warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import CompileError
from ge2.base.source import Ge2Warning
from ge2.choice import Pin, record
from ge2.choice import choose as choices
from ge2.targets.c.kernels.generated import CRegion
from ge2.targets.cuda.kernels import CudaRegion, CudaResident
from ge2.targets.cuda.kernels.products import CudaProduct, CudaSmallContraction

X = np.linspace(0, 1, 1 << 13, dtype=np.float32).reshape(64, 128)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(choices, "_failed", {})
    with config.using(cache_dir=str(tmp_path), threads=2):
        record.forget()
        ge2.clear_caches()
        yield
    record.forget()
    ge2.clear_caches()


def centred(x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


def failing(family: Any, bad: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a variant of a family fail when its kernels are asked for."""
    plain = family.kernels

    def kernels(self: Any, problem: Any, variant: Any, caps: Any) -> Any:
        if variant.name == bad:
            raise error
        return plain(self, problem, variant, caps)

    monkeypatch.setattr(family, "kernels", kernels)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CompileError("NVRTC refuses it"), "it does not compile: NVRTC refuses it"),
        (MemoryError("9 GB"), "there is no memory for it: 9 GB"),
    ],
)
def test_on_a_gpu(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(CudaRegion, "columns over axis 0", error, monkeypatch)
    monkeypatch.setattr("ge2.base.source._said", set())
    with config.using(executor="shim"):
        f = ge2.jit(centred)
        with pytest.warns(Ge2Warning) as told:
            y = f(X)
        np.testing.assert_allclose(y, centred(X), rtol=1e-4, atol=1e-5)
        (choice,) = f.lower(X).choices.values()
    assert len(told) == 1 and words in str(told[0].message)
    assert "region in CUDA, columns over axis 0" in str(told[0].message)
    lines = str(choice).splitlines()
    assert f"not region in CUDA, columns over axis 0: {words}" in lines
    assert lines[-1] == "region in CUDA, in two"


def looped(x: Any) -> Any:
    for _ in range(40):
        x = np.tanh(x) + x[::-1]
    return x


def layer(a: Any, b: Any) -> Any:
    return np.tanh(a @ b)


@pytest.mark.parametrize(
    ("f", "xs", "family", "variant"),
    [
        (looped, (X[0],), CudaResident, "one block"),
        (layer, (X[:16, :16], X[:16, 16:32]), CudaSmallContraction, ""),
    ],
)
def test_several_steps_in_one_kernel_are_taken_apart(
    f: Any, xs: Any, family: Any, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ge2.base.source._said", set())
    with config.using(executor="shim"):
        assert family.name in str(*ge2.jit(f).lower(*xs).choices.values())
        ge2.clear_caches()
        failing(family, variant, CompileError("NVRTC refuses it"), monkeypatch)
        g = ge2.jit(f)
        with pytest.warns(Ge2Warning, match=f"{family.name}.* for .* does not serve") as told:
            y = g(*xs)
        np.testing.assert_allclose(y, f(*xs), rtol=1e-4, atol=1e-5)
        low = g.lower(*xs)
        said = [str(choice) for choice in low.choices.values()]
        assert len(told) == 1 and any("it does not compile: NVRTC refuses it" in s for s in said)
        assert "does not serve: it does not compile" in low.executable.report()


def test_in_c_what_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(CRegion, "one thread", CompileError("cc refuses it"), monkeypatch)
    monkeypatch.setattr("ge2.base.source._said", set())
    with config.using(pins=(Pin("region in C", "one thread"),)):
        f = ge2.jit(np.tanh)
        with pytest.warns(Ge2Warning, match="one thread for pointwise does not serve"):
            y = f(X)
        (choice,) = f.lower(X).choices.values()
    np.testing.assert_allclose(y, np.tanh(X), rtol=1e-6)
    assert choice.taken.title == "region in C"  # type: ignore[attr-defined]


def test_where_no_family_that_is_preferred_is_left_the_others_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(CudaProduct, "", CompileError("NVRTC refuses it"), monkeypatch)
    monkeypatch.setattr("ge2.base.source._said", set())
    a = X[:16, :16]
    with config.using(executor="shim", prefer=(CudaProduct.name,)):
        f = ge2.jit(np.matmul)
        with pytest.warns(Ge2Warning, match="product in CUDA for .* does not serve") as told:
            y = f(a, a)
        low = f.lower(a, a)
    np.testing.assert_allclose(y, a @ a, rtol=1e-5)
    (choice,) = low.choices.values()
    assert len(told) == 1 and choice.taken.title == "small product in CUDA"
    failed = [c.refusal for c in choice.candidates if c.family.name == CudaProduct.name]
    assert failed == ["it does not compile: NVRTC refuses it"]
    assert "does not serve: it does not compile" in low.executable.report()


def test_where_nothing_else_serves_the_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(CudaRegion, "elementwise", CompileError("NVRTC refuses it"), monkeypatch)
    with config.using(executor="shim"), pytest.raises(CompileError, match="NVRTC refuses it"):
        ge2.jit(np.tanh)(X)
