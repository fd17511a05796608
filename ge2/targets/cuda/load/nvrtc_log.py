"""What NVRTC says, read: the registers and spills of each kernel, and errors
with their lines marked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, final

from ge2.base.formatting import pattern
from ge2.base.record import record

ENTRY: Final = pattern(r"Compiling entry function '([^']+)'")
PROPERTIES: Final = pattern(r"Function properties for (\S+)")
FRAME: Final = pattern(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
USED: Final = pattern(r"Used (\d+) registers")
STACK: Final = pattern(r"(\d+) bytes cumulative stack size")
SHARED: Final = pattern(r"(\d+) bytes smem")
TIME: Final = pattern(r"^ptxas info    : Compile time = .*\n?", re.MULTILINE)
ERROR: Final = pattern(r"^(.+)\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.+)$", re.MULTILINE)
ASSEMBLER: Final = pattern(
    r"^\0?(?:nvrtc: error: |ptxas .*?(?:error|fatal) *: )(.+)$", re.MULTILINE
)  # of what stands in no line; ptxas begins where the log so far ends, with a character of value 0
AROUND: Final = 2  # lines that are shown before and behind the one at fault


@final
@record
class Usage:
    """What a kernel takes of the device.

    `stack`, `spills`, `shared`: bytes, of shared memory the fixed ones.

    `spills` are of stores and loads together, those of functions that are
    called and not inlined too.
    """

    name: str
    registers: int
    spills: int = 0
    stack: int = 0
    shared: int = 0


def usages(log: str) -> tuple[Usage, ...]:
    """The kernels that a log of `--ptxas-options=-v` tells of, by name."""
    kernels: dict[str, dict[str, int]] = {}
    called = 0
    entry = function = ""
    for line in log.splitlines():
        if found := ENTRY.search(line):
            entry = found[1]
            kernels[entry] = {"registers": 0, "spills": 0}
        elif found := PROPERTIES.search(line):
            function = found[1]
        elif found := FRAME.search(line):
            stack, spills = int(found[1]), int(found[2]) + int(found[3])
            if function in kernels:
                kernels[function] |= {"stack": stack, "spills": spills}
            else:
                called += spills
        elif entry and (found := USED.search(line)):
            kernels[entry] |= {"registers": int(found[1]), **_sizes(line)}
    for figures in kernels.values():
        figures["spills"] += called
    made = (Usage(name, **figures) for name, figures in kernels.items())
    return tuple(sorted(made, key=lambda each: each.name))


def _sizes(line: str) -> dict[str, int]:
    sizes = {"stack": STACK.search(line), "shared": SHARED.search(line)}
    return {name: int(found[1]) for name, found in sizes.items() if found}


def steady(log: str) -> str:
    """A log without what is another each time."""
    return TIME.sub("", log).strip("\0 \n")


@final
@record
class Fault:
    """The first error of a log: in words, where, and how many more there are."""

    words: str
    place: str
    more: int


def fault(log: str, texts: Mapping[str, str]) -> Fault:
    """Returns what a log says was wrong; `texts` are the sources by the names that the log gives
    them.
    """
    errors = ERROR.findall(log)
    if not errors:
        plain = ASSEMBLER.findall(log)
        return Fault(
            plain[0].strip() if plain else "it gives no reason", log.strip(), max(len(plain) - 1, 0)
        )
    file, line, words = errors[0]
    marked = excerpt(texts[file], int(line)) if file in texts else ""
    return Fault(words.strip(), f"{file}:{line}\n{marked}".rstrip(), len(errors) - 1)


def excerpt(source: str, line: int) -> str:
    """The line and those around it, numbered.

    >>> print(excerpt("a\\nb\\nc\\nd\\ne\\nf", 2))
        1 | a
    >   2 | b
        3 | c
        4 | d
    """
    lines = source.splitlines()
    shown = range(max(line - AROUND, 1), min(line + AROUND, len(lines)) + 1)
    return "\n".join(f"{'>' if n == line else ' '} {n:3} | {lines[n - 1]}".rstrip() for n in shown)
