"""A jitted function looked at without being called: its graph, its kernels, what was remembered and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from ge2.base.record import record
from ge2.ir import Graph
from ge2.runtime.entry import Entry
from ge2.runtime.signature import key_text

if TYPE_CHECKING:
    from ge2.runtime.executable import Executable


@final
@record
class Compiled:
    """A function of arguments of one signature, ready to run."""

    entry: Entry
    call: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the jitted function; InputError for arguments of another signature."""
        return self.call(self.entry, args, kwargs)

    def as_text(self) -> str:
        return self.entry.ready().as_text()

    @property
    def kernels(self) -> Sequence[Any]:
        return self.entry.ready().kernels

    def memory_analysis(self) -> Any:
        return self.entry.ready().memory_analysis()


@final
@record
class Lowered:
    """A signature's program: the graph after all passes, and its kernels."""

    entry: Entry
    call: Callable[..., Any]

    @property
    def executable(self) -> Executable:
        return self.entry.ready()

    @property
    def kernels(self) -> Sequence[Any]:
        """Each with its `name`, its `kind` of region and its `source`."""
        return self.executable.kernels

    @property
    def regions(self) -> int:
        return self.executable.regions

    def as_text(self) -> str:
        """The graph after all passes: regions, library calls, and what is between them."""
        return self.executable.as_text()

    def compile(self) -> Compiled:
        self.entry.ready()
        return Compiled(self.entry, self.call)

    __str__ = as_text


@final
@record
class Traced:
    """A signature's graph as traced; arrays met in the trace and closed-over ones are its first inputs."""

    entry: Entry
    call: Callable[..., Any]

    @property
    def jaxpr(self) -> Graph:
        return self.entry.graph

    def lower(self) -> Lowered:
        return Lowered(self.entry, self.call)

    def __str__(self) -> str:
        return str(self.jaxpr)


@final
@record
class Report:
    """What the last call did."""

    title: str
    traced: bool  # for this call: the signature was new
    compiled: bool
    regions: int
    kernels: tuple[str, ...]
    op_by_op: int  # steps that are one operation of a library

    def __str__(self) -> str:
        how = "traced and compiled" if self.compiled else "traced" if self.traced else "found in the cache"
        text = f"{self.title}: {how}; {self.regions} regions, {self.op_by_op} steps op by op"
        return "\n".join([text, *(f"  {name}" for name in self.kernels)])


@final
@record
class Line:
    """A remembered signature."""

    signature: str
    hits: int
    differs: tuple[str, ...]  # in what from the nearest one before it


@final
@record
class CacheReport:
    title: str
    entries: tuple[Line, ...]

    def __str__(self) -> str:
        lines = [f"{self.title}: {len(self.entries)} signatures"]
        for e in self.entries:
            lines.append(f"  {e.hits:6} calls  {e.signature}")
            lines += [f"                differs in {d}" for d in e.differs]
        return "\n".join(lines)


def cache_report(title: str, entries: Sequence[Entry]) -> CacheReport:
    lines = []
    for n, entry in enumerate(entries):
        found = [differences(old, entry) for old in entries[:n]]
        lines.append(Line(signature_text(entry), entry.hits, tuple(nearest(found))))
    return CacheReport(title, tuple(lines))


def nearest(found: Sequence[list[str]]) -> list[str]:
    """The shortest of several lists of differences."""
    return min(found, key=lambda each: len(each)) if found else []


def signature_text(entry: Entry) -> str:
    keys = entry.key.leaves
    texts = [f"{name}: {key_text(key)}" for name, key in zip(entry.names, keys, strict=True)]
    return ", ".join(texts) if len(texts) <= 8 else ", ".join([*texts[:8], f"and {len(texts) - 8} more"])


def differences(old: Entry, new: Entry) -> list[str]:
    """What differs between two signatures, in words."""
    a, b = old.key, new.key
    if a.structure != b.structure:
        return [f"the structure of the arguments: {a.structure} against {b.structure}"]
    found = [
        f"{name}: {key_text(x)} against {key_text(y)}"
        for name, x, y in zip(new.names, a.leaves, b.leaves, strict=True)
        if x != y
    ]
    if a.closure != b.closure:
        found.append("what the function reads besides its arguments")
    if a.settings != b.settings:
        found.append("the settings")
    if a.donated != b.donated:
        found.append("what was donated")
    return found or ["the contents of an array that the trace looked at"]
