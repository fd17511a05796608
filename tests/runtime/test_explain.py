"""`ge2.explain` and `ge2 explain`: what each kernel covers, what else could run, and why."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import Ge2Error, InputError
from ge2.cli import main
from ge2.dispatch.explanation import Explained, Option
from ge2.program.assembler import Ceilings
from tests.nvrtc import needs_nvrtc

needs_compiler = pytest.mark.skipif(toolchain() is None, reason="no C compiler")

# The text says where a line is, so the function is compiled with the name of a file of its own.
MODEL = """import numpy as np

def layer(x, w):
    y = np.tanh(x @ w)
    y = y / y.sum(1, keepdims=True)
    return np.sort(y, 1) * 2, y.max()
"""

IN_C = """\
layer: 4 kernels on this processor, 1 thread, C

product_1  dot_general  of model.py:4 in layer  f32[128,32]
  reads 40.0 KB, writes 16.0 KB, 524.3 k operations
  taken  product in C, panels  predicted N us
  not    N kernels of other operations

rowwise_2  tanh reduce_sum div reduce_max  of model.py:4-6 in layer  f32[128,32] f32[]
  reads 16.0 KB, writes 16.0 KB, 16.4 k operations
  taken  region in C  predicted N us
  not    N kernels of other operations
  apart from product_1: its product stays in a near cache as it is;
      one kernel would save 32.0 KB, of f32[128,32]

sort_3  sort  of model.py:6 in layer  f32[128,32]
  reads 16.0 KB, writes 16.0 KB, 0 operations
  taken  sort in C  predicted N us
  not    N kernels of other operations
  apart from rowwise_2: sort is a kernel of its own: regions hold elementwise work, views and reductions;
      one kernel would save 32.0 KB, of f32[128,32]

pointwise_4  mul  of model.py:6 in layer  f32[128,32]
  reads 16.0 KB, writes 16.0 KB, 4.1 k operations
  taken  region in C  predicted N us
  not    N kernels of other operations
  apart from sort_3: sort is a kernel of its own: regions hold elementwise work, views and reductions;
      one kernel would save 32.0 KB, of f32[128,32]"""

IN_CUDA = """\
layer: 1 kernel on H100, sm_90a, which is not at hand

rowwise_0  reduce_sum div  of model.py:5 in layer  f32[4096,1000]
  reads 15.6 MB, writes 15.6 MB, 8.2 M operations, at least 9.78 us
  taken  region in CUDA, rows along axis 1  predicted N us
  not    N kernels of other operations
  compiled: N threads a block, N registers, N B spilled, N B of shared memory"""


@pytest.fixture(autouse=True)
def any_blas(monkeypatch):
    """Products are chosen as if BLAS packed small operands, whatever this machine's does."""
    monkeypatch.setattr("ge2.targets.c.libraries.unpacked", lambda: 0)
    config.renew()
    yield
    config.renew()


def made(body: str = MODEL, name: str = "layer"):
    known: dict = {}
    exec(compile(body, "/anywhere/model.py", "exec"), known)
    return known[name]


def struct(*shape, dtype=np.float32):
    return ge2.ShapeDtypeStruct(shape, dtype)


def words(text):
    """The text without what another catalog or compiler says otherwise."""
    text = re.sub(r"\n  or     .*", "", text)
    text = re.sub(r"\d+ kernels of other", "N kernels of other", text)
    text = re.sub(r" +predicted [\d.e+-]+ [mn]?u?s", "  predicted N us", text)
    figures = re.compile(r"\d+ threads a|\d+ reg|\d+ B spilled|[\d.]+ K?B of shared")
    return figures.sub(lambda m: re.sub(r"[\d.]+ (K?)", "N ", m[0]), text)


@needs_compiler
def test_its_text_in_c():
    with config.using(threads=1, executor="c"):
        found = ge2.explain(made())(struct(128, 64), struct(64, 32))
    assert words(str(found)) == IN_C


@needs_nvrtc
def test_its_text_in_cuda_without_a_gpu():
    body = MODEL.replace("    y = np.tanh(x @ w)\n", "    y = x\n").replace(
        "np.sort(y, 1) * 2, y.max()", "y"
    )
    found = ge2.explain(made(body), arch="sm_90a")(struct(4096, 1000), 1.0)
    assert words(str(found)) == IN_CUDA
    (kernel,) = found.kernels
    assert "\n  or     region in CUDA, columns over axis 1 " in str(found)
    (usage,) = kernel.usages
    assert usage.threads > 0 and usage.registers > 8


@needs_compiler
def test_its_data_has_one_schema():
    found = ge2.explain(made())(struct(128, 64), struct(64, 32))
    data = json.loads(found.as_json())
    assert data == found.as_data()
    assert list(data) == ["schema", "function", "device", "kernels", "unused"]
    assert data["schema"] == 1
    product, rowwise, *_ = data["kernels"]
    assert list(product) == [
        "name", "kind", "computes", "equations", "lines", "results", "read", "written",
        "operations", "problem", "by", "seconds", "least", "share", "candidates", "compiled", "apart",
    ]  # fmt: skip
    names = ["name", "verdict", "reason", "predicted", "measured", "spread", "other"]
    assert all(list(each) == names for each in product["candidates"])
    assert [c["name"] for c in product["candidates"] if c["verdict"] == "taken"] == [
        "product in C, panels"
    ]
    with config.using(executor="shim"):
        emulated = ge2.explain(made())(struct(128, 64), struct(64, 32))
    assert emulated.device == "the CPU in place of H200, sm_90a"
    assert list(rowwise["apart"][0]) == ["kernel", "reason", "saves", "shared"]
    assert rowwise["apart"][0]["saves"] == 2 * 128 * 32 * 4
    assert rowwise["lines"] == [f"model.py:{n} in layer" for n in (4, 5, 6)]


@needs_compiler
def test_a_notebook_shows_it():
    html = ge2.explain(made())(struct(128, 64), struct(64, 32))._repr_html_()
    assert html.count("<details open>") == 4
    assert "product in C, BLAS" in html
    assert "one kernel would save 32.0 KB" in html
    for tag in ("details", "table", "tr", "td", "p", "div", "pre", "summary"):
        assert html.count(f"<{tag}>") + html.count(f"<{tag} ") == html.count(f"</{tag}>")


def reasons(f, *args):
    return {each.reason for k in ge2.explain(f)(*args).kernels for each in k.apart or ()}


@needs_compiler
@pytest.mark.parametrize(
    ("f", "args", "reason"),
    [
        (lambda x: x - x.mean(), [struct(1 << 20)], "would be held whole, which is too long"),
        (lambda x: (np.sin(x).reshape(-1) * 3), [struct(100, 80)], "reshape moves elements"),
        (lambda x: np.cumsum(x * 2) + 1, [struct(1000)], "cumsum is a kernel of its own"),
        (lambda x: np.tanh(x) + np.sort(np.sin(x) * 2), [struct(99)], "between them, sort is a"),
        (lambda x: (x * 2, x[:50].sum() + x.T[0]), [struct(99, 99)], "are not one loop"),
    ],
)  # fmt: skip
def test_reasons(f, args, reason):
    assert any(reason in each for each in reasons(f, *args))


@needs_compiler
def test_a_cut_region_and_a_pass_that_is_off():
    def chain(x):
        for i in range(1, 250):
            x = np.sin(x) * i + np.cos(x)
        return x

    with config.using(passes_off=("roll",)):
        assert "a region that was too long was cut here, where fewest bytes cross" in reasons(
            chain, struct(64)
        )
    with config.using(passes_off=("fuse",)):
        assert reasons(lambda x: x * 2 + 1, struct(9)) == {"fuse is switched off"}


@needs_compiler
def test_loops_and_limits_know_no_neighbours():
    def loop(x):
        return ge2.lax.scan(lambda c, _: (np.tanh(c @ c), c.sum()), x, None, length=20)

    found = {k.name: k for k in ge2.explain(loop)(struct(8, 8)).kernels}
    assert found["scan_0"].apart == ()
    assert found["product_0"].apart is None
    assert str(found["product_0"]).count("apart") <= 1
    limited = ge2.jit(made(), memory_limit="1MB")
    assert len(ge2.explain(limited)(struct(128, 64), struct(64, 32)).kernels) == 4


@needs_nvrtc
def test_products_tell_of_the_region_behind():
    found = ge2.explain(lambda x, w: np.tanh(x @ w), arch="sm_80")
    small = found(struct(64, 64), struct(64, 64))
    assert [k.kind for k in small.kernels] == ["contraction"]
    _, behind = found(struct(4096, 4096), struct(4096, 4096)).kernels
    assert behind.apart[0].reason.startswith("a matrix has more than")
    assert behind.apart[0].saves == 2 * 4096 * 4096 * 4


@needs_compiler
def test_time_is_beside_what_the_device_can_do(monkeypatch):
    # how fast this processor is has a test of its own, and takes seconds to find out
    monkeypatch.setattr("ge2.dispatch.explanation.ceilings_of", lambda *_: Ceilings(1e9, 1e9, 1e9))
    found = ge2.explain(made(), time=True)(np.ones((128, 64)), np.ones((64, 32)))
    assert all(kernel.seconds for kernel in found.kernels)
    assert all(kernel.share for kernel in found.kernels if kernel.name != "product_1")
    assert ": took " in str(found)


def test_share_is_of_what_is_needed():
    row = Explained("k", "pointwise", (), (), (), "", (), 8, 8, 1, "", (), (), 4e-6, 3e-6)
    assert row.share == 0.75
    assert "at least 3 us: took 4 us, 75% of the roofline" in row.text()
    option = Option("a", "taken", "", 2e-6, 1e-6, 0.02)
    row = Explained("k", "pointwise", (), (), (), "", (), 8, 8, 1, "measured", (option,))
    assert "taken  a  predicted 2 us, measured 1 us ± 2%, by measurement" in row.text()
    assert row.share is None


def test_what_cannot_be_explained():
    with pytest.raises(InputError, match="nothing is timed for sm_80"):
        ge2.explain(np.tanh, arch="sm_80", time=True)
    with config.using(executor="reference"), pytest.raises(InputError, match="op by op"):
        ge2.explain(lambda x: x * 2)(np.ones(3))
    with pytest.raises(Ge2Error):
        ge2.explain(lambda x: x * 2, arch="sm_1")(np.ones(3))


CALLS = {
    "elementwise": "ge2.jit(lambda x: np.tanh(x) * 2)(x)",
    # attention is looked for in it, and in its derivative
    "scores": "ge2.jit(ge2.grad(lambda q: (np.exp(q @ x.T - (q @ x.T).max(1)[:, None]) @ x).sum()))(x)",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_loads_neither_it_nor_what_is_for_gpus(name):
    code = (
        f"import sys, numpy as np, ge2; x = np.ones((8, 8)); {CALLS[name]};"
        "words = ('explain', 'explanation', 'reasons', 'targets.cuda', 'tomllib', 'choice.user_');"
        "print([m for m in sys.modules if any(w in m for w in words)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_compiler
def test_the_command(tmp_path, capsys):
    path = tmp_path / "a_layer.py"
    path.write_text(MODEL)
    given = ["explain", f"{path}:layer", "--args", "f32[128,64]", "f32[64,32]"]
    assert main(given) == 0
    text = capsys.readouterr().out
    assert text.startswith("layer: 4 kernels on this processor")
    assert "= sort" not in text
    assert main([*given, "--all"]) == 0
    assert "= sort[axis=1]" in capsys.readouterr().out
    assert main([*given, "--json", "--executor", "blocked"]) == 0
    assert len(json.loads(capsys.readouterr().out)["kernels"]) == 4
    assert main([*given, "--html", "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<style>")
    assert main(["explain", f"{path}:later"]) == 1
    assert "has no function later" in capsys.readouterr().err


def test_the_gradient_of_attention_is_explained_for_a_gpu_that_is_not_at_hand():
    """Attention is looked for before derivatives are taken, if a GPU has kernels for both."""

    def loss(q, k, v):
        s = q @ np.swapaxes(k, -1, -2) * 0.125
        e = np.exp(s - s.max(-1, keepdims=True))
        return ((e / e.sum(-1, keepdims=True)) @ v).astype(np.float32).sum()

    x = np.zeros((1, 2, 256, 64), ml_dtypes.bfloat16)
    said = str(ge2.explain(ge2.grad(loss, (0, 1, 2)), arch="sm_90a")(x, x, x))
    assert "wgmma attention backward" in said
