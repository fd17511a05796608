"""C is compiled once a machine; whatever a compiler does instead is an error,
soon, and leaves nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ge2.base import cache as store
from ge2.base import compiler, detect
from ge2.base import config as settings
from ge2.base.cache import cache
from ge2.base.compiler import extension, include_digest, library, library_key, significant
from ge2.base.config import config
from ge2.base.detect import FLAGS, Toolchain
from ge2.base.errors import CompilerTrouble
from ge2.base.source import Ge2Warning
from tests.backends.compilers import REAL, call, calls, needs_compiler, python, script, source
from tests.backends.compilers import fresh as fresh
from tests.threads import on_threads

# ---------------------------------------------------------------------------------------- compiling


@needs_compiler
def test_a_library_is_compiled_loaded_and_called():
    lib = library(source(5), "sum of f32[3]", about={"source": "model.py:3"})
    assert (call(lib), call(lib, symbol="other")) == (50, 7)
    assert not lib.cached
    assert lib.seconds > 0
    with pytest.raises(CompilerTrouble, match="has no missing"):
        lib.address("missing")
    (entry,) = [entry for entry in cache().entries(verify=True) if entry.key == lib.key]
    assert {"name", "source", "made", "compiler", "options", "version"} <= set(entry.about)
    assert entry.about["name"] == "sum of f32[3]"


@needs_compiler
def test_headers_of_the_package_are_found():
    lib = library('#include "ge2/core.h"\nint ge2_run(int n) { return (int)ge2_least(n, 3); }', "f")
    assert call(lib) == 3


IN_THREADS = """#include <string.h>
typedef unsigned __int128 wide;
int ge2_run(int n) {
    int sum = 0, copied[64];
    #pragma omp parallel for num_threads(2) reduction(+:sum)
    for (int i = 0; i < n; i++) sum += i;
    memset(copied, 0, sizeof copied);
    return sum + copied[n] + (int)(((wide)n << 70) / ((wide)n + 1) >> 70);
}
"""


@needs_compiler
def test_a_library_alone_has_openmp_and_the_functions_of_c_and_of_the_compiler():
    assert call(library(IN_THREADS, "threads", alone=True), n=5) == 10


def test_libraries_are_few_only_where_the_process_has_the_others():
    gcc = Toolchain(("cc",), "cc", "cc (Debian) 12", "", "", ("-fopenmp",))
    few = detect.few_libraries(gcc)
    assert few == (("-nodefaultlibs", "-lgomp", "-lgcc") if sys.platform == "linux" else ())
    assert "-lgomp" not in detect.few_libraries(replace(gcc, flags=()))
    assert detect.few_libraries(replace(gcc, version="clang version 14")) == ()


@pytest.mark.parametrize(
    ("version", "left_out"), [("cc (Debian) 12", detect.WITHOUT), ("clang version 14", ())]
)
def test_passes_are_left_out_of_gcc_alone(tmp_path, version, left_out):
    fake = script(tmp_path, "exit 1", f"echo {version!r}; exit 0")
    flags = detect.identified(str(fake)).flags
    assert tuple(f for f in flags if f in detect.WITHOUT) == left_out


@needs_compiler
def test_a_library_that_is_not_loaded_with_few_libraries_is_linked_with_all(monkeypatch):
    monkeypatch.setattr(compiler, "few_libraries", lambda tools: ("-nodefaultlibs", "-lno-such"))
    assert call(library(IN_THREADS, "threads again", alone=True), n=4) == 6


PARTS = """#include <ge2/core.h>
GE2_SHARED int one(int); GE2_SHARED int two(int); GE2_SHARED int three(int);
#if GE2_IN_PART(1)
GE2_SHARED int one(int n) { return n; }
#endif
#if GE2_IN_PART(2)
GE2_SHARED int two(int n) { return one(n) + n; }
#endif
#if GE2_IN_PART(3)
GE2_SHARED int three(int n) { return two(n) + n; }
#endif
#if GE2_IN_PART(4)
int ge2_run(int n) { return three(n) + %d; }
#endif
"""


@needs_compiler
@pytest.mark.parametrize(("cores", "threads", "jobs"), [(1, 0, 0), (8, 0, 4), (3, 0, 3), (8, 2, 2)])
def test_parts_are_shared_by_as_many_compilers_as_may_run(cores, threads, jobs, monkeypatch):
    seen = []

    def together(commands, folder, seconds, run=detect.called_together):
        seen.extend(c for c in commands if "-c" in c)
        return run(commands, folder, seconds)

    for module in (detect, settings):
        monkeypatch.setattr(module, "allowed_cores", lambda: cores)
    monkeypatch.setattr(detect, "called_together", together)
    with config.using(threads=threads):
        assert call(library(PARTS % cores, "f")) == 30 + cores
    assert len(seen) == jobs


@needs_compiler
def test_a_process_compiles_a_source_once():
    first = library(source(), "f")
    assert library("/* other words */" + source(), "g") is first
    assert library(source(1), "f") is not first


PROGRAM = """
import sys, time
import ge2
from ge2.base.compiler import library
lib = library(sys.stdin.read() if False else open({path!r}).read(), "f")
print(lib.cached, lib.key, "subprocess" in sys.modules, "hashlib" in sys.modules, "json" in sys.modules)
"""


@needs_compiler
def test_a_second_process_always_hits(tmp_path):
    path = tmp_path / "f.c"
    path.write_text(source())
    program, folder = PROGRAM.format(path=str(path)), str(tmp_path / "others")
    first = python(program, GE2_CACHE_DIR=folder, PYTHONHASHSEED="1")
    path.write_text("// a line more\n" + source())
    second = python(program, GE2_CACHE_DIR=folder, PYTHONHASHSEED="2")
    assert (first[0], second[0]) == ("False", "True")
    assert first[1] == second[1]
    # what only a compilation needs is not imported
    assert second[2:] == ["False", "False", "False"]


def test_import_ge2_imports_nothing_for_compiling():
    program = (
        "import sys, numpy; there = {*sys.modules}; import ge2; print(*({*sys.modules} - there))"
    )
    assert not {"subprocess", "hashlib", "json", "tempfile"} & {*python(program)}


@needs_compiler
def test_threads_share_one_compilation(tmp_path):
    with config.using(cc=script(tmp_path, f'exec {REAL} "$@"')):
        found, ready = [], threading.Barrier(8)
        context = settings.config.snapshot()

        def work():
            ready.wait()
            with config.using(cc=context.cc, cache_dir=context.cache_dir):
                found.append(library(source(), "f"))

        on_threads(*[work] * 8)
    assert len(set(map(id, found))) == 1
    assert calls(tmp_path) == 2  # its version, and the library


@needs_compiler
def test_libraries_that_were_in_the_same_place_are_not_confused():
    libraries = [library(source(i), "f") for i in range(4)]
    assert [call(lib) for lib in libraries] == [45, 46, 47, 48]
    assert len({lib.path for lib in libraries}) == 4


@needs_compiler
def test_without_memory_files(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    assert call(library(source(), "f")) == 45


@needs_compiler
def test_without_a_place_to_load_from(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert call(library(source(), "f")) == 45
    monkeypatch.setattr(compiler, "workplace", refuse)
    compiler._libraries.clear()
    with pytest.raises(CompilerTrouble, match="cannot be loaded: not here"):
        library(source(), "f")


@needs_compiler
def test_an_extension_is_a_module():
    import sysconfig

    text = """
    #include <Python.h>
    static struct PyModuleDef made = {PyModuleDef_HEAD_INIT, "ge2_trial", 0, 0};
    PyMODINIT_FUNC PyInit_ge2_trial(void) {
        PyObject *module = PyModule_Create(&made);
        if (module) PyModule_AddIntConstant(module, "answer", 42);
        return module;
    }
    """
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        pytest.skip("there is no C compiler that could find Python.h")
    for _ in range(2):
        assert extension(text, "ge2_trial", ("-I", include), sys.version).answer == 42
        compiler._libraries.clear()
    with pytest.raises(CompilerTrouble, match="cannot be loaded"):
        extension(source(), "ge2_other")


@needs_compiler
def test_compiled_is_logged_when_asked(caplog):
    caplog.set_level(logging.INFO, "ge2")
    with config.using(log_compiles=True):
        library(source(), "my sum")
    assert "my sum: compiled in" in caplog.text


# ---------------------------------------------------------------------------------------- the cache


@needs_compiler
@pytest.mark.parametrize("cut", [0, 100, 4000, -1])
def test_a_damaged_library_is_compiled_again(cut):
    first = library(source(), "f")
    path = Path(cache().path, first.key)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert call(first) == 45  # what is loaded does not hang on the file
    compiler._libraries.clear()
    with pytest.warns(Ge2Warning, match="is made again"):
        second = library(source(), "f")
    assert (second.cached, call(second)) == (False, 45)
    compiler._libraries.clear()
    assert library(source(), "f").cached


CUTS = """
import sys
from ge2.base.compiler import _is_whole, _loaded, Order
from ge2.base.errors import CompilerTrouble
import ctypes
whole = open(sys.argv[1] if len(sys.argv) > 1 else {path!r}, "rb").read()
assert _is_whole(whole)
refused = 0
for cut in range(0, len(whole), 97):
    try:
        _loaded(whole[:cut], Order("", "f", (), "", (), ctypes.CDLL))
    except CompilerTrouble:
        refused += 1
print(refused, len(range(0, len(whole), 97)))
"""


@needs_compiler
def test_no_cut_library_is_loaded(tmp_path):
    """Not even one that a compiler wrote so: mapping it would end the process."""
    lib = library(source(), "f")
    path = tmp_path / "whole.so"
    path.write_bytes(cache().get(lib.key))
    refused, tried = python(CUTS.format(path=str(path)))
    assert refused == tried


@needs_compiler
def test_without_a_cache_there_is_compiling():
    with config.using(cache_dir="none"):
        assert call(library(source(), "f")) == 45
        compiler._libraries.clear()
        assert not library(source(), "f").cached


@needs_compiler
def test_an_entry_that_lacks_the_symbol_is_made_again():
    lib = library(source().replace("ge2_run", "another"), "f", symbol="another")
    content = cache().get(lib.key)
    tools = detect.toolchain()
    cache().put(library_key(tools, source()), content, {})
    assert call(library(source(), "f")) == 45


# --------------------------------------------------------------------------------------------- keys

TOOLS = Toolchain(
    ("/usr/bin/cc",), "/usr/bin/gcc-12", "gcc 12", "12345", "Linux x86_64 abcd", FLAGS
)


def test_everything_that_changes_the_library_changes_its_key(monkeypatch):
    text = "float x; // of a line"
    keys = [
        library_key(TOOLS, text),
        library_key(TOOLS, "double x; // of a line"),
        library_key(TOOLS, text, ("-DA",)),
        library_key(TOOLS, text, ("-D", "A")),
        library_key(TOOLS, text, (), "numpy 2.4"),
        library_key(replace(TOOLS, target="Linux x86_64 other"), text),
        library_key(replace(TOOLS, identity="a newer file"), text),
        library_key(replace(TOOLS, version="gcc 13"), text),
        *(
            library_key(replace(TOOLS, flags=tuple(f for f in FLAGS if f != gone)), text)
            for gone in FLAGS
        ),
    ]
    library_key.cache_clear()
    monkeypatch.setattr(compiler, "VERSION", "0.0.1")
    keys.append(library_key(TOOLS, text))
    library_key.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "include_digest", lambda: "of another header")
    keys.append(library_key(TOOLS, text))
    library_key.cache_clear()
    assert len(set(keys)) == len(keys)


def test_the_environment_of_the_compiler_is_part_of_its_identity(tmp_path, monkeypatch):
    path = script(tmp_path, "exit 1")

    def identity():
        detect._found.clear()
        with config.using(cc=path):
            return detect.toolchain().identity

    first = identity()
    assert identity() == first
    assert calls(tmp_path) == 1  # it is remembered
    monkeypatch.setenv("CPATH", "/opt/include")
    second = identity()
    monkeypatch.delenv("CPATH")
    os.utime(path, (1, 1))
    assert len({first, second, identity()}) == 3


SAME = [
    "int f(int a) {\n    return a + 1;\n}\n",
    "int f(int a) { // x:f32[3] = tanh y\n  return a + 1;\n}",
    "/* model.py:3\n * in f */\n\nint   f(int a) {\n\n\treturn a /* moved */ + 1;   \n}",
    "int f(int a) {\r\n    return a + 1;\r\n}\r\n",
    "int f(int a) { // a comment \\\n of two lines\n return a + 1; }".replace("; }", ";\n}"),
]


@pytest.mark.parametrize("text", SAME[1:])
def test_comments_and_layout_change_no_key(text):
    assert library_key(TOOLS, text) == library_key(TOOLS, SAME[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a b", "ab"),
        ("a/**/b", "ab"),
        ('"a  b"', '"a b"'),
        ('"/* a */"', '"/* b */"'),
        ('"// a"', '"// b"'),
        ("'\"' /* a */ '\"'", "'\"' b '\"'"),
        ('"\\"/*" a "*/"', '"\\"/*" b "*/"'),
        ("#define a\nb", "#define a b"),
        ("a / b", "a // b"),
        ("x = 1;", "x = 1.0;"),
    ],
)
def test_what_means_something_changes_the_key(one, other):
    assert significant(one) != significant(other)


def test_headers_are_part_of_the_key(monkeypatch, tmp_path):
    def digest(files):
        root = tmp_path / f"include {len(list(tmp_path.iterdir()))}"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.setattr(compiler, "include_folder", lambda: str(root))
        include_digest.cache_clear()
        return include_digest()

    files = {"ge2/a.h": "int a;", "ge2/deep/b.h": "int b;"}
    others = [files | {"ge2/a.h": "int c;"}, files | {"ge2/c.h": ""}, {"ge2/a.h": "int a;"}]
    first = digest(files)
    assert digest(dict(reversed(files.items()))) == first
    assert len({first, *map(digest, others)}) == 4
    monkeypatch.undo()
    include_digest.cache_clear()


# -------------------------------------------------------------------------------------- no compiler


def test_unwanted_it_is_said_once():
    with config.using(cc="none"):
        with pytest.warns(Ge2Warning, match="asks for no compiler"):
            assert detect.toolchain() is None
        assert detect.toolchain() is None
        with pytest.raises(CompilerTrouble, match="no C compiler in use"):
            library(source(), "f")


@pytest.mark.parametrize("name", ["/nonexistent/cc", "no-such-compiler", "'unclosed", " "])
def test_one_that_is_not_there_is_said_once(name):
    with config.using(cc=name):
        with pytest.warns(Ge2Warning, match="GE2_CC") as said:
            assert detect.toolchain() is None
        assert detect.toolchain() is None
        with pytest.raises(CompilerTrouble):
            library(source(), "f")
    assert len(said) == 1


def test_none_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(Ge2Warning, match="there is no C compiler"):
        assert detect.toolchain() is None


def test_the_first_on_the_path_is_taken(monkeypatch, tmp_path):
    for name in ("gcc", "clang"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} 1.0")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "cc").write_text("not a program")
    monkeypatch.setenv("PATH", f"/nonexistent:{tmp_path}")
    assert detect.toolchain().version == "gcc 1.0"
    with config.using(cc=f"{tmp_path}/clang --target=x"):
        assert detect.toolchain().command == (f"{tmp_path}/clang", "--target=x")


def test_without_a_known_processor_nothing_is_made_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(detect, "_cpu", lambda: "")
    with config.using(cc=script(tmp_path, "exit 1")):
        assert "-march=native" not in detect.toolchain().flags


def test_the_target_names_the_processor():
    assert detect._cpu()


# ------------------------------------------------------------------------------------------- OpenMP


def seen_by_c(name):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name.encode())


@pytest.mark.parametrize("theirs", [None, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_threads_of_openmp_do_not_spin_unless_the_user_wants_it(theirs, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    if theirs:
        monkeypatch.setenv(theirs, "123")
    with settings.brief_waits():
        within = seen_by_c("GOMP_SPINCOUNT")
        assert os.environ.get("GOMP_SPINCOUNT") == ("123" if theirs == "GOMP_SPINCOUNT" else None)
    after = seen_by_c("GOMP_SPINCOUNT")
    wanted = {
        None: (b"2000", None),
        "GOMP_SPINCOUNT": (b"123", b"123"),
        "OMP_WAIT_POLICY": (None, None),
    }
    assert (within, after) == wanted[theirs]


def test_a_child_can_load_what_its_parent_was_loading():
    compiler._locks["taken"] = threading.Lock()
    compiler._locks["taken"].acquire()
    compiler._after_fork()
    assert not compiler._locks
    assert store.VERSION
