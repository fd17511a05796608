"""A user's templates come before ours, may extend them by name, and are rendered and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import CompileError
from ge2.base.source import templates
from ge2.codegen.environment import environment
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import ShimDevice
from tests.codegen.texts import kernels
from tests.together import needs_compiler

X = np.arange(1, 101, dtype=np.float32)
SCAN = """{% extends "cuda/scan/lines.cu.jinja" %}
{% block scan %}
{{ super() }}
    for (int p = 0; p < PACKS; p++) before[p] = {{ v.how }}::merge(before[p], {{ v.how }}::of(ADDED));
{% endblock %}
"""


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(folder)


def total(x: Any) -> Any:
    return np.cumsum(x)


@needs_compiler
def test_a_block_of_a_cuda_kernel_is_replaced(tmp_path: Path) -> None:
    folder = written(tmp_path, "cuda/scan/lines.cu.jinja", SCAN.replace("ADDED", "5.f"))
    graph = ge2.make_jaxpr(total)(X).graph
    with config.using(templates=folder):
        (mine,) = compile_graph(graph, device=ShimDevice())(X)
    (plain,) = compile_graph(graph, device=ShimDevice())(X)
    np.testing.assert_allclose(mine, X.cumsum() + 5)
    np.testing.assert_allclose(plain, X.cumsum())


ROWS = """{% extends "cuda/rowwise.cu.jinja" %}
{% block reduce %}
{{ super() }}
{% if s.folds %}
    b_sum = 2.0f;
{% endif %}
{% endblock %}
"""


MERGE = """{% extends "cuda/reduce.cu.jinja" %}
{% block merge %}
{{ super() }}
    {{ s.value }} = 2.0f;
{% endblock %}
"""


@needs_compiler
@pytest.mark.parametrize(("name", "text"), [("rowwise", ROWS), ("reduce", MERGE)])
def test_the_rows_of_a_user_are_reduced_otherwise(tmp_path: Path, name: str, text: str) -> None:
    """A block of a stage sees the stage; so does that of a macro which the template imports."""
    folder = written(tmp_path, f"cuda/{name}.cu.jinja", text)
    x = np.arange(1, 61, dtype=np.float32).reshape(4, 15)
    graph = ge2.make_jaxpr(lambda x: x / x.sum(1, keepdims=True))(x).graph
    with config.using(templates=folder):
        (mine,) = compile_graph(graph, device=ShimDevice())(x)
    (plain,) = compile_graph(graph, device=ShimDevice())(x)
    np.testing.assert_array_equal(mine, x / 2)
    np.testing.assert_allclose(plain, x / x.sum(1, keepdims=True), rtol=1e-6)


SORT = """{% extends "c/sort.c.jinja" %}
{% block sort %}
{{ super() }}
    for (int64_t t = 0; t < n / 2; t++) {
        const {{ v.type }} first = line[t];
        line[t] = line[n - 1 - t];
        line[n - 1 - t] = first;
    }
{% endblock %}
"""


@needs_compiler
def test_a_block_of_a_c_kernel_is_replaced(tmp_path: Path) -> None:
    """Here lines are sorted the other way round; the setting is part of the key of a signature."""
    folder = written(tmp_path, "c/sort.c.jinja", SORT)
    x = np.array([3, 1, 2], np.float32)
    with config.using(executor="c"):
        f = ge2.jit(np.sort)
        np.testing.assert_array_equal(f(x), [1, 2, 3])
        with config.using(templates=folder):
            np.testing.assert_array_equal(f(x), [3, 2, 1])
        np.testing.assert_array_equal(f(x), [1, 2, 3])


LOOPS = """{% extends "c/loops.c.jinja" %}
{% block iterations %}
{{ super() | replace("t < rounds", "t < rounds - 1") }}
{% endblock %}
"""
PERSISTENT = """{% extends "cuda/persistent.cu.jinja" %}
{% block iterations %}
{{ super() | replace("round < rounds", "round < rounds - 1") }}
{% endblock %}
"""


def repeated(x: Any) -> Any:
    return ge2.lax.fori_loop(0, 5, lambda i, x: 2 * x, x)


@needs_compiler
def test_a_block_of_a_library_of_loops_is_replaced(tmp_path: Path) -> None:
    """Templates that import its macros have the user's; here a loop has an iteration less."""
    folder = written(tmp_path, "c/loops.c.jinja", LOOPS)
    x = np.ones(3, np.float32)
    graph = ge2.make_jaxpr(repeated)(x).graph
    with config.using(executor="c", templates=folder):
        (mine,) = compile_graph(graph)(x)
    np.testing.assert_array_equal(mine, 16 * x)


@needs_compiler
def test_a_stage_of_a_persistent_kernel_is_replaced(tmp_path: Path) -> None:
    folder = written(tmp_path, "cuda/persistent.cu.jinja", PERSISTENT)
    x = np.ones(3, np.float32)

    def summed(x: Any) -> Any:
        return ge2.lax.fori_loop(0, 5, lambda i, x: x + x.sum(), x)

    graph = ge2.make_jaxpr(summed)(x).graph
    with config.using(templates=folder):
        (mine,) = compile_graph(graph, device=ShimDevice())(x)
    (plain,) = compile_graph(graph, device=ShimDevice())(x)
    np.testing.assert_array_equal(mine, 4**4 * x)
    np.testing.assert_array_equal(plain, 4**5 * x)


def test_texts_that_are_kept_are_those_of_the_folder(tmp_path: Path) -> None:
    with config.using(cache_dir=str(tmp_path / "cache")):
        ((_, plain),) = kernels(total, X)
        found = [plain]
        for added in ("5.f", "6.f", "6.f"):
            folder = written(
                tmp_path / "mine", "cuda/scan/lines.cu.jinja", SCAN.replace("ADDED", added)
            )
            with config.using(templates=folder):
                found.append(kernels(total, X)[0][1])
        ((_, again),) = kernels(total, X)
    assert again == plain and found[2] == found[3] and len({*found}) == 3
    assert "of(5.f)" in found[1] and "of(6.f)" in found[2]


def test_a_template_that_is_extended_may_itself_be_the_users(tmp_path: Path) -> None:
    """Ours of another name, and what every kernel has."""
    written(
        tmp_path,
        "cuda/kernel.cu.jinja",
        """{% extends "cuda/kernel.cu.jinja" %}
{% block helpers %}
{{ super() }}
// {{ k.name }} of this house
{% endblock %}
""",
    )
    with config.using(templates=str(tmp_path)):
        ((_, text),) = kernels(lambda x: x * 2, X)
    head, _, tail = text.partition("// pointwise of this house\n")
    assert "#include" in head and "__global__" in tail


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with config.using(templates=str(tmp_path / "none")), pytest.raises(CompileError, match="none"):
        kernels(total, X)


LIBRARIES = (
    "c/attention/scores.c.jinja",
    "c/loops.c.jinja",
    "cuda/attention/products.cu.jinja",
    "cuda/attention/scores.cu.jinja",
    "cuda/attention/slopes.cu.jinja",
    "cuda/packs.cu.jinja",
    "cuda/product/sums.cu.jinja",
    "cuda/reduce.cu.jinja",
    "cuda/scatter_sums/run.cu.jinja",
)  # of macros, whose blocks are theirs
FOLDER = Path(templates())
NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.jinja"))


def test_every_template_says_what_it_is_and_extends_what_all_kernels_have() -> None:
    """A skeleton has blocks, by which it may be changed."""
    assert len(NAMES) > 40
    for name in NAMES:
        environment().get_template(name)
        text = (FOLDER / name).read_text()
        if name.startswith("numpy/") or name == "c/program.c.jinja":
            continue
        assert text.startswith("{#"), name
        assert "{% macro" in text or "{% block" in text, name
        if name not in ("c/kernel.c.jinja", "cuda/kernel.cu.jinja", *LIBRARIES):
            assert '{% extends "' in text, name
