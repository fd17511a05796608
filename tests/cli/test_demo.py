"""`ge2 demo` does what it says, and fails where it should."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import pytest

import ge2
from ge2.base.config import config
from ge2.cli import demo, main
from ge2.cli import demo as digits
from tests import fake_cupy
from tests.exhaustive import SAMPLING
from tests.fake_cupy import stand_in
from tests.together import needs_compiler

OP_BY_OP = [{"disable_jit": True}, {"executor": "reference"}, {"passes_off": ("fuse",)}]
QUICK = ["demo", "--epochs", "2"]


@pytest.fixture(autouse=True)
def quick_timing(monkeypatch):
    monkeypatch.setattr(demo, "ROUNDS", 3)


@pytest.mark.full_options  # 360 steps, which take longer at -Og than what is saved of compiling
def test_it_reaches_the_accuracy(capsys):
    assert main(["demo", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["accuracy"] >= 0.97
    assert report["steps"] == 30 * 12
    assert report["step"] > 0 < report["step_by_hand"]
    assert report["kernels"]["pointwise"] > 0
    assert report["kernels"]["rowwise"] > 0
    # forward, by the weights, by the layers' inputs; some of them with what follows
    kernels = report["kernels"]
    assert kernels["matmul"] + kernels.get("contraction", 0) == 3 + 3 + 2
    assert report["kernels"].get("library", 0) <= 1  # the wrapping of the labels


def test_too_low_an_accuracy_fails_loudly(monkeypatch, capsys):
    monkeypatch.setattr(demo, "REQUIRED", 1.01)
    assert main(QUICK) == 1
    assert "FAILED" in capsys.readouterr().out


def test_what_a_pipe_sees(monkeypatch, capsys):
    monkeypatch.setattr(demo, "REQUIRED", 0.5)
    assert main(QUICK) == 0
    text = capsys.readouterr().out
    for part in (
        "64-256-256-10", "training 2/2  loss", "test accuracy", "by hand", "kernels of a step", demo.SHOW,
    ):  # fmt: skip
        assert part in text
    assert "\r" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_same_seed_gives_the_same_result(capsys):
    def loss(seed):
        main([*QUICK, "--json", "--seed", str(seed)])
        return json.loads(capsys.readouterr().out)["loss"]

    assert loss(1) == loss(1) != loss(2)


def test_kernels_shows_graph_regions_and_sources(capsys):
    assert main(["demo", "--kernels"]) == 0
    text = capsys.readouterr().out
    for part in ("graph, as traced", "{ lambda", "regions", "kernel "):
        assert part in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", OP_BY_OP, ids=str)
def test_a_step_that_runs_op_by_op_fails_loudly(setting, capsys):
    with config.using(**setting):
        assert main(["demo", "--epochs", "1"]) == 1
    assert "op by op" in capsys.readouterr().err


@pytest.mark.parametrize("epochs", ["0", "-1", "many"])
def test_epochs_is_a_positive_number(epochs, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--epochs", epochs])
    assert stop.value.code == 2


def test_without_scikit_learn_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo"]) == 1
    assert 'pip install ".[demo]"' in capsys.readouterr().err


@needs_compiler
def test_training_on_a_gpu(monkeypatch, capsys):
    """Through what stands for CuPy where there is no GPU; the same numbers as on the CPU. Three
    steps of an epoch, and all twelve under `--all`.
    """
    monkeypatch.setattr(demo, "ROUNDS", 1)
    data, rows = demo.load(), None if SAMPLING.every else 3 * demo.BATCH
    some = replace(data, train_x=data.train_x[:rows], train_y=data.train_y[:rows])
    monkeypatch.setattr(demo, "load", lambda seed: some)
    briefly = ["demo", "--epochs", "1", "--json"]
    main(briefly)
    want = json.loads(capsys.readouterr().out)
    with stand_in(monkeypatch):
        main([*briefly, "--device", "cuda"])
        found = json.loads(capsys.readouterr().out)
        assert main(["demo", "--kernels", "--device", "cuda"]) == 0
        assert "__global__" in capsys.readouterr().out
    assert found["device"] == "cuda"
    assert "matmul" not in found["kernels"], "a product of the library"
    assert found["kernels"]["small product"] + found["kernels"]["contraction"] == 3 + 3 + 2
    assert found["loss"] == pytest.approx(want["loss"], rel=1e-3)
    assert found["accuracy"] == pytest.approx(want["accuracy"], abs=0.02)


@needs_compiler
def test_a_step_on_a_gpu_is_launches_alone():
    """Kernels of ours and products: nothing that CuPy or the CPU computes, no
    number sent as an array.
    """
    data, state = digits.load(), digits.start()
    with config.using(executor="shim"):
        low = ge2.jit(digits.train_step).lower(state, data.train_x[:128], data.train_y[:128])
        program, text = low.executable.program, low.compile().as_text("python")
    assert {step.kind for step in program.steps} == {"view", "kernel", "matmul", "host"}
    products = program.count("matmul"), sum(step.name == "contraction" for step in program.steps)
    assert products == (1, 7), "8 products, of which 7 go on with what is done to their elements"
    assert "upload(" not in text


@needs_compiler
def test_a_step_on_a_gpu_never_waits_for_it(monkeypatch):
    def refuse(*_):
        raise AssertionError("a step waits for the device, or copies to or from the host")

    with stand_in(monkeypatch) as xp:
        at = demo.place("cuda")
        data, state, step = (
            at.digits(digits.load()),
            at.tree(digits.start()),
            ge2.jit(digits.train_step),
        )
        x, y = data.train_x[:128], data.train_y[:128]
        state, _ = step(state, x, y)
        with monkeypatch.context() as patch:
            for name in ("get", "item", "tolist", "set", "__bool__", "__int__", "__float__"):
                patch.setattr(fake_cupy.ndarray, name, refuse)
            patch.setattr(fake_cupy.Device, "synchronize", refuse)
            patch.setattr(xp, "array", refuse)
            state, loss = step(state, x, y)
        assert state.steps == 2 and 0 < float(loss) < 3


def test_a_gpu_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr("ge2.targets.cuda.load.gpu.driver", lambda: None)
    assert main(["demo", "--device", "cuda"]) == 1
    assert "ge2 doctor" in capsys.readouterr().err


@pytest.mark.parametrize("known", [0.0, 9.0])
def test_a_small_gpt_learns_letters_and_writes(known, monkeypatch, capsys):
    """Its length is not what is tested: it fails where a table of pairs knows more."""
    characters = demo.example("gpt2.characters")
    small = partial(characters.train, width=8, layers=1, length=8)
    monkeypatch.setattr(characters, "train", small)
    monkeypatch.setattr(characters, "topics", {"assert": characters.topics["assert"]})
    monkeypatch.setattr(characters, "bigrams", lambda ids: known)
    with config.using(executor="blocked"):
        assert main(["demo", "gpt", "--steps", "3"]) == (known == 0.0)
    text = capsys.readouterr().out
    assert "training 3/3  loss" in text and "unseen text" in text and "The " in text
    assert ("FAILED" in text) == (known == 0.0)


@pytest.mark.parametrize(
    ("words", "refused"),
    [("gpt --epochs 2", "--epochs"), ("gpt --device cuda", "--device"), ("--steps 2", "--steps"), ("cat", "cat")],
)  # fmt: skip
def test_what_a_demo_does_not_take_is_refused(words, refused, capsys):
    assert main(["demo", *words.split()]) == 1
    assert refused in capsys.readouterr().err
