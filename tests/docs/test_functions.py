"""docs/functions.md lists what ge2 traces: it is written from its tables
(`pytest --update-golden`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge2 import numpy as gnp
from ge2.numpy.rare import special
from ge2.numpy.rare.applying import REASONS
from ge2.numpy.rare.of_scipy import OURS
from ge2.trace import Tracer

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"
INTRO = """\
# Functions that ge2 traces

NumPy's own functions, called with a traced value, are ge2's: `import numpy as np` and go on. `ge2.numpy` has
the same ones, and takes what NumPy cannot hand on: lists of traced values (`array`, `stack`), arrays that
are made while tracing and written (`zeros`), constants indexed by a traced number (`take`).

What is not listed can be used all the same (ufuncs of SciPy's as they are, without a derivative):

    y = ge2.pure_callback(np.unique, like, x)     # any function of NumPy's or SciPy's, run on the CPU
    relu3 = ge2.extend.elementwise("relu3", lambda x: np.maximum(x, 0) ** 3, "ge2_max_$t({0} * {0} * {0}, 0)",
                                   lambda y, x: 3 * np.maximum(x, 0) ** 2)    # a kernel, with a derivative

`like` is an array, or a `ge2.ShapeDtypeStruct(shape, dtype)`, of the result's shape and dtype; a derivative
of a callback is given by `ge2.custom_vjp`.
"""


def traced(module: Any) -> set[str]:
    """The names of a module's functions that have a meaning for traced values."""
    known = {id(f) for f in (*gnp.FUNCTIONS, *gnp.UFUNCS)}
    ours = {n for n in public(module) if gnp.rare.ours_of(getattr(module, n))}
    return {n for n in public(module) if id(getattr(module, n)) in known} | (ours - set(REASONS))


def public(module: Any) -> set[str]:
    """The names of a module's functions."""
    names = {name for name in dir(module) if not name.startswith("_")}
    return {
        n
        for n in names
        if callable(getattr(module, n)) and not isinstance(getattr(module, n), type)
    }


def of_scipy() -> set[str]:
    """Functions of SciPy's that take traced values if SciPy is imported, by module and name."""
    found = {f"{home.partition('._')[0]}:{n}" for home in OURS for n in OURS[home]}
    methods = {f"scipy.stats.{name}" for name in special.DISTRIBUTIONS} | {
        "scipy.stats.multivariate_normal"
    }
    plain = {
        each.replace(":", ".")
        for each in found
        if not each.startswith(("scipy.stats", "scipy.special"))
    }
    return {name.removeprefix("scipy.") for name in plain | methods}


def of_arrays() -> set[str]:
    """Methods and attributes of arrays, and of traced values."""
    return {n for n in dir(np.ndarray) if not n.startswith("_") and hasattr(Tracer, n)}


def listed(title: str, names: Iterable[str]) -> str:
    words = textwrap.fill(", ".join(f"`{n}`" for n in sorted(names)), 108, break_on_hyphens=False)
    return f"## {title}\n\n{words}\n"


def page() -> str:
    alone = {n for n in gnp.__all__ if not hasattr(np, n) and callable(getattr(gnp, n))}
    sections = [
        listed("numpy", traced(np)),
        listed("numpy.linalg", traced(np.linalg)),
        listed("numpy.fft", traced(np.fft)),
        listed("scipy.special, and ge2.scipy.special, which needs no SciPy", special.__all__),
        listed(
            "Functions and distributions of SciPy's own, in a program that imports them", of_scipy()
        ),
        listed("Methods and attributes of arrays", of_arrays()),
        listed("In ge2.numpy alone", alone),
        listed("Of values that are known alone", REASONS),
        listed("numpy.lib.stride_tricks", traced(np.lib.stride_tricks)),
        "## Not there, for a reason\n",
        "\n".join(f"* `{n}`: {why}; {fix}" for n, (why, fix) in sorted(gnp.rare.REFUSED.items()))
        + "\n",
    ]
    return "\n".join([INTRO, *filter(None, sections)])


def test_the_page_is_what_the_tables_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_every_function_of_the_tables_is_on_it() -> None:
    words = PAGE.read_text()
    for name in ("sum", "einsum", "logaddexp", "where", "norm"):
        assert f"`{name}`" in words.partition("## Not there")[0]
