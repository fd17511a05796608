"""A kernel as the text of a CUDA source."""

from __future__ import annotations

import re
from typing import final

from ge2.base.record import record
from ge2.codegen.environment import render
from ge2.codegen.text import Text, checked
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed, codes
from ge2.targets.cuda.emit.types import headers

KERNEL = "cuda/kernel.cu.jinja"
LET, WAIT = "ge2_let_kernels();", "ge2_await_kernels();"
PARTS = {
    "ge2_read": "pack",
    "ge2_write": "pack",
    "ge2_some": "pack",
    "ge2_ahead": "ahead",
    "ge2_team_": "team",
    "ge2_column_": "team",
    "ge2_columns_": "columns",
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
    "ge2_grid_": "grid",
    "ge2_spread_": "spread",
}


@final
@record
class Source:
    """A kernel under its name, with the headers that it needs."""

    name: str
    kernel: CudaKernel

    @property
    def headers(self) -> tuple[str, ...]:
        text = "\n".join([self.kernel.parameters, *self.kernel.helpers, *codes(self.kernel.body)])
        found = {*headers(text), *(header for name, header in PARTS.items() if name in text)}
        return ("core", *sorted(found - {"core"}))

    @property
    def fixed(self) -> tuple[Fixed, ...]:
        """The numbers that the text names; the compiler warns of any other."""
        text = "\n".join(codes(self.kernel.body))
        return tuple(each for each in self.kernel.fixed if re.search(rf"\b{each.name}\b", text))

    @property
    def begins(self) -> tuple[str, ...]:
        """What it says of kernels before and behind it."""
        k = self.kernel
        return (*((LET,) if k.lets else ()), *((WAIT,) if k.waits else ()))

    def text(self) -> str:
        return checked(render(KERNEL, self))


def same_code(source: Source) -> str:
    """A kernel without what is for people alone: equal texts are one."""
    k, fixed = source.kernel, [f"{each.name} = {each.value}" for each in source.fixed]
    head = [source.name, k.bounds, k.parameters, *fixed, *k.helpers, *source.begins]
    return "\n".join([*head, *nested(k.body)])


def nested(texts: tuple[Text, ...]) -> list[str]:
    return [line for t in texts for line in (t.pragma, t.code, "{", *nested(t.body), "}", t.end)]
