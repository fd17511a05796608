"""An explanation of a program: records, and what they say as text, as data and in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final, final

from ge2.base.formatting import count_words, counted, size_words, table
from ge2.base.record import record
from ge2.choice.choose import BY
from ge2.program.records import OPS, cut

SCHEMA: Final = 1  # of the data; another number where a key has gone or means something else
WIDTH: Final = 100


@final
@record
class Apart:
    """A neighbour that is another kernel, and what one of both would save.

    `saves`: bytes that would be neither written nor read; `shared` names the types of the arrays.
    """

    kernel: str
    reason: str
    saves: int
    shared: tuple[str, ...]


@final
@record
class Option:
    """A candidate for a kernel.

    `verdict`: "taken", "possible", or "refused" with the reason; `other`, it serves no operation
    of this kind. Seconds of a call as predicted and as measured, None where there is no such time.
    """

    name: str
    verdict: str
    reason: str = ""
    predicted: float | None = None
    measured: float | None = None
    spread: float | None = None
    other: bool = False


@final
@record
class Usage:
    """The resources of a compiled CUDA kernel: `spills`, `stack`, `shared` in bytes, of shared
    memory the fixed ones and those asked for at launch.
    """

    function: str
    threads: int
    registers: int
    spills: int
    stack: int
    shared: int

    def __str__(self) -> str:
        stack = f", stack of {size_words(self.stack)}" if self.stack else ""
        return (
            f"{self.threads} threads a block, {counted(self.registers, 'register')}, "
            f"{size_words(self.spills)} spilled, {size_words(self.shared)} of shared memory{stack}"
        )


@final
@record
class Explained:
    """A kernel, or a step without one.

    `by`: what decided the choice. `seconds`: as it ran just now, or else as the record has it;
    None if it was never timed. `least`: seconds that the device needs for its bytes and operations;
    `share` that of `seconds`. `apart` is None where nothing is known of neighbours: inside loops.
    """

    name: str
    kind: str
    computes: tuple[str, ...]
    equations: tuple[str, ...]
    lines: tuple[str, ...]
    places: str
    results: tuple[str, ...]
    read: int
    written: int
    operations: int
    by: str
    options: tuple[Option, ...]
    usages: tuple[Usage, ...] = ()
    seconds: float | None = None
    least: float | None = None
    apart: tuple[Apart, ...] | None = None
    problem: str = ""  # the class that a pin names it by

    @property
    def share(self) -> float | None:
        return self.least / self.seconds if self.least and self.seconds else None

    def text(self, all: bool = False) -> str:
        """In words; with `all`, also the equations, and families that serve other operations."""
        found = [*self.head(), *((f"  {e}" for e in self.equations) if all else ())]
        found += [f"  problem {self.problem}"] if all and self.problem else []
        found += [f"  {line}" for line in self.options_text(all)]
        return "\n".join([*found, *(f"  {line}" for line in self.facts())])

    def head(self) -> Iterator[str]:
        computes = cut(self.computes, OPS) if self.computes else self.kind
        of = f"  of {self.places}" if self.places else ""
        yield f"{self.name}  {computes}{of}  {' '.join(self.results)}"
        moved = f"reads {size_words(self.read)}, writes {size_words(self.written)}"
        yield f"  {moved}, {count_words(self.operations)} operations{self.bound()}"

    def bound(self) -> str:
        share = "" if self.share is None else f", {share_words(self.share)}"
        took = "" if self.seconds is None else f": took {time_words(self.seconds)}{share}"
        least = "" if self.least is None else f", at least {time_words(self.least)}"
        return f"{least}{took}"

    def options_text(self, all: bool) -> Iterator[str]:
        shown = [o for o in self.options if all or not o.other]
        rows = [option_row(o, self.by) for o in shown]
        yield from table(rows).split("\n") if rows else ()
        if len(shown) < len(self.options):
            yield f"not    {counted(len(self.options) - len(shown), 'kernel')} of other operations"

    def facts(self) -> Iterator[str]:
        for n, usage in enumerate(self.usages):
            yield f"{usage.function if n else 'compiled'}: {usage}"
        for each in self.apart or ():
            yield f"apart from {each.kernel}: {each.reason};"
            shared = " ".join(each.shared)
            yield f"    one kernel would save {size_words(each.saves)}, of {shared}"

    def as_data(self) -> dict[str, Any]:
        names = (
            "name", "kind", "computes", "equations", "lines", "results", "read", "written",
            "operations", "problem", "by", "seconds", "least", "share",
        )  # fmt: skip
        return {
            **{name: plain(getattr(self, name)) for name in names},
            "candidates": [fields_of(o) for o in self.options],
            "compiled": [fields_of(u) for u in self.usages],
            "apart": None if self.apart is None else [fields_of(a) for a in self.apart],
        }


@final
@record
class Explanation:
    """The kernels that a function became and why. Printed, a text."""

    title: str
    device: str
    kernels: tuple[Explained, ...]
    # functions with a kernel of the user's that was not chosen: name and place, its candidates
    unused: tuple[tuple[str, tuple[Option, ...]], ...] = ()

    def text(self, all: bool = False) -> str:
        """In words; with `all`, also equations, and families that serve other operations."""
        parts = [self.head, *(kernel.text(all) for kernel in self.kernels)]
        for name, options in self.unused:
            rows = table([option_row(o, "") for o in options]).split("\n")
            parts.append("\n  ".join([f"{name}, is computed by ge2", *rows]))
        return "\n\n".join(parts)

    @property
    def head(self) -> str:
        return f"{self.title}: {counted(len(self.kernels), 'kernel')} on {self.device}"

    def as_data(self) -> dict[str, Any]:
        """As dictionaries, lists, texts and numbers; sizes in bytes, times in seconds."""
        return {
            "schema": SCHEMA,
            "function": self.title,
            "device": self.device,
            "kernels": [kernel.as_data() for kernel in self.kernels],
            "unused": [
                {"name": name, "candidates": [fields_of(o) for o in options]}
                for name, options in self.unused
            ],
        }

    def as_json(self) -> str:
        return json.dumps(self.as_data(), indent=1)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A table, with a row to open for each kernel."""
        return "".join(
            [STYLE, f"<div class='ge2'><p>{escape(self.head)}</p>", *self.html(), "</div>"]
        )

    def html(self) -> Iterator[str]:
        for kernel in self.kernels:
            first, *rest = kernel.head()
            yield f"<details open><summary><b>{escape(first)}</b></summary>"
            yield f"<p>{escape(' '.join(rest).strip())}</p>"
            yield html_table(
                ("", "candidate", "predicted", "measured", ""),
                [option_row(o, kernel.by, False) for o in kernel.options if not o.other],
            )
            yield from (f"<p>{escape(line.strip())}</p>" for line in kernel.facts())
            inside = "\n".join(kernel.equations)
            yield f"<details><summary>equations</summary><pre>{escape(inside)}</pre></details>"
            hidden = [option_row(o, kernel.by, False) for o in kernel.options if o.other]
            if hidden:
                rows = html_table(("", "candidate", "", "", ""), hidden)
                yield f"<details><summary>of other operations</summary>{rows}</details>"
            yield "</details>"
        for name, options in self.unused:
            yield f"<p>{escape(name)}, is computed by ge2</p>"
            listed = [option_row(o, "", False) for o in options]
            yield html_table(("", "candidate", "predicted", "measured", ""), listed)


STYLE: Final = (
    "<style>.ge2 {font-size:90%} .ge2 p {margin:.2em 1em} .ge2 table {margin:.3em 1em; "
    "border-collapse:collapse} .ge2 td, .ge2 th {text-align:left; padding:.1em .8em .1em 0} "
    ".ge2 details details {margin-left:1em} .ge2 summary {cursor:pointer}</style>"
)
WORDS: Final = {"taken": "taken", "possible": "or", "refused": "not"}


def option_row(option: Option, by: str, words: bool = True) -> tuple[str, ...]:
    """A row: verdict, name, times, reason. With `words` a time says what it is."""
    times = [
        "" if seconds is None else f"{f'{word} ' if words else ''}{time_words(seconds)}"
        for word, seconds in (("predicted", option.predicted), ("measured", option.measured))
    ]
    if option.measured is not None and option.spread:
        times[1] += f" \N{PLUS-MINUS SIGN} {option.spread:.0%}"
    reason = BY.get(by, "").lstrip(", ") if option.verdict == "taken" else option.reason
    more = [", ".join(filter(None, (*times, reason)))] if words else [*times, reason]
    return (WORDS[option.verdict], option.name, *more)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = ("".join(f"<td>{escape(each)}</td>" for each in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def time_words(seconds: float) -> str:
    """
    >>> time_words(1.234e-6), time_words(0.0456)
    ('1.23 us', '45.6 ms')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def share_words(share: float) -> str:
    """
    >>> share_words(0.694), share_words(1.5)
    ('69% of the roofline', 'above the roofline: its arrays are in a cache')
    """
    above = "above the roofline: its arrays are in a cache"
    return above if share > 1.1 else f"{share:.0%} of the roofline"


def fields_of(each: Any) -> dict[str, Any]:
    return {name: plain(getattr(each, name)) for name in each.__dataclass_fields__}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
