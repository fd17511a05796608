"""What is chosen for loops, products and regions on a GPU, as it is printed: candidates and refusals
of one problem, whether a pass decided or the assembler did.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.cli import main
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import A100, H200, Limits
from ge2.targets.cuda.tuning import Rule
from tests.codegen.texts import chosen_kernels

PERSISTENT = "persistent kernel in CUDA"
BLOCK, GRID = f"{PERSISTENT}, one block", f"{PERSISTENT}, all blocks together"
APART, HOST = "or launches, iteration by iteration", "or launches, by the host"
JOINED = "small product and region in CUDA"


def array(*shape: int) -> Any:
    return ge2.ShapeDtypeStruct(shape, np.float32)


def choices(f: Callable[..., Any], *xs: Any, chip: Limits = H200, off: tuple[str, ...] = ()) -> Any:
    """The printed choices of a program by name, but for how many families serve other operations."""
    with config.using(executor="c", passes_off=off):
        executable = compile_graph(ge2.make_jaxpr(f)(*xs).graph, device=OfflineDevice(chip))
        found = {name: str(choice).splitlines() for name, choice in executable.choices.items()}
    return {
        name: [line for line in lines if "other operations" not in line]
        for name, lines in found.items()
    }


def halved(x: Any) -> Any:
    return lax.while_loop(lambda x: np.abs(x).max() > 0.1, lambda x: x * 0.5, x)


def recurrent(w: Any, h: Any, xs: Any) -> Any:
    return lax.scan(lambda h, x: (np.tanh(h @ w + x), h), h, xs)


PROGRAM = """import numpy as np
from ge2 import lax

def f(x):
    return lax.fori_loop(0, 9, lambda i, x: {}, np.cumsum(x, 0))
"""


LIBRARYS = "product by BLAS and its epilogue"


def layer(x: Any, w: Any, b: Any) -> Any:
    return np.tanh(x @ w + b)


# ---------------------------------------------------------------------------------------- loops


def test_a_small_loop_is_one_block() -> None:
    assert choices(halved, array(64)) == {"resident_kernel_0": [BLOCK, APART]}


def test_rows_that_know_nothing_of_each_other_are_shared() -> None:
    found = choices(recurrent, array(128, 128), array(32, 128), array(50, 32, 128))
    ((taken, other),) = found.values()
    assert taken.startswith(f"{PERSISTENT}, blocks share 32 rows, predicted")
    assert other.startswith(f"{APART}, predicted")


def conjugate_gradients(a: Any, b: Any) -> Any:
    x = b * 0
    r = p = b - a @ x
    rr = r @ r
    for _ in range(30):
        ap = a @ p
        by = rr / (p @ ap)
        x, r = x + by * p, r - by * ap
        new = r @ r
        p, rr = r + (new / rr) * p, new
    return x


def test_rounds_of_several_kernels_are_no_reason_to_wait_for_launches() -> None:
    found = choices(conjugate_gradients, array(512, 512), array(512))
    rows, block, taken, other = found["grid_kernel_0"]
    assert rows == f"not {PERSISTENT}, blocks share 512 rows: its rows know of each other"
    assert block.startswith(f"not {BLOCK}: an iteration has 266.2 k operations, more than")
    assert taken.startswith(f"{GRID}, predicted") and other.startswith(f"{APART}, predicted")


def test_what_was_measured_of_products_says_nothing_of_loops() -> None:
    """On the H200, whose record has products as launches step by step quicker than predicted."""
    with config.using(tune="off"):
        plain = choices(conjugate_gradients, array(512, 512), array(512))
    assert choices(conjugate_gradients, array(512, 512), array(512)) == plain


def averaged(u: Any) -> Any:
    for _ in range(20):
        u = np.pad(u[1:-1, 1:-1] + np.float32(0.1) * (u[2:, 1:-1] + u[:-2, 1:-1]), 1)
    return u


def test_rounds_of_one_kernel_are_launched_where_all_blocks_would_meet_more_often() -> None:
    """What one block does is one kernel: its threads meet in a tenth of the time of a launch."""
    wide = choices(averaged, array(256, 256))["scan_0"]
    assert wide[-2:] == ["launches, recorded", HOST]
    assert f"not {GRID}: predicted" in wide[-3]
    narrow = choices(averaged, array(32, 32))["resident_kernel_0"]
    assert narrow[-2].startswith(f"{BLOCK}, predicted")


def test_a_matrix_that_no_thread_keeps_is_read_in_each_round() -> None:
    """Blocks share the rows where they keep it in registers, which float64 is not."""
    taken = {}
    for dtype in (np.float32, np.float64):
        arrays = (ge2.ShapeDtypeStruct(s, dtype) for s in ((256, 256), (32, 256), (40, 32, 256)))
        (taken[dtype],) = (
            k for k in choices(recurrent, *arrays) if "pointwise" not in k and "/" not in k
        )
    assert taken[np.float32] == "resident_kernel_0" and taken[np.float64] == "scan_0"


def test_a_loop_that_no_kernel_has_room_for_is_decided_on_the_device() -> None:
    found = choices(halved, array(2048, 2048))
    assert found["while_0"] == [
        f"not {BLOCK}: abs makes 4194304 elements, more than 8192",
        f"not {GRID}: values of 32.0 MB are live at once, more than 24.0 MB of the L2 cache",
        "launches, decided on the device",
        HOST,
    ]


def test_room_in_shared_memory() -> None:
    """The numbers are those of the chip that is asked for."""
    persistent = replace(H200.tuning.persistent, room=1 << 10, grid=Rule(True, 1, 1, 1))
    chip = replace(H200, tuning=replace(H200.tuning, persistent=persistent))
    found = choices(halved, array(4096), chip=chip)
    assert found["while_0"][:2] == [
        f"not {BLOCK}: its values take 32.0 KB of shared memory, more than 1.0 KB",
        f"not {GRID}: abs makes 4096 elements, more than 1",
    ]


def test_a_loop_of_a_library_is_launched() -> None:
    found = choices(lambda x: lax.fori_loop(0, 3, lambda i, x: np.sort(x) * 2, x), array(8, 64))
    assert list(found) == ["scan_0/sort_0", "scan_0/pointwise_1", "scan_0"]
    quick = "an iteration has 1.0 k operations, which one block does up to 16.4 k"
    assert found["scan_0"] == [
        f"not {PERSISTENT}, blocks share 8 rows: {quick}",
        f"not {BLOCK}: sort is no step of it",
        f"not {GRID}: sort is no step of it",
        "launches, recorded",
        HOST,
    ]


@pytest.mark.parametrize("columns", [1, 3, 4])
def test_a_stack_that_begins_at_any_of_its_slices_is_read_by_recorded_launches(
    columns: int,
) -> None:
    def running(x: Any, xs: Any) -> Any:
        return lax.scan(lambda x, y: (np.sort(x + y), x * 2), x, xs[1:])

    found = choices(running, array(columns), array(7, columns))
    assert "launches, recorded" in found["scan_1"]
    x, xs = np.zeros(columns, np.float32), np.arange(7.0 * columns, dtype=np.float32)
    with config.using(executor="shim"):
        last, doubled = ge2.jit(running)(x, xs.reshape(7, columns))
    want = np.cumsum(xs.reshape(7, columns)[1:], 0)
    np.testing.assert_array_equal(last, want[-1])
    np.testing.assert_array_equal(doubled[1:], 2 * want[:-1])


def test_what_the_host_has_to_see() -> None:
    """A branch that prints is no kernel, and no graph holds it."""

    def told(x: Any) -> Any:
        ge2.debug.print("{}", x.sum())
        return x * 2

    found = choices(lambda x: lax.cond(x[0] > 0, told, lambda x: x, x), array(8))
    name = next(each for each in found if each.startswith("cond_") and "/" not in each)
    assert found[name][:2] == [
        f"not {BLOCK}: cond has an effect",
        f"not {GRID}: cond has an effect",
    ]
    assert found[name][-1] == "launches, by the host"
    assert found[name][-2].startswith("not launches, decided on the device: ")


# ------------------------------------------------------------------------------------- products


def test_a_small_product_takes_in_a_region() -> None:
    found = choices(layer, array(32, 64), array(64, 32), array(32))
    assert found == {"contraction_0": [JOINED, "or launches, step by step"]}


def test_a_large_product_is_the_librarys_and_a_region() -> None:
    large = "a matrix has more than 524288 elements"
    found = choices(layer, array(2048, 2048), array(2048, 2048), array(2048))
    ieee = "float32 is not to be rounded to tf32"
    other = "what comes after the product is none of the library's epilogues"
    assert found == {
        "pointwise_0": [
            f"not {JOINED}: {large}", f"not wgmma product and region: {ieee}",
            f"not wgmma product of copies and region: {ieee}", f"not {LIBRARYS}: {other}",
            f"not mma product and region: {ieee}",
            "region in CUDA, elementwise",
        ],
        "dot_general_0": [
            f"not small product in CUDA: {large}", f"not wgmma product: {ieee}", "product by BLAS",
            "or product in CUDA",
        ],
    }  # fmt: skip


def test_what_is_switched_off_is_a_reason() -> None:
    found = choices(layer, array(32, 64), array(64, 32), array(32), off=("small_products",))
    off = "small products are switched off"
    assert found["pointwise_0"][0] == f"not {JOINED}: {off}"
    lines = found["dot_general_0"]
    assert (lines[0], lines[2]) == (f"not small product in CUDA: {off}", "product by BLAS")


def test_a_sum_beside_a_product_stays_a_region() -> None:
    """What folds rows is no part of a product: there is nothing to choose. What sums columns is one
    for tensor cores alone.
    """
    given, product = (array(32, 64), array(64, 32)), "small product in CUDA"
    found = choices(lambda x, w: (x @ w + 1).sum(1), *given)
    assert sorted(lines[0] for lines in found.values()) == [
        "region in CUDA, rows along axis 1",
        product,
    ]
    found = choices(lambda x, w: (x @ w + 1).sum(0), *given)
    assert sorted(lines[0] for lines in found.values()) == [
        f"not {JOINED}: what comes after it is folded", product,
    ]  # fmt: skip
    (lines,) = (each for each in found.values() if each[0] != product)
    assert "region in CUDA, columns over axis 0" in lines


# ------------------------------------------------------------------------- ways of one family


def only(f: Callable[..., Any], *xs: Any) -> list[str]:
    """The choice of the only kernel's family: its own variants alone."""
    (lines,) = choices(f, *xs).values()
    family = next(line for line in lines if not line.startswith(("not ", "or "))).split(",")[0]
    return [line.replace(f"{family}, ", "") for line in lines if f"{family}, " in line]


def test_short_lines_are_sorted_in_registers_and_long_ones_by_blocks() -> None:
    def offered(n: int) -> list[str]:
        return [each.split(",")[0] for each in only(partial(np.sort, axis=0), array(n, 3))]

    some, blocks = (
        ["in registers", "or ranked by a few threads"],
        ["or a block for each line", "or by digits"],
    )
    assert offered(100) == [*some, *blocks]
    assert offered(129) == ["in registers", *blocks]
    (long,) = offered(1025)[:1]
    assert long.startswith("not in registers: a line has 1025 elements")


def test_the_largest_of_long_lines_are_found_in_parts() -> None:
    assert only(lambda x: lax.top_k(x, 3)[0], array(2, 1 << 17)) == [
        "not ranked by a few threads: a line has 131072 elements, more than 128",
        "not a block for each line: lines are long, and too few for all multiprocessors",
        "in 16 parts of each line",
    ]


def test_lines_are_shared_where_they_are_few() -> None:
    def scan(x: Any) -> Any:
        return np.cumsum(x, 1)

    assert only(scan, array(1, 1 << 20)) == ["blocks share lines", "or whole lines"]
    assert only(scan, array(4096, 8)) == [
        "not blocks share lines: a line is one tile", "whole lines",
    ]  # fmt: skip
    enough = "not blocks share lines: there are lines enough for all multiprocessors"
    assert only(scan, array(4096, 1 << 16)) == [enough, "whole lines"]


def test_few_parts_are_joined_by_one_kernel() -> None:
    def joined(*xs: Any) -> Any:
        return np.concatenate([x.T for x in xs])

    few = [array(3, 4)] * 2
    assert only(joined, *few) == ["in one kernel", "or a copy of each part"]
    many = "not in one kernel: there are 5 parts, not 2 to 4"
    assert only(joined, *few, *few, few[0]) == [many, "a copy of each part"]


def test_sums_at_indices_come_in_an_order_that_changes_nothing() -> None:
    def summed(count: int, dtype: type = np.float32, places: int = 64) -> list[str]:
        def at(x: Any, i: Any, u: Any) -> None:
            np.add.at(x, i, u)

        shapes = (((places,), dtype), ((count,), np.int32), ((count,), dtype))
        return only(at, *(ge2.ShapeDtypeStruct(shape, t) for shape, t in shapes))

    first, places = "by the first of each place", "in the order of their places, by"
    ranks, digits = f"{places} ranks", f"{places} digits"
    floats = "not as they come: float32 depends on the order of updates"
    shared, exact = "in shared memory, by blocks", "by parts that are exact"
    few = "there are 9 updates, fewer than 2048"
    assert summed(9, np.int32)[:2] == [f"not {shared}: {few}", "as they come"]
    too_few = [f"not {shared}: {few}", floats, f"not {exact}: {few}"]
    assert summed(9) == [*too_few, first, f"or {ranks}", f"or {digits}"]
    taken, *others = summed(9000)
    assert taken.startswith(f"{shared}, predicted ") and taken.endswith(", by prediction")
    assert {each.partition(", predicted")[0] for each in others} == {f"or {exact}", f"or {digits}"}
    # each of several ranges of places would go through all updates
    assert summed(1 << 20, places=1 << 17)[0].startswith(exact)
    wide = "updates are few for the places"
    many = [
        f"not {first}: 9000 updates are not compared each with all others",
        f"not {ranks}: each of 9000 updates is compared with all others, more than 8192",
    ]
    wide = [f"not {shared}: {wide}", floats, f"not {exact}: {wide}"]
    *refused, taken = summed(9000, places=1 << 16)
    assert refused == [*wide, *many]
    assert taken.startswith(f"{digits}, predicted ")


# ------------------------------------------------------------------------------------------- in C


def in_c(f: Callable[..., Any], *xs: Any, prefer: tuple[str, ...] = ()) -> Any:
    """The printed choices of a program in C."""
    with config.using(executor="c", prefer=prefer):
        found = ge2.jit(f).lower(*xs).choices
    return {name: str(choice).splitlines() for name, choice in found.items()}


def ways(family: str, f: Callable[..., Any], *xs: Any) -> list[str]:
    """The variants of a family as the choice of the only kernel has them."""
    (lines,) = in_c(f, *xs).values()
    return [line.replace(f"{family}, ", "") for line in lines if f"{family}, " in line]


def test_a_loop_is_run_by_c() -> None:
    assert in_c(halved, array(64))["while_0"] == ["loop in C", "or library"]


def test_a_loop_that_needs_python_says_why() -> None:
    """So does a branch; a user who does not want C's loops has Python's, with the same results."""

    def printing(x: Any) -> Any:
        ge2.debug.print("{}", x.sum())
        return x * 2

    found = in_c(lambda x: lax.fori_loop(0, 3, lambda i, x: printing(x), x), array(8))
    assert found["scan_1"] == [
        "not loop in C: in an iteration, Python computes its debug_print",
        "library",
    ]
    found = in_c(lambda x: lax.cond(x[0] > 0, printing, lambda x: x, x), array(8))
    (branch,) = (lines for name, lines in found.items() if name.startswith("cond"))
    assert branch == ["not loop in C: in a branch, Python computes its debug_print", "library"]
    found = in_c(halved, array(64), prefer=("-loop in C",))
    assert found["while_0"] == ["not loop in C: the preferences leave it out", "library"]
    x = np.arange(64.0)
    with config.using(executor="c", prefer=("-loop in C",)):
        np.testing.assert_array_equal(ge2.jit(halved)(x), halved(x))


def test_the_largest_elements_in_c() -> None:
    def largest(k: int) -> list[str]:
        return ways("top_k in C", lambda x: lax.top_k(x, k), array(4, 100))

    assert largest(5) == ["a heap for each line", "or sorted lines"]
    many = "not a heap for each line: 60 of 100 elements are more than one in 8"
    assert largest(60) == [many, "sorted lines"]


def test_running_sums_in_c() -> None:
    def along(f: Callable[..., Any], axis: int) -> list[str]:
        return ways("scan in C", lambda x: f(x, axis), array(30, 40))

    after = "its lines lie one after another"
    sides, chunks, lines = "lines side by side", "lines in chunks", "line by line"
    assert along(np.cumsum, 0) == [sides]
    assert along(np.cumsum, 1) == [f"not {sides}: {after}", chunks, f"or {lines}"]
    overflow = "a product of a chunk may overflow where 0 goes before it"
    assert along(np.cumprod, 1) == [f"not {sides}: {after}", f"not {chunks}: {overflow}", lines]


def test_tables_of_sums_at_indices_in_c() -> None:
    def summed(count: int, places: int = 64) -> list[str]:
        def at(x: Any, i: Any, u: Any) -> None:
            np.add.at(x, i, u)
            return x

        types = ge2.ShapeDtypeStruct((count,), np.int32), array(count)
        return ways("scatter_reduce in C", at, array(places), *types)

    table = "a table for each stretch"
    assert summed(1 << 20) == [table, "or place by place"]
    few = f"not {table}: 100 updates of 64 places are no more than"
    assert summed(100)[0].startswith(few) and summed(100)[1] == "place by place"
    assert summed(1 << 20, 1 << 20)[0] == f"not {table}: a table has 4.0 MB, more than 256.0 KB"


# ------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize("body", ["np.tanh(x @ x)", "np.sort(x) * 2"])
def test_the_command_names_each_kernel_and_loop(tmp_path: Any, capsys: Any, body: str) -> None:
    (tmp_path / "model.py").write_text(PROGRAM.format(body))
    place = f"{tmp_path / 'model.py'}:f"
    main(["show", place, "--args", "f32[8,8]", "--stage", "choice", "--executor", "shim"])
    found = capsys.readouterr().out
    functions: dict[str, Any] = {}
    exec(PROGRAM.format(body), functions)
    with config.using(executor="shim"):
        low = ge2.jit(functions["f"]).lower(array(8, 8))
    assert re.findall(r" choice of (\S+) ", found) == list(low.choices)
    kernels = {kernel.name: kernel.choice for kernel in low.kernels}
    assert kernels.keys() <= low.choices.keys() and None not in kernels.values()
    loops = low.choices.keys() - kernels.keys()
    assert loops == ({"scan_1"} if "sort" in body else set())


# -------------------------------------------------------------- products whose rows lie badly


@pytest.mark.parametrize(
    ("sizes", "device", "family"),
    [
        ((4096, 768, 3072), H200, "wgmma product and region"),
        ((4095, 767, 3071), H200, "wgmma product of copies and region"),
        ((300, 301, 300), H200, "mma product and region"),
        ((4096, 768, 3072), A100, "region in CUDA"),
        ((8191, 783, 1000), A100, "mma product and region"),
    ],
)
def test_rows_decide_among_kernels_of_tensor_cores(
    sizes: tuple[int, int, int], device: Limits, family: str
) -> None:
    """By prediction; on a chip where nothing was measured, aligned products stay the library's."""
    m, k, n = sizes
    bf16 = np.dtype(ml_dtypes.bfloat16)
    types = [ge2.ShapeDtypeStruct(s, bf16) for s in ((m, k), (k, n), (n,))]
    graph = ge2.make_jaxpr(layer)(*types).graph
    kernels = chosen_kernels(graph, device)
    assert [each.choice.family.name for each in kernels if each.choice][-1] == family


def test_a_fold_whose_rows_blocks_share_takes_as_long_as_its_bytes() -> None:
    """However few columns it has."""

    def predicted(rows: int, columns: int) -> float:
        f = lambda x: (x.sum(0), x.max(0) * 2)  # noqa: E731
        with config.using(executor="c"):
            graph = ge2.make_jaxpr(f)(array(rows, columns)).graph
            (kernel,) = chosen_kernels(graph, H200)
        return kernel.choice.candidates[0].predicted or 0.0

    assert 0 < predicted(1 << 16, 512) <= 1.1 * predicted(1 << 11, 1 << 14)
