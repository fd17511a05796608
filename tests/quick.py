"""C that is compiled at -O1, in half of the time, and CUDA for the emulator at -Og, in two thirds,
where a test is not about what optimisation does.
"""

from __future__ import annotations

from dataclasses import replace

from ge2.base.toolchain import detect
from ge2.targets.cuda.emulator import build

FULL = detect.FLAGS
QUICK = tuple("-O1" if flag == "-O3" else flag for flag in FULL)
EMULATED = build.QUICK


def compile_quickly(quick: bool) -> None:
    """Sets the options of the compilers that were found, and of those that will be."""
    old, new = ("-O3", "-O1") if quick else ("-O1", "-O3")
    detect.FLAGS = QUICK if quick else FULL
    build.QUICK = tuple("-Og" if quick and flag == "-O1" else flag for flag in EMULATED)
    for place, tools in list(detect._found.items()):
        if tools is not None and old in tools.flags:
            flags = tuple(new if flag == old else flag for flag in tools.flags)
            detect._found[place] = replace(tools, flags=flags)
