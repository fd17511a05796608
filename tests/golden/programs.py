"""The programs of the golden files, each a few lines of NumPy with the types of its arguments.

A name stands for one file a target, which shows the graph after the last pass, the
kernels as they are rendered and the launches. Sizes are chosen for the variant of a
kernel that the name says; nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ge2
from ge2 import extend, lax, random
from ge2.cli import arguments
from ge2.scipy import special


@dataclass(frozen=True)
class Program:
    """A function, the specifications of its arguments, and what its golden files show.

    `targets` names the folders. With `plan` they show the memory plan and what each call runs, and
    no kernels. `donate` are the positions of arguments whose memory results may take; `off` are the
    passes that are left out.
    """

    function: Callable[..., Any]
    specs: tuple[str, ...]
    targets: tuple[str, ...] = ("c", "cuda")
    plan: bool = False
    donate: tuple[int, ...] = ()
    off: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[Any]:
        return arguments(self.specs, {})[0]


@dataclass
class Table:
    """Collects the programs under their names."""

    programs: dict[str, Program] = field(default_factory=dict)

    def __call__(
        self, *specs: str, **more: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(f: Callable[..., Any]) -> Callable[..., Any]:
            self.programs[f.__name__] = Program(f, specs, **more)
            return f

        return add

    def add(self, name: str, f: Callable[..., Any], *specs: str, **more: Any) -> None:
        self.programs[name] = Program(f, specs, **more)


program = Table()
PROGRAMS = program.programs
ALL = ("c", "cuda", "blocked")
EVERY_CHIP = ("c", "cuda", "small_chip")
CUDA, C = ("cuda",), ("c",)

# -------------------------------------------------------------------------------------- elementwise


@program("f32[64,128]", "f32[128]", "f32[64,1]", targets=ALL)
def pointwise(x, w, b):
    return np.tanh(x * w + b)


@program("f32[2048,4096]", "f32[2048,4096]", "f32[2048,4096]", targets=CUDA)
def pointwise_packs(p, g, m):
    m = 0.9 * m + g
    return p - 0.01 * m, m


@program("f32[8192,8192]", "f32[8192]", targets=CUDA)
def pointwise_turns(a, c):
    return a * c


@program("f32[30]", "i32[30]", "bool[30]")
def pointwise_several_types(x, n, b):
    return np.where(b, x, n), (x > 0.5) & ~b, n << 2, x.astype(np.float16)


@program("f32[100]", "2.0", "3")
def pointwise_weak_numbers(x, scale, power):
    return x * scale + power * 2, scale + 1


@program("bf16[33]", "f16[33]")
def pointwise_half_types(x, y):
    return np.exp(x) * x, np.sqrt(y) + 1


@program("c64[50]", "c64[50]")
def pointwise_complex(z, w):
    return z * np.conj(w) / (z + 2), abs(np.exp(z))


@program("i32[50]", "i32[50]", "u8[50]")
def pointwise_integers(a, b, c):
    return a // b, a % b, a**2, c >> 1, np.bitwise_xor(a, b), np.gcd(a, b)


@program("f64[50]", "f32[50]")
def pointwise_special_functions(x, y):
    return special.erf(x) + special.gammaln(x), special.expit(y) * special.i0(y)


@program("f32[8,6]", "f32[6,8]")
def pointwise_strided(x, y):
    return x[::2, ::-1] + y.T[::2]


@program("f32[1024,512]", "f32[512,1024]")
def transpose_tiles(x, y):
    return x + y.T


@program("f16[40,3,5]")
def transpose_copy(x):
    return x.transpose(2, 0, 1).copy(), x[::2].reshape(-1), x[::-1]


@program("f32[5,4]")
def iota_and_constant(x):
    table = np.array([2.0, 3.0, 5.0, 7.0], np.float32)
    return x * np.arange(4) + np.arange(5)[:, None], table, np.full(3, 2.5), np.eye(3)


# --------------------------------------------------------------------------------------- reductions


@program("f32[128,64]", targets=ALL)
def rows_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@program("bf16[64,4096]", "bf16[4096]")
def rows_layer_norm(x, w):
    away = x - x.mean(-1, keepdims=True)
    return away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5) * w


program.add(
    "rows_layer_norm_gradient",
    ge2.grad(lambda w, x: (rows_layer_norm(x, w) ** 2).sum()),
    "f32[256]", "f32[3000,256]",
)  # fmt: skip
program.add("rows_in_shared_memory", rows_softmax, "bf16[8,50304]", targets=("cuda", "small_chip"))
program.add("rows_read_again", rows_softmax, "f32[8,200000]", targets=CUDA)
program.add(
    "rows_read_ahead",
    ge2.grad(lambda w, x: (rows_layer_norm(x, w) ** 2).sum()),
    "f32[8192]", "f32[3000,8192]", targets=CUDA,
)  # fmt: skip


@program("bf16[8,20000]", "i64[8]", targets=CUDA)
@ge2.value_and_grad
def rows_picked_element(z, y):
    z = z.astype(np.float32)
    top = lax.stop_gradient(z.max(-1, keepdims=True))
    logs = np.log(np.exp(z - top).sum(-1)) + top[:, 0]
    return (logs - np.take_along_axis(z, y[:, None], -1)[:, 0]).mean()


@program("f32[12,300]", "i64[12]")
@ge2.grad
def cross_entropy_gradient(z, y):
    z = z - z.max(-1, keepdims=True)
    return (np.log(np.exp(z).sum(-1)) - z[np.arange(len(y)), y]).mean()


@program("bf16[64,2048]", targets=CUDA)
def rows_pairs_of_half_types(x):
    wide = x.astype(np.float32)
    return wide.max(-1), wide.min(-1)


@program("f32[50,90]", "f64[50,90]")
def rows_states(x, y):
    return x.argmax(-1), np.nanmin(y, -1), (y > 0).any(-1), x.prod(-1)


@program("f32[1048576]", targets=ALL)
def reduce_all(x):
    return (x * x).sum(), x.max()


@program("f32[4096,512]")
def reduce_columns(x):
    return x.sum(0), np.abs(x).max(0)


program.add("reduce_columns_narrow", reduce_columns, "f32[512,96]")
program.add("reduce_columns_of_integers", lambda n: (n.sum(0), n.argmin(0)), "i32[300,20]")
program.add("reduce_middle", lambda x: x.sum(1), "f64[20,30,40]", targets=ALL)
program.add("reduce_columns_and_go_on", lambda x: (x - x.mean(0)) / x.std(0), "f32[100000,20]")
program.add("reduce_columns_streamed", lambda x: x - x.mean(0), "f32[20000,64]", targets=C)
program.add("reduce_columns_and_reduce", lambda x: (x.sum(0) ** 2).sum(), "f32[700,64]", targets=C)
program.add("reduce_columns_wide", lambda x: x.sum(0), "f32[300,5000]", targets=C)
program.add("reduce_short_axis", lambda x: x / x.sum(-1, keepdims=True), "f32[5000,3]")
program.add("reduce_complex", lambda z: (z.sum(), z.mean(0)), "c128[64,8]")
program.add("reduce_half_types", lambda x: (x.sum(), x.sum(0)), "f16[100,200]")


@program("f32[2048,3]", targets=("cuda",))
def pairs_forces(p):
    def energy(p):
        d = p[:, None] - p
        return (1 / np.sqrt((d * d).sum(-1) + 1e-3)).sum()

    return ge2.grad(energy)(p)


@program("f32[40000,6]", "f32[40,6]", targets=("cuda",))
def pairs_nearest(x, c):
    return ((x[:, None] - c) ** 2).sum(-1).argmin(1)


@program("f32[500,64]")
def columns_normalised(x):
    return (x - x.mean(0)) / x.std(0)


@program("f32[64,80]")
def rows_in_one_block(x):
    rows = np.exp(x - x.max(1, keepdims=True))
    return rows / rows.sum(1, keepdims=True), (rows * 2).sum(0), rows.sum() ** 2


# ---------------------------------------------------------------------------------- moving elements


@program("f32[4,6]", "f32[4,3]", "f32[2,9]")
def concatenate(a, b, c):
    return np.concatenate([np.concatenate([a, b * 2], 1), c]), np.stack([a, a])


@program("f32[5,6]")
def pad(x):
    return np.pad(x * 2, ((1, 2), (0, 3))), np.pad(x, 1, constant_values=1.0), np.pad(x, 2)


@program("f32[40,30]", targets=("c",))
def file_of_two_parts(x):
    """Six kernels, of which the scans and the sort have many loops."""
    rows = np.cumsum(x, 0)
    ends = x[1:] * 2, x[:, 1:] + 1
    return np.cumprod(rows, 1), np.cumsum(rows[:, ::-1], 1), *ends, rows.std(0), np.sort(x[2:], 1)


@program("f32[6,8]", "f32[3,8]")
def update_slice(x, u):
    y = x.copy()
    y[1:4] = u
    y[:, ::2] *= 2
    return y


@program("f32[100,32]", "i64[20]")
def gather(x, i):
    return x[i], np.take_along_axis(x[:20], i[:, None], 1), x[i[0]]


@program("f32[5000,256]", "i32[8192,16]", targets=("cuda",))
def rows_at_indices(x, i):
    y = np.take(x, i, 0)
    return y.sum(1), np.take(x, i[0], 0) * 2


program.add(
    "gather_index",
    lambda x, i: ge2.grad(lambda x: np.square(np.take_along_axis(x, i[:, None], 1)).sum())(x),
    "f32[20,12]",
    "i64[20]",
    off=("fuse",),
)


program.add("order_statistics", lambda x: np.median(x, axis=0), "f64[1001,8]", targets=("c",))
program.add("reduce_all_float64", lambda x: x.sum(), "f64[20000]", targets=("c",))


@program("f32[100,32]", "i64[20]", "f32[20,32]")
def scatter(x, i, u):
    y = x.copy()
    y[i] = u
    return y


def add_at(x, i, u):
    return x.at[i].add(u)


program.add("scatter_add_few", add_at, "f32[100,32]", "i32[6]", "f32[6,32]")
program.add("scatter_add_ranked", add_at, "f32[30000,32]", "i32[3000]", "f32[3000,32]")
program.add("scatter_add_exact", add_at, "f64[200000]", "i64[200000]", "f64[200000]")
program.add("scatter_add_blocks", add_at, "f64[1000]", "i64[20000]", "f64[20000]")
program.add("scatter_add_by_digits", add_at, "f16[700000]", "i32[300000]", "f16[300000]")
program.add("scatter_add_in_tiles", add_at, "f16[70000]", "i32[20000]", "f16[20000]")


def of_lines(axis):
    def gradient(x, u, i):
        return ge2.vjp(lambda x: np.take_along_axis(x, i, axis), x)[1](u)[0]

    return gradient


program.add(
    "scatter_add_lanes", add_at, "f32[30,32]", "i64[9000]", "f32[9000,32]", targets=("cuda",)
)
program.add(
    "sums_of_rows", of_lines(1), "f32[20,30]", "f32[20,50]", "i64[20,50]", targets=("cuda",)
)
program.add(
    "sums_of_lines", of_lines(0), "f64[30,20]", "f64[50,20]", "i32[50,20]", targets=("cuda",)
)


program.add(
    "pad_computed",
    lambda x: np.pad(np.sort(x), ((0, 0), (0, 2))),
    "f32[600,600]",
    targets=("cuda",),
)


@program("f32[40000,32]", "i32[20000]", "f32[20000,32]", targets=("cuda",))
def scatter_add_to_zeros(table, i, u):
    return ge2.grad(lambda t: (np.take(t, i, 0) * u).sum())(table)


@program("f32[30000]", "i32[3000]", "f32[3000]", targets=("cuda",))
def scatter_adds_in_one_order(x, i, u):
    for _ in range(3):
        y = np.zeros_like(x)
        np.add.at(y, i, u * x[i])
        x = y
    return x


program.add(
    "scatter_add_two_axes", lambda x, i, j: x.at[i, j].add(1), "i32[9,9]", "i64[300]", "i64[300]"
)


@program("f32[9,9]", "i64[]")
def index(x, i):
    return x[i, 2:5], lax.dynamic_slice(x, (i, 0), (2, 3))


@program("f32[9,9]", "i64[]", "f32[9]")
def index_update(x, i, u):
    y = x.copy()
    y[i] = u
    return y


@program("f32[900]", targets=("cuda",))
def moved_to_the_front(x):
    keep, out = x > 0, np.zeros(901, np.float32)
    out[np.where(keep, np.cumsum(keep) - 1, 900)] = x
    return out[:900]


@program("f32[700,132]", "i32[2500]", "i32[2500]", "f32[2500]", targets=("cuda",))
def messages_along_edges(x, source, to, weight):
    y = np.zeros_like(x)
    np.add.at(y, to, x[source] * weight[:, None])
    return y


# ---------------------------------------------------------------------------------- scans and sorts


def recurrence_of(a: Any, b: Any, axis: int) -> Any:
    """h[t] = a[t] h[t - 1] + b[t]."""

    def after(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    return lax.associative_scan(after, (a, b), axis=axis)[1]


program.add("scan_rows", lambda x: np.cumsum(x, 1), "f32[64,700]")
program.add("scan_short_rows", lambda x: np.cumsum(x, 1), "f32[2000,20]")
program.add("scan_look_back", lambda x: np.cumsum(x), "f32[3000000]", targets=EVERY_CHIP)
program.add("scan_columns", lambda x: np.cumsum(x, 0), "f32[3000,64]")
program.add("scan_recurrence", lambda a, b: recurrence_of(a, b, 0), "f32[300000]", "f32[300000]")
program.add(
    "scan_recurrence_short", lambda a, b: recurrence_of(a, b, 1), "f32[500,60]", "f32[500,60]"
)
program.add(
    "scan_recurrence_columns", lambda a, b: recurrence_of(a, b, 0), "f32[900,64]", "f32[900,64]"
)
program.add("scan_products", lambda x: np.cumprod(x), "f64[5000]")
program.add("scan_extremes", lambda x: np.maximum.accumulate(x[::-1]), "f16[5000]")
program.add("scan_of_integers", lambda n: np.maximum.accumulate(n, 1), "i32[5,40]")
program.add("sort", lambda x: np.sort(x, 0), "f32[200,3]")
program.add("argsort", lambda x: np.argsort(x), "i16[7,50]")
program.add("sort_long_lines", lambda x: np.sort(x, 1), "f64[3,1700]", targets=CUDA)
program.add("sort_shared_lines", lambda x: np.sort(x, 1), "f64[3,70]", targets=CUDA)
program.add("middle_of_lines", lambda x: np.sort(x, 1)[:, 4], "f32[50,9]", targets=CUDA)
program.add(
    "middle_of_a_long_line", lambda x: np.sort(x)[49_999:50_001], "f32[100_000]", targets=CUDA
)
program.add("searchsorted", lambda line, x: np.searchsorted(line, x), "f64[99]", "f64[20]")
program.add("top_k", lambda x: lax.top_k(x, 5), "f32[6,1000]")
program.add("top_k_long", lambda x: lax.top_k(x, 50), "bf16[2,100000]", targets=CUDA)

# ----------------------------------------------------------------------------------------- products

program.add("product", np.matmul, "f32[512,512]", "f32[512,512]", targets=ALL)
program.add("product_of_transposed", lambda a, b: a.T @ b.T, "f64[300,512]", "f64[200,300]")
program.add("product_batched", np.matmul, "f32[8,4,4]", "f32[8,4,4]")
program.add("product_thin", np.matmul, "f32[1000,3]", "f32[3,200]")
program.add("product_with_vector", np.matmul, "f32[2000,1500]", "f32[1500]")
program.add("product_of_integers", np.matmul, "i32[40,50]", "i32[50,60]")
program.add("product_of_half_types", np.matmul, "bf16[512,512]", "bf16[512,512]")
program.add(
    "layer_of_half_types",
    lambda x, w, b: np.tanh(x @ w + b),
    "bf16[512,512]",
    "bf16[512,512]",
    "bf16[512]",
)
program.add(
    "gated_unit_of_half_types",
    lambda x, w, v: np.tanh(x @ w) * (x @ v),
    "bf16[512,512]",
    "bf16[512,512]",
    "bf16[512,512]",
    targets=CUDA,
)
program.add(
    "gated_unit_of_odd_rows",
    lambda x, w, v: np.tanh(x @ w) * (x @ v),
    "bf16[65,67]",
    "bf16[67,69]",
    "bf16[67,69]",
    targets=CUDA,
)
program.add(
    "layer_and_sums_of_columns",
    lambda x, w, ct: (y := np.tanh(x @ w) * ct, np.sum(y, axis=0)),
    "bf16[512,512]",
    "bf16[512,512]",
    "bf16[512,512]",
    targets=CUDA,
)
program.add(
    "product_of_a_cast",
    lambda x, w: x.astype(w.dtype) @ w,
    "f32[65,67]",
    "bf16[67,69]",
    targets=CUDA,
)
program.add(
    "product_of_a_scaled_one",
    lambda x, r, w: (x * r) @ w.T,
    "bf16[8192,768]",
    "bf16[8192,1]",
    "bf16[192,768]",
    targets=CUDA,
)
program.add("product_of_odd_rows", np.matmul, "bf16[65,67]", "bf16[67,69]", targets=CUDA)
program.add(
    "layer_of_odd_rows",
    lambda x, w, b: np.maximum(x @ w + b, 0),
    "f16[3,65,68]",
    "f16[68,69]",
    "f16[69]",
    targets=CUDA,
)


@program("f32[2048,512]", "f32[1024,512]", "bf16[1024]", targets=CUDA)
def layer_of_fp8(x: Any, w: Any, b: Any) -> Any:
    """Of tiles that have stages of their own, and of results that are fp8 again."""
    low = x.astype(ge2.numpy.float8_e4m3fn).astype(b.dtype)
    y = low @ w.astype(ge2.numpy.float8_e4m3fn).T.astype(b.dtype)
    return np.maximum(y + b, 0).astype(ge2.numpy.float8_e5m2)


program.add("product_of_copies", np.matmul, "bf16[2047,2047]", "bf16[2047,2047]", targets=CUDA)
program.add(
    "layer_of_copies",
    lambda x, w, b: np.maximum(x @ w + b, 0),
    "f16[2048,2047]",
    "f16[2047,2048]",
    "f16[2048]",
    targets=CUDA,
)
program.add(
    "layer_of_the_librarys",
    lambda x, w, b: np.maximum(x @ w + b, 0),
    "f32[1024,784]",
    "f32[784,1000]",
    "f32[1000]",
    targets=CUDA,
)
program.add("product_of_complex", np.matmul, "c64[40,50]", "c64[50,60]")
program.add("product_small", np.matmul, "f32[64,256]", "f32[256,48]")
program.add(
    "product_by_head", lambda a, b: np.einsum("bhd,hde->bhe", a, b), "f32[16,4,8]", "f32[4,8,8]"
)
program.add(
    "product_copied", lambda a, b: np.einsum("iaj,akj->ik", a, b), "f32[7,6,5]", "f32[6,4,5]"
)


program.add("products_many", np.matmul, "f32[65536,16,16]", "f32[65536,16,16]")


@program("f32[4000,6,10]", "f32[4000,12,10]", "f32[12]", "f32[6,12]")
def contractions_many(a, b, bias, x):
    return np.tanh(a @ np.swapaxes(b, 1, 2) + bias) + x


@program("f32[64,256]", "f32[256,48]", "f32[48]")
def contraction(x, w, b):
    h = x @ w + b
    return np.maximum(h, 0), h > 0


# ------------------------------------------------------------------------------------------- random


@program("u32[2]", "i32[4]")
def random_bits(key, n):
    first, second = random.split(key)
    return random.bits(first, (3, 50)), random.fold_in(second, n[0])


@program("u32[2]", "f32[64,512]")
def random_dropout(key, x):
    return x * (random.uniform(key, x.shape, np.float32) < 0.9), random.normal(key, (1000,))


# ---------------------------------------------------------------------------------- loops, branches


@program("f32[32,32]", "f32[8,32]", "f32[20,8,32]")
def loop_scan(w, h, xs):
    def step(h, x):
        h = np.tanh(h @ w + x)
        return h, h.sum()

    return lax.scan(step, h, xs)


def recurrent(w, h, xs):
    def step(h, x):
        h = np.tanh(h @ w + x)
        return h, h

    return lax.scan(step, h, xs)


program.add("loop_rows", recurrent, "f32[128,128]", "f32[32,128]", "f32[50,32,128]")
program.add(
    "loop_grid", recurrent, "f32[512,512]", "f32[32,512]", "f32[50,32,512]", targets=EVERY_CHIP
)
program.add("loop_launches", recurrent, "f32[2048,2048]", "f32[512,2048]", "f32[6,512,2048]")
program.add(
    "loop_scan_gradient",
    ge2.grad(lambda w, h, xs: (recurrent(w, h, xs)[1] ** 2).sum()),
    "f32[32,32]", "f32[8,32]", "f32[20,8,32]",
)  # fmt: skip


@program("f32[]", "f32[40]")
def loop_while(limit, x):
    return lax.while_loop(
        lambda s: np.abs(s[0]).max() > limit, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0)
    )


program.add(
    "loop_while_launches",
    lambda a, x: lax.while_loop(lambda x: x.max() < 9, lambda x: a @ x, x),
    "f32[3000,3000]", "f32[3000,3000]",
)  # fmt: skip


@program("i64[]", "f32[30]")
def branch_cond(n, x):
    return lax.cond(n > 0, np.sin, lambda x: x * 2, x)


@program("i64[]", "f32[2000,2000]")
def branch_switch_launches(n, x):
    return lax.switch(n, [lambda x: x @ x, lambda x: np.cumsum(x, 0), np.tanh], x)


@program("f64[200]")
def loop_python_stencil(x):
    for _ in range(50):
        x = np.concatenate([x[:1], (x[:-2] + x[2:]) / 2, x[-1:]])
    return x


@program("f64[300,4]", "f64[4]")
def loop_python_rows(xs, h):
    found = []
    for t in range(300):
        h = 0.5 * h + xs[t]
        found.append(h.max())
    return np.stack(found), h


@program("f64[40,40]")
def loop_in_place(a):
    def row(i, a):
        a = a.copy()
        a[i, 1:] = a[i, :-1] + a[i, 1:]
        return a

    return lax.fori_loop(0, 40, row, a)


@program("f32[6,5]", "i64[]")
def loop_nested(x, n):
    def outer(i, x):
        return lax.fori_loop(0, i, lambda j, y: y + y.sum() * j, x)

    return lax.fori_loop(0, n, outer, x)


# --------------------------------------------------------------------------------------- users' own


@extend.op
class Neighbours(extend.Op):
    """Each element with a share of the one before it."""

    share: float
    name = "golden_neighbours"

    def infer(self, x):
        return (x,)

    def reference(self, x):
        return (x + self.share * np.roll(x, 1, -1)).astype(x.dtype)

    c = """
    for (int64_t i = 0; i < x_size; i++)
        y[i] = x[i] + (x_t)share * x[i ? i - 1 : x_size - 1];
    """
    cuda = """
    y[thread] = x[thread] + (x_t)share * x[thread ? thread - 1 : x_size - 1];
    """


@extend.op
class Weighted(extend.Op):
    """Each element with a weight of its own, which the rule for its derivative captures."""

    name = "golden_weighted"

    def infer(self, x):
        return (x,)

    def reference(self, x):
        return x * np.array([1.0, 2.0, 4.0], x.dtype)

    def vjp(self, cts, ys, xs, wanted):
        return [cts[0] * np.array([1.0, 2.0, 4.0], np.float32)]


log_odds = extend.elementwise(
    "golden_log_odds",
    lambda p: np.log(p / (1 - p)),
    "log_odds_$t({0})",
    lambda y, p: 1 / (p * (1 - p)),
    helpers="static inline $T log_odds_$t($T p) { return ge2_log_$t(p / (1 - p)); }",
)
program.add("user_kernel", lambda x: Neighbours(share=0.25)(2 * x) + 1, "f32[70]")
program.add("user_rule_with_table", ge2.grad(lambda x: Weighted()(x * x).sum()), "f32[3]")
program.add("user_expression", lambda p: np.tanh(2 * log_odds(p)), "f64[70]")


# ----------------------------------------------------------------------------------- whole programs


@program("f32[784,64]", "f32[64]", "f32[64,10]", "f32[32,784]", "i64[32]", plan=True)
def mlp_step(w, b, v, x, y):
    def loss(w, b, v):
        z = np.maximum(x @ w + b, 0) @ v
        z = z - z.max(1, keepdims=True)
        return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()

    value, slopes = ge2.value_and_grad(loss, (0, 1, 2))(w, b, v)
    return value, [p - 0.1 * g for p, g in zip((w, b, v), slopes, strict=True)]


def attention(q, k, v):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    n = scores.shape[-1]
    scores = np.where(np.tri(n, n, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


HEADS = ("f32[2,4,48,16]",) * 3
program.add("attention", attention, *HEADS, plan=True)
program.add(
    "attention_gradient",
    ge2.grad(lambda *qkv: (attention(*qkv) ** 2).sum(), (0, 1, 2)),
    *HEADS,
    plan=True,
)


program.add(
    "attention_in_one_kernel",
    lambda q, k, v: ge2.op_call("sdpa", q, k, v, causal=True),
    *("bf16[2,4,300,64]",) * 3,
    targets=CUDA,
)


program.add(
    "attention_by_warps",
    ge2.autocast(lambda q, k, v: ge2.op_call("sdpa", q, k, v, causal=True), "tf32"),
    *("f32[2,4,300,64]",) * 3,
    targets=CUDA,
)


program.add(
    "attention_of_one_query",
    lambda q, k, v: ge2.op_call("sdpa", q, k, v),
    *("bf16[2,4,1,64]", "bf16[2,4,300,64]", "bf16[2,4,300,64]"),
    targets=CUDA,
)


def attention_in_blocks(q, k, v):
    with ge2.config.using(executor="c"):  # attention is looked for where C has kernels of it
        of = lambda *qkv: (ge2.op_call("sdpa", *qkv, causal=True) ** 2).sum()  # noqa: E731
        return ge2.grad(of, (0, 1, 2))(q, k, v)


program.add("attention_in_blocks", attention_in_blocks, *("f32[2,4,100,16]",) * 3, targets=C)


def attention_gradient_in_kernels(q, k, v):
    def loss(q, k, v):
        return (ge2.op_call("sdpa", q, k, v, causal=True) ** 2).astype(np.float32).sum()

    with ge2.config.using(executor="shim"):  # attention is looked for where there is such a GPU
        return ge2.grad(loss, (0, 1, 2))(q, k, v)


program.add(
    "attention_gradient_in_kernels",
    attention_gradient_in_kernels,
    *("bf16[2,4,300,128]",) * 3,
    targets=CUDA,
)
program.add(
    "attention_gradient_of_windows",
    attention_gradient_in_kernels,
    *("bf16[64,4,49,32]",) * 3,
    targets=CUDA,
)
program.add(
    "attention_gradient_by_warps",
    ge2.autocast(attention_gradient_in_kernels, "tf32"),
    *("f32[2,4,300,64]",) * 3,
    targets=CUDA,
)


@program("f32[4,12,12,3]", "f32[3,3,3,8]", plan=True)
def convolution_by_slices(x, w):
    n = x.shape[1] - 2
    return sum(x[:, i : i + n, j : j + n] @ w[i, j] for i in range(3) for j in range(3))


@program(*("f32[300,200]",) * 4, "3", plan=True, donate=(0, 2, 3))
def adam(p, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.001 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


@program("f64[60,40]", "f64[40]", plan=True)
def in_place_writer(a, x):
    a[1:-1] += x
    a[0] = a[-1] * 2
    return a.sum()


program.add(
    "sort_and_argsort", lambda x: (np.sort(x, 0), np.argsort(x, 0)), "f32[200,3]", plan=True
)
program.add("recurrence", loop_scan, "f32[32,32]", "f32[8,32]", "f32[20,8,32]", plan=True)
program.add("search_by_loop", loop_while, "f32[]", "f32[40]", plan=True)
program.add("choice_of_branch", branch_cond, "i64[]", "f32[30]", plan=True)
program.add("classifier_gradient", cross_entropy_gradient, "f32[12,300]", "i64[12]", plan=True)


@program("f32[6,16]", plan=True)
def fourier_transforms(x):
    return np.fft.irfft(np.fft.rfft(x) * 2)


@program("f64[4,4]", "f64[4]")
def linalg_factors(a, b):
    return np.linalg.solve(a, np.tanh(np.linalg.solve(a, b)))


@program("f64[20,20]", "f64[20]", plan=True)
def linalg_solve(a, b):
    return np.linalg.solve(a @ a.T + np.eye(20), b) * 2
