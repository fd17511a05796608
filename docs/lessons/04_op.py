"""Lesson 4.

An operation of your own, outside ge2: its meaning, its derivative, C and CUDA that jit compiles.

Run it: python docs/lessons/04_op.py
"""

from __future__ import annotations

import numpy as np

import ge2
from ge2.base.detect import toolchain
from ge2.test_util import check_grads, check_op

# The short way: a function of single elements. Its meaning in NumPy, its expression in
# C, its derivative. `$t` and `$T` are the dtype and its C type; ge2_log_f64 and all
# other functions of our headers are there.

log_odds = ge2.extend.elementwise(
    "log_odds",
    lambda p: np.log(p / (1 - p)),
    "log_odds_$t({0})",
    lambda y, p: 1 / (p * (1 - p)),
    helpers="static inline $T log_odds_$t($T p) { return ge2_log_$t(p / (1 - p)); }",
)

# It is an operation like any other: it promotes and broadcasts, has both derivatives of any order
# and a batch, and is fused with what stands beside it into one loop.

p = np.linspace(0.1, 0.9, 5)
print(ge2.jit(ge2.vmap(ge2.grad(log_odds)))(p))
print(ge2.jit(lambda p: np.tanh(2 * log_odds(p))).lower(p).kernels)

# The long way: a class, whose fields are parameters and whose methods are rules. `infer` says what
# comes out, the reference what it means, `vjp` how cotangents go back (forward mode is its
# transpose, unless there is a `jvp`), `batch` what vmap does (a loop, if there is none), and `c` is
# the body of the kernel. `cuda` is what one thread does on a GPU, of as many as the result has
# elements, unless `launch` says how many.


@ge2.extend.op
class Smooth(ge2.extend.Op):
    """Each element with a share of its neighbours, around the last axis."""

    share: float
    name = "smooth"
    batch = ge2.extend.in_front

    def infer(self, x):
        return (x,)

    def reference(self, x):
        return (x + self.share * (np.roll(x, 1, -1) + np.roll(x, -1, -1))).astype(x.dtype)

    def vjp(self, cts, ys, xs, wanted):
        return [self(cts[0])]  # it is its own transpose

    c = """
    const int64_t n = x_shape[x_ndim - 1], rows = n ? x_size / n : 0;
    #pragma omp parallel for num_threads(threads) if (x_size > 1 << 16)
    for (int64_t r = 0; r < rows; r++) {
        const x_t *a = x + r * n;
        for (int64_t i = 0; i < n; i++)
            y[r * n + i] = a[i] + (x_t)share * (a[i ? i - 1 : n - 1] + a[i < n - 1 ? i + 1 : 0]);
    }
    """

    cuda = """
    const int64_t n = x_shape[x_ndim - 1], i = thread % n;
    const x_t *a = x + (thread - i);
    y[thread] = a[i] + (x_t)share * (a[i ? i - 1 : n - 1] + a[i < n - 1 ? i + 1 : 0]);
    """


smooth = Smooth(share=0.25)
x = np.arange(12.0).reshape(3, 4)
print(smooth(x))  # outside jit: the reference
f = ge2.jit(lambda x: smooth(2 * x) + 1)
assert np.array_equal(f(x), smooth(2 * x) + 1)
# inside: your C, with a compiler
print(*(kernel for kernel in f.lower(x).kernels if "smooth" in kernel.ops))

# With arrays of CuPy's it is the CUDA. Without a GPU, what stands for
# one runs it, a fiber a thread.

if toolchain() is not None:
    with ge2.config.using(executor="emulator"):
        low = f.lower(x)
        assert np.array_equal(low.compile()(x), smooth(2 * x) + 1)
    print(*(kernel for kernel in low.kernels if "smooth" in kernel.ops))

# Is it right? The laws that ge2 holds its own operations to: the types, any layout of memory, a
# batch along any axis against a loop, every executor against the reference, derivatives against
# differences, twice. CUDA is run by a GPU if there is one, else by what stands for it, and NVRTC
# compiles it if it is installed.

check_op(log_odds, [p, p.astype(np.float32)])
check_op(smooth, [x, x[0], np.ones((2, 1), np.float32)])

# And any function that is made of them.

check_grads(lambda x: (np.sin(smooth(x)) * x).sum(), (x,), order=2)

try:
    check_op(ge2.extend.elementwise("half", lambda x: x / 2, "{0} / 2", lambda y, x: 0.4), [p])
except AssertionError as error:
    print("caught:", str(error).splitlines()[0][:40])

# What a compiler refuses is shown at the line where it stands.


@ge2.extend.op
class Twice(ge2.extend.Op):
    name = "twice"

    def infer(self, x):
        return (x,)

    def reference(self, x):
        return 2 * x

    cuda = """
    y[thread] = 2 * w[thread];
    """


try:
    check_op(Twice(), [x])
except ge2.errors.CompileError as error:
    print(error)
