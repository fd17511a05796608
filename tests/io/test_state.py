"""States of training runs: kept by number, whole at any moment, and read by who goes on."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest

import ge2
from ge2 import nn, optim
from ge2.errors import ArgumentError
from ge2.io import files


def a_state(step):
    return {"step": step, "xs": [np.full(100_000, step, np.float32), np.full(7, step)]}


def a_long_one(step):
    """A state whose file takes much longer to write than to force to the disk."""
    return {"step": step, "xs": [np.full(n % 40, step, np.float32) for n in range(300)]}


def steps(folder):
    return sorted(int(name[5:14]) for name in os.listdir(folder) if name.startswith("step-"))


def test_the_last_states_are_kept(tmp_path):
    folder = tmp_path / "runs" / "a"
    assert ge2.io.latest(folder) is None
    for step in (1, 2, 10, 9):
        path = ge2.io.save_state(folder, step, a_state(step), keep=2)
        assert os.path.exists(path)
    assert steps(folder) == [9, 10]
    assert ge2.io.load_state(folder, a_state(0))["step"] == 10
    ge2.io.save_state(folder, 3, a_state(3), keep=2)  # of a run that began again from an older one
    assert steps(folder) == [3, 9, 10]
    ge2.io.save_state(folder, 4, a_state(4), keep=None)
    assert steps(folder) == [3, 4, 9, 10]


def test_a_damaged_state_is_passed_over(tmp_path):
    for step in (1, 2):
        path = ge2.io.save_state(tmp_path, step, a_state(step))
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.warns(match="an older state is taken"):
        assert ge2.io.load_state(tmp_path, a_state(0))["step"] == 1


@pytest.mark.parametrize("bad", [{"step": -1}, {"step": 1.5}, {"keep": 0}])
def test_wrong_arguments(bad, tmp_path):
    with pytest.raises(ArgumentError, match="a step is a count"):
        ge2.io.save_state(tmp_path, bad.get("step", 1), a_state(1), keep=bad.get("keep", 3))
    assert not os.listdir(tmp_path)
    for call in (
        ge2.io.latest,
        ge2.io.contents,
        ge2.io.read_log,
        lambda x: ge2.io.save_state(x, 1, {}),
    ):
        with pytest.raises(ge2.errors.InputError, match="a path is a text .*got a NoneType"):
            call(None)


def test_training_goes_on_bit_for_bit(tmp_path):
    optimizer = optim.adamw(optim.cosine(0.1, warmup=2, steps=12), decay=0.1)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)

    @ge2.jit
    def step(model, state, key):
        key, sub = ge2.random.split(key)
        slope = ge2.grad(lambda m: (nn.dropout(m(x), 0.5, sub) ** 2).mean())(model)
        model, state = optimizer.update(slope, state, model)
        return model, state, key

    def begin():
        model = nn.Linear.init(ge2.random.key(0), 3, 2)
        return model, optimizer.init(model), ge2.random.key(1)

    def run(now, count, every):
        while now[1]["step"] < count:
            now = step(*now)
            if now[1]["step"] % every == 0:
                ge2.io.save_state(tmp_path, now[1]["step"], now)
        return now

    whole = run(begin(), 12, 100)
    run(begin(), 8, 3)
    resumed = ge2.io.load_state(tmp_path, begin())
    assert (type(resumed[1]["step"]), resumed[1]["step"]) == (int, 6)
    resumed = run(resumed, 12, 100)
    for a, b in zip(ge2.tree.leaves(whole), ge2.tree.leaves(resumed), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_killed_at_any_moment_a_whole_state_is_there(tmp_path):
    chance = random.Random(0)
    newest = 0
    for _ in range(15):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for step in range(newest + 1, newest + 10_000):
                    ge2.io.save_state(tmp_path, step, a_long_one(step), keep=2)
                    os.write(writer, b".")
            finally:
                os._exit(1)
        os.read(reader, 1)
        time.sleep(chance.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            promised = newest + 1 + len(file.read())
        found = ge2.io.load_state(tmp_path, a_long_one(0))
        assert found["step"] in (promised, promised + 1)
        assert all((x == found["step"]).all() for x in found["xs"])
        newest = found["step"]


def test_what_killed_processes_left_is_removed_and_what_is_written_is_not(tmp_path, monkeypatch):
    left = tmp_path / f".step-000000001.safetensors.abcd{files.PART}"
    left.write_bytes(b"half")
    ge2.io.save_state(tmp_path, 1, a_state(1))
    assert left.exists()  # it may be locked in a moment
    monkeypatch.setattr(files, "YOUNG", 0.0)
    with files.replacing(str(tmp_path / "other.npz")) as file:
        ge2.io.save_state(tmp_path, 2, a_state(2))
        file.write(b"x")
    assert not left.exists()
    assert (tmp_path / "other.npz").read_bytes() == b"x"


def test_a_file_is_on_the_disk_before_it_is_renamed_and_then_its_name_is(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *a, real=real, name=name: (order.append(name), real(*a))
        )
    ge2.io.save(tmp_path / "a.npz", 1)
    assert order == ["fsync", "replace", "fsync"]


def test_a_state_of_another_model_says_what_to_write(tmp_path):
    path = ge2.io.save_state(tmp_path, 1, {"w": np.ones(2)})
    for other in ({"v": np.ones(2)}, {"w": np.ones(3)}):
        with pytest.raises(
            ge2.errors.FileError, match="try  another folder, or ge2.io.load"
        ) as error:
            ge2.io.load_state(tmp_path, into=other)
        assert repr(path) in str(error.value)
        assert "at   test_state.py" in str(error.value)
