"""Small programs written by hand, in C, and how the tests of both launchers make and call them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.targets.c.launcher import Array, Output, make_launcher, native

INCLUDE = Path(ge2.__file__).parents[1] / "templates" / "c" / "include"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
BOOL, F32, F64, I64, C128 = map(np.dtype, ("bool", "float32", "float64", "int64", "complex128"))
BF16, FP8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)

PROGRAMS = """
#include <stdio.h>
#include <time.h>
#include <ge2/core.h>

#define RUN(name) int name(char *const *p, const int64_t *n, const ge2_number *k, char *arena, int threads, \\
                           const ge2_services *lib)

RUN(add) { /* y = x + k, through the arena */
    float *half = (float *)arena;
    for (int64_t i = 0; i < n[0]; i++) half[i] = ((const float *)p[0])[i];
    for (int64_t i = 0; i < n[0]; i++) ((float *)p[1])[i] = half[i] + (float)k[0].f;
    return GE2_OK;
}

RUN(copy) { memcpy(p[1], p[0], (size_t)n[0]); return GE2_OK; }

RUN(twice) { /* two inputs, two outputs, both in place where memory is shared */
    for (int j = 0; j < 2; j++)
        for (int64_t i = 0; i < n[0]; i++) ((float *)p[2 + j])[i] = ((const float *)p[j])[i] * 2;
    return GE2_OK;
}

RUN(numbers) { /* a float, an int, a bool, a complex, and a constant */
    double *y = (double *)p[0];
    y[0] = k[0].f, y[1] = (double)k[1].i, y[2] = (double)k[2].i, y[3] = k[3].c[0], y[4] = k[3].c[1];
    y[5] = k[4].f;
    return GE2_OK;
}

RUN(big_number) { *(int64_t *)p[0] = k[0].i; return GE2_OK; }

RUN(in_place) {
    for (int64_t i = 0; i < n[0]; i++) ((float *)p[1])[i] += ((const float *)p[0])[i];
    return GE2_OK;
}

RUN(gather) { /* y[i] = x[at[i]] */
    for (int64_t i = 0; i < n[0]; i++) {
        int64_t at = ((const int64_t *)p[1])[i];
        if (at < 0 || at >= n[1]) {
            *lib->error = (ge2_error){GE2_INDEX, at, 1, n[1], n[2]};
            return GE2_INDEX;
        }
        ((float *)p[2])[i] = ((const float *)p[0])[at];
    }
    return GE2_OK;
}

RUN(broken) { return 7; }

static void rest(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

RUN(slow) { rest(k[0].f); return GE2_OK; }

RUN(scratch) { /* fills the arena, sleeps, and counts what another call has changed */
    int64_t wrong = (uintptr_t)arena % 64 != 0, own = k[0].i;
    for (int64_t i = 0; i < n[0]; i++) ((int64_t *)arena)[i] = own;
    rest(0.002);
    for (int64_t i = 0; i < n[0]; i++) wrong += ((int64_t *)arena)[i] != own;
    *(int64_t *)p[0] = wrong;
    return GE2_OK;
}

RUN(threads_and_services) {
    int64_t *y = (int64_t *)p[0];
    y[0] = threads, y[1] = (int64_t)(uintptr_t)lib->sgemm, y[2] = lib->ilp64, y[3] = lib->error->code;
    y[4] = (int64_t)(uintptr_t)arena;
    return GE2_OK;
}

RUN(flags) { /* raises every flag of IEEE arithmetic */
    volatile double zero = 0, tiny = 1e-300, huge = 1e300;
    ((double *)p[0])[0] = 1 / zero + zero / zero + huge * huge + tiny * tiny;
    return GE2_OK;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("programs")
    source, made = folder / "programs.c", folder / "programs.so"
    source.write_text(PROGRAMS)
    command = [
        COMPILER, "-std=gnu11", "-O1", "-fPIC", "-shared", f"-I{INCLUDE}", str(source), "-o",
        str(made),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(params=["native", "plain"])
def launch(request, library):
    """make_launcher, of a program by its name."""
    plain = request.param == "plain"
    if not plain and native() is None:
        pytest.fail("there is a compiler, but the extension could not be made")

    def make(name, inputs, outputs=(), **options):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        return make_launcher(address, inputs, outputs, owner=library, plain=plain, **options)

    return make


def constant(value):
    return np.array([value, 0], np.float64).tobytes()


def adder(launch, shape, amount=1.0, **options):
    count = int(np.prod(shape))
    options = {"sizes": [count], "numbers": constant(amount), "arena": 4 * count, **options}
    keep = options.pop("keep", True)
    return launch("add", [Array(F32, shape)], [Output(F32, shape, keep=keep)], **options)
