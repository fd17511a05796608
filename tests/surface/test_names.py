"""The public names, how what they return looks, and that it can be copied,
pickled and sent elsewhere.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import ge2
from ge2.base.errors import INSIDE

MODULES = [
    "", "debug", "errors", "extend", "io", "kernels", "lax", "nn", "nn.initializers", "numpy.fft", "numpy.linalg",
    "optim", "random", "scipy", "scipy.special", "test_util", "tree", "tree_util",
]  # fmt: skip
X = np.ones((2, 3), np.float32)


@ge2.jit
def doubled(x, *, by=2.0):
    """Doubles."""
    return np.tanh(x) * by


@dataclass
class Model:
    by: float = 1.0

    @ge2.jit
    def step(self, x):
        return x + self.by


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_offers_its_public_names_alone(name):
    module = importlib.import_module(f"ge2.{name}".rstrip("."))
    assert [n for n in dir(module) if not n.startswith("_")] == sorted(module.__all__)
    assert all(hasattr(module, n) for n in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


def test_what_is_imported_by_name_is_listed():
    defined = {n for n, value in vars(ge2).items() if n[0] != "_" and not inspect.ismodule(value)}
    assert defined <= set(ge2.__all__)


def test_a_jitted_function_keeps_name_signature_and_text():
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Doubles.")
    assert list(inspect.signature(doubled).parameters) == ["x", "by"]


@pytest.mark.parametrize("called", [False, True])
def test_jitted_functions_copy_and_pickle_at_any_time(called):
    local = ge2.jit(lambda x: np.sin(x), widest="float32", max_traces=3)
    if called:
        doubled(X)
        local(X)
    for made in (copy.copy(local), copy.deepcopy(local)):
        assert made is not local
        np.testing.assert_allclose(made(X), np.sin(X), rtol=1e-6)
        with pytest.raises(ge2.errors.WideningError):
            made(X.astype(float))
    assert pickle.loads(pickle.dumps(doubled)) is doubled  # by name, as functions are
    method = Model().step
    assert pickle.loads(pickle.dumps(method))(1) == 2
    assert copy.deepcopy({"f": local})["f"](X).dtype == np.float32


def test_cloudpickle_sends_a_jitted_function_to_another_process():
    cloudpickle = pytest.importorskip("cloudpickle")
    scale = np.full(3, 2.0, np.float32)
    f = ge2.jit(lambda x: x * scale)
    f(X)
    program = "import sys, pickle, numpy as np; f = pickle.load(sys.stdin.buffer); print(f(np.ones(3, 'f4')))"
    found = subprocess.run(
        [sys.executable, "-c", program], input=cloudpickle.dumps(f), capture_output=True
    )
    assert found.stdout.decode().strip() == "[2. 2. 2.]", found.stderr.decode()


def test_what_is_looked_at_is_a_line_or_a_table_and_never_an_address():
    doubled(X)
    low = doubled.lower(X)
    looked = [
        doubled, Model().step, doubled.report(), doubled.cache_report(), doubled.trace(X), low, low.compile(),
        low.kernels, low.kernels[0], low.memory_analysis(), low.memory_timeline(), doubled.report().bill,
        low.args_info, low.in_tree, low.out_info, doubled.trace(X).jaxpr, low.choices, ge2.custom_vjp(np.sin),
        ge2.vjp(np.sin, X)[1], ge2.linearize(np.sin, X)[1], ge2.custom_jvp(np.sin), ge2.sequential_vmap(np.sin),
    ]  # fmt: skip
    for value in looked:
        text = repr(value)
        assert " 0x" not in text, text
        assert "object at" not in text
    assert repr(low) == "<lowered doubled(x: f32[2,3]) -> f32[2,3]>"
    assert repr(doubled.report()) == str(doubled.report())
    for value in (doubled.report(), low.kernels, low.kernels[0], low.memory_timeline()):
        assert value._repr_html_().startswith("<pre>")
        assert "<" not in value._repr_html_()[5:-6]


def test_a_program_has_a_text_for_each_stage():
    low = doubled.lower(X)
    assert "tanh" in low.as_text("graph")
    assert "1 kernel" in low.as_text("plan")
    assert "arena" in low.as_text("memory")
    assert low.as_text("kernels").startswith("kernel ")
    assert "pointwise_0" in low.as_text("c")
    with pytest.raises(
        ge2.errors.InputError, match="it has graph, jaxpr, kernels, plan, memory, c"
    ):
        low.as_text("plans")
    with pytest.raises(ge2.errors.InputError, match="runs no cuda"):
        low.as_text("cuda")


def test_an_operation_of_the_users_own_counts_its_operations():
    @ge2.extend.op
    class Thrice(ge2.extend.Op):
        name = "thrice_counted"
        c = "for (int64_t i = 0; i < x_size; i++) y[i] = 3 * x[i];"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return 3 * x

        def operations(self, x):
            return 5 * x.size

    low = ge2.jit(lambda x: Thrice()(x)).lower(X)
    assert low.kernels[0].operations == 30
    assert low.cost_analysis()["flops"] == 30


@pytest.mark.parametrize(
    ("module", "name", "fix"),
    [
        (ge2, "grads", "ge2.grad"),
        (ge2, "pmap", "ge2.vmap"),
        (ge2.lax, "scna", "ge2.lax.scan"),
        (ge2.random, "PRNGKey", "ge2.random.key"),
        (ge2.nn, "ReLU", "ge2.nn.relu"),
        (ge2.nn, "CrossEntropyLoss", "ge2.nn.cross_entropy"),
        (ge2.nn, "BatchNorm1d", "ge2.nn.BatchNorm"),
        (ge2.nn, "mse_loss", "ge2.nn.mse"),
        (ge2.optim, "AdamW", "ge2.optim.adamw"),
        (ge2.optim, "apply_updates", "params, state = optimizer.update"),
        (ge2.io, "save_model", "ge2.io.save"),
        (ge2.nn.Linear(X), "parameters", "ge2.tree.leaves"),
    ],
)
def test_a_name_that_is_not_there_names_one_that_is(module, name, fix):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'\n  try  {fix}"):
        getattr(module, name)


def test_what_is_named_instead_is_there():
    fixes = [fix for known in INSIDE.values() for fix in known.values()]
    paths = {path for fix in fixes for path in re.findall(r"ge2(?:\.\w+)+", fix)}
    assert len(paths) > 20
    for path in paths:
        found = ge2
        for part in path.split(".")[1:]:
            found = getattr(found, part)
