"""The time in which a C compiler makes a program: a Python loop may need too much.

Such a program is compiled with fewer optimisations; if that takes too long as well, it is
run as blocked NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ge2.base.config import config
from ge2.base.errors import TooLong
from ge2.base.toolchain.compiler import is_known
from ge2.codegen.text import leaves
from ge2.program.compile_price import announce, is_too_long

if TYPE_CHECKING:
    from ge2.targets.c.native import Native

SOONER = ("-O1",)  # options to compile sooner


def program_seconds(native: Native) -> float:
    """The time for all kernels of a file, and the functions that call them."""
    calls = sum(1 for run in native.runs for _ in leaves(run.calls))
    return sum(native.prices.values()) + native.tuning.files.call_seconds * calls


def cheaper(title: str, native: Native, source: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """The options for a file.

    TooLong if no options make a compiler end within the user's patience.
    """
    seconds, tuning = program_seconds(native), native.tuning.files
    if not is_too_long(seconds, native.sources, tuning.price) or is_known(source, flags):
        return flags
    sooner = seconds * tuning.quick <= config.compile_patience
    if not (sooner and is_known(source, (*flags, *SOONER))):
        way = "compiled with fewer optimisations" if sooner else "run as blocked NumPy"
        kernels, price = len(native.prices), tuning.price
        announce(title, native.sources, kernels, seconds, price, f"it is {way}")
    if not sooner:
        raise TooLong(f"{title} would take some {seconds:.0f} s to compile")
    return (*flags, *SOONER)
