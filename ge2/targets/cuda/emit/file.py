"""A kernel as the text of a CUDA source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from ge2.base.locks import computed
from ge2.base.record import record
from ge2.codegen import content
from ge2.codegen.environment import WIDTH, render, wrap
from ge2.codegen.text import checked, coded, nested
from ge2.targets.cuda.emit.bundle import of_member, selection
from ge2.targets.cuda.emit.kernel import EXCLUSIVE, CudaKernel, Fixed, bare
from ge2.targets.cuda.emit.types import headers
from ge2.targets.cuda.load.headers import folders

LET, WAIT = "ge2_let_kernels();", "ge2_await_kernels();"
PARTS = {
    "ge2_read": "pack",
    "ge2_write": "pack",
    "ge2_some": "pack",
    "ge2_ahead": "ahead",
    "ge2_bitonic": "bitonic",
    "ge2_team_": "team",
    "ge2_column_": "team",
    "ge2_columns_": "columns",
    "ge2_exact_": "exact",
    "ge2_fixed_": "fixed",
    "ge2_divisor": "divide",
    "ge2_over_": "divide",
    "ge2_rank": "order",
    "ge2_digit": "order",
    "ge2_run_end": "order",
    "ge2_random_some": "draw",
    "ge2_scan_": "scan",
    "ge2_tile": "tile",
    "ge2_top_": "top",
    "ge2_scaled_": "scaled",
    "ge2_kept": "kept",
    "ge2_small_": "small",
    "ge2_tensor_map": "hopper",
    "ge2_mma_": "mma",
    "ge2_attend_": "attend",
    "ge2_rounded_pair_": "pair",
    "ge2_brief_": "float",
    "ge2_grid_": "grid",
    "ge2_spread_": "spread",
}


@final
@record
class Around:
    """The parts of a file that its body decides: headers, numbers, parameters, the first lines."""

    headers: tuple[str, ...]
    fixed: tuple[Fixed, ...]
    parameters: str
    begins: tuple[str, ...]
    body: str


@final
@dataclass(frozen=True)
class Source:
    """A kernel under its name. It has a `__dict__`, which keeps its text: assemblers ask for that
    two or three times.
    """

    name: str
    kernel: CudaKernel

    def around(self, helpers: str, body: str) -> Around:
        """The parts around a body, which a template asks for when it has printed the body.

        The compiler warns of a number that no code names. A kernel that waits for those before it
        reads what others write, and a kernel that reads and writes in turns needs what its
        compiler then may not assume (`__restrict__`): it does not wait.
        """
        k, code = self.kernel, bare(body)
        waits = k.lets and not (k.bundle.member if k.bundle else k).in_turns(code)
        selected = selection(k.bundle, code) if k.bundle else ()
        body = of_member(body, k.bundle) if k.bundle else body
        parameters = k.parameters.replace(EXCLUSIVE, "") if waits else k.parameters
        return Around(
            headers_of("\n".join((parameters, helpers, code))),
            tuple(each for each in k.fixed if re.search(rf"\b{each.name}\b", code)),
            parameters,
            (*((LET,) if k.lets else ()), *selected, *((WAIT,) if waits else ())),
            "\n".join(map(wrapped, body.split("\n"))) if too_wide(body) else body,
        )

    def text(self) -> str:
        return self._text

    @computed
    def _text(self) -> str:
        return self.kernel.text or checked(render(self.kernel.template, self))

    @property
    def waits(self) -> bool:
        """True if it waits by itself for the kernels before it, whatever its sizes are."""
        return self.kernel.lets and WAIT in self.text()


def headers_of(text: str) -> tuple[str, ...]:
    """The headers that a text needs, by the names in it."""
    found = {*headers(text), *(header for name, header in PARTS.items() if name in text)}
    return ("core", *sorted(found - {"core"}))


def content_of(kernel: CudaKernel) -> tuple[str, ...]:
    """Returns what the text of a kernel consists of but for numbers, with the headers that it may
    need.
    """
    found = content.content_of(same_code(Source(kernel.kind, kernel)), kernel.template)
    needed = (f"ge2/{name}.cuh" for name in headers_of("\n".join(found)))
    return (*found, content.headers_content((*needed,), folders()))


def too_wide(body: str) -> bool:
    return any(len(line) > WIDTH for line in body.split("\n"))


def wrapped(line: str) -> str:
    """A line of a skeleton as lines that are not too long."""
    code = line.lstrip()
    return wrap(code, len(line) - len(code)) if len(line) > WIDTH else line


def same_code(source: Source) -> str:
    """A kernel without what is for people alone: equal texts are one."""
    k = source.kernel
    if k.text:
        return k.text
    head = [
        source.name,
        k.bounds,
        k.parameters,
        *(f"{each.name} = {each.value}" for each in k.fixed),
    ]
    return "\n".join([*head, *k.helpers, str(k.lets), *nested(k.body), k.template, *coded(k.view)])
