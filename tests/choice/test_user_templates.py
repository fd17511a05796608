"""Kernels of a user's whose texts are templates: by themselves, and in place of a block of ge2's."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.choice.user_kernels import load
from ge2.compile.user_kernels import operation
from ge2.compile.user_kernels.operations import role_of, types_of
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200
from tests.choice.user_kernels import change, needs_compiler
from tests.choice.user_kernels import none_registered as none_registered
from tests.nvrtc import needs_nvrtc

SOFTMAX = """import numpy as np

def soft(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def swish(x, b):
    return x / (1 + np.exp(-x)) + b

def two(x):
    return np.sort(x, -1).cumsum(-1)
"""
TOML = """serves = "{module}.py:{function}"
name = "mine"
args = [{args}]
{language} = "{text}"
{more}
"""


@pytest.fixture
def folder(tmp_path):
    def made(language, name, text, function="soft", args='"f32[5,33]"', more=""):
        module = f"module_{tmp_path.name}"
        (tmp_path / f"{module}.py").write_text(SOFTMAX)
        (tmp_path / name).write_text(text)
        (tmp_path / "kernel.toml").write_text(
            TOML.format(
                module=module, function=function, args=args, language=language, text=name, more=more
            )
        )
        return str(tmp_path)

    return made


ROWS = """{% extends "cuda/rowwise.cu.jinja" %}
{% block store scoped %}
        if ({{ STEP }}) { (void)0; }
{{ super() }}
{% endblock %}
"""


def errors(found):
    return [case.error for case in found.cases]


@needs_compiler
def test_a_block_of_a_kernel_of_ge2_is_overridden(folder):
    """Run by the emulator, and compiled by NVRTC where it is."""
    made = folder("cuda", "k.cu.jinja", ROWS, more="variants = [{ STEP = 1 }]")
    found = kernels.check(made)
    assert found.passed("cuda"), str(found)
    kernels.register(made, prefer=True)
    x = np.linspace(0, 3, 5 * 33, dtype=np.float32).reshape(5, 33)
    with config.using(executor="shim"):
        soft = load(made).function()
        f = ge2.jit(lambda x: soft(x * 2).T)
        assert np.allclose(f(x), soft(x * 2).T, rtol=1e-5)
        kernel = next(k for k in f.lower(x).kernels if "mine" in k.ops)
        assert "if (1) { (void)0; }" in kernel.source
        # of a function of another width the kernel of ge2 is another, and it is served all the same
        wide = np.ones((2, 40000), np.float32)
        assert np.allclose(f(wide), soft(wide * 2).T, rtol=1e-5)


@needs_nvrtc
def test_nvrtc_compiles_it(folder):
    made = folder("cuda", "k.cu.jinja", ROWS, more="variants = [{ STEP = 3 }]")
    role = role_of(load(made))
    op = operation(role, types_of(role.kernel), role.kernel.variants[0])
    for device in (OfflineDevice(H200),):
        text = str(ge2_kernels(op, types_of(role.kernel), device))
        assert "if (3) { (void)0; }" in text


def ge2_kernels(op, types, device):
    from ge2.compile import compile_graph
    from ge2.ir import Eqn, Graph, Var

    inputs, outs = tuple(map(Var, types)), tuple(map(Var, op.infer(*types)))
    executable = compile_graph(Graph(inputs, (Eqn(op, inputs, outs),), outs), device=device)
    executable.build()
    return executable.text("cuda")


@needs_compiler
@pytest.mark.parametrize("args", ['"f32[9,8], f32[8]"', '"f16[9,8], f16[8]"'])
def test_a_block_in_c(folder, args):
    text = """{% extends "c/region.c.jinja" %}
{% block mainloop %}
    { static int mine; mine += {{ STEP }}; }
{{ super() }}
{% endblock %}
"""
    more = "variants = [{ STEP = 4 }]"
    made = folder("c", "k.c.jinja", text, "swish", args, more)
    found = kernels.check(made)
    assert found.passed("c"), str(found)
    kernels.register(made, prefer=True)
    swish = load(made).function()
    x, b = np.ones((9, 8), (args.count("f16") and np.float16) or np.float32), np.ones(8, np.float32)
    b = b.astype(x.dtype)
    f = ge2.jit(lambda x, b: swish(x[::-1], b))  # what lies otherwise is copied before
    assert np.allclose(f(x, b), swish(x[::-1], b), rtol=1e-2)
    assert "mine += 4" in f.lower(x, b).as_text("c")


@needs_compiler
@pytest.mark.parametrize("language", ["c", "cuda"])
def test_a_text_by_itself_is_rendered(folder, language):
    head = {"c": "for (int64_t i = 0; i < x_size; i++) {", "cuda": "{ const int64_t i = thread;"}
    text = f"""{head[language]}
    x_t v = x[i], sum = 0;
{{% for n in range(STEP) %}}
    sum += v / (1 + exp(-v)) / {{{{ STEP }}}}; /* {{{{ k.x.dtype }}}}, {{{{ n }}}} */
{{% endfor %}}
    y[i] = sum + b[i % b_size];
}}
"""
    more = "variants = [{ STEP = 2 }, { STEP = 4 }]"
    made = folder(language, "k.jinja", text, "swish", '"f32[9,8], f32[8]"', more)
    found = kernels.check(made)
    assert [c.variant for c in found.cases] == ["STEP=2", "STEP=4"]
    assert found.passed(language), str(found)


@needs_compiler
@pytest.mark.parametrize(
    ("text", "function", "words"),
    [
        ('{% extends "cuda/rowwise.cu.jinja" %}\n{% block store %}', "soft", ("k.jinja:2", "endblock")),
        ('{% extends "cuda/rowwise.cu.jinja" %}\n{% block store %}\n{{ nothing }}\n{% endblock %}', "soft",
         ("k.jinja:3", "'nothing' is undefined")),
        ('{% extends "cuda/rowise.cu.jinja" %}', "soft",
         ("ge2 prints it by cuda/rowwise.cu.jinja", "not by cuda/rowise.cu.jinja")),
        ('{% extends "cuda/pointwise.cu.jinja" %}', "soft", ("ge2 prints it by cuda/rowwise.cu.jinja",)),
        ('{% extends "cuda/pointwise.cu.jinja" %}', "two",
         ("prints one kernel, and ge2 does it by sort and cumsum",)),
        ("y[thread] = {{ thing }};", "soft", ("k.jinja:1", "'thing' is undefined")),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_template(folder, text, function, words):
    found = kernels.check(folder("cuda", "k.jinja", text, function))
    assert not found.passed("cuda")
    for each in words:
        assert each in errors(found)[0]


@needs_nvrtc
def test_a_compiler_names_the_line_of_a_template(folder, monkeypatch):
    monkeypatch.setattr("ge2.dispatch.user_kernels.toolchain", lambda: None)
    found = kernels.check(folder("cuda", "k.cu.jinja", ROWS.replace("({{ STEP }})", "(1")))
    assert "k.cu.jinja:3" in errors(found)[0]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("variants", "launch = { blocks = 1 }\nvariants", "k.jinja extends cuda/rowwise.cu.jinja, whose launch is"),
        ("variants", "workspace = 4\nvariants", "whose workspace is ge2's"),
        ('"k.jinja"', '["k.jinja", "k.jinja"]', "k.jinja extends cuda/rowwise.cu.jinja, which is all there"),
    ],
)  # fmt: skip
def test_what_is_wrong_beside_a_template(folder, tmp_path, old, new, what):
    made = folder("cuda", "k.jinja", ROWS, more="variants = [{ STEP = 1 }]")
    change(tmp_path, old, new)
    with pytest.raises(InputError, match="kernel.toml:") as error:
        load(made)
    assert what in str(error.value)
