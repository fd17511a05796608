"""Headers that one kernel may include together: their names do not clash, in whatever order."""

from __future__ import annotations

import pytest

from ge2.targets.c.emit.file import EACH_TYPE
from ge2.targets.cuda.load.nvrtc import compile
from tests.exhaustive import SAMPLING
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import INCLUDE as CUDA
from tests.templates.harness import DTYPES, build, needs_compiler
from tests.templates.harness import INCLUDE as C


def including(first, names, turned):
    """A file that begins as generated ones do, with `first`."""
    others = sorted(set(names) - {first}, reverse=turned)
    return "".join(f'#include "ge2/{name}"\n' for name in (first, *others))


@needs_compiler
@pytest.mark.parametrize("turned", [False, True])
def test_all_headers_in_one_c_file(tmp_path, turned):
    names = [path.name for path in (C / "ge2").glob("*.h")]
    assert {"core.h", "integer.h", "transpose.h"} <= set(names)
    how = "-O0" if SAMPLING.every else "-fsyntax-only"  # code for all of them takes two seconds
    build(including("core.h", names, turned), tmp_path, [how, "-Wno-type-limits"])


@needs_compiler
@pytest.mark.parametrize("only", DTYPES)
def test_headers_of_one_type_call_no_function_of_another(tmp_path, only):
    """Compilers from gcc 14 on take no call of a function that is not declared."""
    text = f"#define GE2_SOME_TYPES\n#define GE2_HAS_{only} , GE2_ALL_OF\n"
    text += including("core.h", [path.name for path in (C / "ge2").glob("*.h")], False)
    build(text, tmp_path, ["-fsyntax-only", "-Wno-type-limits"])


def test_headers_that_have_functions_for_each_type_are_known():
    found = {p.stem for p in (C / "ge2").glob("*.h") if "\nGE2_FOR(" in p.read_text()}
    assert found - {"core"} == EACH_TYPE


SYSTEM = ("stdint", "string", "time", "sched", "unistd", "stdlib", "math", "complex", "pthread")


@needs_compiler
@pytest.mark.parametrize("first", [False, True])
def test_a_source_may_include_headers_of_the_system_that_core_h_does_without(tmp_path, first):
    others = "".join(f"#include <{name}.h>\n" for name in SYSTEM)
    ours = '#include "ge2/core.h"\n'
    text = "#define _GNU_SOURCE\n" + (others + ours if first else ours + others)
    build(text + "_Static_assert(sizeof(ge2_time) == sizeof(struct timespec), "
          '"as the system has it");\n', tmp_path, ["-O0"])  # fmt: skip


@needs_nvrtc
@pytest.mark.parametrize("turned", [False, True])
def test_all_headers_in_one_cuda_file(turned):
    names = [path.name for path in (CUDA / "ge2").glob("*.cuh")]
    assert {"core.cuh", "hopper.cuh"} <= set(names)
    assert compile(including("core.cuh", names, turned), "sm_90a")
