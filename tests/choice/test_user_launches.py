"""What a kernel.toml may say beside a text: options, folders, workspace, several launches, operations,
binaries, libraries that launch.
"""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.choice.user_kernels import load
from ge2.compile.user_kernels.operations import role_of, types_of
from ge2.dispatch import user_kernels
from ge2.dispatch.user_kernels import Case, one_step, run_in
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import nvrtc
from tests.choice.user_kernels import build_library, change, needs_compiler, shown
from tests.choice.user_kernels import none_registered as none_registered
from tests.nvrtc import needs_nvrtc

LAYER = """import numpy as np

def centred(x):
    return x - x.sum(-1, keepdims=True) * x.dtype.type(0.125)
"""
TOML = """serves = "{module}.py:centred"
name = "centred"
args = ["f32[6,8]", "f32[3,8]"]
when = ["x: f32[n, c]"]
"""
# rows are added up into the workspace; a second kernel takes them from each element
SUMS = """float *sums = (float *)workspace;
for (int64_t i = FIRST; i < n; i += STEP) {
    sums[i] = 0;
    for (int64_t j = 0; j < c; j++) sums[i] += x[i * c + j];
}
"""
TAKE = """const float *sums = (const float *)workspace;
for (int64_t i = FIRST; i < n * c; i += STEP) y[i] = x[i] - MY_PART * sums[i / c];
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A kernel in two launches, in both languages; its last number is in a header of its own."""
    module = f"layer_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(LAYER)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part.h").write_text("#define MY_PART (MY_HALF * 0.25f)\n")
    (tmp_path / "helpers.h").write_text('#include "part.h"\n')
    for ending, first, step in ((".c", "0", "1"), (".cu", "thread", "threads")):
        for name, text in (("sums", SUMS), ("take", TAKE)):
            own = text.replace("FIRST", first).replace("STEP", step)
            (tmp_path / f"{name}{ending}").write_text(own)
    (tmp_path / "kernel.toml").write_text(
        TOML.format(module=module)
        + 'c = ["sums.c", "take.c"]\ncuda = ["sums.cu", "take.cu"]\nhelpers = "helpers.h"\n'
        + 'include = ["mine"]\noptions = ["-DMY_HALF=0.5f", "--maxrregcount=64"]\n'
        + 'workspace = "4 * n"\nlaunch = [{ blocks = 1, threads = 32 }, { blocks = "n", threads = 64 }]\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@needs_compiler
def test_two_launches_that_share_a_workspace(folder):
    found = kernels.check(str(folder))
    assert found.passed("c") and found.passed("cuda"), str(found)
    kernels.register(str(folder), prefer=True)
    centred = load(str(folder)).function()
    x = np.arange(40, dtype=np.float32).reshape(5, 8)
    for executor in ("c", "shim"):
        with config.using(executor=executor):
            f = ge2.jit(lambda x: centred(x * 2) + 1)
            assert np.allclose(f(x), centred(x * 2) + 1)
            low = f.lower(x)
            assert any("centred" in kernel.ops for kernel in low.kernels)
    launches = [line for line in low.as_text("python").splitlines() if "centred" in line]
    assert "centred_kernel_1" in low.as_text("cuda") and "centred_kernel_2" in low.as_text("cuda")
    assert launches


@needs_compiler
@pytest.mark.parametrize("place", ["n", "n + 5", "-1"])
def test_a_text_that_writes_outside_of_its_workspace_does_not_pass(folder, place):
    for ending in (".c", ".cu"):
        change(
            folder,
            "float *sums",
            f"((float *)workspace)[{place}] = 0; float *sums",
            f"sums{ending}",
        )
    found = kernels.check(str(folder))
    assert [case.error for case in found.cases] == ["it writes outside of its workspace"] * 4


@pytest.mark.parametrize("size", ["-4 * n", "'4'", "n == 6"])
def test_a_workspace_is_a_number_of_bytes(folder, size):
    change(folder, '"4 * n"', f'"{size}"')
    with pytest.raises(InputError, match="no number of bytes") as error:
        kernels.check(str(folder))
    assert "kernel.toml:10" in str(error.value)


@needs_compiler
def test_a_header_is_part_of_what_passed(folder):
    before = load(str(folder)).key
    (folder / "mine" / "part.h").write_text("#define MY_PART (MY_HALF * 0.5f)\n")
    assert load(str(folder)).key != before
    found = kernels.check(str(folder))  # with another number, so another binary
    assert all("its result is" in case.error for case in found.cases)


@needs_nvrtc
def test_nvrtc_is_told(folder, monkeypatch):
    role = role_of(load(str(folder)))
    told = []
    plain = nvrtc.flags
    monkeypatch.setattr(nvrtc, "flags", lambda *given: told.append(plain(*given)) or told[-1])
    case = Case("centred", "cuda", "", "")
    assert not run_in(case, one_step(role, 0, ()), OfflineDevice(H200), "").error
    assert all("-DMY_HALF=0.5f" in each and "--maxrregcount=64" in each for each in told)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("old", "new", "what", "fix"),
    [
        ('include = ["mine"]', 'include = ["mein"]', "there is no folder", "include ="),
        ('"-DMY_HALF=0.5f"', '"DMY"', "'DMY' is no option", "-DROWS=4"),
        (
            'cuda = ["sums.cu", "take.cu"]\n',
            "",
            "--maxrregcount=64 is an option of NVRTC's",
            "-D, -U",
        ),
        ("launch = [", "launch = [{}, ", "there are 3 launches of 2 texts in CUDA", "one for all"),
        ('"4 * n"', '"4 * "', "'4 *' is no expression", "cdiv"),
        ('"4 * n"', "true", "workspace is to be a number, or a text", ""),
        ("workspace =", 'arch = "hopper"\nworkspace =', "'hopper' is no architecture", "sm_90a"),
        ("serves =", 'op = "cumsum"\nserves =', "it has an op and a function", "one of the two"),
        ('serves = "', 'op = "dot_general', "there is no operation", "dot_general"),
        (
            "workspace =",
            'cubin = "k.cubin"\nworkspace =',
            "it has a cubin and no function",
            "function =",
        ),
    ],
)
def test_what_is_wrong_in_the_file(folder, old, new, what, fix):
    change(folder, old, new)
    with pytest.raises(InputError) as error:
        load(str(folder))
    assert what.rstrip() in str(error.value).replace("'4 * '", "'4 *'")
    assert fix in str(error.value)


@needs_compiler
def test_a_size_that_is_none(folder):
    change(folder, '"4 * n"', '"4 * m"')
    with pytest.raises(InputError, match="'4 \\* m' names m, which is no size"):
        kernels.check(str(folder))
    change(folder, '"4 * m"', '"4 * n // (c - 8)"')
    with pytest.raises(InputError, match="has no value: .*zero"):
        kernels.check(str(folder))


# -------------------------------------------------------------------------------------- operations

PRODUCT = """for (int64_t i = FIRST; i < n * m; i += STEP) {
    float sum = 0;
    for (int64_t j = 0; j < k; j++) sum += x0[i / m * k + j] * x1[j * m + i % m];
    y[i] = sum;
}
"""


@pytest.fixture
def product(tmp_path):
    (tmp_path / "k.c").write_text(PRODUCT.replace("FIRST", "0").replace("STEP", "1"))
    (tmp_path / "k.cu").write_text(PRODUCT.replace("FIRST", "thread").replace("STEP", "threads"))
    (tmp_path / "kernel.toml").write_text(
        'op = "dot_general"\nname = "mine"\nc = "k.c"\ncuda = "k.cu"\n'
        'args = ["f32[3,40], f32[40,5], contract=((1,), (0,)), beside=((), ())"]\n'
        'when = ["x0: f32[n, k]", "x1: f32[k, m]", "contract == ((1,), (0,))", "k >= 32"]\n'
    )
    return tmp_path


@needs_compiler
def test_an_operation_is_served_on_conditions(product, monkeypatch):
    found = kernels.check(str(product))
    assert found.passed("c") and found.passed("cuda"), str(found)
    kernels.register(str(product), prefer=True)
    a, b = np.ones((4, 64), np.float32), np.ones((64, 6), np.float32)
    f = ge2.jit(lambda a, b: np.tanh(a @ b))
    assert ("mine",) in shown(lambda a, b: np.tanh(a @ b), a, b)
    assert np.allclose(f(a, b), np.tanh(a @ b))
    assert ("mine",) not in shown(lambda a, b: np.tanh(a[:, :8] @ b[:8]), a, b)  # few columns
    assert ("mine",) not in shown(lambda a, b: np.tensordot(a, b, ((0,), (1,))), a, b[:, :4])
    # the products of its derivative are of other conditions
    monkeypatch.setattr(user_kernels, "ROUNDS", 2)
    monkeypatch.setattr(user_kernels, "LEAST", 0.0)
    assert [t.candidate for t in kernels.bench(str(product)).times] == ["kernels of ge2", "mine"]
    g = ge2.grad(lambda a, b: np.tanh(a @ b).sum())
    assert np.allclose(ge2.jit(g)(a, b), g(a, b), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (", contract=((1,), (0,)), beside=((), ())", "", "dot_general is not made so"),
        ("contract == ((1,), (0,))", "contrast == 1", "names contrast, which is no size"),
        ('name = "mine"', 'name = "mine"\ngradient = "b.toml"', "it has an op and a gradient"),
    ],
)
def test_what_is_wrong_of_an_operation(product, old, new, what):
    change(product, old, new)
    with pytest.raises(InputError) as error:
        kernels.check(str(product))
    assert what in str(error.value)


# ----------------------------------------------------------------------------- binaries, libraries


@needs_nvrtc
@needs_compiler
def test_a_binary_is_loaded_and_has_never_run(folder):
    source = """extern "C" __global__ void one_row(const float *x, float *y, long x_n0, long x_n1, long y_n0,
                                   long y_n1) {
    float sum = 0;
    for (long j = 0; j < x_n1; j++) sum += x[blockIdx.x * x_n1 + j];
    for (long j = threadIdx.x; j < x_n1; j += blockDim.x)
        y[blockIdx.x * x_n1 + j] = x[blockIdx.x * x_n1 + j] - sum * 0.125f;
}
"""
    (folder / "k.cubin").write_bytes(nvrtc.compile(source, "sm_90a").cubin)
    module = f"layer_{folder.name}"
    (folder / "kernel.toml").write_text(
        TOML.format(module=module)
        + 'cubin = "k.cubin"\nfunction = "one_row"\narch = "sm_90a"\nlaunch = { blocks = "n", threads = 32 }\n'
    )
    found = kernels.check(str(folder))
    assert {case.verdict for case in found.cases} == {"never run: it needs a GPU"}
    with pytest.raises(InputError, match="centred has never run: its CUDA"):
        kernels.register(str(folder))
    # what a GPU is handed: the bytes of the file
    role = role_of(load(str(folder)))
    from tests.choice.test_user_templates import ge2_kernels

    graph = one_step(role, 0, ())
    types = types_of(role.kernel)
    text = ge2_kernels(graph.eqns[0].op, types, OfflineDevice(H200))
    assert text.startswith("#define GE2_BINARY")
    order = nvrtc.Order(text, "sm_90a")
    assert nvrtc.compile_all([order])[0].cubin == (folder / "k.cubin").read_bytes()
    kernel = load(str(folder))
    assert kernel.runs_on("sm_90a") == "" and "not for sm_80" in kernel.runs_on("sm_80")
    for old, new, what in (
        ('"one_row"', '"two_rows"', "k.cubin has no function two_rows"),
        ('arch = "sm_90a"\n', "", "it does not say for which chip it is"),
        ('"k.cubin"', '"l.cubin"', "l.cubin cannot be read"),
        ("cubin =", 'cuda = "take.cu"\ncubin =', "a cubin is in place of cuda"),
    ):
        before = (folder / "kernel.toml").read_text()
        change(folder, old, new)
        with pytest.raises(InputError) as error:
            load(str(folder))
        assert what in str(error.value)
        (folder / "kernel.toml").write_text(before)


LAUNCHER = """#include <stdint.h>
int centred_rows(const void *const *in, void *const *out, const int64_t *const *shapes, void *workspace,
                 void *stream) {
    const float *x = in[0];
    float *y = out[0], *sums = workspace;
    int64_t n = shapes[0][0], c = shapes[0][1];
    if (n == 3) return 7;
    for (int64_t i = 0; i < n; i++) {
        sums[i] = 0;
        for (int64_t j = 0; j < c; j++) sums[i] += x[i * c + j];
        for (int64_t j = 0; j < c; j++) y[i * c + j] = x[i * c + j] - sums[i] * 0.125f;
    }
    return 0;
}
"""


@pytest.fixture
def launcher(folder):
    build_library(folder, LAUNCHER, "libcentred.so")
    (folder / "kernel.toml").write_text(
        TOML.format(module=f"layer_{folder.name}")
        + 'library = "libcentred.so"\nfunction = { cuda = "centred_rows" }\nworkspace = "4 * n"\n'
    )
    return folder


@needs_compiler
def test_a_library_launches_with_buffers_workspace_and_stream(launcher):
    found = kernels.check(str(launcher))
    assert {case.verdict for case in found.cases} == {"never run: it needs a GPU"}
    role = role_of(load(str(launcher)))
    case = Case("centred", "cuda", "", "")
    # the launch by itself, on memory of the host
    assert run_in(case, one_step(role, 0, ()), ShimDevice(), "the emulator").verdict == (
        "passed, by the emulator"
    )
    with pytest.raises(ge2.errors.KernelError, match="centred_rows fails with 7"):
        run_in(case, one_step(role, 1, ()), ShimDevice(), "the emulator")
    with pytest.raises(InputError, match="centred has never run"):
        kernels.register(str(launcher))
    user_kernels.keep_passed(role.kernel, "cuda", "as if by a GPU")
    kernels.register(str(launcher), prefer=True)
    x, centred = np.arange(40, dtype=np.float32).reshape(5, 8), role.kernel.function()
    with config.using(executor="shim"):
        f = ge2.jit(lambda x: centred(x.T.copy().T * 2) + 1)
        assert np.allclose(f(x), centred(x * 2) + 1) and np.allclose(f(x), centred(x * 2) + 1)
        assert "centred_1" in f.lower(x).choices
        assert "# centred(b, c, own" in f.lower(x).as_text("python")  # the last is the workspace
    change(launcher, '"centred_rows"', '"centred_row"')
    with pytest.raises(InputError, match="libcentred.so has no function centred_row"):
        load(str(launcher))
    change(launcher, 'cuda = "centred_row"', 'cpu = "centred_rows"')
    with pytest.raises(InputError, match="a function is of c or cuda, not cpu"):
        load(str(launcher))
