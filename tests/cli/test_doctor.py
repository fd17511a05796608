"""`ge2 doctor`: a line for each thing, its fix, and an exit code that tells broken from absent."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from types import SimpleNamespace

import pytest

from ge2.base.cache import Cache
from ge2.base.config import config
from ge2.base.errors import CacheTrouble, CompileError
from ge2.cli import doctor, main
from ge2.cli.doctor import ABSENT, BROKEN, CHECKS, FLAWLESS, Line
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import Driver

DRIVER = Driver((13, 0), "580.159.04", (H200,))


@pytest.fixture(autouse=True)
def kept(tmp_path):
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield


@pytest.fixture
def machine(monkeypatch):
    """A machine with this driver, or with none."""

    def make(found: Driver | None) -> None:
        monkeypatch.setattr(doctor, "driver", lambda: found)

    return make


@pytest.fixture
def packages(monkeypatch):
    """The Python packages of a machine, by name and version, and how programs of Python's end."""

    def make(versions: dict[str, str], good: bool = True, said: str = "") -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []

        def version(name: str) -> str:
            if name not in versions:
                raise doctor.PackageNotFoundError(name)
            return versions[name]

        def ask(*words: str) -> tuple[bool, str]:
            asked.append(words)
            return good, said

        found = [SimpleNamespace(metadata={"Name": name}) for name in versions]
        monkeypatch.setattr(doctor, "version", version)
        monkeypatch.setattr(doctor, "distributions", lambda: iter(found))
        monkeypatch.setattr(doctor, "asked", ask)
        return asked

    return make


# ---------------------------------------------------------------------------------------- the whole


def replaced(monkeypatch, *lines):
    checks = {
        line.name: lambda line=line: line for line in (Line("GPU", ABSENT, "there is none"), *lines)
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)


def test_on_this_machine(capsys):
    """Whatever is absent here, nothing is broken, and each thing has its line."""
    code = main(["doctor"])
    *lines, empty, verdict = capsys.readouterr().out.splitlines()
    assert (code, empty) == (0, ""), "\n".join(lines)
    assert verdict.startswith("what is there works")
    assert len(lines) == len(CHECKS)
    for name, line in zip(CHECKS, lines, strict=True):
        state, rest = line.split(maxsplit=1)
        assert state in (FLAWLESS, ABSENT)
        assert rest.startswith(name)
    assert f"{sys.version.split()[0]} at {sys.executable}" in lines[0]


def test_as_json(capsys, monkeypatch, tmp_path):
    replaced(monkeypatch, Line("CuPy", ABSENT, "not installed", "pip install x"))
    assert main(["doctor", "--json", "-o", str(tmp_path / "out")]) == 0
    assert not capsys.readouterr().out
    assert json.loads((tmp_path / "out").read_text()) == {
        "ok": True,
        "checks": [
            {"name": "GPU", "state": "absent", "found": "there is none", "fix": ""},
            {"name": "CuPy", "state": "absent", "found": "not installed", "fix": "pip install x"},
        ],
    }


def test_what_is_broken_is_an_exit_code(capsys, monkeypatch):
    replaced(monkeypatch, Line("CuPy", BROKEN, "it is", "pip"), Line("NVRTC", BROKEN, "too"))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "broken  CuPy   it is; try pip\n" in said
    assert said.endswith("\nbroken: CuPy, NVRTC\n")
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_an_error_of_ours_is_a_broken_line():
    def fails() -> Line:
        raise CompileError("it is refused", where="a.cu:3", fix="another source")

    assert doctor.looked("NVRTC", fails) == Line("NVRTC", BROKEN, "it is refused", "another source")


# ----------------------------------------------------------------------------------- what is needed


def test_numpy_that_is_too_old(monkeypatch):
    import numpy

    assert doctor.numpy().state == FLAWLESS
    monkeypatch.setattr(numpy, "__version__", "1.26.4")
    assert doctor.numpy() == Line("NumPy", BROKEN, "1.26.4", "pip install 'numpy>=2.1.2'")


def test_the_c_compiler(tmp_path):
    with config.using(cc="none"):
        assert doctor.c_compiler().state == ABSENT
    with config.using(cc="/nowhere/cc"):
        line = doctor.c_compiler()
    assert (line.state, "NumPy runs instead" in line.found, "GE2_CC=" in line.fix) == (
        BROKEN,
        True,
        True,
    )
    junk = tmp_path / "cc"
    junk.write_text("#!/bin/sh\n[ $1 = --version ] && echo my cc 1.0 && exit\nexit 3\n")
    junk.chmod(junk.stat().st_mode | stat.S_IXUSR)
    with config.using(cc=str(junk)):
        assert doctor.c_compiler() == Line(
            "C compiler", BROKEN, "my cc 1.0 compiles nothing", "GE2_CC=another compiler"
        )


def test_no_c_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with config.using(cc=""):
        line = doctor.c_compiler()
    assert (line.state, line.fix.startswith("install gcc or clang")) == (ABSENT, True)


def test_the_cache(tmp_path):
    line = doctor.kept()
    assert (line.state, line.fix) == (FLAWLESS, "")
    assert f"{tmp_path}/cache/v1 can be written; 0 entries, 0 B" in line.found
    with config.using(cache_dir="none"):
        assert doctor.kept().state == ABSENT
    (tmp_path / "file").write_text("")
    with config.using(cache_dir=str(tmp_path / "file")):
        assert (doctor.kept().state, doctor.kept().fix) == (
            BROKEN,
            "GE2_CACHE_DIR=a folder of your own",
        )


def test_a_cache_whose_disk_cannot_be_asked(tmp_path, monkeypatch):
    def gone(path):
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(shutil, "disk_usage", gone)
    with config.using(cache_dir=str(tmp_path / "cache")):
        line = doctor.kept()
    assert line.state == BROKEN and "No such file or directory" in line.found and line.fix


def test_a_cache_that_gives_back_something_else(monkeypatch):
    monkeypatch.setattr(Cache, "_content", lambda *_: b"else")
    line = doctor.kept()
    assert (line.state, "gives back something else" in line.found) == (BROKEN, True)


def test_a_check_of_the_cache_leaves_nothing(tmp_path):
    made = Cache(str(tmp_path / "other"))
    made.check()
    assert made.entries() == []
    with pytest.raises(CacheTrouble, match="switched off"):
        Cache(None).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "cache" / "v1").mkdir(parents=True)
    (tmp_path / "cache" / "v1").chmod(0o500)
    assert doctor.kept().state == BROKEN


# --------------------------------------------------------------------------------------------- CUDA


def test_a_machine_without_a_gpu(machine, packages):
    machine(None)
    packages({})
    for look in (
        doctor.nvidia_driver, doctor.gpu, doctor.cupy, doctor.bindings, doctor.nvmath,
        doctor.kernel,
    ):  # fmt: skip
        assert look().state == ABSENT
    machine(Driver((13, 0), "580", ()))
    assert doctor.nvidia_driver() == Line("NVIDIA driver", FLAWLESS, "580, runs CUDA 13.0")
    assert (doctor.gpu().state, doctor.kernel().state) == (ABSENT, ABSENT)


def test_a_machine_with_one(machine, packages):
    machine(DRIVER)
    asked = packages(
        {"cupy-cuda13x": "14.2.0", "cuda-bindings": "13.0.3"}, said="it gives the right result"
    )
    assert doctor.gpu() == Line("GPU", FLAWLESS, "H200, sm_90a, 132 multiprocessors, 131.3 GB")
    assert doctor.cupy() == Line("CuPy", FLAWLESS, "cupy-cuda13x 14.2.0")
    assert doctor.bindings() == Line("cuda-bindings", FLAWLESS, "13.0.3")
    assert doctor.kernel() == Line("a kernel", FLAWLESS, "it gives the right result")
    assert asked[0] == ("-c", "import cupy")
    assert asked[-1] == ("-m", "ge2.cli.doctor")


def test_pieces_that_are_broken(machine, packages):
    machine(DRIVER)
    packages(
        {"cupy-cuda13x": "14.2.0", "nvmath-python": "1.0"},
        good=False,
        said="ImportError: no libfoo",
    )
    assert doctor.kernel().state == BROKEN
    for line in (doctor.cupy(), doctor.nvmath()):
        assert (line.state, "ImportError: no libfoo" in line.found) == (BROKEN, True)
        assert line.fix.startswith("pip install")
    machine(Driver((13, 0), "580", (), "cuInit says CUDA_ERROR_UNKNOWN"))
    assert (doctor.nvidia_driver().state, doctor.gpu().state) == (BROKEN, ABSENT)
    machine(Driver((12, 8), "570", (H200,)))
    assert (doctor.nvidia_driver().state, "580 or newer" in doctor.nvidia_driver().fix) == (
        BROKEN,
        True,
    )


def test_two_cupys(machine, packages):
    machine(DRIVER)
    packages({"cupy-cuda12x": "13.0", "cupy-cuda13x": "14.2.0", "cupyx-else": "1"})
    line = doctor.cupy()
    assert (line.state, line.fix.startswith("pip uninstall cupy-cuda12x cupy-cuda13x;")) == (
        BROKEN,
        True,
    )


def has_nvrtc() -> bool:
    return bool(doctor.library_path("libnvrtc", "cu13", "cuda_nvrtc"))


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")


@needs_nvrtc
def test_nvrtc(machine, tmp_path):
    machine(None)
    assert doctor.cuda_compiler().state == FLAWLESS
    with config.using(nvrtc="none"):
        assert (doctor.cuda_compiler().state, doctor.cuda_headers().state) == (ABSENT, FLAWLESS)
        assert "not tried" in doctor.cuda_headers().found
    (tmp_path / "libnvrtc.so").write_bytes(b"junk")
    with config.using(nvrtc=str(tmp_path / "libnvrtc.so")):
        line = doctor.looked("NVRTC", doctor.cuda_compiler)
    assert (line.state, "cannot be loaded" in line.found, "pip install" in line.fix) == (
        BROKEN,
        True,
        True,
    )


@needs_nvrtc
def test_nvrtc_that_is_newer_than_the_driver(machine, monkeypatch):
    tools = SimpleNamespace(version=(13, 2), path="/libnvrtc.so")
    monkeypatch.setattr(doctor, "loaded_nvrtc", lambda: tools)
    machine(DRIVER)
    assert doctor.cuda_compiler() == Line(
        "NVRTC", FLAWLESS, "13.2 at /libnvrtc.so, newer than the driver's 13.0"
    )
    tools.version = (14, 0)
    line = doctor.cuda_compiler()
    assert (line.state, line.fix) == (BROKEN, "pip install 'nvidia-cuda-nvrtc==13.0.*'")


@needs_nvrtc
def test_trials_are_compiled_anew(machine, monkeypatch):
    """What the cache has tells nothing of the compiler."""
    machine(None)
    assert doctor.cuda_compiler().state == FLAWLESS
    before = doctor.cache().entries()
    assert before == []


def test_no_nvrtc(monkeypatch):
    monkeypatch.setattr(doctor, "library_path", lambda *_: "")
    assert (doctor.cuda_compiler().state, doctor.cublas().state, doctor.cudnn().state) == (
        ABSENT,
    ) * 3


@needs_nvrtc
def test_headers(machine, monkeypatch):
    machine(None)
    line = doctor.cuda_headers()
    assert (line.state, line.found.endswith("they compile")) == (FLAWLESS, True)
    monkeypatch.setattr(doctor, "headers", lambda: ["ge2/nothing.cuh"])
    line = doctor.looked("headers", doctor.cuda_headers)
    assert (line.state, 'cannot open source file "ge2/nothing.cuh"' in line.found) == (BROKEN, True)
    monkeypatch.setattr(doctor, "headers", list)
    assert (doctor.cuda_headers().state, "has none" in doctor.cuda_headers().found) == (
        BROKEN,
        True,
    )


def test_a_library_tells_its_version(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "library_path", lambda *_: "libc.so.6")
    line = doctor.library("libc", "libc", "getpid", (), "glibc")
    assert (line.state, line.found.endswith(" at libc.so.6")) == (FLAWLESS, True)
    monkeypatch.setattr(doctor, "library_path", lambda *_: str(tmp_path / "none.so"))
    line = doctor.library("libc", "libc", "getpid", (), "glibc")
    assert (line.state, "cannot be loaded: OSError" in line.found) == (BROKEN, True)


def test_programs_that_end_badly(monkeypatch):
    assert doctor.asked("-c", "print('a'); print('b')") == (True, "b")
    assert doctor.asked("-c", "raise ValueError('c')") == (False, "ValueError: c")
    assert doctor.asked("-c", "import os; os.abort()") == (False, "it was killed by signal 6")
    monkeypatch.setattr(doctor, "PATIENCE", 0.2)
    assert doctor.asked("-c", "import time; time.sleep(60)") == (False, "no answer in 0 s")
