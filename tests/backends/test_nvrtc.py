"""NVRTC makes cubins without a GPU: the same each time, once a machine, and its
complaints are readable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ge2.base.cache import cache
from ge2.base.compiler import headers_key
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompileError, CompilerTrouble
from ge2.base.source import Ge2Warning
from ge2.targets.cuda import load
from ge2.targets.cuda.load import loaded_nvrtc, place
from ge2.targets.cuda.load import nvrtc as module
from ge2.targets.cuda.load.nvrtc import (
    Order,
    Usage,
    compile,
    compile_all,
    fault,
    key_of,
    told,
    usages,
)
from tests.nvrtc import has_nvrtc, needs_nvrtc
from tests.threads import on_threads

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
SCALE = """
extern "C" __global__ void __launch_bounds__(256) scale(const float *__restrict__ a, float *b_out, int n_i) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n_i) b_out[i] = a[i] * FACTORf + 1.0f;
}
"""


def scale(factor: float = 2.0) -> str:
    return SCALE.replace("FACTOR", str(factor))


def forget() -> None:
    module._binaries.clear()
    module._refused.clear()


@pytest.fixture(autouse=True)
def kept(tmp_path):
    forget()
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield cache()
    forget()


@pytest.mark.skipif(
    not os.environ.get("CI") or sys.platform != "linux", reason="not the CI's machine"
)
def test_the_ci_has_nvrtc():
    assert has_nvrtc()


# ---------------------------------------------------------------------------------------- compiling


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_cubin_and_its_figures(arch):
    made = compile(scale(), arch, name="scale")
    assert made.cubin.startswith(b"\x7fELF")
    assert b"scale" in made.cubin
    (usage,) = made.kernels
    assert (usage.name, usage.spills, usage.stack, usage.shared) == ("scale", 0, 0, 0)
    assert 4 <= usage.registers <= 32
    assert "warning" not in made.log
    assert (made.arch, made.cached) == (arch, False)
    assert made.seconds > 0


@needs_nvrtc
def test_a_product_and_a_sum_stay_two():
    """One rounding each, as NumPy: no FFMA. The flag is the same as none, were it misspelt."""
    text = 'extern "C" __global__ void f(float *a) { a[0] = a[0] * a[1] + a[2]; }'
    assert ptx_of(text, ()).count("fma.rn") == 0
    assert ptx_of(text, ("--fmad=true",)).count("fma.rn") == 1


def ptx_of(source: str, options: tuple[str, ...]) -> str:
    """NVRTC keeps the PTX beside the cubin."""
    import ctypes

    tools, order = loaded_nvrtc(), Order(source, "sm_90a", options)
    with module._program(tools, order) as program:
        given = [option.encode() for option in module.flags(order.arch, order.options)]
        assert tools.functions.nvrtcCompileProgram(program, len(given), module._texts(given)) == 0
        size = ctypes.c_size_t()
        tools.functions.nvrtcGetPTXSize(program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        tools.functions.nvrtcGetPTX(program, room)
    return room.value.decode()


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_same_source_gives_the_same_cubin(arch):
    """Compiled twice: here, and in another process."""
    with config.using(cache_dir="none"):
        first = compile(scale(), arch)
        forget()
        second = compile(scale(), arch)
    assert (first.cached, second.cached) == (False, False)
    assert first.cubin == second.cubin
    assert first.log == second.log
    program = (
        "import sys; from ge2.targets.cuda.load.nvrtc import compile;"
        "sys.stdout.buffer.write(compile(sys.argv[1], sys.argv[2]).cubin)"
    )
    command = [sys.executable, "-c", program, scale(), arch]
    env = {**os.environ, "GE2_CACHE_DIR": "none", "PYTHONHASHSEED": "7"}
    assert subprocess.run(command, env=env, check=True, capture_output=True).stdout == first.cubin


@needs_nvrtc
def test_spills_stack_and_shared_memory_are_told():
    text = """
    extern "C" __global__ void __launch_bounds__(1024) tight(float *a, int n) {
        __shared__ float s[96];
        float t[64];
        for (int i = 0; i < 64; i++) t[i] = a[i * n];
        s[threadIdx.x % 96] = t[n & 63];
        __syncthreads();
        for (int i = 0; i < 64; i++) a[i] = t[i] * s[i];
    }
    extern "C" __global__ void plain(float *a) { a[0] = 1.0f; }
    """
    plain, tight = compile(text, "sm_90a", ("--maxrregcount=16",)).kernels
    assert (plain.name, plain.spills, plain.stack, plain.shared) == ("plain", 0, 0, 0)
    assert (tight.name, tight.shared) == ("tight", 384)
    assert tight.spills > 0
    assert tight.stack >= 256


@needs_nvrtc
def test_a_character_of_zero():
    with pytest.raises(CompileError, match="character of value 0"):
        compile("int a;\0", "sm_90a")


# --------------------------------------------------------------------------------------- complaints


@needs_nvrtc
def test_an_error_marks_the_line():
    with pytest.raises(CompileError) as raised:
        compile(scale().replace("a[i] *", "foo(a[i]) *"), "sm_90a", name="scale")
    words = str(raised.value).splitlines()
    assert words[0] == 'NVRTC refuses scale.cu for sm_90a: identifier "foo" is undefined'
    assert words[1] == "  at   scale.cu:4"
    (marked,) = [line for line in words if line.startswith(">")]
    assert "foo(a[i])" in marked
    assert marked.startswith(">   4 |")
    assert not isinstance(raised.value, CompilerTrouble)


@needs_nvrtc
def test_an_error_is_raised_again_without_compiling(monkeypatch):
    for _ in range(2):
        with pytest.raises(CompileError, match="is undefined, and 1 more"):
            compile("__device__ int a = b, c = d;", "sm_90a")
        monkeypatch.setattr(module, "loaded_nvrtc", None)


@needs_nvrtc
def test_an_error_in_a_header_shows_the_header(tmp_path):
    (tmp_path / "mine.cuh").write_text("\n\nint wrong = nothing;\n")
    with pytest.raises(CompileError) as raised:
        compile('#include "mine.cuh"', "sm_90a", (f"-I{tmp_path}",))
    assert "mine.cuh:3\n" in str(raised.value)
    assert ">   3 | int wrong = nothing;" in str(raised.value)


@needs_nvrtc
def test_an_error_of_the_assembler():
    text = 'extern "C" __global__ void f(float *a) { asm("nonsense.f32 %0;" :: "f"(a[0])); }'
    with pytest.raises(
        CompileError, match="Not a name of any known instruction: 'nonsense', and 1 more"
    ):
        compile(text, "sm_90a")


@needs_nvrtc
def test_too_much_shared_memory():
    text = """extern "C" __global__ void f(float *a) {
        __shared__ float s[100000];
        s[threadIdx.x] = a[1];
        __syncthreads();
        a[0] = s[threadIdx.x ^ 1];
    }"""
    with pytest.raises(CompileError, match="400000 bytes smem"):
        compile(text, "sm_90a")


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_10", "sm_999"])
def test_an_architecture_that_nvrtc_does_not_know(arch):
    with pytest.raises(ArgumentError, match=rf"does not compile for {arch}\n  try  one of .*sm_90"):
        compile(scale(), arch)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["", "90", "sm_90a ", "compute_90", "sm_90; rm"])
def test_what_is_no_architecture(arch):
    with pytest.raises(ArgumentError, match="no architecture"):
        compile(scale(), arch)


@needs_nvrtc
def test_an_option_that_nvrtc_does_not_take():
    with pytest.raises(CompileError, match="unrecognized option --nonsense"):
        compile(scale(), "sm_90a", ("--nonsense",))


# ---------------------------------------------------------------------------------------- the cache


@needs_nvrtc
def test_compiled_once_a_machine(monkeypatch, kept):
    first = compile(scale(), "sm_90a", name="scale", about={"source": "model.py:3"})
    (entry,) = kept.entries()
    assert (entry.about["name"], entry.about["source"]) == ("scale.cu", "model.py:3")
    assert entry.about["compiler"].startswith("NVRTC 1")
    assert entry.about["options"].startswith("sm_90a -std=c++17")
    forget()
    monkeypatch.setattr(module, "loaded_nvrtc", None)  # it is not even loaded
    second = compile(scale(), "sm_90a", name="scale")
    assert (second.cubin, second.log, second.kernels) == (first.cubin, first.log, first.kernels)
    assert (second.cached, second.seconds) == (True, 0.0)


@needs_nvrtc
@pytest.mark.parametrize("cut", [0, 60, 3000, -1])
def test_a_damaged_entry_is_compiled_again(kept, cut):
    first = compile(scale(), "sm_90a")
    path = Path(kept.path, first.key)
    path.write_bytes(path.read_bytes()[:cut])
    assert compile(scale(), "sm_90a") is first  # what this process has does not hang on the file
    forget()
    with pytest.warns(Ge2Warning, match="is made again"):
        second = compile(scale(), "sm_90a")
    assert (second.cached, second.cubin) == (False, first.cubin)
    forget()
    assert compile(scale(), "sm_90a").cached


@needs_nvrtc
def test_an_entry_of_another_form_is_compiled_again(kept):
    first = compile(scale(), "sm_90a")
    for content in (b"", b"x" * 100):
        kept.put(first.key, content, {})
        forget()
        assert compile(scale(), "sm_90a").cubin == first.cubin


@needs_nvrtc
def test_where_nothing_can_be_written_it_stays_in_memory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with config.using(cache_dir=str(tmp_path / "file")):
        with pytest.warns(Ge2Warning, match="not kept on disk"):
            first = compile(scale(), "sm_90a")
        monkeypatch.setattr(module, "loaded_nvrtc", None)
        assert compile(scale(), "sm_90a") is first


@needs_nvrtc
def test_what_belongs_to_the_key(tmp_path, monkeypatch):
    order = Order(scale(), "sm_90a")
    keys = [
        key_of(order),
        key_of(Order(scale(3.0), "sm_90a")),
        key_of(Order(scale(), "sm_80")),
        key_of(Order(scale(), "sm_90a", ("-DA=1",))),
        key_of(Order(scale(), "sm_90a", name="other")),
        key_of(Order("\n" + scale(), "sm_90a")),  # the lines of a profile are those of the source
    ]
    copy = tmp_path / "libnvrtc.so.13"
    shutil.copyfile(place().path, copy)
    with config.using(nvrtc=str(copy)):
        keys.append(key_of(order))
    assert len(set(keys)) == len(keys)
    assert key_of(Order(scale(), "sm_90a")) == keys[0]


@needs_nvrtc
def test_comments_compile_nothing():
    """The margin names the user's lines, which move."""
    commented = scale().replace("1.0f;", "1.0f;  // mul, add: model.py:7")
    moved = commented.replace("model.py:7", "model.py:9")
    assert (
        key_of(Order(scale(), "sm_90a"))
        == key_of(Order(commented, "sm_90a"))
        == key_of(Order(moved, "sm_90a"))
    )
    with config.using(cache_dir="none"):
        first = compile(commented, "sm_90a")
        forget()
        assert compile(moved, "sm_90a").cubin == first.cubin


def test_told_keeps_what_counts():
    assert told("a/* b\n c */d // e\n") == "a\nd\n"
    assert told('char *a = "// b"; int c') == 'char *a = "// b"; int c'
    assert told("ab") != told("a/**/b")


def test_headers_of_headers_belong_to_the_key(tmp_path):
    (tmp_path / "ge2").mkdir()
    outer, inner, other = (tmp_path / "ge2" / f"{name}.cuh" for name in ("outer", "inner", "other"))
    outer.write_text('#include "inner.cuh"\n')
    inner.write_text('#include "outer.cuh"\n#include <nowhere.h>\n')
    other.write_text("")
    source, folders = '#include "ge2/outer.cuh"\n', (str(tmp_path),)
    first = headers_key(source, folders)
    assert headers_key(source, folders) == first
    other.write_text("int a;")
    assert headers_key(source, folders) == first
    inner.write_text('#include "outer.cuh"\nint a;\n')
    assert headers_key(source, folders) != first
    assert headers_key("int a;", folders) == headers_key("int b;", ())


def test_headers_that_are_kept_are_read_again_once_they_change(tmp_path):
    header = tmp_path / "mine.cuh"
    source, folders = '#include "mine.cuh"\n', (str(tmp_path),)
    header.write_text("int a;")
    os.utime(header, ns=(10**9, 10**9))  # long ago
    first = headers_key(source, folders)
    assert headers_key(source, folders) == first
    header.write_text("int b;")
    os.utime(header, ns=(10**9, 10**9 + 1))
    second = headers_key(source, folders)
    assert second != first
    header.unlink()
    assert headers_key(source, folders) not in (first, second)
    (tmp_path / "other.cuh").write_text("int a;")
    header.symlink_to("other.cuh")
    assert headers_key(source, folders) == first


@needs_nvrtc
def test_a_changed_header_is_compiled_anew(tmp_path):
    header = tmp_path / "mine.cuh"
    text = '#include "mine.cuh"\nextern "C" __global__ void f(int *a) { a[0] = VALUE; }'
    header.write_text("#define VALUE 3")
    first = compile(text, "sm_90a", (f"-I{tmp_path}",))
    header.write_text("#define VALUE 4")
    second = compile(text, "sm_90a", (f"-I{tmp_path}",))
    assert first.cubin != second.cubin


# ------------------------------------------------------------------------------------- many at once


@needs_nvrtc
def test_several_at_once(kept):
    kinds = [(factor, arch) for factor in (1.5, 2.5, 3.5) for arch in ("sm_80", "sm_90a")]
    orders = [Order(scale(factor), arch, name=f"scale_{factor:.0f}") for factor, arch in kinds]
    with config.using(threads=3):
        made = compile_all([*orders, orders[0]])
    assert [each.arch for each in made] == [order.arch for order in (*orders, orders[0])]
    assert made[0] is made[-1]
    assert len(kept.entries()) == 6
    forget()
    with config.using(cache_dir="none", threads=1):
        alone = compile_all(orders)
    assert [each.cubin for each in alone] == [each.cubin for each in made[:-1]]


@needs_nvrtc
def test_an_error_among_several():
    with config.using(threads=2), pytest.raises(CompileError, match="bad.cu"):
        compile_all([Order(scale(), "sm_90a"), Order("int a = b;", "sm_90a", name="bad")])
    assert compile_all([]) == []


@needs_nvrtc
def test_threads_share_one_compilation():
    made, ready = [], threading.Barrier(4)

    def work():
        ready.wait()
        made.append(compile(scale(5.0), "sm_90a"))

    on_threads(*[work] * 4)
    assert len({*map(id, made)}) == 1


# ---------------------------------------------------------------------------------- no such library


def test_without_nvrtc():
    with (
        config.using(nvrtc="none"),
        pytest.raises(CompilerTrouble, match="asks for no CUDA compiler"),
    ):
        compile(scale(), "sm_90a")
    with (
        config.using(nvrtc="/nowhere/libnvrtc.so"),
        pytest.raises(CompilerTrouble, match="No such file"),
    ):
        compile(scale(), "sm_90a")


def test_nvrtc_is_not_installed(monkeypatch):
    monkeypatch.setattr(load, "library_path", lambda *_: "")
    load._place.cache_clear()
    with pytest.raises(CompilerTrouble, match="not installed\n  try  pip install"):
        compile(scale(), "sm_90a")
    load._place.cache_clear()


def test_a_library_that_is_none(tmp_path):
    junk = tmp_path / "libnvrtc.so"
    junk.write_bytes(b"\x7fELF junk")
    with config.using(nvrtc=str(junk)), pytest.raises(CompilerTrouble, match="cannot be loaded"):
        compile(scale(), "sm_90a")
    other = shutil.which("cc") and subprocess.run(
        ["cc", "-shared", "-o", tmp_path / "o.so", "-xc", os.devnull]
    )
    if other and other.returncode == 0:
        with (
            config.using(nvrtc=str(tmp_path / "o.so")),
            pytest.raises(CompilerTrouble, match="nvrtc"),
        ):
            compile(scale(), "sm_90a")


@needs_nvrtc
def test_an_nvrtc_that_is_too_old(monkeypatch):
    load._loaded.cache_clear()
    monkeypatch.setattr(load, "_version", lambda functions: (12, 4))
    with pytest.raises(CompilerTrouble, match=r"NVRTC 12.4 is too old"):
        compile(scale(), "sm_90a")
    load._loaded.cache_clear()


def test_import_touches_no_cuda():
    program = "import sys, ge2; print([m for m in sys.modules if 'cuda' in m or 'cupy' in m or 'nvidia' in m])"
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert said == "[]\n"


# ------------------------------------------------------------------------------------------ reading

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
ptxas         .     256 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 300 bytes cumulative stack size, 400 bytes smem
ptxas info    : Function properties for called
ptxas         .     44 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


def test_figures_are_read():
    assert usages(LOG) == (Usage("f", 32, 28, 300, 400),)
    assert usages("") == ()


def test_a_refusal_without_words():
    found = fault("ptxas info    : Used 10 registers", {})
    assert (found.words, found.place, found.more) == (
        "it gives no reason",
        "ptxas info    : Used 10 registers",
        0,
    )
