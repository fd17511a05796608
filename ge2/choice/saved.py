"""Kernels that ge2 wrote, saved as a file, edited, and pinned to the problem that they were of.

The head of such a file says of which problem it is and how each kernel is launched. What it is
passed is as ge2 has it, so the parameters stay; a file whose kernels ge2 writes otherwise by now is
stale. `docs/design/user_kernels.md` has the reasons.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, final

from ge2.base.cache import content_key
from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.base.source import Printed, pattern, table
from ge2.choice import Family, Problem, Variant
from ge2.choice.choose import Candidate, Catalog, Choice
from ge2.codegen.text import ASIDE
from ge2.ir import Eqn, Graph, Var

FIRST: Final = "/* A kernel of ge2, saved to be edited: f.pin checks, times and takes it."
LINE: Final = pattern(r"^   (problem|target|family|variant|origin) +(.*)$", re.MULTILINE)
KERNEL: Final = pattern(
    r"^/\* kernel (\d+) of (\d+): (\w+)(?:, blocks ([\d ]+), threads ([\d ]+), shared (\d+))? \*/\n",
    re.MULTILINE,
)
SIGNATURE: Final = pattern(r"\bvoid\b[^;{}]*?\b(\w+)\s*\(([^{};]*)\)\s*\{")
Launch = tuple[tuple[int, ...], tuple[int, ...], int]


@final
@record
class Saved:
    """A saved choice as a file describes it. `texts`: of each kernel, on its lines of the file; `launches`:
    blocks, threads and bytes of shared memory, of kernels of a GPU; `origin`: a hash of what ge2
    wrote.
    """

    path: str
    problem: str
    target: str
    family: str
    variant: str
    origin: str
    texts: tuple[str, ...]
    launches: tuple[Launch | None, ...]

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def key(self) -> str:
        """A hash of all that could change what it computes."""
        return content_key(self.problem, self.origin, *self.texts, repr(self.launches))


def key_of(problem: Problem) -> str:
    """A name for a problem: its operation, its types, and where its arrays are. That some share their
    memory is a matter of the program.
    """
    apart = tuple(replace(x, memory=-1) for x in problem.operands)
    lies = [repr(apart).replace(", memory=-1", ""), repr(sorted(problem.shared)), problem.target]
    return content_key(graph_text(problem), *lies)[:16]


def graph_text(problem: Problem) -> str:
    inputs, outs = tuple(map(Var, problem.inputs)), tuple(map(Var, problem.outs))
    return str(Graph(inputs, (Eqn(problem.op, inputs, outs),), outs))


def code(source: str) -> str:
    """A source without comments, and without spaces that do not matter."""
    lines = re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL).splitlines()
    return "\n".join(filter(None, (" ".join(line.split()) for line in lines)))


def origin_of(sources: Sequence[str]) -> str:
    return content_key(*map(code, sources))[:16]


# ------------------------------------------------------------------------------------------- a file


def written(choice: Choice, kernels: Sequence[tuple[str, str, Launch | None]]) -> str:
    """The text of a file: of each kernel its name, its source, and how it is launched."""
    problem, variant = choice.problem, choice.taken.variant.name
    said = {
        "problem": key_of(problem), "target": problem.target, "family": choice.family.name,
        "variant": variant, "origin": origin_of([source for _, source, _ in kernels]),
    }  # fmt: skip
    lines = [FIRST, *(f"   {word:<8} {value}" for word, value in said.items() if value)]
    lines += [
        "   The parameters stay as they are, and the lines that begin with `/* kernel`.",
        "*/",
    ]
    for n, (name, source, launch) in enumerate(kernels, 1):
        how = ""
        if launch is not None:
            blocks, threads = (" ".join(map(str, each)) for each in launch[:2])
            how = f", blocks {blocks}, threads {threads}, shared {launch[2]}"
        lines += [f"/* kernel {n} of {len(kernels)}: {name}{how} */", source.rstrip("\n")]
    return "\n".join(lines) + "\n"


def read(path: str) -> Saved:
    """Reads a saved choice. InputError if the file is none."""
    path = os.path.abspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"{path} cannot be read: {why}", fix=SAVE) from None
    head, _, _ = text.partition("*/")
    said, found = dict(LINE.findall(head)), [*KERNEL.finditer(text)]
    if not text.startswith(FIRST) or not {"problem", "target", "family", "origin"} <= said.keys():
        raise InputError(f"{path} has no head of a saved kernel", fix=SAVE)
    if not found or len(found) != int(found[0][2]):
        what = f"{path} lacks lines that begin with `/* kernel`, one for each"
        raise InputError(what, where=f"{path}:{head.count(chr(10)) + 2}", fix=SAVE)
    ends = [*(each.start() for each in found[1:]), len(text)]
    texts = tuple(
        "\n" * text.count("\n", 0, each.end()) + text[each.end() : end]
        for each, end in zip(found, ends, strict=True)
    )
    launches = tuple(map(launch_in, found))
    given = said["problem"], said["target"], said["family"], said.get("variant", ""), said["origin"]
    return Saved(path, *given, texts, launches)


SAVE: Final = 'f.lower(*args).kernels[0].save("k.cu")'


def launch_in(found: re.Match[str]) -> Launch | None:
    if found[4] is None:
        return None
    blocks, threads = (tuple(map(int, found[n].split())) for n in (4, 5))
    return blocks, threads, int(found[6])


# --------------------------------------------------------------------------------------- the family


class SavedFamily(Family[Any, Any]):
    """The kernels of a family with texts of the user's, for one problem; a target says how."""

    def __init__(self, saved: Saved, catalog: Catalog) -> None:
        self.saved, self.catalog = saved, catalog
        self.name = saved.name  # type: ignore[misc]
        self.code = origin_of(saved.texts)  # type: ignore[misc]

    @abstractmethod
    def source(self, kernel: Any) -> str:
        """The text of a kernel, under the name that it has in a file."""

    @abstractmethod
    def edited(self, kernel: Any, text: str, launch: Any) -> Any:
        """A kernel with another text."""

    def refuses(self, problem: Problem, caps: Any) -> str:
        saved = self.saved
        if not problem.settled or key_of(problem) != saved.problem:
            return f"{saved.name} is of another problem"
        found = self.original(problem, caps)
        if found is None:
            return f"it is stale: ge2 has no {saved.family} for it by now; save it again"
        sources = [self.source(kernel) for kernel in found.kernels]
        if origin_of(sources) != saved.origin:
            return "it is stale: ge2 writes another text for it by now; save it again"
        pairs = enumerate(zip(sources, saved.texts, strict=True))
        return next((why for n, (a, b) in pairs if (why := self.signature(n, a, b))), "")

    def signature(self, n: int, original: str, text: str) -> str:
        """The reason why the parameters of a kernel are not those that it is called with; "" if
        they are.
        """
        (wanted,) = [*signatures(original)][-1:]
        if wanted in signatures(text):
            return ""
        return f"its signature was edited: kernel {n + 1} is {wanted}"

    def variants(self, problem: Problem, caps: Any) -> tuple[Variant, ...]:
        return (Variant(),)

    def candidate(self, problem: Problem, caps: Any) -> Candidate | None:
        """The one of ge2 that it was saved from; None if there is none of that name."""
        for family in self.catalog:
            if family.name != self.saved.family or family.refusal(problem, caps):
                continue
            for variant in family.variants(problem, caps):
                if variant.name == self.saved.variant and not variant.refusal:
                    return Candidate(family, variant)
        return None

    def original(self, problem: Problem, caps: Any) -> Any:
        """The kernels that ge2 writes for the problem; None if it has no candidate of that name."""
        found = self.candidate(problem, caps)
        if found is None:
            return None
        return found.family.kernels(problem, found.variant, found.variant.caps or caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Any) -> Any:
        found, saved = self.original(problem, caps), self.saved
        given = zip(found.kernels, saved.texts, saved.launches, strict=True)
        return replace(found, kernels=tuple(self.edited(*each) for each in given))


def signatures(source: str) -> Iterator[str]:
    """The functions of a source that return nothing, with their parameters."""
    for found in SIGNATURE.finditer(ASIDE.sub(" ", source)):
        yield f"{found[1]}({' '.join(found[2].split())})"


@final
@record
class Pinned(Printed):
    """The result of `pin`: seconds of a call of the original kernel and of the edited one."""

    kernel: str
    problem: str
    device: str
    before: float
    now: float

    def __str__(self) -> str:
        rows = [
            ("kernel", "us"),
            (f"as ge2 wrote it, on {self.device}", f"{self.before * 1e6:.3g}"),
        ]
        rows.append((self.kernel, f"{self.now * 1e6:.3g}"))
        return f"{table(rows, right=frozenset((1,)))}\n{self.kernel} is taken for {self.problem}"
