"""A jitted graph as one C file: kernels, each once, and functions that call them in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import final

from ge2.base.formatting import pattern
from ge2.base.record import record
from ge2.codegen.environment import render
from ge2.codegen.text import CKernel, checked, coded
from ge2.targets.c.emit.skeleton import Stage
from ge2.targets.c.emit.types import headers
from ge2.targets.c.tuning import Files

PROGRAM = "c/program.c.jinja"
PRODUCTS = {
    "f32": "GE2_PRODUCT_BLAS(f32, float, sgemm, sgemv, float, one, zero)",
    "f64": "GE2_PRODUCT_BLAS(f64, double, dgemm, dgemv, double, one, zero)",
    "c64": "GE2_PRODUCT_BLAS(c64, float _Complex, cgemm, cgemv, const void *, &one, &zero)",
    "c128": "GE2_PRODUCT_BLAS(c128, double _Complex, zgemm, zgemv, const void *, &one, &zero)",
}


VECTORS = {suffix: f"ge2_product_with_vector_{suffix}(" for suffix in ("f32", "f64")}
ITSELF = {
    suffix: (f"ge2_product_with_itself_{suffix}(", syrk)
    for suffix, syrk in (("f32", "ssyrk"), ("f64", "dsyrk"))
}
KERNEL_NAME = pattern(r"^static void (\w+_\d+)\(", re.MULTILINE)


@final
@record
class Named:
    """A kernel under its name in the file."""

    name: str
    kernel: CKernel

    def text(self) -> str:
        if own := self.kernel.text:
            return re.sub(rf"\b{self.kernel.kind}(?=(_part)?\s*\()", self.name, own)
        return checked(render(self.kernel.template, self))


@final
@record
class Run:
    """A function that the launcher, or a loop, calls: `int name(p, n, k, arena, threads, lib)`."""

    name: str
    calls: tuple[Stage, ...]
    inner: bool = False  # another function of the file calls it
    short: bool = False  # and it becomes part of that one


@final
@record
class CFile:
    """`products`: the types whose matrices it multiplies, as (suffix, C type)."""

    title: str
    graph: str
    tuning: Files
    kernels: tuple[str, ...]
    runs: tuple[Run, ...]
    products: frozenset[tuple[str, str]] = frozenset()
    prototypes: tuple[str, ...] = ()
    inlined: frozenset[str] = frozenset()  # kernels that a loop calls with sizes that are numbers
    single: frozenset[str] = frozenset()  # functions of several callers, compiled once for all
    helpers: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The kernels; those of a large file in 2, 4, 8 or 16 parts of equal
        length, compiled at once.
        """
        large = self.tuning.large
        if self.inlined or len(self.kernels) < large:
            return (tuple(KERNEL_NAME.sub(self.head, k) for k in self.kernels),)
        halves = len(self.kernels) // (large // 2)
        count = min(self.tuning.parts, 1 << halves.bit_length() - 1)
        shared = [KERNEL_NAME.sub(r"GE2_SHARED void \1(", k) for k in self.kernels]
        return tuple(tuple(part) for part in in_parts(shared, count) if part)

    def head(self, found: re.Match[str]) -> str:
        if found[1] in self.inlined:
            return f"GE2_FN void {found[1]}("
        return f"GE2_SINGLE void {found[1]}(" if found[1] in self.single else found[0]

    @property
    def headers(self) -> tuple[str, ...]:
        called = [c for run in self.runs for c in coded(run.calls)]
        found = {*headers("".join([*self.helpers, *self.kernels, *called]))}
        if self.helpers:
            found.add("complex")  # a user's own C may calculate with them
        vectors = ("vector_product",) if self.vectors else ()
        itself = ("self_product",) if self.itself else ()
        return ("core", *sorted(found), *(("product",) if self.products else ()), *vectors, *itself)

    @property
    def definitions(self) -> tuple[str, ...]:
        products = tuple(
            PRODUCTS.get(suffix, f"GE2_PRODUCT_LOOPS({suffix}, {ctype}, {ctype})")
            for suffix, ctype in sorted(self.products)
        )
        ctypes = dict(self.products)
        vectors = (f"GE2_PRODUCT_WITH_VECTOR({s}, {ctypes[s]})" for s in self.vectors)
        itself = (f"GE2_PRODUCT_WITH_ITSELF({s}, {ctypes[s]}, {ITSELF[s][1]})" for s in self.itself)
        return (*products, *vectors, *itself)

    @property
    def vectors(self) -> tuple[str, ...]:
        """The types of which a kernel multiplies a matrix and a vector."""
        return tuple(s for s, call in VECTORS.items() if self.calls(call))

    @property
    def itself(self) -> tuple[str, ...]:
        """The types of which a kernel multiplies a matrix and its transpose."""
        return tuple(s for s, (call, _) in ITSELF.items() if self.calls(call))

    def calls(self, call: str) -> bool:
        return any(call in kernel for kernel in self.kernels)

    def text(self) -> str:
        return render(PROGRAM, self)


def in_parts(texts: Sequence[str], count: int) -> list[list[str]]:
    """Texts in their order, in so many parts of about one length each.

    >>> in_parts(["aaaa", "b", "b", "cc", "dddd"], 3)
    [['aaaa'], ['b', 'b', 'cc'], ['dddd']]
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    total, before = sum(map(len, texts)), 0
    for text in texts:
        parts[min((before + len(text) // 2) * count // total, count - 1)].append(text)
        before += len(text)
    return parts


def same_code(kernel: CKernel) -> str:
    """A kernel without what is for people alone: equal texts are one function."""
    if kernel.text:
        return kernel.text
    head = [kernel.parameters, kernel.total, *kernel.helpers, *coded(kernel.body)]
    return "\n".join([*head, kernel.template, *coded(kernel.view)])
