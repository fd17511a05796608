"""Plain loops over slices, whose arguments are written, are what NumPy makes of them."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest

import ge2
import ge2.numpy
from tests.compared import all_close
from tests.surface.straight_programs import PROGRAMS


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plain_loop_is_what_numpy_makes_of_it(name):
    f, args = PROGRAMS[name]

    def copies():
        return [a.copy() if isinstance(a, np.ndarray) else a for a in args]

    # arrays that are made inside and written to are of ge2.numpy
    traced = ge2.jit(FunctionType(f.__code__, {**f.__globals__, "np": ge2.numpy}, f.__name__))
    given, written = copies(), copies()
    found, want = traced(*given), f(*written)
    all_close(given, written, rtol=1e-9, atol=1e-12)
    all_close(ge2.tree.leaves(found), ge2.tree.leaves(want), rtol=1e-9, atol=1e-12)
