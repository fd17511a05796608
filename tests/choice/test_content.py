"""The content of kernels, by which a measurement is known to be of today's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base import compiler
from ge2.base.config import config
from ge2.base.source import templates
from ge2.choice.record import class_of, code_of
from ge2.codegen import text as content
from ge2.kernels import select

SOFTMAX: dict[str, str] = {"c": "c/region.c.jinja", "sm_90a": "cuda/rowwise.cu.jinja"}


def coded(target: str, *shape: int, name: str = "softmax", **attributes: Any) -> tuple[str, str]:
    """The class of a problem, and the content of the kernel that is taken for it."""
    choice = select(name, [ge2.ShapeDtypeStruct(shape, np.float32)], target, **attributes)
    return class_of(choice.problem).text, code_of(choice.kernels())


@pytest.mark.parametrize("target", SOFTMAX)
def test_kernels_of_a_class_differ_in_numbers_alone(target: str) -> None:
    for shape, other in (
        ((4099, 1000), (4101, 1016)),
        ((1 << 20, 12), (600000, 12)),
        ((9, 63), (9, 61)),
    ):
        (form, code), (same, known) = coded(target, *shape), coded(target, *other)
        assert code == known and form == same
    assert coded(target, 9, 64)[1] != coded(target, 9, 64, name="layer_norm")[1]


EDITS = (
    ("#}", "#}"), ("#}", "More words. #}"), ("%}\n", "%}  // a 3.\n"), ("\n", "\n\n"), ("%}\n", "%} ;\n"),
)  # fmt: skip


@pytest.mark.parametrize("target", SOFTMAX)
def test_a_template_is_part_of_it_and_its_comments_are_not(target: str, tmp_path: Path) -> None:
    text = Path(templates(), SOFTMAX[target]).read_text()
    codes = [coded(target, 4096, 1024)[1]]
    for n, (found, other) in enumerate(EDITS):
        path = tmp_path / str(n) / SOFTMAX[target]
        path.parent.mkdir(parents=True)
        path.write_text(other.join(text.rsplit(found, 1)))
        with config.using(templates=str(tmp_path / str(n))):
            codes.append(coded(target, 4096, 1024)[1])
    ours, same, *noted, another = codes
    assert {*noted} == {same} and len({ours, same, another}) == 3
    assert coded(target, 4096, 1024)[1] == ours


@pytest.mark.parametrize("target", SOFTMAX)
def test_headers_that_it_includes_are_part_of_it_and_their_comments_are_not(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = compiler.text_of

    def coded_with(name: str, more: str) -> str:
        def text(path: str) -> str:
            return read(path) + (more if name in path else "")

        monkeypatch.setattr(compiler, "text_of", text)
        compiler.kept_text.cache_clear()
        content.headers_content.cache_clear()
        return coded(target, 4096, 1024)[1]

    before = coded_with("nothing", "")
    assert coded_with("", "\n/* another */  // word\n\n") == before
    assert coded_with("/core.", "int another;") != before
    assert coded_with("/random.", "int another;") == before
    compiler.kept_text.cache_clear()
    content.headers_content.cache_clear()


@pytest.mark.parametrize("name", ["softmax", "gelu"])
def test_the_text_of_a_variant_is_written_once(name: str) -> None:
    """What is raced, and what its row is of, is what is built: names are taken while it is written."""
    choice = select(name, [ge2.ShapeDtypeStruct((4096, 1024), np.float32)], "sm_90a")
    assert code_of(choice.kernels()) == code_of(choice.kernels())
