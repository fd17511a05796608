"""Kernels of a user's on a GPU: templates, several launches, binaries, libraries that launch, and those
that are saved and pinned.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.choice.choose import SAVED
from ge2.choice.user_kernels import load
from ge2.targets.cuda.load import nvrtc
from ge2.targets.cuda.load.gpu import current_gpu

LAYER = """import numpy as np

def twice(x):
    return np.concatenate([x, x])

def soft(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
TOML = 'serves = "layer_{name}.py:{function}"\nname = "mine"\nargs = ["{args}"]\nwhen = ["x: f32[{dims}]"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    def made(function: str, args: str, dims: str, more: str, **texts: str) -> str:
        (tmp_path / f"layer_{tmp_path.name}.py").write_text(LAYER)
        for name, text in texts.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        head = TOML.format(name=tmp_path.name, function=function, args=args, dims=dims)
        (tmp_path / "kernel.toml").write_text(head + more)
        return str(tmp_path)

    with config.using(cache_dir=str(tmp_path / "cache")):
        yield made
        for name in kernels.registered():
            kernels.unregister(name)
    SAVED.clear()
    config.renew()


def taken_in(xp: Any, folder: str, x: Any, calls: int = 4) -> str:
    """The CUDA of a program that has the kernel, which gives what NumPy does, call after call."""
    found = kernels.check(folder)
    assert found.passed("cuda"), str(found)
    assert "passed, by" in str(found) and "emulator" not in str(found)
    kernels.register(folder, prefer=True)
    function = load(folder).function()
    step = ge2.jit(lambda x: function(x + 1) * 2)
    for n in range(calls):  # those of later calls are a captured graph
        y = step(xp.asarray(x + n))
        np.testing.assert_allclose(y.get(), function(x + n + 1) * 2, rtol=1e-5, atol=1e-6)
    low = step.lower(xp.asarray(x))
    ops = [op for kernel in low.kernels for op in kernel.ops]
    assert "mine" in ops or any(name.startswith("mine") for name in low.choices)
    return str(low.as_text("cuda"))


@pytest.mark.gpu
def test_two_launches_with_a_workspace(xp: Any, folder: Any) -> None:
    first = "float *room = (float *)workspace;\nif (thread < n) room[thread] = x[thread];\n"
    second = "const float *room = (const float *)workspace;\nif (thread < 2 * n) y[thread] = room[thread % n];\n"
    more = 'cuda = ["a.cu", "b.cu"]\nworkspace = "4 * n"\noptions = ["-DUNUSED=1"]\n'
    more += 'launch = [{ blocks = "cdiv(n, 64)", threads = 64 }, { blocks = "cdiv(n, 32)", threads = 64 }]\n'
    made = folder("twice", "f32[100]", "n", more, a_cu=first, b_cu=second)
    taken_in(xp, made, np.arange(1000, dtype=np.float32))


@pytest.mark.gpu
def test_a_template(xp: Any, folder: Any) -> None:
    text = (
        '{% extends "cuda/rowwise.cu.jinja" %}\n{% block store scoped %}\n'
        "        if ({{ STEP }}) { (void)0; }\n{{ super() }}\n{% endblock %}\n"
    )
    more = 'cuda = "k.cu.jinja"\nvariants = [{ STEP = 1 }, { STEP = 2 }]\n'
    made = folder("soft", "f32[50,33]", "n, c", more, k_cu_jinja=text)
    code = taken_in(xp, made, np.linspace(0, 3, 3300, dtype=np.float32).reshape(100, 33))
    assert "if (1) { (void)0; }" in code


@pytest.mark.gpu
def test_a_binary(xp: Any, folder: Any, tmp_path: Path) -> None:
    source = """extern "C" __global__ void doubled(const float *x, float *y, long x_n0, long y_n0) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < y_n0) y[i] = x[i % x_n0];
}
"""
    arch = current_gpu().limits.architecture
    (tmp_path / "k.cubin").write_bytes(nvrtc.compile(source, arch).cubin)
    more = f'cubin = "k.cubin"\nfunction = "doubled"\narch = "{arch}"\n'
    more += 'launch = { blocks = "cdiv(2 * n, 128)", threads = 128 }\n'
    made = folder("twice", "f32[100]", "n", more)
    assert "GE2_BINARY" in taken_in(xp, made, np.arange(1000, dtype=np.float32))


COPIES = """#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
typedef int copy_t(unsigned long long, unsigned long long, size_t, void *);
int doubled(const void *const *in, void *const *out, const int64_t *const *shapes, void *workspace,
            void *stream) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    copy_t *copy = driver ? (copy_t *)dlsym(driver, "cuMemcpyDtoDAsync_v2") : 0;
    unsigned long long from = (unsigned long long)in[0], to = (unsigned long long)out[0];
    unsigned long long room = (unsigned long long)workspace;
    size_t bytes = 4 * shapes[0][0];
    if (!copy) return 999;
    int failed = copy(room, from, bytes, stream);
    if (!failed) failed = copy(to, room, bytes, stream);
    return failed ? failed : copy(to + bytes, room, bytes, stream);
}
"""
LAUNCHER = """#include <cstdint>
__global__ void both(const float *x, float *y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < 2 * n) y[i] = x[i % n];
}
extern "C" int doubled(const void *const *in, void *const *out, const int64_t *const *shapes,
                       void *workspace, cudaStream_t stream) {
    int64_t n = shapes[0][0];
    both<<<(2 * n + 127) / 128, 128, 0, stream>>>((const float *)in[0], (float *)out[0], n);
    return cudaGetLastError();
}
"""
OF_LIBRARY = 'library = "lib.so"\nfunction = { cuda = "doubled" }\nworkspace = "4 * n"\n'


@pytest.mark.gpu
@pytest.mark.parametrize("by", ["the driver", "nvcc"])
def test_a_library_that_launches(xp: Any, folder: Any, tmp_path: Path, by: str) -> None:
    """Copies by the driver's own functions, or a kernel, if there is an nvcc."""
    tools, compiler = toolchain(), shutil.which("nvcc")
    if tools is None or (by == "nvcc" and compiler is None):
        pytest.skip("no compiler")
    name, text = ("lib.cu", LAUNCHER) if by == "nvcc" else ("lib.c", COPIES)
    (tmp_path / name).write_text(text)
    usual = [*tools.command, "-fPIC", "-O1", "-ldl"]
    command = [str(compiler), "-Xcompiler", "-fPIC"] if by == "nvcc" else usual
    subprocess.run([*command, "-shared", name, "-o", "lib.so"], cwd=tmp_path, check=True)
    made = folder("twice", "f32[100]", "n", OF_LIBRARY)
    taken_in(xp, made, np.arange(1000, dtype=np.float32))


@pytest.mark.gpu
def test_a_kernel_is_saved_edited_and_pinned(
    xp: Any, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = xp.asarray(np.linspace(0.5, 2, 1 << 16, dtype=np.float32).reshape(256, 256))
    step = ge2.jit(lambda x: np.tanh(x) * 2)
    wanted = step(x).get()
    step.lower(x).kernels[0].save("k.cu")
    text = (tmp_path / "k.cu").read_text()
    (tmp_path / "k.cu").write_text(text.replace("ge2_tanh_f32(", "+ge2_tanh_f32("))
    pinned = step.pin("k.cu")
    assert pinned.before > 0 and pinned.now > 0
    for _ in range(4):
        assert step(x).get().tobytes() == wanted.tobytes()
    assert "+ge2_tanh_f32(" in step.lower(x).as_text("cuda")
