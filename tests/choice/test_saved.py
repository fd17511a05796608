"""Kernels that ge2 wrote, saved, edited and pinned: checked, timed, taken for their problem."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.errors import CompileError, InputError
from ge2.choice.choose import SAVED
from ge2.choice.saved import read
from ge2.dispatch import pins
from tests.choice.test_user_kernels import needs_compiler
from tests.nvrtc import needs_nvrtc

pytestmark = needs_compiler
X = np.linspace(0.5, 2, 40, dtype=np.float32).reshape(5, 8)
HOW = {"c": ("c", "k.c", "ge2_tanh_f32(", "/*mine*/ge2_tanh_f32("),
       "cuda": ("shim", "k.cu", "ge2_tanh_f32(", "+ge2_tanh_f32(")}  # fmt: skip


def f(x):
    return np.tanh(x) * 2 + x.T.sum()


@pytest.fixture(autouse=True)
def none_pinned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ge2.compile.race.ROUNDS", 2)
    monkeypatch.setattr("ge2.compile.race.AGAIN", 1)
    monkeypatch.setattr("ge2.compile.race.LEAST", 0.0)
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield
    SAVED.clear()
    pins._passed.clear()
    config.renew()


@pytest.fixture(params=["c", "cuda"])
def saved(request, tmp_path):
    """A jitted function, a file of its kernel with tanh, and how that is edited."""
    executor, name, old, new = HOW[request.param]
    with config.using(executor=executor):
        jitted = ge2.jit(f)
        kernel = next(k for k in jitted.lower(X).kernels if "tanh" in k.ops)
        kernel.save(name)
        yield jitted, tmp_path / name, lambda a=old, b=new: change(tmp_path / name, a, b)


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def taken(jitted, *args):
    explained = ge2.explain(jitted)(*args)
    return {k.options[0].name: k.by for k in explained.kernels if k.options}


def test_a_kernel_is_saved_edited_and_pinned(saved):
    jitted, path, edit = saved
    want = jitted(X)
    found = read(str(path))
    assert (found.name, found.target) == (path.name, "cuda" if path.suffix == ".cu" else "c")
    edit()
    pinned = jitted.pin(path.name)
    assert pinned.now > 0 and pinned.before > 0
    assert f"{path.name} is taken for" in str(pinned)
    assert taken(jitted, X)[path.name] == "pinned"
    assert np.allclose(jitted(X), want, rtol=1e-6)
    lines = [k.source for k in jitted.lower(X).kernels]
    assert any("/*mine*/" in text or "+ge2_tanh" in text for text in lines)
    # of another problem ge2's own is taken, and of another function with the same it is not
    assert path.name not in taken(jitted, X[:4])
    assert np.allclose(jitted(X[:4]), f(X[:4]), rtol=1e-5)
    assert path.name in taken(ge2.jit(lambda x: f(x)), X)
    kernels.unpin(path.name)
    assert path.name not in taken(jitted, X)


@pytest.mark.parametrize("saved", ["c"], indirect=True)
def test_a_project_has_it_in_its_file(saved, tmp_path):
    jitted, path, edit = saved
    edit()
    jitted.pin(path.name, X)
    jitted.pin(path.name, X)
    text = (tmp_path / "ge2-pins.toml").read_text()
    assert text == f'[[pin]]\nkernel = "{path.name}"\n'
    SAVED.clear()
    pins._passed.clear()  # as in another process
    config.renew()
    assert path.name not in taken(jitted, X)
    kernels.use()
    assert path.name in taken(jitted, X)
    change(path, "*/\n", "*/\n\n")  # its own text is what passed
    with pytest.raises(InputError, match=f"{path.name} has never run"):
        kernels.use()


@pytest.mark.parametrize(
    ("saved", "old", "new", "what"),
    [
        ("c", "ge2_tanh_f32(", "ge2_sin_f32(", "its result is"),
        ("cuda", "float *", "double *", "its signature was edited: kernel 1 is "),
        ("c", "int64_t n", "int n", "its signature was edited: kernel 1 is "),
        ("c", "origin   ", "origin   0", "it is stale: ge2 writes another text"),
        ("c", "family   region", "family   regions", "it is stale: ge2 has no regions in"),
    ],
    indirect=["saved"],
)
def test_what_is_wrong_is_not_pinned(saved, old, new, what):
    jitted, path, edit = saved
    edit(old, new)
    with pytest.raises(InputError) as error:
        jitted.pin(path.name, X)
    assert f"{path.name} is not pinned: {what}" in str(error.value)
    assert "help(" not in str(error.value)
    assert not SAVED
    assert np.allclose(jitted(X), f(X), rtol=1e-5)


@needs_nvrtc
def test_what_does_not_compile_is_told_of_its_line(saved):
    jitted, path, edit = saved
    line = next(
        n for n, words in enumerate(path.read_text().splitlines(), 1) if "ge2_tanh_f32(" in words
    )
    edit("ge2_tanh_f32(", "ge2_tanh_f32)(")
    jitted(X)
    with pytest.raises(CompileError) as error:
        jitted.pin(path.name)
    assert path.name in str(error.value)
    if path.suffix == ".c":
        assert f"{path.name}:{line}" in str(error.value)


@pytest.mark.parametrize("saved", ["c"], indirect=True)
def test_what_cannot_be_pinned_or_saved(saved, tmp_path):
    jitted, path, _ = saved
    with pytest.raises(InputError, match="no program of g has the kernel") as error:
        named("g").pin(path.name)
    assert f'f.pin("{path.name}", *args)' in str(error.value)
    kernel = jitted.lower(X).kernels[0]
    with pytest.raises(InputError, match=f"is saved as {path.suffix}"):
        kernel.save("k.txt")
    (tmp_path / "no.c").write_text("int a;")
    with pytest.raises(InputError, match="has no head of a saved kernel"):
        jitted.pin("no.c")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        jitted.pin("nowhere.c")
    change(path, "/* kernel 1", "/* kernels 1")
    with pytest.raises(InputError, match="lacks lines that begin with `/\\* kernel`"):
        jitted.pin(path.name)


def named(name):
    def g(x):
        return x + 1

    g.__name__ = name
    return ge2.jit(g)


def test_kernels_that_are_several(tmp_path):
    """What is folded in two is saved whole; the launch is what the file says."""
    with config.using(executor="shim"):
        x = np.ones((3, 100_000), np.float32)
        jitted = ge2.jit(lambda x: np.square(x).sum())
        kernel = jitted.lower(x).kernels[0]
        kernel.save("two.cu")
        found = read("two.cu")
        assert len(found.texts) == 2, "an example in two kernels is needed"
        change(tmp_path / "two.cu", "ge2_square_f32", "+ge2_square_f32")
        jitted.pin("two.cu", x)
        assert np.allclose(jitted(x), 300_000)
        assert "+ge2_square_f32" in jitted.lower(x).as_text("cuda")


def test_a_product_and_its_region_stay_one(tmp_path):
    """The pass that joins them is not asked for the file's kernel."""
    with config.using(executor="shim"):
        x = np.full((64, 64), 0.1, np.float32)
        jitted = ge2.jit(lambda x: np.tanh(x @ x.T + 1))
        (kernel,) = jitted.lower(x).kernels
        kernel.save("product.cu")
        jitted.pin("product.cu", x)
        assert taken(jitted, x) == {"product.cu": "pinned"}
        assert np.allclose(jitted(x), np.tanh(x @ x.T + 1))


def test_what_is_part_of_a_small_loop_is_not_saved():
    jitted = ge2.jit(lambda x: ge2.lax.fori_loop(0, 5, lambda i, y: np.tanh(y) * 2, x))
    kernel = jitted.lower(X).kernels[0]
    with pytest.raises(InputError, match="no kernel that can be edited by itself"):
        kernel.save("k.c")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[[pin]]\nkernel = "k.cu"\nfamily = "product by BLAS"', "a pin has a kernel, or a family"),
        ('[[pin]]\nkernl = "k.cu"', "'kernl' is no key of a pin"),
        ("[[pin]]\nkernel = 3", "kernel is to be a text"),
        ('[[pin]]\nkernel = "nowhere.cu"', "nowhere.cu cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_of_pins(tmp_path, text, what):
    (tmp_path / "ge2-pins.toml").write_text(text)
    with pytest.raises(InputError) as error:
        kernels.use()
    assert what in str(error.value)
