"""`ge2 show`: every stage of a user's function, and clear words for every mistake."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

import numpy as np
import pytest

import ge2
from ge2.base.detect import toolchain
from ge2.base.errors import InputError
from ge2.choice.arguments import arguments
from ge2.cli import COMMANDS, main

needs_compiler = pytest.mark.skipif(toolchain() is None, reason="no C compiler")
F32 = np.dtype(np.float32)

MODEL = """
from dataclasses import dataclass
import numpy as np
from neighbour import RATE

@dataclass
class Config:
    width: int = 4

def loss(p, x, y):
    z = np.tanh(x @ p["w"] + p["b"])
    return ((z - y) ** 2).mean()

def scaled(x, rate=RATE):
    return np.tanh(x) * rate * 2.5

def start():
    return {"w": np.zeros((6, Config().width), np.float32), "b": np.zeros(4, np.float32)}

def broken(x):
    return x.nonsense

number = 3

if __name__ == "__main__":
    raise SystemExit("it was run, not imported")
"""
LOSS = ["--args", "{'w': f32[6,4], 'b': f32[4]}", "f32[8,6]", "f32[8,4]"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "neighbour.py").write_text("RATE = 0.1\n")
    path = tmp_path / "a_model.py"
    path.write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))  # what is put there is gone after the test
    return str(path)


def shown(capsys, *words):
    code = main(["show", *words])
    found = capsys.readouterr()
    return code, found.out, found.err


def refused(capsys, *words):
    code, out, err = shown(capsys, *words)
    assert code == 1
    assert not out
    assert "Traceback" not in err
    return err


# ------------------------------------------------------------------------------------------- stages


def test_it_shows_graph_passes_regions_and_kernels(model, capsys):
    code, out, err = shown(capsys, f"{model}:loss", *LOSS, "--executor", "blocked")
    assert (code, err) == (0, "")
    titles = (
        "graph, as traced", "after simplify", "regions, after the last pass", "kernels",
        "rowwise_0",
    )  # fmt: skip
    at = [out.index(f" {title} =") for title in titles]
    assert at == sorted(at)
    assert "dot_general" in out
    assert "a_model.py:11" in out
    assert "tanh(" in out


@needs_compiler
def test_it_shows_the_c_file(model, capsys):
    code, out, _ = shown(
        capsys, f"{model}:scaled", "--args", "f32[100]", "--stage", "source", "--executor", "c"
    )
    assert code == 0
    assert "int ge2_run(" in out
    assert "ge2_tanh_f32(a[i])" in out


def test_it_shows_the_derivative(model, capsys):
    _, plain, _ = shown(capsys, f"{model}:loss", *LOSS, "--stage", "graph")
    _, grad, _ = shown(capsys, f"{model}:loss", *LOSS, "--stage", "graph", "--grad")
    assert plain.count("dot_general") == 1
    assert grad.count("dot_general") == 2


def test_it_shows_a_batch_of_derivatives(model, capsys):
    words = ["--args", LOSS[1], "f32[5,8,6]", "f32[5,8,4]", "--stage", "graph", "--grad", "--vmap"]
    _, out, _ = shown(capsys, f"{model}:loss", *words, "None, 0, 0")
    assert "f32[5,6,4]" in out.splitlines()[-2]
    code, _, wrong = shown(capsys, f"{model}:loss", *words, "x")
    assert code
    assert "one for each; got 'x'" in wrong


def test_the_timeline_of_memory(model, capsys):
    words = ["--stage", "memory", "--executor", "blocked", "--json"]
    _, out, _ = shown(capsys, f"{model}:loss", *LOSS, *words)
    rows = json.loads(out)["memory"]["rows"]
    assert [row["name"] for row in rows if row["kind"] == "argument"] == ["a", "b", "c", "d"]
    assert any(row["kind"] == "arena" and "a_model.py:11 in loss" in row["line"] for row in rows)
    _, out, _ = shown(capsys, f"{model}:loss", *LOSS, *words[:-1])
    assert " memory, step by step =" in out
    assert "buffer" in out


def test_the_plan(model, capsys):
    words = ["--stage", "plan", "--executor", "blocked", "--json"]
    _, out, _ = shown(capsys, f"{model}:loss", "--args", "@start", *LOSS[2:], *words)
    plan = json.loads(out)["plan"]
    assert plan["memory"]["arguments"] == 4 * (24 + 4 + 48 + 32)
    assert plan["memory"]["outputs"] == 4
    assert plan["cost"]["transcendentals"] == 32
    assert plan["steps"][-1] == "1 kernel, 1 matmul"


def test_json_and_a_file(model, capsys, tmp_path):
    file = tmp_path / "out.json"
    words = [
        "--args", "f32[100]", "--executor", "blocked", "--stage", "all", "--json", "-o", str(file),
    ]  # fmt: skip
    code, out, _ = shown(capsys, f"{model}:scaled", *words)
    assert (code, out) == (0, "")
    found = json.loads(file.read_text())
    assert list(found) == [
        "graph", "widened", "passes", "regions", "kernels", "choice", "source", "plan", "memory",
    ]  # fmt: skip
    (kernel,) = found["kernels"]
    assert kernel["equations"][0] == "b:f32[100] = tanh a"
    assert (kernel["read"], kernel["written"]) == (400, 400)
    assert kernel["lines"] == ["a_model.py:15 in scaled"]
    assert str(ge2.parse(found["graph"])) == found["graph"]


def test_a_function_that_is_jitted_already(model, capsys, tmp_path):
    (tmp_path / "jitted.py").write_text(
        "import ge2, numpy as np\nf = ge2.jit(lambda x: np.tanh(x))\n"
    )
    code, out, _ = shown(capsys, f"{tmp_path}/jitted.py:f", "--args", "f32[3]", "--stage", "graph")
    assert code == 0
    assert "tanh a" in out


def test_a_file_that_cannot_be_written(model, capsys):
    err = refused(
        capsys, f"{model}:scaled", "--args", "f32[3]", "--stage", "graph", "-o", "/nowhere/at/all"
    )
    assert "/nowhere/at/all cannot be written" in err


# ----------------------------------------------------------------------------------------- mistakes


def test_where_there_is_no_such_thing(model, capsys):
    assert f"try  {model}:loss" in refused(capsys, f"{model}:los", "--args", "1")
    assert f"try  {model}" in refused(capsys, f"{model[:-4]}.py:loss")
    assert "there is no file" in refused(capsys, "nowhere.py:f")
    assert "names no function" in refused(capsys, model)
    assert "is no function: it is 3" in refused(capsys, f"{model}:number")


def test_a_file_that_fails(capsys, tmp_path):
    (tmp_path / "fails.py").write_text("x = 1\n\n\ny = x / 0\n")
    err = refused(capsys, f"{tmp_path}/fails.py:f")
    assert "fails when it is imported: ZeroDivisionError" in err
    assert "fails.py:4" in err
    (tmp_path / "wrong.py").write_text("def f(:\n")
    assert "wrong.py:1" in refused(capsys, f"{tmp_path}/wrong.py:f")


def test_a_function_that_fails(model, capsys):
    err = refused(capsys, f"{model}:broken", "--args", "f32[3]")
    assert "nonsense" in err
    assert "a_model.py:21 in broken" in err


def test_arguments_that_are_missing(model, capsys):
    err = refused(capsys, f"{model}:loss", "--args", "f32[3]")
    assert "takes (p, x, y); --args gives 1" in err
    assert '--args "p" "x" "y", in place of each name what it is, such as f32[128,64]' in err


# ---------------------------------------------------------------------------------------- arguments


def array(shape, dtype):
    return ge2.ShapeDtypeStruct(shape, np.dtype(dtype))


def test_what_arguments_may_be():
    numbers = ["2.5", "-3", "True", "1e-3", "None", "'mean'"]
    words = ["f32[128,64]", "f64[]", "[int8[3], (1, bool[])]", *numbers]
    found, named = arguments([*words, "rate=0.1", "p={'w': bf16[3, 4]}"], {})
    assert found[:2] == [array((128, 64), np.float32), array((), np.float64)]
    assert found[2] == [array((3,), np.int8), (1, array((), bool))]
    assert found[3:] == [2.5, -3, True, 1e-3, None, "mean"]
    assert type(found[5]) is bool
    assert named["rate"] == 0.1
    assert named["p"]["w"].dtype.name == "bfloat16"


def test_arguments_from_the_file():
    names = {"number": 3, "make": lambda: "made"}
    assert arguments(["@number", "[@make, @make]"], names) == ([3, ["made", "made"]], {})


@pytest.mark.parametrize(
    ("word", "why", "fix"),
    [
        ("f3[3]", "f3 is no dtype", "f32"),
        ("f32[3", "no Python literal", "f32[128,64]"),
        ("f32", "f32 has no shape", "f32[]"),
        ("f32[-1]", "[-1] is no shape", "whole numbers"),
        ("f32[2.5]", "[2.5] is no shape", "whole numbers"),
        ("f32[n]", "n is not known here", "@n"),
        ("@strat", "the file has no strat", "@start"),
        ("print(1)", "print(1) is neither a literal nor an array", "@name"),
        ("__import__('os')", "neither a literal", ""),
    ],
)
def test_arguments_that_cannot_be_read(word, why, fix):
    with pytest.raises(InputError) as error:
        arguments([word], {"start": 1})
    assert repr(word) in str(error.value)
    assert why in str(error.value)
    assert fix in str(error.value)


def test_several_arguments_in_one_word():
    found, named = arguments(["f32[2,3], (f32[3], 1), {'a': bool[]}", "2, rate=0.1"], {"n": 1})
    assert found == [
        array((2, 3), np.float32),
        (array((3,), np.float32), 1),
        {"a": array((), bool)},
        2,
    ]
    assert named == {"rate": 0.1}
    assert arguments(["@n, @n", ""], {"n": 1}) == ([1, 1], {})
    assert arguments(["f32[3],"], {})[0] == [array((3,), np.float32)]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("1) + (2", "parentheses do not match"),
        ("1)(2", "parentheses do not match"),
        ("**@n", "it has ** in it"),
        ("*@n", "neither a literal"),
        ("x=1, 2", "positional argument follows keyword argument"),
        ("x for x in [1]", "neither a literal"),
    ],
)
def test_words_that_are_no_arguments(word, why):
    with pytest.raises(InputError) as error:
        arguments([word], {"n": 1})
    assert why in str(error.value)


def test_names_come_last():
    with pytest.raises(InputError, match="behind an argument with a name"):
        arguments(["x=1", "2"], {})


def test_what_a_gpu_would_run_is_shown_without_one(capsys, model):
    words = ["--args", "f32[100]", "--executor", "shim", "--stage", "source"]
    code, out, err = shown(capsys, f"{model}:scaled", *words)
    assert (code, err) == (0, "")
    assert "__global__" in out and "<<<" in out


def test_a_function_of_a_module(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("")
    (tmp_path / "a_package" / "inner.py").write_text("from a_model import scaled\n1 / 0\n")
    for name in ("a_model", "neighbour", "a_package", "a_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    args = ["--args", "f32[3]", "--stage", "graph"]
    code, by_module, _ = shown(capsys, "a_model:scaled", *args)
    assert code == 0
    assert by_module == shown(capsys, f"{model}:scaled", *args)[1]
    assert "has no function scale" in refused(capsys, "a_model:scale", *args)
    err = refused(capsys, "a_modle:scaled", *args)
    assert "there is no module a_modle" in err
    assert "a_model.py:..." in err
    err = refused(capsys, "a_package.inner:scaled", *args)
    assert "a_package.inner fails when it is imported: ZeroDivisionError" in err
    assert "inner.py:2" in err
    for name in ("a_model", "neighbour", "a_package", "a_package.inner"):
        sys.modules.pop(name, None)


def test_commands_name_a_function_alike():
    """What one command takes to name a function and its arguments, all of them take."""
    found = []
    for command in ("show", "profile", "compile", "explain", "tune"):
        parser = argparse.ArgumentParser()
        getattr(importlib.import_module(COMMANDS[command].module), f"{command}_arguments")(parser)
        known = {action.dest: action for action in parser._actions}
        found.append(
            [
                (name, known[name].help, known[name].metavar)
                for name in ("place", "args", "grad", "vmap", "json")
            ]
        )
    assert found[1:] == found[:1] * (len(found) - 1)


def test_arguments_are_where_jit_would_have_them(monkeypatch, tmp_path):
    """On the GPU, if there is one, but where an executor or an architecture is asked for."""
    from argparse import Namespace
    from contextlib import nullcontext

    import ge2
    from ge2.cli import kernels

    (tmp_path / "m.py").write_text("def f(x):\n    return x * 2\n")
    put = []

    def place(where):
        return (lambda x: put.append(where) or x), nullcontext

    monkeypatch.setattr(kernels, "usual", lambda: "cuda")
    monkeypatch.setattr(kernels, "place", place)
    for executor, arch, on_gpu in ((None, "", True), ("c", "", False), (None, "sm_90a", False)):
        given = Namespace(
            place=f"{tmp_path / 'm.py'}:f",
            args=["f32[3]"],
            grad=False,
            vmap=None,
            executor=executor,
        )
        look, _ = kernels.placed(given, arch)
        assert look.on_gpu == on_gpu and put == (["cuda"] if on_gpu else [])
        assert isinstance(look.args[0], ge2.ShapeDtypeStruct) != on_gpu
        put.clear()
