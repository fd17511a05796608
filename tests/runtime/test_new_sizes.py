"""Another size of a batch compiles nothing: sizes and strides are arguments of the machine code."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ge2
from benchmarks.cuda.programs import BATCH, WIDTHS, adamw
from benchmarks.cuda.programs import start as weights
from ge2.base import compiler
from ge2.base.compiler import significant
from ge2.base.detect import toolchain
from ge2.cli.demo import start, train_step
from ge2.cli.show import assemblers
from ge2.codegen.environment import LONG, MARGIN, WIDTH, cut, note
from ge2.codegen.layout import Line
from ge2.compile import compile_graph
from ge2.passes.fold import iotas
from ge2.targets.cuda.emit import bare
from ge2.targets.cuda.emulator import OfflineDevice, limits_of

needs_compiler = pytest.mark.skipif(toolchain() is None, reason="no C compiler")

SIZES = (128, 29, 7, 64)
LAST = 1437 % 128  # of the digits that the demo trains with, those in the last batch


def f32(*shape):
    return np.random.default_rng(0).random(shape, np.float32)


def integers(n):
    return np.arange(n) % 10


def softmax_regression(p, x, y, rate):
    def loss(p):
        z = x @ p["w"] + p["b"]
        z = z - z.max(axis=1, keepdims=True)
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return -np.take_along_axis(log_p, y[:, None], axis=1).mean()

    value, grads = ge2.value_and_grad(loss)(p)
    return {name: p[name] - rate * grads[name] for name in p}, value


def means(x):
    return x.mean(axis=0), x.mean(axis=1), x.mean(), x.var(axis=0), x.std()


def dense_gelu(x, w, b):
    z = x @ w + b
    return 0.5 * z * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))


def layernorm(x, g, b):
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * g + b


def layernorm_gradient(x, g, b):
    return ge2.grad(lambda x, g: (layernorm(x, g, b) ** 2).sum(), (0, 1))(x, g)


PROGRAMS = {
    "softmax regression": (
        softmax_regression,
        lambda n: ({"w": f32(64, 10), "b": f32(10)}, f32(n, 64), integers(n), 0.1),
    ),
    "the demo": (train_step, lambda n: (start(), f32(n, 64), integers(n))),
    "means": (means, lambda n: (f32(n, 64),)),
    "gelu": (dense_gelu, lambda n: (f32(n, 64), f32(64, 32), f32(32))),
    "layernorm": (layernorm, lambda n: (f32(n, 64), f32(64), f32(64))),
    "layernorm's gradient": (layernorm_gradient, lambda n: (f32(n, 64), f32(64), f32(64))),
    "rows of a table": (lambda table, i: table[i] * 2.5, lambda n: (f32(1000, 20), integers(n))),
    "one hot": (
        lambda y: (y[:, None] == np.arange(10)).astype(np.float32),
        lambda n: (integers(n),),
    ),
    "sum of all": (lambda x: np.tanh(x).sum(), lambda n: (f32(n, 64),)),
    "batched products": (
        lambda q, k: np.tanh(q @ k.transpose(0, 2, 1)).sum(axis=-1),
        lambda n: (f32(n, 20, 32), f32(n, 20, 32)),
    ),
}


@pytest.fixture
def compilations(monkeypatch):
    """How often a C compiler was started."""
    found = []
    build = compiler.build

    def counted(tools, source, name, *rest):
        found.append(name)
        return build(tools, source, name, *rest)

    monkeypatch.setattr(compiler, "build", counted)
    return found


def text(f, args):
    """What of the C of a function decides its machine code."""
    return significant(ge2.jit(f).lower(*args).as_text("c"))


def chosen(f, args):
    """The kernels that are chosen for a function: of products BLAS, or loops, by their times."""
    return tuple(k.choice.taken.title for k in ge2.jit(f).lower(*args).kernels)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_another_batch_compiles_nothing(name, compilations):
    """Where the same kernels are chosen for it, as those of products are for a batch that is nearly
    as large.
    """
    f, args = PROGRAMS[name]
    texts = {}
    for n in (*SIZES, SIZES[1] + 2):
        before = len(compilations)
        kernels, code = chosen(f, args(n)), text(f, args(n))
        if kernels in texts:
            assert code == texts[kernels]
            assert len(compilations) == before
        texts[kernels] = code
    assert len(texts) <= len(SIZES)


@pytest.mark.parametrize("name", ["softmax regression", "means"])
def test_the_results_of_another_batch_are_right(name):
    f, args = PROGRAMS[name]
    jitted = ge2.jit(f)
    for n in SIZES:
        found, want = ge2.tree.leaves(jitted(*args(n))), ge2.tree.leaves(f(*args(n)))
        for y, z in zip(found, want, strict=True):
            np.testing.assert_allclose(y, z, rtol=2e-5, atol=1e-6)


@needs_compiler
def test_the_report_of_the_call_says_so(compilations):
    rate = 0.123  # a number is an argument of the machine code too
    f = ge2.jit(lambda x: layernorm(x, 1.5, rate) * np.cos(x))
    f(f32(128, 64))
    first = f.report()
    f(f32(LAST, 64))
    other = f.report()
    f(f32(LAST, 64))
    again = f.report()
    assert (first.traced, other.traced, again.traced) == (True, True, False)
    assert (first.compiled, other.compiled, again.compiled) == (True, False, False)
    assert "compiled in" in str(first) or "found in the cache" in str(first)
    assert "traced, nothing compiled: the same code is loaded for other sizes" in str(other)
    assert "nothing traced, nothing compiled" in str(again)
    assert len(compilations) <= 1


def test_an_equal_graph_is_not_compiled_again():
    f, g = (ge2.jit(lambda x: np.cos(x) * 0.77) for _ in range(2))
    f(f32(50))
    g(f32(50))
    assert "nothing compiled: an equal graph was compiled before" in str(g.report())


@pytest.mark.parametrize(
    ("executor", "words"), [("blocked", "as blocked NumPy"), ("reference", "op by op")]
)
def test_other_executors_report_too(executor, words):
    with ge2.config.using(executor=executor):
        f = ge2.jit(lambda x: np.cos(x) * 0.66)
        f(f32(50))
        assert words in str(f.report())


# ---------------------------------------------------------------------------------------- for a GPU


def for_a_gpu(graph, arch="sm_90a", **how):
    """The kernels' texts, of which NVRTC compiles each once, for a GPU that is not at hand."""
    with ge2.config.using(check=False):
        made = compile_graph(graph, device=OfflineDevice(limits_of(arch)), **how)
    return {
        bare(source.text()) for each in assemblers(made) for source in each.kernels.sources.values()
    }


# They reduce all of an array, and then what differs from the result: registers hold a small array
# meanwhile as one row, of which the text has the length.
HELD = ("means",)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_another_batch_is_the_same_cuda(name):
    f, args = PROGRAMS[name]

    def texts(n):
        return for_a_gpu(ge2.make_jaxpr(f)(*args(n)).graph)

    assert (texts(320) == texts(256)) == (name not in HELD)
    assert texts(2000) == texts(2048)


def step_for_a_gpu(batch, arch):
    """The training step of the benchmarks."""
    rng = np.random.default_rng(0)
    x, y = rng.random((batch, WIDTHS[0]), np.float32), rng.integers(0, WIDTHS[-1], batch)
    step = ge2.jit(lambda *args: adamw(ge2, np, *args), donate_argnums=0)
    with ge2.config.using(executor="reference"):  # nothing of the CPU's is compiled
        entry = step.trace(weights(rng, np.asarray), x, y).entry
    return for_a_gpu(
        entry.graph, arch, donated=entry.donated, iotas=iotas(entry.graph, entry.captured)
    )


TILES = pytest.mark.xfail(strict=True, reason="tiles of products follow the number of rows there")
CHIPS = [pytest.param("sm_80", marks=TILES), "sm_90a", pytest.param("sm_100", marks=TILES)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", CHIPS)
def test_a_training_step_compiles_nothing_for_another_batch(arch):
    first = step_for_a_gpu(BATCH, arch)
    assert len(first) >= 5
    for batch in (32, 128, 192, 250, 255, 512):
        assert step_for_a_gpu(batch, arch) == first, batch


def test_a_batch_of_another_magnitude_has_few_other_kernels():
    """Another block of threads shares the rows that a sum folds; and where a product that was small
    is one for the library or for tensor cores, what is done to its elements has another kernel: a
    mask that its derivative reads is written there, and read by another. A product that its region
    gives back as well is one kernel with that, whose kind follows the product's; one of few columns
    is in parts, which another kernel merges. A weight's update is a kernel of its own where its
    product is long and has too few tiles to hide it.
    """
    assert len(step_for_a_gpu(1024, "sm_90a") - step_for_a_gpu(BATCH, "sm_90a")) <= 10


@pytest.mark.parametrize("code", ["x = f(y);", "z" * MARGIN, "z" * (MARGIN + 1), "z" * WIDTH])
def test_comments_change_no_lines(code):
    """They have sizes in them, and machine code knows its lines."""
    texts = [LONG.sub(cut, note(Line(code, "mul " + "8" * n), 0)) for n in range(1, 150, 7)]
    assert len({bare(text) for text in texts}) == 1
    assert all(
        len(line) <= WIDTH for text in texts for line in text.split("\n") if len(code) <= MARGIN
    )
    assert all("mul 8" in text for text in texts)


@pytest.mark.parametrize(
    ("f", "parameters"),
    [
        pytest.param(lambda x: (x + 0.1) * 0.3 + 0.1, 2, id="fractions"),
        pytest.param(lambda x: (x + 7.0) * 0.3 + 7.0, 3, id="numbers-that-may-be-sizes"),
    ],
)
def test_equal_fractions_are_one_parameter(f, parameters):
    x = np.linspace(0, 1, 5)
    compiled = ge2.jit(f)
    np.testing.assert_array_equal(compiled(x), f(x))
    source = compiled.lower(x).as_text("c")
    assert len(set(re.findall(r"double (const\d+)", source))) == parameters


def test_small_copies_of_other_widths_are_one_kernel():
    def f(x):
        return np.concatenate([x[:, 7:9], x[:, 1:6], x[:, 3:10], x], axis=1)

    x = np.random.default_rng(0).random((9, 12))
    compiled = ge2.jit(f)
    np.testing.assert_array_equal(compiled(x), f(x))
    source = compiled.lower(x).as_text("c")
    assert len(set(re.findall(r"void (\w+_\d+)\(", source))) == 2  # of parts, and of all of x


def test_other_numbers_compile_nothing(compilations):
    for first, second in ((0.1, 0.3), (0.7, 0.9), (1.5, 2.5)):
        ge2.jit(lambda x, a=first, b=second: (x + a) * b + a)(np.ones(5))
    assert len(compilations) <= 1
