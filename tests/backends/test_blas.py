"""NumPy's own matrix products, called by their addresses."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from ge2.targets.c import libraries
from ge2.targets.c.libraries import (
    DTYPES,
    Blas,
    address,
    get_threads,
    linked,
    services,
    set_threads,
    sorts,
    works,
)


def wheel():
    """Whether this NumPy brings an OpenBLAS of its own, as its wheels do."""
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    return "openblas" in found


@pytest.mark.skipif(
    not wheel(), reason="this NumPy was built with another BLAS, which may hide its names"
)
def test_the_blas_of_a_wheel_is_found():
    found = services()
    assert all((found.sgemm, found.dgemm, found.cgemm, found.zgemm))
    assert get_threads() is not None


@pytest.mark.parametrize("letter", DTYPES)
def test_what_is_found_multiplies(letter):
    at = getattr(services(), f"{letter}gemm")
    if at == 0:
        pytest.skip("this NumPy's BLAS hides its names")
    assert works(at, letter, services().ilp64)
    assert libraries.works_on_vectors(
        getattr(services(), f"{letter}gemv"), letter, services().ilp64
    )
    if letter in "sd":
        assert libraries.works_on_itself(
            getattr(services(), f"{letter}syrk"), letter, services().ilp64
        )


def test_what_does_not_multiply_is_not_believed(monkeypatch):
    nothing = ctypes.CFUNCTYPE(None)(lambda: None)
    monkeypatch.setattr(
        libraries, "address", lambda *_: ctypes.cast(nothing, ctypes.c_void_p).value
    )
    assert services.__wrapped__() == Blas()


@pytest.mark.parametrize("library", [None, "no"])
def test_without_symbols_there_are_zeros(monkeypatch, library):
    monkeypatch.setattr(libraries, "linked", lambda: library and ctypes.CDLL(None))
    monkeypatch.setattr(libraries, "SPELLINGS", (("ge2_no_such_{}gemm", True),))
    assert services.__wrapped__() == Blas()
    assert address(linked(), "ge2_no_such_symbol") == 0


def test_packed_as_c_reads_it():
    numbers = (1, 2, 3, 1 << 63, True, 5, 6, 7, 8, 9, 10, 11, 12)
    products = libraries.PRODUCTS.ctypes.data
    packed = struct.unpack("=10QqQQQQQQ6QQ", Blas(*numbers).pack())
    whole = (
        1,
        2,
        3,
        1 << 63,
        5,
        6,
        7,
        8,
        9,
        10,
        1,
        11,
        12,
        products,
        *libraries.python(),
        *sorts(),
        libraries.LOOPS.ctypes.data,
    )
    assert packed == whole
    assert all((*libraries.python(), *sorts()))


def test_threads_are_set_and_read():
    before = get_threads()
    if before is None:
        assert not set_threads(1)
        return
    try:
        assert set_threads(1) and get_threads() == 1
    finally:
        set_threads(before)
    assert get_threads() == before
