"""`ge2 compile` writes the kernels of a user's function and their cubins, with no GPU."""

from __future__ import annotations

import json

import pytest

from ge2.base.config import config
from ge2.base.errors import DeviceError
from ge2.cli import main
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.limits import A100, B200, H100
from ge2.targets.cuda.load import nvrtc
from tests.nvrtc import needs_nvrtc

MODEL = """
import numpy as np
from ge2 import lax

def softmax(x, b):
    y = x + b
    e = np.exp(y - y.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)

def loss(w, x):
    return np.tanh(x @ w).mean()

def twice(x):
    return np.tanh(x[:8]) + 1, np.tanh(x[8:]) + 1

def grow(x):
    return lax.while_loop(lambda c: c.sum() < 10, lambda c: c * 2 + 1, x)

def same(x):
    return x
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "a_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield str(tmp_path / "a_model.py")


@pytest.fixture
def said(capsys):
    def run(*words, code=0):
        assert main(["compile", *words]) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    return run


@needs_nvrtc
def test_kernels_and_cubins_are_written(model, said, tmp_path):
    folder = tmp_path / "new" / "kernels"
    words = [
        f"{model}:softmax", "--args", "f32[1024,1024], f32[1024]", "--arch", "sm_90a", "-o",
        str(folder),
    ]  # fmt: skip
    text = said(*words)
    head, row, empty, last = text.splitlines()
    assert head.split()[:5] == ["kernel", "threads", "registers", "spills", "stack"]
    assert (row.split()[0], row.split()[3]) == ("rowwise_0", "0")
    assert "a_model.py:6-8 in softmax" in row
    assert (empty, last) == ("", f"1 kernel for sm_90a, written to {folder}")
    assert sorted(path.name for path in folder.iterdir()) == ["rowwise_0.cu", "rowwise_0.cubin"]
    assert "reduce_max" in (folder / "rowwise_0.cu").read_text()
    cubin = (folder / "rowwise_0.cubin").read_bytes()
    assert cubin.startswith(b"\x7fELF")
    nvrtc._binaries.clear()  # as in another process
    other = tmp_path / "other"
    assert "kept" in said(*words[:-1], str(other))
    assert (other / "rowwise_0.cubin").read_bytes() == cubin


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_86"])
def test_json_for_each_architecture(model, said, arch):
    data = json.loads(
        said(f"{model}:softmax", "--args", "f32[64,100]", "f32[100]", "--arch", arch, "--json")
    )
    assert (data["arch"], data["files"]) == (arch, [])
    (kernel,) = data["kernels"]
    assert (kernel["name"], kernel["spills"]) == ("rowwise_0", 0)
    assert 8 <= kernel["registers"] <= 128
    assert kernel["cubin"] > 4000
    assert 'extern "C" __global__ void' in kernel["source"]


@needs_nvrtc
def test_equal_kernels_are_one(model, said):
    """The two halves differ in where they begin alone."""
    text = said(f"{model}:twice", "--args", "f32[16,1000]")
    assert "1 kernel for" in text or text.count("pointwise") == 1


@needs_nvrtc
def test_derivatives_and_what_is_done_elsewhere(model, said):
    text = said(f"{model}:loss", "--grad", "--args", "f32[2048,1024]", "x=f32[16,2048]")
    assert "besides: 2 matrix products" in text
    text = said(f"{model}:loss", "--grad", "--args", "f32[64,32]", "x=f32[128,64]")
    assert "contraction_" in text and "matrix product" not in text
    text = said(f"{model}:grow", "--args", "f32[1000]")
    assert "1 kernel for" in text and "resident_kernel_0" in text
    text = said(f"{model}:grow", "--args", "f32[8000000]")
    assert "besides: 1 loop or branch" in text
    assert "pointwise_" in text  # of the loop's body
    of = {words[0]: line for line in text.splitlines() if (words := line.split())}
    assert of["pointwise_0"].endswith("  a copy")  # of what is carried
    # as the loop's own program knows
    assert of["pointwise_3"].endswith("  a_model.py:17 in <lambda>")
    assert said(f"{model}:same", "--args", "f32[3]").endswith("kernels for sm_90a\n")


@needs_nvrtc
def test_float64_is_told_of_where_it_is_slow(model, said):
    words = [f"{model}:loss", "--args", "f64[64,32]", "x=f64[128,64]", "--arch"]
    text = said(*words, "sm_120")
    rate = "at a_model.py:11 in loss, which sm_120 does at 1/64 of the rate of float32"
    assert f"rowwise_0 computes in float64 {rate}" in text
    assert f"a matrix product computes in float64 {rate}" in text
    assert len(json.loads(said(*words, "sm_103", "--json"))["slow"]) == 2
    for quick in (
        [*words, "sm_90a"],
        [words[0], "--args", "f32[64,32]", "x=f32[128,64]", "--arch", "sm_120"],
    ):
        assert "float64" not in said(*quick)


@needs_nvrtc
def test_what_cannot_be(model, said, tmp_path):
    args = ["--args", "f32[8,8]", "f32[8]"]
    assert "does not compile for sm_10" in said(
        f"{model}:softmax", *args, "--arch", "sm_10", code=1
    )
    assert "'hopper' is no architecture" in said(
        f"{model}:softmax", *args, "--arch", "hopper", code=1
    )
    assert "softmax takes (x, b)" in said(f"{model}:softmax", "--args", "f32[8]", code=1)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot be written" in said(f"{model}:softmax", *args, "-o", str(folder), code=1)


def test_without_nvrtc(model, said):
    with config.using(nvrtc="none"):
        assert said(f"{model}:same", "--args", "f32[3]") == "0 kernels for sm_90a\n"
        assert "asks for no CUDA compiler" in said(
            f"{model}:softmax", "--args", "f32[9,8], f32[8]", code=1
        )


def test_limits_of_gpus_that_are_not_here():
    assert limits_of("sm_80") == A100
    assert limits_of("sm_90a") == H100
    assert (limits_of("sm_90").architecture, limits_of("sm_90").name) == ("sm_90", "H100")
    assert limits_of("sm_100").multiprocessors == B200.multiprocessors
    assert limits_of("sm_120").shared_optin == 99 << 10


@needs_nvrtc
def test_nothing_is_launched():
    module = OfflineDevice(H100).module('extern "C" __global__ void f(int *a) { a[0] = 1; }')
    with pytest.raises(DeviceError, match="f was compiled for sm_90a, with no GPU at hand"):
        module.get_function("f")((1,), (1,), (None,))
