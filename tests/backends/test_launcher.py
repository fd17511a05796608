"""Both launchers call small programs written by hand: what is read, made, reused,
refused, and never lost.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import sysconfig
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from ge2.base import command
from ge2.base.command import Awaited, Provisional
from ge2.base.compiler import python_headers
from ge2.base.config import config
from ge2.base.errors import Ge2Error, InputError
from ge2.targets.c import launcher, linked
from ge2.targets.c.launcher import EXTENSION, Array, Number, Output, make_launcher, native
from tests.backends.programs import BF16, BOOL, C128, F32, F64, FP8, I64, adder, constant
from tests.backends.programs import launch as launch
from tests.backends.programs import library as library
from tests.threads import on_threads

COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()
BIG = (1 << 15,)  # float32 of 128 KiB, whose memory is kept


# ------------------------------------------------------------------------------- arrays and numbers


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("shape", [(8,), (2, 3, 4), (), (0, 3), (1,)])
def test_a_program_is_called(launch, shape, heavy):
    f = adder(launch, shape, heavy=heavy)
    x = np.arange(int(np.prod(shape)), dtype=F32).reshape(shape)
    (y,) = f(x)
    assert type(y) is np.ndarray and y.dtype == F32 and y.shape == shape
    assert y.flags.c_contiguous and y.flags.writeable and y.flags.owndata and y.base is None
    assert (y == x + 1).all() and f(x)[0] is not y


def strided(x):
    whole = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    whole[..., ::2] = x
    return whole[..., ::2]


def unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    y = raw[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def read_only(x):
    y = x.copy()
    y.flags.writeable = False
    return y


@pytest.mark.parametrize(
    "turn",
    [
        strided,
        unaligned,
        read_only,
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: x.astype(">f4"),
        lambda x: np.broadcast_to(x, (2, 3, 4))[1],
        lambda x: x.view(np.recarray),
        lambda x: x.astype(np.dtype(F32, metadata={"unit": "m"})),
        lambda x: np.memmap.__new__(np.memmap, "/dev/zero", F32, "c", shape=x.shape) + x,
    ],
)
def test_any_layout_is_read(launch, turn):
    x = np.arange(12, dtype=F32).reshape(3, 4)
    (y,) = adder(launch, (3, 4))(turn(x))
    assert type(y) is np.ndarray and (y == x + 1).all()


def test_one_element_may_be_a_scalar_or_a_number(launch):
    f = adder(launch, ())
    for x in (np.float32(2), np.array(2, F32), 2, 2.0, True + 1, np.array(2, ">f4")):
        (y,) = f(x)
        assert type(y) is np.ndarray and y.shape == () and y.dtype == F32 and y == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(1e300)[0] == np.inf


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(7, F32), np.zeros((8, 1), F32), np.zeros((), F32), np.zeros(8, F64), np.zeros(8, np.int32),
        np.zeros(8, BF16), np.zeros(8, "V4"), [0.0] * 8, None, 1.0, "x", np.float32(1), np.zeros(8, object),
    ],
)  # fmt: skip
def test_another_type_is_refused(launch, wrong):
    with pytest.raises(TypeError, match=r"input 0 of a compiled graph is f32\[8\]; got "):
        adder(launch, (8,))(wrong)


@pytest.mark.parametrize("args", [(), (np.zeros(8, F32),) * 2])
def test_the_number_of_arguments_is_checked(launch, args):
    with pytest.raises(TypeError, match=f"takes 1 arrays; got {len(args)}"):
        adder(launch, (8,))(*args)
    with pytest.raises(TypeError):
        adder(launch, (8,))(x=np.zeros(8, F32))


@pytest.mark.parametrize(
    "dtype", [BF16, FP8, np.dtype(ml_dtypes.float8_e5m2), BOOL, C128, np.dtype("f2")]
)
def test_every_dtype_passes(launch, dtype, rng):
    x = rng.integers(0, 2, (5, 6)).astype(dtype)
    f = launch("copy", [Array(dtype, (5, 6))], [Output(dtype, (5, 6))], sizes=[x.nbytes])
    for given in (x, x.T.copy().T, strided(x)):
        (y,) = f(given)
        assert y.dtype == dtype and y.tobytes() == x.tobytes()
    with pytest.raises(InputError):
        f(np.zeros((5, 6), I64))


def test_equal_integers_of_two_names_are_one(launch):
    f = launch("copy", [Array(np.dtype("l"), (3,))], [Output(np.dtype("l"), (3,))], sizes=[24])
    if np.dtype("q").itemsize == np.dtype("l").itemsize:
        assert f(np.arange(3, dtype="q"))[0].tolist() == [0, 1, 2]


NUMBERS = [Number(kind) for kind in "fibc"]


def test_numbers_come_before_constants(launch):
    f = launch("numbers", NUMBERS, [Output(F64, (6,))], numbers=constant(9.5))
    assert f(0.5, -3, True, 1 + 2j)[0].tolist() == [0.5, -3, 1, 1, 2, 9.5]
    assert f(2, True, False, 4)[0].tolist() == [2, 1, 0, 4, 0, 9.5]
    assert f(np.float32(2), np.array(7), np.True_, np.complex64(1j))[0].tolist() == [
        2, 7, 1, 0, 1, 9.5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at", "wrong"), [(0, 1j), (1, 1.5), (2, 1), (3, "x"), (0, np.zeros(2)), (1, None)]
)
def test_another_kind_of_number_is_refused(launch, at, wrong):
    f = launch("numbers", NUMBERS, [Output(F64, (6,))], numbers=constant(9.5))
    args = [0.5, -3, True, 1 + 2j]
    args[at] = wrong
    with pytest.raises(TypeError, match=f"input {at} of a compiled graph is a Python "):
        f(*args)


def test_an_int_of_more_than_64_bits_overflows_as_in_numpy(launch):
    f = launch("big_number", [Number("i")], [Output(I64, ())])
    for x in (2**63 - 1, -(2**63), -1, 0):
        assert f(x)[0] == x
    for x in (2**63, -(2**63) - 1, 2**100):
        with pytest.raises(OverflowError):
            np.asarray(x, np.int64)
        with pytest.raises(OverflowError):
            f(x)


# --------------------------------------------------------------------------------------- the memory


def doubler(launch, shape, donors, **options):
    outputs = [Output(F32, shape, donor) for donor in donors]
    return launch("twice", [Array(F32, shape)] * 2, outputs, sizes=[int(np.prod(shape))], **options)


def test_a_donor_becomes_the_result(launch):
    a, b = np.ones(8, F32), np.ones(8, F32)
    x, y = doubler(launch, (8,), (-1, 1))(a, b)
    assert y is b and x is not a and (y == 2).all() and (x == 2).all() and (a == 1).all()
    x, y = doubler(launch, (8,), (1, 0))(a, b)  # crosswise: the program must know what it does
    assert x is b and y is a


class Own(np.ndarray):
    pass


@pytest.mark.parametrize(
    "turn",
    [
        strided, unaligned, read_only, lambda x: x[:], lambda x: x.astype(">f4"),
        lambda x: x.view(Own),
    ],
)  # fmt: skip
def test_what_cannot_be_given_away_is_not(launch, turn):
    a, b = np.ones(8, F32), turn(np.ones(8, F32))
    _, y = doubler(launch, (8,), (-1, 1))(a, b)
    assert y is not b and type(y) is np.ndarray and not np.may_share_memory(y, b)
    assert (y == 2).all() and (b == 1).all()


def pointer(x):
    return x.__array_interface__["data"][0]


@pytest.mark.skipif(not COUNTED, reason="references are not counted here")
def test_memory_that_nobody_holds_is_used_again(launch):
    f = adder(launch, BIG)
    x = np.zeros(BIG, F32)
    assert len({pointer(f(x)[0]) for _ in range(10)}) <= 2
    y = f(x)[0]
    for _ in range(10):  # a chain: the argument of a call is the result of the one before
        y = f(y)[0]
    assert (y == 11).all()


HOLD = [
    lambda x: x,
    lambda x: x[2:],
    lambda x: [x],
    lambda x: memoryview(x),
    lambda x: x.reshape(2, -1).T[1:],
    lambda x: np.from_dlpack(x),
    lambda x: lambda: x,
]


@pytest.mark.parametrize("hold", HOLD)
def test_memory_that_somebody_holds_is_not(launch, hold):
    f, held, places = adder(launch, BIG), [], []
    for i in range(5):
        (y,) = f(np.full(BIG, i, F32))
        places.append(pointer(y))
        held.append(hold(y))
        del y
    assert len(held) == len(set(places)) == 5


def spoiled(y):
    y.flags.writeable = False


@pytest.mark.parametrize("spoil", [spoiled, lambda y: y.resize((4, 4), refcheck=False)])
def test_an_array_that_was_changed_is_not_used_again(launch, spoil):
    f = adder(launch, BIG)
    for _ in range(4):
        (y,) = f(np.zeros(BIG, F32))
        assert y.shape == BIG and y.flags.writeable
        spoil(y)
        del y


def test_a_weak_reference_is_respected(launch):
    f = adder(launch, BIG)
    (y,) = f(np.zeros(BIG, F32))
    seen = weakref.ref(y)
    del y
    for i in range(4):
        f(np.full(BIG, i, F32))
        assert seen() is None or (seen() == 1).all()


def test_small_results_are_not_kept(launch):
    (y,) = adder(launch, (8,))(np.zeros(8, F32))
    died = []
    weakref.finalize(y, died.append, True)
    del y
    assert died


# --------------------------------------------------------------------------------- the segment form


def test_results_may_be_written_in_place(launch):
    f = launch("in_place", [Array(F32, (6,)), Array(F32, (6,), written=True)], sizes=[6])
    x, whole = np.arange(6, dtype=F32), np.ones(20, F32)
    assert f(x[::-1], whole[4:10]) == []
    assert whole.tolist() == [1] * 4 + [6, 5, 4, 3, 2, 1] + [1] * 10


@pytest.mark.parametrize(
    "turn",
    [strided, unaligned, read_only, lambda x: x.astype(">f4"), lambda x: x.astype("f8"), list],
)
def test_what_is_written_is_never_copied(launch, turn):
    f = launch("in_place", [Array(F32, (6,)), Array(F32, (6,), written=True)], sizes=[6])
    with pytest.raises(TypeError, match="input 1 "):
        f(np.ones(6, F32), turn(np.ones(6, F32)))


# --------------------------------------------------------------------------------------- the errors


def gatherer(launch, **options):
    inputs, outputs = [Array(F32, (5,)), Array(I64, (3,))], [Output(F32, (3,))]
    return launch("gather", inputs, outputs, **{"sizes": [3, 5, 2], **options})


def test_an_index_out_of_range_is_told(launch):
    f = gatherer(launch)
    x = np.arange(5, dtype=F32)
    assert f(x, np.array([4, 0, 2]))[0].tolist() == [4, 0, 2]
    for index in (5, -1, 2**62):
        with pytest.raises(IndexError) as told:
            f(x, np.array([0, index, 9]))
        assert str(told.value) == f"index {index} is out of bounds for axis 1 with size 5"
    assert f(x, np.array([4, 0, 2]))[0].tolist() == [4, 0, 2]


def test_an_error_names_the_line(launch):
    x, at = np.arange(5, dtype=F32), np.array([0, 1, 5])
    with pytest.raises(IndexError, match="size 5\n  at   model.py:3 in f$"):
        gatherer(launch, lines=(None, "a", "model.py:3 in f"))(x, at)
    for lines in ((), (None,) * 3, ("a",)):
        with pytest.raises(IndexError, match="size 5$"):
            gatherer(launch, lines=lines)(x, at)


def test_an_unknown_code_is_an_error_too(launch):
    with pytest.raises(Ge2Error, match="code 7"):
        launch("broken", [])()


def test_nothing_is_provoked_in_numpy(launch):
    f = launch("flags", [], [Output(F64, ())])
    with np.errstate(all="raise"):
        f()
        x = np.ones(3) + 1
        assert (x / 2 == 1).all() and np.sqrt(x[0]) > 1 and float(np.float64(2) * 3) == 6
        f()
        assert x.astype(np.int32).sum() == 6 and np.float32(np.float64(2)) == 2
        f()
        assert np.linalg.norm(x) > 3 and (x @ x) == 12 and x.mean() == 2
        f()
        assert int(np.int64(7) // np.int64(2)) == 3


# ----------------------------------------------------------------------------------- many at a time


@pytest.mark.parametrize("heavy", [False, True])
def test_each_call_has_an_arena_of_its_own(launch, heavy):
    f = launch("scratch", [Number("i")], [Output(I64, ())], sizes=[1000], arena=8000, heavy=heavy)
    with ThreadPoolExecutor(4) as pool:
        assert sum(int(y[0]) for y in pool.map(f, range(60))) == 0


def test_arenas_are_used_again(launch):
    f = launch("threads_and_services", [], [Output(I64, (5,))], arena=1 << 20)
    places = {int(f()[0][4]) for _ in range(10)}
    assert len(places) == 1 and places.pop() % 64 == 0


def test_a_heavy_program_lets_others_run(launch):
    f = launch("slow", [Number("f")], heavy=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(f, [0.0] * 4))
        start = time.perf_counter()
        list(pool.map(f, [0.2] * 4))
        assert time.perf_counter() - start < 0.6


def test_threads_share_what_is_kept(launch):
    f, wrong = adder(launch, BIG, heavy=True), []

    def work(own):
        x = np.full(BIG, own, F32)
        for _ in range(50):
            (y,) = f(x)
            time.sleep(0)
            if not (y == own + 1).all():
                wrong.append(own)

    on_threads(*(partial(work, i) for i in range(4)))
    assert not wrong


def test_a_program_knows_its_threads_and_its_blas(launch):
    from ge2.targets.c.libraries import services

    y = launch("threads_and_services", [], [Output(I64, (5,))], threads=3)()[0]
    found = services()
    assert y.tolist() == [3, found.sgemm, found.ilp64, 0, 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_one_thread(launch):
    f = launch("threads_and_services", [], [Output(I64, (5,))], threads=3)
    assert f()[0][0] == 3
    child = os.fork()
    if child == 0:
        os._exit(int(f()[0][0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert f()[0][0] == 3


# ---------------------------------------------------------------------------------- nothing is lost


def grown(act, *watched):
    """By how much references and blocks of memory grow over many calls."""
    for _ in range(20):
        act()
    gc.collect()
    before = [sys.getrefcount(x) for x in watched]
    blocks = sys.getallocatedblocks()
    for _ in range(2000):
        act()
    gc.collect()
    after = [sys.getrefcount(x) for x in watched]
    return [b - a for a, b in zip(before, after, strict=True)], sys.getallocatedblocks() - blocks


def refused(f, *args):
    with pytest.raises((TypeError, IndexError, OverflowError)):
        f(*args)


def quiet(f, *args):
    """A call whose error is dropped, cheaply."""
    try:
        f(*args)
    except (TypeError, IndexError, OverflowError):
        return
    raise AssertionError("no error")


@pytest.mark.skipif(not COUNTED, reason="references are not counted here")
def test_no_reference_is_lost_or_gained(launch):
    x, half, scalar = np.arange(8, dtype=F32), np.arange(16, dtype=F32)[::2], np.float32(1)
    small, large, one = adder(launch, (8,)), adder(launch, BIG), adder(launch, ())
    both, gather = doubler(launch, (8,), (-1, 1)), gatherer(launch)
    numbers = launch("numbers", NUMBERS, [Output(F64, (6,))], numbers=constant(9.5))
    whole, at, many, huge = np.zeros(BIG, F32), np.array([0, 1, 9]), np.arange(5, dtype=F32), 2**100
    watched = (x, half, scalar, whole, at, many, F32, F64, I64, huge)
    acts = [
        lambda: small(x), lambda: small(half), lambda: one(scalar), lambda: one(1.5), lambda: large(whole),
        lambda: both(x, x), lambda: numbers(0.5, 3, True, 1j), lambda: numbers(np.float32(1), 3, True, 1),
        lambda: quiet(gather, many, at), lambda: quiet(gather, many, half), lambda: quiet(small, many),
        lambda: quiet(small, None), lambda: quiet(numbers, 1.0, huge, True, 1j), lambda: quiet(small),
        lambda: quiet(both, half, None),
    ]  # fmt: skip
    for n, act in enumerate(acts):
        references, blocks = grown(act, *watched)
        # a leak is a block a call, of 2000; Python's own free lists come and go by some dozens
        assert all(abs(r) <= 1 for r in references) and blocks < 500, (n, references, blocks)


def test_a_launcher_that_goes_leaves_nothing(launch):
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    name = "add"
    dtype = np.dtype(F32, metadata={"mine": 1})
    before = sys.getrefcount(dtype)
    f = launch(
        name,
        [Array(dtype, BIG)],
        [Output(dtype, BIG)],
        sizes=[BIG[0]],
        numbers=constant(1),
        arena=1 << 17,
    )
    f(np.zeros(BIG, F32))
    del f
    gc.collect()
    assert sys.getrefcount(dtype) == before
    f = make_launcher(
        0, [], [], owner=owner, plain=type(adder(launch, (8,))).__name__ == "PlainLauncher"
    )
    del owner
    assert gone() is not None
    del f
    gc.collect()
    assert gone() is None


def test_memory_does_not_grow(launch):
    resource = pytest.importorskip("resource")
    f, x = adder(launch, BIG), np.zeros(BIG, F32)[::1]
    half = np.zeros(2 * BIG[0], F32)[::2]
    for _ in range(20):
        f(x), f(half)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        f(x), f(half)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


# ------------------------------------------------------------------------------------ a bad machine


def copier(library):
    """A launcher, of whichever kind there is."""
    address = ctypes.cast(library.copy, ctypes.c_void_p).value
    f = make_launcher(address, [Array(I64, (2,))], [Output(I64, (2,))], sizes=[16])
    assert f(np.array([3, 4]))[0].tolist() == [3, 4]
    return type(f).__name__


def test_without_a_compiler_ctypes_serves(library):
    assert copier(library) == "Launcher"
    with config.using(cc="none"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is said once a process that there is no compiler
        assert copier(library) == "PlainLauncher"


@pytest.fixture
def nothing_made(monkeypatch):
    monkeypatch.setattr(EXTENSION, "made", {})


@pytest.mark.parametrize("lost", ["get_include", "templates"])
def test_without_headers_or_source_ctypes_serves(
    monkeypatch, tmp_path, library, nothing_made, lost
):
    monkeypatch.setattr(
        np if lost == "get_include" else launcher, lost, lambda *names: str(tmp_path / "c")
    )
    assert copier(library) == "PlainLauncher"


def test_if_the_extension_does_not_compile_ctypes_serves(monkeypatch, library, nothing_made):
    monkeypatch.setattr(launcher, "parts", lambda: ("#error no", ()))
    assert native() is None
    assert copier(library) == "PlainLauncher"


@pytest.mark.parametrize("made", ["extension", "nothing"])
def test_programs_do_not_wait_for_the_extension(monkeypatch, library, nothing_made, made):
    """They run by ctypes until it is there, and are told then, however that ended."""
    given, begun = threading.Event(), threading.Event()
    found = native() if made == "extension" else None
    EXTENSION.made.clear()
    monkeypatch.setattr(EXTENSION, "at_hand", lambda: False)
    monkeypatch.setattr(EXTENSION, "make", lambda: (begun.set(), given.wait(60), found)[-1])
    program, another = (waiting_copier(library) for _ in range(2))
    told = []
    program.told = told.append
    assert begun.wait(60) and told == []
    given.set()
    for thread in threading.enumerate():
        if thread.name == "ge2-launcher":
            thread.join(60)
    assert native() is found
    assert [type(f).__name__ for f in (program.run, *told)] == 2 * [
        "Launcher" if found else "PlainLauncher"
    ]
    for f in (program, another, *told):
        assert f(np.array([3, 4]))[0].tolist() == [3, 4]


def test_an_extension_that_was_begun_early_is_made_once(monkeypatch):
    """Its file may be there already while the thread that compiled it loads it."""
    monkeypatch.setattr(command, "_all", [])
    begun, given, made = threading.Event(), threading.Event(), object()
    calls, told = [], []
    at_hand = []

    def make():
        calls.append(1)
        begun.set()
        given.wait(60)
        return made

    early = Awaited("ge2-early", lambda: bool(at_hand), make)
    early.begin()
    assert begun.wait(60)
    at_hand.append(True)
    early.begin()
    assert not early.ready() and early.tell(SimpleNamespace(settle=told.append))
    given.set()
    for thread in threading.enumerate():
        if thread.name == "ge2-early":
            thread.join(60)
    assert early.ready() and early.now() is made and told == [made] and len(calls) == 1
    early.begin()
    assert len(calls) == 1 and not early.tell(SimpleNamespace(settle=told.append))


def waiting_copier(library):
    address = ctypes.cast(library.copy, ctypes.c_void_p).value
    f = make_launcher(address, [Array(I64, (2,))], [Output(I64, (2,))], sizes=[16])
    assert type(f) is Provisional
    assert f(np.array([3, 4]))[0].tolist() == [3, 4]
    return f


def test_pointers_can_be_read_in_two_ways(rng):
    for x in (rng.random((3, 4)), np.empty(0), np.float32([1])[::-1], np.empty((), BF16)):
        assert linked.pointer(x) == linked.pointer_by_name(x) == x.ctypes.data


@pytest.mark.parametrize("usual", [True, False])
def test_the_headers_of_python_are_where_sysconfig_says(usual, monkeypatch):
    folder = sysconfig.get_path("include")
    if not usual:
        monkeypatch.setattr(sys, "base_prefix", os.devnull)
    assert python_headers() == folder
