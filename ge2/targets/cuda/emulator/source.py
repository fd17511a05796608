"""A CUDA source as C++ for the CPU: it stands between the shim's words and a list of
the kernels found in it.

All of it stands in an unnamed namespace, so that nothing in it meets a name of the C library.
"""

from __future__ import annotations

import re
from typing import Final, final

from ge2.base.errors import CompileError
from ge2.base.record import record

COMMENTS: Final = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//(?:\\.|[^\\\n])*""", re.DOTALL
)
KERNEL: Final = re.compile(
    r"""extern\s+"C"\s+
        (?: (?:__global__|void|__launch_bounds__\s*\((?P<bounds>[^()]*(?:\([^()]*\)[^()]*)*)\)) \s+ )+
        (?P<name>\w+)\s*\(""",
    re.VERBOSE,
)
DYNAMIC: Final = re.compile(
    r"""extern\s+__shared__\s+
        (?: (?:alignas|__align__)\s*\([^()]*\)\s* )?
        (?P<type>[\w:<>,\s]+?)\s*\b(?P<name>\w+)\s*\[\s*\](?P<rest>(?:\s*\[[^\]]*\])*)\s*;""",
    re.VERBOSE,
)


@final
@record
class Entry:
    """A kernel of a source. `most_threads`: of its launch bounds, where they are a number."""

    name: str
    most_threads: int | None


def entries(source: str) -> tuple[Entry, ...]:
    """The kernels of a source, which are declared as `extern "C" __global__ void name(`.

    >>> entries('extern "C" __global__ void __launch_bounds__(256) f(int n) {}')
    (Entry(name='f', most_threads=256),)
    """
    found = {}
    for match in KERNEL.finditer(COMMENTS.sub(r"\1 ", source)):
        if "__global__" in match[0]:
            found[match["name"]] = Entry(match["name"], _bound(match["bounds"], source))
    if not found:
        raise CompileError(
            "a CUDA source has no kernel", fix='extern "C" __global__ void name(...)'
        )
    return tuple(found.values())


def _bound(words: str | None, source: str) -> int | None:
    """The first of the launch bounds, if it is a number or a constant of the source."""
    first = (words or "").split(",")[0].strip()
    constant = (
        re.search(rf"constexpr\s+int\s+{first}\s*=\s*(\d+)\s*;", source)
        if first.isidentifier()
        else None
    )
    number = constant[1] if constant else first
    return int(number) if number.isdecimal() else None


def as_cpp(source: str, name: str) -> str:
    """The C++ that a source becomes; its lines keep their numbers."""
    kernels = "\n".join(f"GE2_SHIM_KERNEL({entry.name})" for entry in entries(source))
    body = DYNAMIC.sub(_pointer, source)
    return "\n".join(
        (
            '#include "shim/shim.h"',
            "namespace {",
            f'#line 1 "{name}.cu"',
            body,
            "}",
            "GE2_SHIM_MODULE",
            kernels,
            "",
        )
    )


def _pointer(found: re.Match[str]) -> str:
    """Shared memory whose size the launch gives has one address."""
    kind, name, rest = found["type"].strip(), found["name"], found["rest"]
    of = (
        f"{kind} (*const {name}){rest} = ({kind} (*){rest})"
        if rest
        else f"{kind} *const {name} = ({kind} *)"
    )
    return f"{of}ge2_shim_dynamic;" + "\n" * found[0].count("\n")
