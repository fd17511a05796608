"""Lesson 3. A function becomes kernels, and a kernel is a text too.

Run it: python docs/lessons/03_kernels.py
"""

from __future__ import annotations

import numpy as np

import ge2

# A softmax in plain NumPy. NumPy runs it as five passes over the array, each with a result that
# goes to memory and comes back.


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# `lower` compiles without calling, and needs no array: a shape and a dtype will do.

x = ge2.ShapeDtypeStruct((4096, 1000), np.float32)
low = ge2.jit(softmax).lower(x)

# ge2 made one region of it: all that works on the same rows, so that a row stays in cache from the
# first pass to the last. Each region becomes a kernel.

print(low)
assert low.regions == len(low.kernels) == 1

# The kernels as a table: what each computes, the bytes that it reads and writes, the operations it
# does on elements, and the lines of yours that it came from.

print(low.kernels)
kernel = low.kernels[0]
assert kernel.read == kernel.written == 4096 * 1000 * 4

# And the kernel itself: its graph on top, then loops, with the operation of each line in its
# margin. With a C compiler this is C, and what was compiled; without one, NumPy calls over blocks.

print(kernel)

# Sizes are arguments of the kernel: another number of rows is the same machine code.

f = ge2.jit(softmax)
f(np.ones((4096, 1000), np.float32))
f(np.ones((29, 1000), np.float32))
print(f.report())

# What the first call with that number of rows spent, stage by stage, and where its code was found.

print(f.report().compile_times)
assert f.report().compile_times.count("compiled") == 0

# What a call needs: an arena that is allocated once, and the arrays that it returns. Nothing else.

memory = low.memory_analysis()
print(memory)
assert memory.outputs == 4096 * 1000 * 4
assert memory.arena < memory.outputs

# The work of it, under JAX's names. Less than two operations a byte: memory
# bounds it, not arithmetic.

work = low.cost_analysis()
print(work)
assert work["bytes accessed"] == kernel.nbytes
assert kernel.operations < 2 * kernel.nbytes
