"""The kernels of a program as a person looks at them: a table, and each
as text with what it came from.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import Final, final

from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.base.source import Source, count_words, counted, here, preformatted, size_words, table
from ge2.base.tracebacks import hides
from ge2.codegen.layout import Line
from ge2.ir import Atom, Eqn, Graph, Names, Var, write
from ge2.ir.text import atom_text, op_text
from ge2.ops.graphs.region import Region, Resident
from ge2.program import Cost, array_bytes, cost

WIDTH = 104  # of a comment
OPS, PLACES = 40, 36  # the widest that columns of the table may be
BLOCK: Final = "/* ", "   ", " */"
ENDINGS: Final = {"c": ".c", "cuda": ".cu"}
COMMENTS: Final = {"c": BLOCK, "cuda": BLOCK, "python": ("# ", "# ", "")}


def place(eqn: Eqn) -> str:
    """The user's line."""
    return str(eqn.source or "")


@final
@record
class Made:
    """A kernel of a step as code generation leaves it; a record is made of it
    when somebody asks.
    """

    eqn: Eqn
    kind: str
    name: str
    function: str
    text: Callable[[], str]
    nbytes: Callable[[Atom], int] = array_bytes
    language: str = "c"
    slow: str = ""  # what is to be said of it, if its device is slow at what it computes in
    choice: object = None  # of its family; printed, with the candidates and the refusals
    file: Callable[[], str] | None = None  # its code as a file that can be edited and pinned

    def within(self, outer: str) -> Made:
        """As a kernel of a loop or a branch, whose program has names of its own."""
        return replace(self, name=f"{outer}/{self.name}", function=f"{outer}/{self.function}")


@final
@record
class KernelRecord:
    """A kernel as one step of a program uses it.

    `name` is its own in the program, `function` that in the file, which `calls` steps share.
    `computes` are the `ops` that do more than move elements. `read` and `written` are bytes of
    arrays, `operations` those on elements. `slow` says what makes it slow on its GPU that could be
    otherwise. `choice` is that of its family: printed, it says which were refused, and why.
    Printed, it is code, its graph on top.
    """

    name: str
    kind: str
    function: str
    calls: int
    region: str
    equations: tuple[str, ...]
    ops: tuple[str, ...]
    computes: tuple[str, ...]
    sources: tuple[Source, ...]
    cost: Cost
    language: str
    source: str
    slow: str = ""
    choice: object = None
    file: Callable[[], str] | None = field(default=None, compare=False, repr=False)

    @hides
    def save(self, path: str) -> None:
        """Writes its code as a file (.cu or .c), to be edited, and then given to `f.pin`.

        InputError for a kernel that is none of a family's, and for another ending.
        """
        ending = ENDINGS.get(self.language)
        if self.file is None or ending is None:
            what = f"{self.name} is no kernel that can be edited by itself"
            raise InputError(
                what, where=here(), fix="ge2.explain(f)(*args), which shows all kernels"
            )
        if not path.endswith(ending):
            raise InputError(f"{self.name} is saved as {ending}", where=here(), fix=f'"k{ending}"')
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.file())

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that it computes."""
        return tuple(dict.fromkeys(map(str, self.sources)))

    @property
    def read(self) -> int:
        return self.cost.read

    @property
    def written(self) -> int:
        return self.cost.written

    @property
    def nbytes(self) -> int:
        return self.cost.read + self.cost.written

    @property
    def operations(self) -> int:
        return self.cost.operations

    def __str__(self) -> str:
        head, more, end = COMMENTS[self.language]
        read, written, operations = amounts(self.cost)
        count = counted(len(self.equations), "equation")
        shared = f"; {self.function} serves {self.calls} steps" if self.calls > 1 else ""
        first = textwrap.wrap(f"{self.name}: {count}{from_(self.sources)};", WIDTH)
        last = f"reads {read}, writes {written}, {operations} operations{shared}."
        slow = textwrap.wrap(f"It {self.slow}.", WIDTH) if self.slow else []
        text = f"\n{more}".join([*first, last, *slow])
        return f"{head}{text}{end}\n{self.source}"

    def __repr__(self) -> str:
        return f"<kernel {self.name}: {cut(self.ops, OPS)}>"

    def _repr_html_(self) -> str:
        return preformatted(str(self))


@final
class Kernels(tuple[KernelRecord, ...]):
    """The kernels of a program in the order in which they run. Printed, a table."""

    __slots__ = ()

    def named(self, name: str) -> KernelRecord:
        """The kernel of that name. KeyError if there is none."""
        for kernel in self:
            if kernel.name == name:
                return kernel
        raise KeyError(f"there is no kernel {name!r}: there are {', '.join(k.name for k in self)}")

    def __str__(self) -> str:
        if not self:
            return "no kernels"
        head = ("kernel", "computes", "reads", "writes", "operations", "of")
        all_of_it = sum((k.cost for k in self), Cost())
        functions = len({k.function for k in self})
        count = counted(len(self), "kernel")
        last = (
            "total",
            f"{count}, {functions} of them different" if functions < len(self) else count,
        )
        rows = table(
            [head, *map(row, self), (*last, *amounts(all_of_it), "")], right=frozenset((2, 3, 4))
        )
        return "\n".join([rows, *(f"{k.name} {k.slow}" for k in self if k.slow)])

    def __repr__(self) -> str:
        return (
            f"<{counted(len(self), 'kernel')}: {', '.join(k.name for k in self)}>"
            if self
            else "<no kernels>"
        )

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def row(kernel: KernelRecord) -> tuple[str, ...]:
    computes = cut(kernel.computes or kernel.ops, OPS)
    return (kernel.name, computes, *amounts(kernel.cost), cut(places(kernel.sources), PLACES, ", "))


def amounts(c: Cost) -> tuple[str, str, str]:
    return size_words(c.read), size_words(c.written), count_words(c.operations)


def cut(words: Sequence[str], width: int, between: str = " ") -> str:
    """As many words as there is room for; each once, with how often it is there.

    >>> cut(["add", "mul", "add"], 40), cut(["reduce_max", "exp", "reduce_sum", "div"], 20)
    ('add x2 mul', 'reduce_max exp +2')
    """
    counted = [word if n == 1 else f"{word} x{n}" for word, n in Counter(words).items()]
    found = between.join(counted)
    kept = len(counted)
    while len(found) > width and kept > 1:
        kept -= 1
        found = f"{between.join(counted[:kept])} +{len(counted) - kept}"
    return found


def places(sources: Iterable[Source]) -> list[str]:
    """The user's lines, those of one function together."""
    by_function: dict[tuple[str, str], set[int]] = {}
    for s in sources:
        by_function.setdefault((str(s).partition(":")[0], s.within), set()).add(s.line)
    return [f"{file}:{ranges(sorted(lines))} in {f}" for (file, f), lines in by_function.items()]


def ranges(numbers: Sequence[int]) -> str:
    """
    >>> ranges([3, 4, 5, 9])
    '3-5,9'
    """
    runs = [
        [n for _, n in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def from_(sources: Sequence[Source]) -> str:
    found = places(sources)
    return f" from {', '.join(found)}" if found else ""


# -------------------------------------------------------------------------------------- making them


def kernels(made: Sequence[Made]) -> Kernels:
    """The records of kernels, in the same order."""
    calls = Counter(each.function for each in made)
    return Kernels(
        record_of(each, name, calls[each.function])
        for each, name in zip(made, names(each.name for each in made), strict=True)
    )


def names(given: Iterable[str]) -> Iterator[str]:
    """Each once: what is met again has its number.

    >>> list(names(["rowwise_0", "pointwise_1", "rowwise_0"]))
    ['rowwise_0', 'pointwise_1', 'rowwise_0.2']
    """
    met: Counter[str] = Counter()
    for name in given:
        met[name] += 1
        yield name if met[name] == 1 else f"{name}.{met[name]}"


def record_of(made: Made, name: str, calls: int) -> KernelRecord:
    graph = made.eqn.op.graph if isinstance(made.eqn.op, Region | Resident) else alone(made.eqn)
    known = Names()
    region = write(graph, names=known)
    return KernelRecord(
        name, made.kind, made.function, calls, region,
        tuple(equation(e, known) for e in graph.eqns),
        tuple(e.op.name for e in graph.eqns),
        tuple(e.op.name for e in graph.eqns if not (e.op.is_view or e.op.retypes)),
        tuple(dict.fromkeys(e.source for e in graph.eqns if e.source is not None)),
        cost(made.eqn, made.nbytes), made.language, made.text(), made.slow, made.choice, made.file,
    )  # fmt: skip


def alone(eqn: Eqn) -> Graph:
    """The graph of one equation."""
    inputs = tuple(dict.fromkeys(a for a in eqn.inputs if isinstance(a, Var)))
    return Graph(inputs, (eqn,), eqn.outs)


def equation(eqn: Eqn, known: Names) -> str:
    outs = " ".join(f"{known[v]}:{v.type}" for v in eqn.outs)
    return f"{outs} = {op_text(eqn.op)}{''.join(' ' + atom_text(a, known) for a in eqn.inputs)}"


# ------------------------------------------------------------------------------------------ scopes
# The steps of a program inside ranges: one for each part of it that the user
# named, one for each step.


INDENT: Final = 4 * " "
Path = tuple[str, ...]


@final
@record
class Part:
    """The lines of a step, the scopes around them, and its own name; without
    one it stays where it falls.
    """

    scopes: Path
    name: str
    lines: tuple[Line, ...]


def ranged(parts: Sequence[Part], name: Callable[[str], str]) -> list[Line]:
    """The lines of all steps, those of neighbours in one scope inside one range.

    `name` names a range.

    >>> parts = [Part(("a",), "x", (Line("f()"),)), Part(("a",), "y", (Line("g()"),))]
    >>> print("\\n".join(line.code for line in ranged(parts, str)))
    with a:
        with x:
            f()
        with y:
            g()
    """
    found: list[Line] = []
    open_: Path = ()
    for part in parts:
        if not part.lines:
            continue
        if part.name:
            kept = len(common([open_, part.scopes]))
            found += [with_(name(each), d, each) for d, each in enumerate(part.scopes) if d >= kept]
            open_ = part.scopes
            found.append(with_(name(part.name), len(open_), part.name))
        inside = INDENT * (len(open_) + bool(part.name))
        found += [replace(line, code=inside + line.code) for line in part.lines]
    return found


def with_(name: str, depth: int, comment: str) -> Line:
    return Line(f"{INDENT * depth}with {name}:", comment)


def common(paths: Sequence[Path]) -> Path:
    """The path that all of them begin with.

    >>> common([("a", "b"), ("a", "c"), ("a",)]), common([])
    (('a',), ())
    """
    if not paths:
        return ()
    same = [len(set(each)) == 1 for each in zip(*paths, strict=False)]
    return paths[0][: same.index(False) if False in same else len(same)]


def scopes_of(eqn: Eqn, around: Path) -> Path:
    """The scopes that all of a step was traced in, but for those that are
    open around its program.
    """
    found = common([path(source) for source in sources(eqn)])
    return found[len(common([found, around])) :]


def path(source: Source) -> Path:
    return tuple(source.scope.split("/")) if source.scope else ()


def sources(eqn: Eqn) -> list[Source]:
    """The user's lines of a step: of all that is in a region."""
    eqns = eqn.op.graph.eqns if isinstance(eqn.op, Region | Resident) else (eqn,)
    return list(dict.fromkeys(e.source for e in eqns if e.source is not None))


def title(name: str, eqn: Eqn) -> str:
    """The name of a step's range."""
    lines = cut(places(sources(eqn)), PLACES, ", ")
    return f"{name}: {lines}" if lines else name


def spoken(graph: Graph) -> tuple[str, ...]:
    """All that a graph's equations say of the user's lines: graphs may be
    equal that differ in it.
    """
    return tuple(lines(graph, {}))


def lines(graph: Graph, said: dict[object, str]) -> Iterator[str]:
    """`said` has the places that were met: an unrolled loop is at the same few over and over."""
    for eqn in graph.eqns:
        s = eqn.source
        place = None if s is None else (id(s.code), s.lasti, s.scope)
        words = said.get(place)
        if words is None:
            words = said[place] = str(s)
        yield words
        for inner in eqn.op.graphs():
            yield from lines(inner, said)
