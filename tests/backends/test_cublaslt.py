"""Products by cuBLASLt as launches: by a library that is the CPU's, from Python and by the
extension, and what NumPy makes of the same memory.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import KernelError
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.launch import Launch
from ge2.targets.cuda.launch import graph as native
from ge2.targets.cuda.launch.library_call import HostProduct, LibraryEpilogue, Wanted
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import libraries
from ge2.targets.cuda.products import by_blas, tight
from tests.backends.fake_driver import (
    HERE,
    address,
    at,
    fake_driver,
    launch_list,
    launches_extension,
    seen,
)

pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")
FLOAT32 = np.dtype(np.float32)
PLAIN, BATCHES = DotGeneral(((1,), (0,))), DotGeneral(((2,), (1,)), ((0,), (0,)))
HEADS = DotGeneral(((3,), (3,)), ((0, 2), (0, 2)))
CASES = {
    "plain": (PLAIN, (3, 5), (5, 4)),
    "with scratch": (PLAIN, (17, 33), (33, 9)),
    "batches": (BATCHES, (3, 4, 7), (3, 7, 5)),
    "several calls": (HEADS, (2, 6, 3, 4), (2, 5, 3, 4)),
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return fake_driver(tmp_path_factory.mktemp("blas"), str(HERE / "fake_cublaslt.c"))


@pytest.fixture(scope="module")
def made():
    return launches_extension()


@pytest.fixture
def device(driver, monkeypatch):
    monkeypatch.setattr(native, "LIBRARY", driver.path)
    monkeypatch.setattr(libraries, "library", lambda: libraries.Library(driver.path))
    cuda = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=0),
        runtime=SimpleNamespace(free=lambda place: None),
    )
    return SimpleNamespace(
        here=nullcontext,
        context=driver.context_of_fake(),
        xp=SimpleNamespace(cuda=cuda),
        limits=H200,
    )


def wanted_of(name):
    op, a, b = CASES[name]
    types = ArrayType(a, FLOAT32), ArrayType(b, FLOAT32)
    (y,) = op.infer(*types)
    copies, gemm = by_blas(
        op, *types, tuple(tight(t.shape, range(t.ndim)) for t in (*types, y)), 16
    )
    assert copies == (None, None)
    return Wanted(gemm, FLOAT32, FLOAT32), (a, b, y.shape)


def run_of(device, made, call, how):
    """(first factor, other factor, result, scratch)"""
    scratch = at(3) if call.workspace else None
    given = at(0), at(1), at(2), scratch
    launch = Launch(call, (), (), 0, given, "dot_general", "model.py:3", frozenset([2, 3]))
    work = launch_list((launch,), 4)
    if how == "python":
        return native.from_python(device, work)
    with config.using(capture="on" if how == "graph" else "off"):
        return native.run_of(made, device, work)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["graph", "one by one", "python"])
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_numpy(device, made, how, name):
    wanted, (a, b, y) = wanted_of(name)
    call = libraries.Blas(device).product(wanted)
    assert call.by == "cuBLASLt" and call.workspace == (64 if name == "with scratch" else 0)
    assert len(call.functions) == len(wanted.gemm.calls) >= (2 if name == "several calls" else 1)
    run, scratch, kept = run_of(device, made, call, how), np.zeros(64, np.uint8), []
    for n in range(12):
        rng = np.random.default_rng(n)
        x, z = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (a, b))
        found, exact = np.zeros(y, np.float32), np.zeros(y, np.float32)
        factors = [z, x] if wanted.gemm.second else [x, z]
        places = [*map(address, factors)]
        HostProduct(wanted)(0, *places, address(exact), 0)
        run(*places, address(found), address(scratch))
        np.testing.assert_array_equal(found, exact)
        kept.append((x, z, found))
    if how == "graph":
        assert run.trouble is None and run.counts[:3] == (12, 1, 4)


EPILOGUES = {
    "RELU": "", "BIAS": "v", "RELU_BIAS": "v", "GELU": "", "GELU_BIAS": "v", "GELU_AUX": "m",
    "GELU_AUX_BIAS": "vm", "DGELU": "m", "DGELU_BGRAD": "vm",
}  # fmt: skip


@pytest.mark.parametrize("how", ["graph", "one by one", "python"])
@pytest.mark.parametrize("kind", EPILOGUES)
def test_epilogues_are_those_of_numpy(device, made, how, kind):
    """Further arrays at other addresses each time, which a description is given before the product."""
    op, shapes, has = PLAIN, ((6, 5), (5, 16)), EPILOGUES[kind]
    types = [ArrayType(shape, FLOAT32) for shape in shapes]
    lies = tuple(tight(t.shape, range(t.ndim)) for t in (*types, *op.infer(*types)))
    _, gemm = by_blas(op, *types, lies, 16)
    epilogue = LibraryEpilogue(kind, 16 * ("v" in has), 16 * ("m" in has), 16 * ("m" in has))
    wanted = Wanted(gemm, FLOAT32, FLOAT32, epilogue=epilogue)
    call = libraries.Blas(device).product(wanted)
    assert len(call.functions) == 1 + len(has)
    given = *map(at, range(3 + len(has))), at(3 + len(has)) if call.workspace else None
    launch = Launch(call, (), (), 0, given, "dot_general", "model.py:3", frozenset(range(2, 6)))
    work = launch_list((launch,), len(given))
    with config.using(capture="on" if how == "graph" else "off"):
        run = (
            native.from_python(device, work)
            if how == "python"
            else native.run_of(made, device, work)
        )
    kept = []
    for n in range(12):
        rng = np.random.default_rng(n)
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: B023, E731
        factors, more = (
            [draw(5, 16), draw(6, 5)],
            [draw(16)] * ("v" in has) + [draw(6, 16)] * ("m" in has),
        )
        found, exact = (
            [np.zeros((6, 16), np.float32), *(x.copy() for x in more)] for _ in range(2)
        )
        places, scratch = [*map(address, factors)], np.zeros(64, np.uint8)
        HostProduct(wanted)(0, *places, *map(address, exact), 0)
        run(*places, *map(address, found), address(scratch))
        for x, y in zip(found, exact, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
        kept.append((factors, found, scratch))


def test_a_description_with_addresses_belongs_to_one_program(device):
    wanted, _ = wanted_of("plain")
    blas = libraries.Blas(device)
    relu = replace(wanted, epilogue=LibraryEpilogue("RELU_BIAS", 4))
    assert blas.product(wanted) is blas.product(wanted)
    assert blas.product(relu) is not blas.product(relu)
    unfit = replace(wanted, epilogue=LibraryEpilogue("GELU_AUX", 0, 16, 4))
    assert blas.product(unfit) is None


def test_further_algorithms_are_asked_for(device):
    wanted, _ = wanted_of("with scratch")
    blas = libraries.Blas(device)
    found = [blas.product(replace(wanted, algorithm=n)) for n in range(4)]
    assert [call is not None for call in found] == [True, True, True, False]
    assert [call.owner.heuristic.algorithm.data[1] for call in found[:3]] == [0, 1, 2]


@pytest.mark.parametrize("how", ["one by one", "python"])
def test_what_the_library_says_of_an_error(device, made, how):
    wanted, (a, b, y) = wanted_of("plain")
    call = libraries.Blas(device).product(wanted)
    call.owner.one.value = 2.0
    run = run_of(device, made, call, how)
    arrays = [np.zeros(shape, np.float32) for shape in (a, b, y)]
    with pytest.raises(
        KernelError, match="cublasLtMatmul fails with .*CUBLAS_STATUS_INVALID_VALUE"
    ):
        run(*map(address, arrays), address(arrays[0]))


def test_what_a_product_is_described_by_lives_as_long_as_it(device, made, driver):
    gc.collect()
    before = seen(driver, "made")
    blas = libraries.Blas(device)
    call = blas.product(wanted_of("batches")[0])
    assert call is blas.product(wanted_of("batches")[0]) and seen(driver, "made") == before + 4
    run = run_of(device, made, call, "one by one")
    del blas, call
    gc.collect()
    assert seen(driver, "made") == before + 4
    del run
    gc.collect()
    assert seen(driver, "made") == before


def test_one_file_knows_the_library():
    folder = Path(ge2.__file__).parent
    templates = folder.parent / "templates"
    files = [*folder.rglob("*.py"), *templates.rglob("*.[ch]"), *templates.rglob("*.cu*")]
    knows = [file.name for file in files if "cublasLtMatmul" in file.read_text(encoding="utf-8")]
    assert knows == ["libraries.py"]
