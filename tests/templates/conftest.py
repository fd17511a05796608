"""Where functions of the CUDA headers run: as C++ on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.templates import harness
from tests.templates.cuda_harness import LACKS, needs_compiler

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(LACKS), reason=LACKS)]
PLACES = [pytest.param("cpu", marks=needs_compiler), pytest.param("gpu", marks=ON_GPU)]
IN_C = pytest.param("c", marks=harness.needs_compiler)


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[IN_C, *PLACES])
def any_place(request: pytest.FixtureRequest) -> str:
    """One of these, or "c": where functions of the C headers run."""
    return str(request.param)


@pytest.fixture
def quiet() -> Iterator[None]:
    """NumPy's warnings of what is not finite are not what is tested."""
    with np.errstate(all="ignore"):
        yield
