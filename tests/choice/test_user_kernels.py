"""Kernels of a user's in folders: read, checked, registered, found in programs, differentiated."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.errors import CompileError, InputError
from ge2.choice.user_kernels import load
from ge2.cli import main
from ge2.compile.user_kernels import substituted
from ge2.dispatch import user_kernels
from ge2.ops.graphs.region import evaluated
from ge2.targets.c.tuning import Caps
from tests.choice.user_kernels import build_library, change, needs_compiler, shown
from tests.choice.user_kernels import none_registered as none_registered
from tests.nvrtc import needs_nvrtc

LAYER = """import numpy as np

def gated(x, w):
    return x / (1 + np.exp(-x)) * w

def closed(x, w):
    return x * w * TABLE

TABLE = np.ones(8, np.float32)
"""
TOML = """serves = "{module}.py:gated"
name = "gated"
args = ["f32[6,8], f32[8]"]
when = ["x: f32|f64[n, c]", "w: f32|f64[c]", "c % 4 == 0"]
c = "kernel.c"
cuda = "kernel.cu"
launch = {{ blocks = "n", threads = "min(c, 256)" }}
variants = [{{ STEP = 1 }}, {{ STEP = 2 }}]
gradient = "backward.toml"
"""
C = """for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < c; j += STEP)
        for (int64_t k = j; k < j + STEP; k++) {
            x_t v = x[i * c + k];
            y[i * c + k] = v / (1 + exp(-v)) * w[k];
        }
"""
CUDA = """for (int64_t j = threadIdx.x; j < c; j += blockDim.x) {
    x_t v = x[blockIdx.x * c + j];
    y[blockIdx.x * c + j] = v / (1 + exp(-v)) * w[j];
}
"""
BACKWARD = """for (int64_t j = 0; j < w_n0; j++) y1[j] = 0;
for (int64_t i = 0; i < x_n0; i++)
    for (int64_t j = 0; j < w_n0; j++) {
        x_t v = x[i * w_n0 + j], g = ct[i * w_n0 + j], s = 1 / (1 + exp(-v));
        y0[i * w_n0 + j] = g * w[j] * s * (1 + v * (1 - s));
        y1[j] += g * v * s;
    }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    module = f"layer_{tmp_path.name}"
    files = {
        f"{module}.py": LAYER,
        "kernel.toml": TOML.format(module=module),
        "kernel.c": C,
        "kernel.cu": CUDA,
        "backward.toml": 'c = "backward.c"\n',
        "backward.c": BACKWARD,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop(module, None)


@pytest.fixture
def gated(folder):
    return importlib.import_module(f"layer_{folder.name}").gated


# --------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("old", "new", "what", "line", "fix"),
    [
        ("variants =", "varients =", "'varients' is no key of a kernel", 8, "variants = ..."),
        ('"kernel.c"', '"kernal.c"', "cannot be read: No such file", 5, "kernel.c"),
        ('"kernel.c"', "3", "c is to be a text, or texts; it is 3", 5, ""),
        ("blocks =", "block =", "launch has no 'block'", 7, "blocks"),
        ("f32|f64[n", "f31|f64[n", "f31 is no dtype", 4, "f32"),
        ("c % 4 == 0", "c % == 0", "'c % == 0' is no expression", 4, "c % 8 == 0"),
        (":gated", "", "it does not say what it computes", 1, "layer.py:f"),
        ('["f32[6,8], f32[8]"]', "[]", "it has no examples of arguments", 3, "args = "),
        ('"backward.toml"', '"back.toml"', "there is no file back.toml", 9, ""),
        ('"kernel.c"\ncuda = "kernel.cu"', "[]", "it names no text", 5, "c = "),
        ("STEP = 2", 'STEP = "2"', "a variant gives whole numbers to names", 8, "ROWS"),
        ('"gated"', '"tanh"', "tanh is an operation of ge2", 2, "my_tanh"),
        ('"gated"', '"Gated!"', "no name of small letters", 2, "my_kernel"),
    ],
)
def test_what_is_wrong_in_the_file(folder, old, new, what, line, fix):
    change(folder, old, new)
    with pytest.raises(InputError) as error:
        load(str(folder))
    text = str(error.value)
    assert what in text
    assert f"kernel.toml:{line}" in text
    assert fix in text


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (":gated", ":gatde", "has no function gatde"),
        (":gated", ":closed", "reads arrays that are not its arguments"),
        ("c % 4", "d % 4", "'c % 4 == 0'".replace("c", "d", 1) + " names d, which is no size"),
        ("w: f32", "v: f32", "it has no operand v: there are x, w"),
        ("f32[6,8], f32[8]", "f32[6,8]", "are no arguments of gated(x, w): missing"),
        ("f32[6,8], f32[8]", "f32[6,8], 2.0", "an example holds 2.0, which is no array"),
        ("c % 4 == 0", "c.real == 0", "has more than arithmetic in it"),
    ],
)
def test_what_is_wrong_when_it_is_looked_at(folder, old, new, what):
    change(folder, old, new)
    with pytest.raises(InputError, match="kernel.toml") as error:
        kernels.check(str(folder))
    assert what in str(error.value)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(
        InputError, match="nowhere.toml cannot be read[^$]*try  ge2 kernels register"
    ):
        kernels.use(str(tmp_path / "nowhere.toml"))
    with pytest.raises(InputError, match="cannot be read"):
        load(str(tmp_path / "nowhere"))
    (tmp_path / "kernel.toml").write_text("a = = b")
    with pytest.raises(InputError, match="is no TOML"):
        load(str(tmp_path))


# ---------------------------------------------------------------------------------------- checking


@needs_compiler
def test_a_check_runs_every_text(folder):
    found = kernels.check(str(folder))
    assert found.passed("c") and found.passed("cuda")
    assert {(c.kernel, c.language, c.variant, c.ran) for c in found.cases} == {
        ("gated", "c", "STEP=1", "this processor"),
        ("gated", "c", "STEP=2", "this processor"),
        ("gated", "cuda", "STEP=1", "the emulator"),
        ("gated", "cuda", "STEP=2", "the emulator"),
        ("gated_gradient", "c", "", "this processor"),
    }
    assert "passed, by the emulator" in str(found)


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("* w[k];", "+ w[k];", "its result is"),
        ("i < n;", "i < n - 1;", "its result is"),  # what is not written is NaN
        ("for (int64_t i = 0", "y[-1] = 0; for (int64_t i = 0", "it writes outside of its result"),
        ("x_t v =", "x_t v", "CompileError"),
    ],
)
def test_a_text_that_is_wrong_does_not_pass(folder, old, new, why):
    change(folder, old, new, "kernel.c")
    found = kernels.check(str(folder))
    assert not found.passed("c")
    assert found.passed("cuda")
    assert all(why in c.error for c in found.cases if c.language == "c" and c.variant == "STEP=1")


@needs_compiler
def test_a_check_apart_survives_what_crashes_or_hangs(folder):
    change(folder, "for (int64_t i = 0", "*(volatile int *)0 = 1; for (int64_t i = 0", "kernel.c")
    change(folder, "STEP = 1 }, {", "STEP = 1 } ] # [{")
    found = kernels.check(str(folder), apart=True)
    assert [(c.language, c.arguments, c.error) for c in found.cases] == [
        ("c", "f32[6,8], f32[8]", "the process died, by signal 11"),
        ("cuda", "f32[6,8], f32[8]", ""),
    ]
    change(folder, "*(volatile int *)0 = 1;", 'for (;;) { __asm__ volatile(""); }', "kernel.c")
    change(folder, 'cuda = "kernel.cu"\n', "")
    found = kernels.check(str(folder), apart=True, limit=1)
    assert [c.error for c in found.cases] == ["it took more than 1 s"]


@needs_nvrtc
def test_an_error_of_nvrtc_names_the_users_file(folder, monkeypatch):
    change(folder, "x_t v =", "x_t v", "kernel.cu")
    monkeypatch.setattr("ge2.dispatch.user_kernels.toolchain", lambda: None)
    found = kernels.check(str(folder))
    errors = [c.error for c in found.cases if c.language == "cuda"]
    assert all("kernel.cu:2" in each for each in errors)
    assert all(isinstance(each, str) and CompileError.__name__ in each for each in errors)


@needs_nvrtc
@needs_compiler
def test_what_the_emulator_cannot_run_is_compiled(folder):
    ptx = 'int lane; asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane)); (void)lane;\n'
    change(folder, "for (int64_t j", f"{ptx}for (int64_t j", "kernel.cu")
    found = kernels.check(str(folder))
    assert {c.verdict for c in found.cases if c.language == "cuda"} == {"compiled, never run"}
    change(folder, "x_t v =", "x_t v", "kernel.cu")
    errors = [c.error for c in kernels.check(str(folder)).cases if c.language == "cuda"]
    assert all("kernel.cu:3" in each for each in errors)
    assert kernels.register(str(folder)) == "gated"  # its C alone


@needs_nvrtc
def test_what_was_only_compiled_has_not_passed(folder, monkeypatch):
    change(folder, 'c = "kernel.c"\n', "")
    change(folder, 'gradient = "backward.toml"\n', "")
    monkeypatch.setattr("ge2.dispatch.user_kernels.toolchain", lambda: None)
    found = kernels.check(str(folder))
    assert {c.verdict for c in found.cases} == {"compiled, never run"}
    assert not found.passed("cuda")
    with pytest.raises(InputError, match="gated has never run: its CUDA did not pass"):
        kernels.register(str(folder))


# ------------------------------------------------------------------------------------- in programs


def arrays(*shape, dtype=np.float32):
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape).astype(dtype), np.ones(shape[-1:], dtype)


@needs_compiler
def test_jit_takes_it(folder, gated):
    with pytest.raises(InputError, match="never run"):
        kernels.register(str(folder))
    kernels.check(str(folder))
    assert kernels.register(str(folder), prefer=True) == "gated"
    assert kernels.registered() == ("gated",)

    def f(x, w):
        return np.tanh(gated(x * 2, w)).sum()

    x, w = arrays(30, 16)
    assert ("gated",) in shown(f, x, w)
    assert np.allclose(ge2.jit(f)(x, w), f(x, w), rtol=1e-5)
    found = next(k for k in ge2.explain(f)(x, w).kernels if k.computes == ("gated",))
    assert [(o.name, o.verdict) for o in found.options if not o.other] == [
        ("gated, STEP=1", "taken"),
        ("gated, STEP=2", "possible"),
        ("kernels of ge2", "possible"),
    ]
    # other types, sizes and functions are ge2's
    assert ("gated",) not in shown(f, *arrays(30, 15))
    assert ("gated",) not in shown(f, *arrays(30, 16, dtype=np.float16))
    assert ("gated",) in shown(f, *arrays(30, 16, dtype=np.float64))
    assert ("gated",) not in shown(lambda x, w: x / (2 + np.exp(-x)) * w, x, w)
    with config.using(passes_off=("user_kernels",)):
        assert ("gated",) not in shown(f, x, w)
    kernels.unregister("gated")
    assert ("gated",) not in shown(f, x, w)


@needs_compiler
def test_what_is_read_inside_of_it_keeps_it_out(folder, gated):
    kernels.check(str(folder))
    kernels.register(str(folder), prefer=True)

    def f(x, w):
        e = np.exp(-x)
        return x / (1 + e) * w, e

    x, w = arrays(5, 8)
    assert ("gated",) not in shown(f, x, w)
    assert ("gated",) in shown(lambda x, w: f(x, w)[0], x, w)

    def twice(x, w):
        return gated(gated(x, w), w)

    assert shown(twice, x, w) == [("gated",), ("gated",)]
    assert np.allclose(ge2.jit(twice)(x, w), twice(x, w), rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_a_derivative_takes_its_gradient(folder, gated, argnums):
    def loss(x, w):
        return np.tanh(gated(x * 2, w)).sum()

    x, w = arrays(30, 16)
    plain = ge2.jit(ge2.grad(loss, argnums))(x, w)
    kernels.check(str(folder))
    kernels.register(str(folder), prefer=True)
    g = ge2.jit(ge2.grad(loss, argnums))
    computed = shown(g, x, w)
    assert ("gated_gradient",) in computed
    assert ("gated",) in computed
    pairs = zip(ge2.tree.leaves(g(x, w)), ge2.tree.leaves(plain), strict=True)
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


@needs_compiler
def test_without_a_gradient_the_derivative_is_that_of_numpy(folder, gated):
    change(folder, 'gradient = "backward.toml"\n', "")
    x, w = arrays(4, 8)
    g = ge2.grad(lambda x, w: gated(x, w).sum())
    want = g(x, w)
    kernels.check(str(folder))
    kernels.register(str(folder), prefer=True)
    assert np.allclose(ge2.jit(g)(x, w), want, rtol=1e-5)


@needs_compiler
def test_the_emulator_runs_it_in_a_program(folder, gated):
    kernels.check(str(folder))
    kernels.register(str(folder), prefer=True)
    x, w = arrays(6, 8)
    with config.using(executor="shim"):
        f = ge2.jit(lambda x, w: gated(x, w) + 1)
        assert np.allclose(f(x, w), gated(x, w) + 1, rtol=1e-5)
        assert any("gated" in kernel.ops for kernel in f.lower(x, w).kernels)


@needs_compiler
def test_where_it_cannot_be_launched_ge2_serves(folder, gated):
    change(folder, 'blocks = "n"', 'blocks = "n - 5 + 5 * (n > 5)"')
    kernels.check(str(folder))
    kernels.register(str(folder), prefer=True)
    with config.using(executor="shim"):
        assert ("gated",) in shown(gated, *arrays(6, 8))
        found = ge2.explain(gated)(*arrays(5, 8))
    assert found.kernels[0].computes != ("gated",)
    assert "the launch of gated is ((0,), (8,), 0): a GPU takes at least 1" in str(found)


@needs_compiler
def test_it_is_launched_as_it_is(folder, gated):
    with pytest.raises(InputError, match="no kernel 'gated' is registered"):
        kernels.launch("gated", ())
    kernels.check(str(folder))
    kernels.register(str(folder))
    x, w = arrays(6, 8)
    y, gx, gw = np.empty_like(x), np.empty_like(x), np.empty_like(w)
    kernels.launch("gated", (x, w, y), variant=1)
    assert np.allclose(y, gated(x, w), rtol=1e-5)
    kernels.launch("gated_gradient", (x, w, np.ones_like(x), gx, gw))
    want = ge2.grad(lambda x, w: gated(x, w).sum(), (0, 1))(x, w)
    assert np.allclose(gx, want[0], atol=1e-5) and np.allclose(gw, want[1], atol=1e-5)
    for stream in (0, 140_000):
        with pytest.raises(InputError, match=f"{stream} is no CuPy stream"):
            kernels.launch("gated", (x, w, y), stream=stream)
    for variant in (2, -1, None):
        with pytest.raises(InputError, match=f"no variant {variant}"):
            kernels.launch("gated", (x, w, y), variant=variant)
    with pytest.raises(InputError, match="gated_gradient"):
        kernels.launch("gated_gradent", ())
    with pytest.raises(InputError, match="gated takes arrays, of its operands"):
        kernels.launch("gated", (x, w, "y"))
    with pytest.raises(InputError, match=r"gated takes f32\[6,8\], f32\[8\], f32\[6,8\]; it is"):
        kernels.launch("gated", (x, w, y[:3]))
    with pytest.raises(InputError, match="not c % 4 == 0"):
        kernels.launch("gated", (x[:, :3], w[:3], y[:, :3]))


@needs_compiler
def test_a_limit_of_memory_keeps_it(folder, gated):
    kernels.check(str(folder))
    kernels.register(str(folder), prefer=True)
    x, w = arrays(6, 8)
    f = ge2.jit(lambda x, w: gated(x, w) + 1, memory_limit="1MB")
    assert any("gated" in kernel.ops for kernel in f.lower(x, w).kernels)
    assert np.allclose(f(x, w), gated(x, w) + 1, rtol=1e-5)


@needs_compiler
def test_a_changed_text_has_to_pass_again(folder):
    kernels.check(str(folder))
    change(folder, "int64_t i = 0", "int64_t  i = 0", "kernel.c")
    change(folder, "int64_t j", "int64_t  j", "kernel.cu")
    with pytest.raises(InputError, match="never run: its C and CUDA"):
        kernels.register(str(folder))
    change(folder, "return x / (1", "return  x / (1", f"layer_{folder.name}.py")
    with pytest.raises(InputError, match="never run"):
        kernels.register(str(folder))


# ----------------------------------------------------------------------------------------- racing


@needs_compiler
@pytest.mark.parametrize(("winner", "by"), [("gated", "measured"), ("kernels of ge2", "")])
def test_jit_takes_what_won(folder, gated, monkeypatch, winner, by):
    """The times are given, since who wins on this machine is not the question."""
    change(folder, 'gradient = "backward.toml"\n', "")
    x, w = arrays(6, 8)
    with pytest.raises(InputError, match="no text that ran here and passed"):
        kernels.bench(str(folder))
    kernels.check(str(folder))
    kernels.register(str(folder))
    assert ("gated",) not in shown(gated, x, w)  # nothing was measured, nothing preferred
    ours = 2e-6 if winner == "gated" else 1e-7
    times = iter([[[ours] * 15, [1e-6] * 15, [5e-7] * 15]])
    monkeypatch.setattr(user_kernels, "times_of", lambda *_: next(times))
    found = kernels.bench(str(folder))
    kernels.check(str(folder))  # which chooses how the texts are run
    best = next(t for t in found.times if t.won)
    assert best.candidate == ("gated, STEP=2" if winner == "gated" else winner)
    explanation = ge2.explain(gated)(x, w)
    kernel = explanation.kernels[0]
    assert (kernel.computes == ("gated",)) == (winner == "gated")
    assert bool(explanation.unused) == (winner != "gated")
    if not by:
        text = str(explanation)
        assert "is computed by ge2" in explanation._repr_html_()
        assert f"gated, at layer_{folder.name}.py:4 in gated, is computed by ge2" in text
        assert "or     gated, STEP=2   measured 0.5 us" in text
        assert json.loads(explanation.as_json())["unused"][0]["candidates"][0]["name"] == winner
    if by:
        taken = kernel.options[0]
        assert (kernel.by, taken.name, taken.measured) == (by, "gated, STEP=2", 5e-7)


@needs_compiler
def test_a_race_times_all(folder, monkeypatch):
    monkeypatch.setattr(user_kernels, "ROUNDS", 2)
    monkeypatch.setattr(user_kernels, "LEAST", 0.0)
    kernels.check(str(folder))
    found = kernels.bench(str(folder))
    assert [t.candidate for t in found.times] == [
        "kernels of ge2", "gated, STEP=1", "gated, STEP=2", "kernels of ge2", "gated_gradient",
    ]  # fmt: skip
    assert all(t.seconds > 0 for t in found.times)
    assert sum(t.won for t in found.times) == 2
    assert "GB/s" in str(found)


@needs_compiler
def test_what_ends_the_process_of_a_race_is_kept_and_not_taken(folder, gated):
    """As what crashes or hangs, which a check apart meets in the same way."""
    why = "it ended the process, with 3"
    change(folder, 'gradient = "backward.toml"\n', "")
    text = "extern void _exit(int); _exit(3); for (int64_t i = 0"
    change(folder, "for (int64_t i = 0", text, "kernel.c")
    kernel = user_kernels.load(str(folder))
    user_kernels.keep_passed(kernel, "c", "this processor")  # it was well-behaved then
    found = kernels.bench(str(folder), apart=True)
    assert (found.failed, found.times) == (why, ()) and f"is not taken: {why}" in str(found)
    kernels.register(str(folder), prefer=True)
    x, w = arrays(6, 8)
    assert ("gated",) not in shown(gated, x, w)
    assert f"not    gated, STEP=1   {why}" in str(ge2.explain(gated)(x, w))


# -------------------------------------------------------------------------------------- libraries

LIBRARY = """#include <math.h>
#include <stdint.h>
void gated_rows(const void **in, void **out, const int64_t **shapes, int threads) {
    const float *x = in[0], *w = in[1];
    int64_t n = shapes[0][0], c = shapes[0][1];
    for (int64_t i = 0; i < n * c; i++)
        ((float *)out[0])[i] = x[i] / (1 + expf(-x[i])) * w[i % c];
}
"""


@pytest.fixture
def library(folder):
    build_library(folder, LIBRARY, "libgated.so")
    change(folder, 'c = "kernel.c"', 'library = "libgated.so"\nfunction = "gated_rows"')
    change(folder, 'gradient = "backward.toml"\n', "")
    change(folder, "f32|f64", "f32")
    return folder


@needs_compiler
def test_a_function_of_a_library(library, gated):
    assert {c.verdict for c in kernels.check(str(library)).cases if c.language == "c"} == {
        "passed, by this processor"
    }
    kernels.register(str(library), prefer=True)
    x, w = arrays(30, 16)
    f = ge2.jit(lambda x, w: gated(x * 2, w) + 1)
    assert np.allclose(f(x, w), gated(x * 2, w) + 1, rtol=1e-5)
    assert any("gated" in kernel.ops for kernel in f.lower(x, w).kernels)
    # another file in its place: the one that is loaded must not change
    (library / "new.so").write_bytes((library / "libgated.so").read_bytes() + b"!")
    (library / "new.so").replace(library / "libgated.so")
    with pytest.raises(InputError, match="never run: its C"):
        kernels.register(str(library))


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("libgated.so", "libgate.so", "it cannot be loaded"),
        ('"gated_rows"', '"gated_row"', "libgated.so has no function gated_row"),
        ('function = "gated_rows"', "", "it has a library and no function"),
        ('library = "libgated.so"', 'c = "kernel.c"', "it has a function and no library"),
        ("function =", 'c = "kernel.c"\nfunction =', "a library is in place of c"),
    ],
)
def test_what_is_wrong_of_a_library(library, old, new, what):
    change(library, old, new)
    with pytest.raises(InputError, match="kernel.toml:") as error:
        load(str(library))
    assert what in str(error.value)


@needs_compiler
def test_a_function_of_a_module(folder):
    """Which is how an operation is served."""
    (folder / "kernel.toml").write_text(
        'serves = "numpy:cumsum"\nname = "summed"\nargs = ["f64[7]"]\nwhen = ["a: f64[n]"]\n'
        'c = "kernel.c"\n'
    )
    (folder / "kernel.c").write_text(
        "y[0] = a[0]; for (int64_t i = 1; i < n; i++) y[i] = y[i - 1] + a[i];"
    )
    assert kernels.check(str(folder)).passed("c")
    kernels.register(str(folder), prefer=True)
    assert ("summed",) in shown(lambda x: np.cumsum(np.sin(x)) * 2, np.ones(9))
    change(folder, "numpy:", "nunpy:")
    with pytest.raises(InputError, match="No module named 'nunpy'"):
        kernels.check(str(folder))


# -------------------------------------------------------------------------------- a project's file


@needs_compiler
def test_a_file_of_pins(folder, gated, tmp_path):
    path = tmp_path / "ge2-pins.toml"
    x, w = arrays(6, 8)
    products = np.ones((64, 64), np.float32)
    usual = ge2.explain(np.matmul, arch="sm_90a")(products, products).kernels[0]
    assert usual.options[0].name != "product by BLAS"
    assert len(usual.problem) == 16
    pin = f'[[pin]]\nfamily = "product by BLAS"\nproblem = "{usual.problem}"\n'
    path.write_text(f'prefer = ["."]\n{pin}')
    with pytest.raises(InputError, match="gated has never run"):
        kernels.use(str(path))
    kernels.check(str(folder))
    try:
        assert kernels.use(str(path)) == (kernels.Pin("product by BLAS", "", usual.problem),)
        assert ("gated",) in shown(gated, x, w)
        again = ge2.explain(np.matmul, arch="sm_90a")(products, products).kernels[0]
        assert (again.options[0].name.split(",")[0], again.by) == ("product by BLAS", "pinned")
        other = ge2.explain(np.matmul, arch="sm_90a")(products[:32], products).kernels[0]
        assert other.by != "pinned"
    finally:
        config.update(pins=())


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("kernel = []", "'kernel' is no key of a file of pins", "kernels = ..."),
        ("kernels = 3", "kernels is to be texts; it is 3", ""),
        ('[[pin]]\nvariant = "a"', "a pin names no family", ""),
        ('[[pin]]\nfamly = "a"', "'famly' is no key of a pin", "family ="),
        ('[[pin]]\nfamily = "product by BLASS"', "'product by BLASS'", "product by BLAS"),
    ],
)
def test_what_is_wrong_in_a_file_of_pins(tmp_path, text, what, fix):
    path = tmp_path / "ge2-pins.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        kernels.use(str(path))
    assert what in str(error.value)
    assert f"ge2-pins.toml:{len(text.splitlines())}" in str(error.value) or "names no" in what
    assert fix in str(error.value)


@needs_compiler
def test_the_commands(folder, capsys):
    assert main(["kernels", "check", str(folder), "--here"]) == 0
    assert "gated: C passed, CUDA passed" in capsys.readouterr().out
    pins = folder / "ge2-pins.toml"
    pins.write_text('# ours\nkernels = [\n  "other",\n]\n[[pin]]\nfamily = "product by BLAS"\n')
    for more, want in (("", 'kernels = ["other", "."]'), ("--prefer", 'prefer = ["."]')):
        given = ["kernels", "register", str(folder), "--file", str(pins), *filter(None, [more])]
        assert main(given) == 0
        assert "gated   CUDA  taken" in capsys.readouterr().out
        assert want in pins.read_text()
    assert 'kernels = ["other"]\n' in pins.read_text() and "# ours" in pins.read_text()
    change(folder, "* w[k];", "+ w[k];", "kernel.c")
    assert main(["kernels", "register", str(folder), "--file", str(pins)]) == 1
    assert "gated has never run: its C and CUDA" in capsys.readouterr().err
    assert main(["kernels", "check", str(folder), "--here", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["cases"][0]["error"].startswith("its result is 2.18")
    assert "at [0, 0], not 1.17" in data["cases"][0]["error"]
    assert data["cases"][0]["error"].endswith("48 of 48 are wrong")
    assert main(["kernels", "register", str(folder), "--file", str(pins)]) == 0
    assert "gated   C     left out: it has never run" in capsys.readouterr().out
    assert main(["kernels", "bench", str(folder)]) == 1
    assert "ge2 kernels check" in capsys.readouterr().err


# ------------------------------------------------------------------------------------ the matching
# What is found in a program is the function: by references, the program computes what it did.

FUNCTIONS = """import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def normed(x, w):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * w

def moments(x):
    m = x.mean(-1)
    return {"mean": m, "spread": ((x - m[..., None]) ** 2).mean(-1)}

def dense(p, x):
    return np.tanh(x @ p["w"] + p["b"])

def attended(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v

def where_less(x, y):
    return np.where(x < y, x * y, np.float32(2) - y)
"""
ARGS = {
    "softmax": "f64[3,4]", "normed": "f64[3,4], f64[4]", "moments": "f64[3,4]",
    "dense": "{'w': f64[4,5], 'b': f64[5]}, f64[3,4]", "where_less": "f64[3], f64[3]",
    "attended": "f64[3,4], f64[5,4], f64[5,4]",
}  # fmt: skip


def uses(name, f):
    """Programs with the function in them, and the arrays they take."""
    x, w = arrays(6, 8, dtype=np.float64)
    m = np.linspace(-1, 1, 64).reshape(8, 8)
    return {
        "softmax": [(lambda x: f(np.sin(x)) * 2 + x, (x,)), (lambda x: f(f(x)).T @ f(x), (x,))],
        "normed": [(lambda x, w: np.tanh(f(x, w * 2)).sum(), (x, w)), (lambda x, w: f(x, x[0]), (x, w))],
        "moments": [(lambda x: (lambda d: d["spread"] * d["mean"])(f(x * x)), (x,))],
        "dense": [(lambda x, m: f({"w": m, "b": x[0]}, f({"w": m.T, "b": x[1]}, x)).sum(), (x, m))],
        "attended": [(lambda x: f(x, x * 2, x + 1).sum(), (x,)), (lambda x: f(x, x, x), (x,))],
        "where_less": [(lambda x: f(x, x.T[:6, :8].sum() + x) + f(x + 1, x * 2), (x,))],
    }[name]  # fmt: skip


@pytest.fixture
def functions(tmp_path, monkeypatch):
    module = f"functions_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(FUNCTIONS)
    (tmp_path / "kernel.c").write_text("y[0] = 0;")
    (tmp_path / "back.toml").write_text('c = "kernel.c"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path, importlib.import_module(module)
    sys.modules.pop(module, None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("name", ARGS)
def test_what_is_found_is_the_function(functions, name, derived):
    folder, module = functions
    toml = f'serves = "{module.__name__}.py:{name}"\nname = "mine"\nargs = ["{ARGS[name]}"]\n'
    (folder / "kernel.toml").write_text(f'{toml}c = "kernel.c"\ngradient = "back.toml"\n')
    kernel = load(str(folder))
    for program, given in uses(name, getattr(module, name)):
        if derived:
            plain = program
            program = ge2.grad(lambda *args, plain=plain: np.sin(plain(*args)).sum())
        graph = ge2.make_jaxpr(program)(*given).graph
        found = substituted(graph, {kernel: True}, "c", Caps(1))
        assert any(eqn.op.name.startswith("mine") for eqn in found.eqns)
        for a, b in zip(evaluated(graph, given), evaluated(found, given), strict=True):
            assert np.allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: np.exp(x - x.max(0, keepdims=True)) / np.exp(x - x.max(0, keepdims=True)).sum(0),
        lambda x: np.exp(x - x.min(-1, keepdims=True)) / np.exp(x).sum(-1, keepdims=True),
        lambda x: (lambda e: e / e.sum(-1, keepdims=True))(np.exp(x - np.sin(x))),
        lambda x: (lambda e: e / (e + 1).sum(-1, keepdims=True))(np.exp(x)),
    ],
)
def test_what_is_like_the_function_is_not(functions, other):
    folder, module = functions
    toml = f'serves = "{module.__name__}.py:softmax"\nargs = ["f64[3,4]"]\nc = "kernel.c"\n'
    (folder / "kernel.toml").write_text(f'name = "mine"\n{toml}')
    graph = ge2.make_jaxpr(other)(arrays(6, 8, dtype=np.float64)[0]).graph
    assert substituted(graph, {load(str(folder)): True}, "c", Caps(1)) is graph
