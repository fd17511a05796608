"""`ge2 cache` tells what is there, and removes what it is told to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import ge2
from ge2.base.cache import cache, content_key
from ge2.base.config import config
from ge2.choice.record import store
from ge2.cli import main

ABOUT = {
    "kind": "cubin",
    "name": "softmax",
    "source": "model.py:42",
    "seconds": "0.120",
    "compiler": "cc 12",
    "hint": "of mine",
}
KEYS = [content_key(str(i)) for i in range(4)]


@pytest.fixture(autouse=True)
def kept(tmp_path):
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield cache()


@pytest.fixture
def filled(kept):
    for i, key in enumerate(KEYS):
        kept.put(key, bytes((i + 1) << 19), ABOUT | {"name": f"kernel {i}"})
        os.utime(os.path.join(kept.path, key), (1e9 + i * 1e5,) * 2)
    return kept


@pytest.fixture
def said(capsys):
    def run(*words, code=0):
        assert main(["cache", *words]) == code
        return capsys.readouterr().out

    return run


def spoil(kept, key):
    path = Path(kept.path, key)
    path.write_bytes(path.read_bytes()[:-1])


def test_info(filled, said):
    rows = dict(line.split("  ", 1) for line in said("info").splitlines())
    assert rows["folder"].strip() == filled.path
    assert rows["entries"].strip() == "4"
    assert rows["size"].strip() == "5.0 MB of 1.0 GB"
    assert rows["last used"].strip().startswith("2001-09-1")
    data = json.loads(said("info", "--json"))
    assert (data["folder"], data["entries"], data["limit"]) == (filled.path, 4, 1 << 30)
    assert data["bytes"] > 10 << 19
    spoil(filled, KEYS[0])
    assert "1; see 'ge2 cache verify'" in said("info")


def test_an_empty_cache(kept, said):
    assert "entries  0" in said("info")
    assert said("list") == f"{kept.path} holds nothing\n"
    assert json.loads(said("list", "--json")) == []
    assert said("verify") == "0 entries, 0 damaged\n"
    assert said("clear") == "removed 0 entries, 0 B\n"
    assert not os.path.exists(kept.path)


def test_list(filled, said):
    head, *lines = said("list").splitlines()
    assert head.split() == [
        "key",
        "kind",
        "size",
        "last",
        "used",
        "compiled",
        "in",
        "name",
        "source",
    ]
    assert [line.split()[0] for line in lines] == [key[:12] for key in reversed(KEYS)]
    assert {line.index("kernel") for line in lines} == {head.index("name")}
    assert all(line.endswith("model.py:42") and "0.120 s" in line for line in lines)
    data = json.loads(said("list", "--json"))
    assert [entry["key"] for entry in data] == KEYS[::-1]
    assert data[0]["about"]["name"] == "kernel 3"
    spoil(filled, KEYS[0])
    assert "damaged: its length is not the one it names" in said("list")


def test_show(filled, said):
    text = said("show", KEYS[1][:6])
    for part in (KEYS[1], "sound", "1.0 MB", "kernel 1", "model.py:42", "cc 12", "of mine"):
        assert part in text
    assert json.loads(said("show", KEYS[1], "--json"))["about"]["hint"] == "of mine"
    spoil(filled, KEYS[1])
    assert "its length" in said("show", KEYS[1])


def test_kinds(filled, said):
    filled.put(content_key("c"), b"library", ABOUT | {"kind": "C program", "name": "loss"})
    filled.put(content_key("old"), b"older", {"name": "of another version"})
    spoil(filled, KEYS[0])
    text = said("info")
    for part in (
        "  cubins           3, 4.5 MB",
        "  C programs       1, ",
        "  of unknown kind  2, ",
    ):
        assert part in text
    data = json.loads(said("info", "--json"))["kinds"]
    assert {kind: found["entries"] for kind, found in data.items()} == {
        "cubin": 3,
        "C program": 1,
        "unknown": 2,
    }
    assert len(said("list", "--kind", "cubin").splitlines()) == 4
    assert said("list", "--kind", "PTX") == f"{filled.path} holds no such entry\n"
    assert said("verify", "--kind", "cubin") == "3 entries, 0 damaged\n"
    assert said("clear", "--kind", "cubin").startswith("removed 3 entries")
    left = sorted(entry["kind"] for entry in json.loads(said("list", "--json")))
    assert left == ["C program", "unknown", "unknown"]


def test_measurements_are_listed_too(filled, said):
    store().put(
        content_key("m"), b"{}", {"kind": "measurements", "name": "sort", "device": "a CPU"}
    )
    assert "  measurements  1, " in said("info")
    assert "measurements" in said("list", "--kind", "measurements")
    assert "a CPU" in said("show", content_key("m"))
    assert said("verify") == "5 entries, 0 damaged\n"
    assert said("prune", "--limit", "1").startswith("removed 4 entries")
    assert "; 1 measurements are kept: --kind measurements" in said("clear")
    spoil(store(), content_key("m"))
    assert "1 damaged, now removed" in said("verify", "--remove")
    store().put(content_key("m"), b"{}", {"kind": "measurements"})
    assert said("clear", "--kind", "measurements").startswith("removed 1 entry")
    assert said("list") == f"{filled.path} holds nothing\n"


def test_what_is_compiled_names_its_kind(kept, said):
    ge2.jit(lambda x: np.tanh(x) * 2)(np.ones(5))
    assert {"C program", "texts"} <= {entry.kind for entry in kept.entries()}
    assert "unknown" not in {entry.kind for entry in kept.entries()}


def test_show_needs_one_key(filled, capsys):
    assert main(["cache", "show", "nothing"]) == 1
    assert "no entry nothing" in capsys.readouterr().err
    assert main(["cache", "show", ""]) == 1
    assert "4 keys begin with" in capsys.readouterr().err


def test_verify(filled, said):
    assert said("verify") == "4 entries, 0 damaged\n"
    path = Path(filled.path, KEYS[2])
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    text = said("verify", code=1)
    assert KEYS[2] in text
    assert "4 entries, 1 damaged" in text
    assert json.loads(said("verify", "--json", code=1))["damaged"] == {
        KEYS[2]: "its checksum does not fit"
    }
    assert "now removed" in said("verify", "--remove")
    assert said("verify") == "3 entries, 0 damaged\n"


def test_prune(filled, said):
    assert said("prune") == "removed 0 entries, 0 B\n"
    data = json.loads(said("prune", "--limit", "4", "--json"))
    assert data["removed"] == KEYS[:2]
    assert len(filled.entries()) == 2
    with config.using(cache_limit=2):
        assert said("prune").startswith("removed 2 entries, 3.5 MB")


def test_prune_without_a_limit_removes_nothing(filled, said):
    with config.using(cache_limit=0):
        assert said("prune") == "removed 0 entries, 0 B\n"
        assert "of any size" in said("info")


def test_clear(filled, said):
    assert said("clear") == "removed 4 entries, 5.0 MB\n"
    assert filled.entries() == []


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_to_a_file(filled, said, tmp_path, more):
    shown = said("list", *more)
    assert said("list", *more, "-o", str(tmp_path / "out")) == ""
    assert (tmp_path / "out").read_text() == shown


def test_to_a_file_that_cannot_be(filled, tmp_path, capsys):
    assert main(["cache", "info", "-o", str(tmp_path / "none" / "out")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_folder_that_cannot_be_used(kept, capsys):
    Path(kept.path).parent.parent.joinpath("cache").write_text("")
    assert main(["cache", "list"]) == 1
    assert "CacheTrouble" in capsys.readouterr().err
    with config.using(cache_dir="none"):
        assert main(["cache", "info"]) == 1
    assert "switched off" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["lst"], ["prune", "--limit", "-1"], ["show"]])
def test_misspelt(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["cache", *words])
    assert stop.value.code == 2
    assert "usage: ge2 cache" in capsys.readouterr().err
