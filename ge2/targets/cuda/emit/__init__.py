"""A CUDA kernel as a record, its source, and several launches fused into one."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from ge2.base.arrays import FLOAT32, FLOAT64, HALF
from ge2.base.record import computed, record
from ge2.codegen import text as content
from ge2.codegen.axes import Work
from ge2.codegen.environment import WIDTH, render, wrap
from ge2.codegen.kernel_values import Held
from ge2.codegen.layout import Home
from ge2.codegen.text import Argument, Operand, Text, checked, coded, nested
from ge2.ir import Literal
from ge2.ops.graphs.region import KINDS
from ge2.targets.cuda.emit.words import SUFFIX, headers
from ge2.targets.cuda.load.nvrtc import folders

# -------- What a CUDA kernel is: a function, what it is handed, and the grid that it is launched
# on.


ORDER = ("array", "result", "size", "value", "constant")
UNROLL = "#pragma unroll"
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
UNROLLED = re.compile(rf"{UNROLL}(?! 1$)[^\n]*\n\s*for ", re.MULTILINE)
MARKS = re.compile(r"[(){};]")
# a promise that a kernel cannot give which begins while others write what it reads
EXCLUSIVE = "__restrict__ "


@final
@record
class Fixed:
    """A number of the text under a name: `constexpr int THREADS = 256;`."""

    name: str
    value: int
    why: str = ""


@final
@record
class Bundle:
    """So many launches of one kernel, which are one; its blocks lie along `axis` of the grid. Members
    at the end may have no blocks.
    """

    member: CudaKernel
    count: int
    axis: str


@final
@record
class CudaKernel:
    """A `__global__` function.

    `grid` counts blocks, `block` their threads, `shared` is asked for at launch.

    `arguments` are those of the C target: arrays, sizes, numbers, and partial
    results that it has for itself.
    """

    kind: str
    graph: str
    arguments: tuple[Argument, ...]
    body: tuple[Text, ...]  # the statements, of a kernel that has no template of its own
    block: int
    grid: tuple[int, ...]
    fixed: tuple[Fixed, ...] = ()
    shared: int = 0
    equations: int = 0
    helpers: tuple[str, ...] = ()  # what a user's CUDA needs before the function
    most: int = 0  # threads that a block may have, if other sizes give it others
    resident: int = 1  # blocks that a multiprocessor is to hold at once
    sides: tuple[int, ...] = ()  # threads along each axis of a block, if not all along the first
    foreign: bool = False  # what it does is a user's text
    # whether a multiprocessor is to hold one block, whose threads have all registers: groups of them
    # then give some to others
    single: bool = False
    # whether its blocks wait for each other, and so are all on the GPU at once
    together: bool = False
    template: str = "cuda/kernel.cu.jinja"  # the family's, which prints the loops around statements
    view: Any = None  # a frozen record of what that template prints
    text: str = ""  # the whole source, in place of what a template prints,
    file: str = ""  # and the user's file that it stands in
    bundle: Bundle | None = None  # what it does for several at once
    backwards: bool = False  # the first of its blocks does what is last

    @property
    def title(self) -> str:
        article = "An" if self.kind[0] in "aeiou" else "A"
        many = f", for up to {self.bundle.count} steps at once" if self.bundle else ""
        return f"{article} {self.kind}{' region' if self.kind in KINDS else ''}{many}."

    @property
    def given(self) -> tuple[Argument, ...]:
        """The arguments in the order of the parameters."""
        return tuple([a for kind in ORDER for a in self.arguments if a.kind == kind])

    @property
    def parameters(self) -> str:
        return ", ".join(a.declaration for a in self.given)

    def fits(self, threads: int) -> bool:
        """True if a GPU that holds so many threads holds all of its blocks at once: little to
        one too large is won where it is launched while those before it end.
        """
        return self.block * math.prod(self.grid) <= threads

    @property
    def lets(self) -> bool:
        """True if it lets those that wait for it be launched as soon as
        all of its blocks are there.

        One whose blocks wait for each other needs the GPU to itself.
        """
        return not (self.foreign or self.together)

    def in_turns(self, code: str) -> bool:
        """True if its code, without comments, reads in a loop what comes after
        what it has written there.

        Several rounds at once are under way only if what is written is known to
        be nothing that is read. Tensor maps are no accesses of the code's.
        """
        read, written = (
            re.compile(
                rf"\b({'|'.join([more, *(a.name for a in self.given if a.kind == kind and not a.mapped)])})\b"
            )
            for kind, more in (("array", "from"), ("result", "to"))
        )
        return any(read.search(body) and written.search(body) for body in unrolled_bodies(code))

    @property
    def shape(self) -> tuple[int, ...]:
        """Threads along each axis of a block."""
        return self.sides or (self.block,)

    def shifted(self, temps: int) -> CudaKernel:
        """The kernel among others: its own arrays come after so many."""
        return replace(self, arguments=tuple(later(a, temps) for a in self.arguments))

    @property
    def bounds(self) -> str:
        """Returns how many threads a block has at most, and how many blocks are to fit."""
        most = self.most or self.block
        told = self.resident > 1 or self.single
        return f"{most}, {self.resident}" if told else str(most)


def unrolled_bodies(code: str) -> Iterator[str]:
    """The bodies of loops of which several rounds are unrolled.

    >>> list(unrolled_bodies("#pragma unroll\\nfor (int v = 0; v < f(2); v++)\\n    y[v] = x[v];\\nn = 1;"))
    ['\\n    y[v] = x[v];']
    """
    for found in UNROLLED.finditer(code):
        begin = past(code, found.end(), ")")
        yield code[begin : past(code, begin, ";}")]


def past(code: str, at: int, ends: str) -> int:
    """Returns where the next parentheses (`)`) or the next statement (`;` or `}`) ends."""
    depth = 0
    for found in MARKS.finditer(code, at):
        depth += 1 if found[0] in "({" else -1 if found[0] in ")}" else 0
        if depth == 0 and found[0] in ends:
            return found.end()
    return len(code)


def later(argument: Argument, temps: int) -> Argument:
    if argument.kind not in ("array", "result"):
        return argument
    operand, dtype = argument.value
    own = isinstance(operand, Operand) and operand.role == "part"
    return (
        replace(argument, value=(replace(operand, index=operand.index + temps), dtype))
        if own
        else argument
    )


def bare(source: str) -> str:
    """A source without its comments, each line where it was: sources that
    differ in comments alone are one.

    >>> bare("/* about\\n   a */ int a; /* b */")
    '\\n int a; '
    """
    return COMMENT.sub(lambda found: "\n" * found[0].count("\n"), source)


# -------- Several launches of one kernel as one: each block finds by its number whose block it is.


OWN: Final = ("array", "result", "size")  # kinds of arguments that each member has for itself
WHOLE: Final = re.compile(r"\b(?:gridDim|blockIdx)\.(\w)\b")
BLOCK: Final = re.compile(r"\bblockIdx\.(\w)\b")
TOGETHER: Final = re.compile(r"\b(?:cooperative_groups|ge2_grid_\w+)\b")
# headers whose functions ask for the number of a block, which only the text of a kernel is told
ASKING: Final = ("grid", "order")
MEMBER: Final = {"blockIdx": "member_block", "gridDim": "member_blocks"}
END: Final = "end"  # of a member's blocks


def axis_of(grid: Sequence[int]) -> int:
    """The axis along which the blocks of several grids can follow each other: the last that has any.

    >>> axis_of((5, 1)), axis_of((1, 5)), axis_of((5, 7)), axis_of((1, 1))
    (0, 1, 1, 0)
    """
    return max((i for i, n in enumerate(grid) if n != 1), default=0)


def can_be_bundled(kernel: CudaKernel, code: str) -> bool:
    """True for a kernel whose blocks are told apart by their numbers alone."""
    k = kernel
    fixed = k.foreign or k.together or k.text or k.sides or k.bundle or k.backwards
    mapped = any(a.mapped for a in kernel.arguments)
    asked = any(f'"ge2/{name}.cuh"' in code for name in ASKING)
    asked = asked or any(WHOLE.search(each) for each in kernel.helpers)
    return not (fixed or mapped or asked or TOGETHER.search(code))


def bundle_of(kernel: CudaKernel, ends: Sequence[int]) -> CudaKernel:
    """The kernel that does the work of so many launches, whose blocks end at `ends`.

    A member's own arguments have its number at the end of their names.
    """
    found = list[Argument]()
    for m, end in enumerate(ends):
        own = [a for a in kernel.given if a.kind in OWN]
        found += [replace(a, declaration=of(m, a.declaration), value=None) for a in own]
        found.append(Argument(f"int {of(m, END)}", "size", end))
    found += [a for a in kernel.given if a.kind not in OWN]
    axis = axis_of(kernel.grid)
    grid = (*kernel.grid[:axis], ends[-1], *kernel.grid[axis + 1 :])
    bundle = Bundle(kernel, len(ends), "xyz"[axis])
    return replace(kernel, arguments=tuple(found), grid=grid, bundle=bundle)


def of(member: int, name: str) -> str:
    """The name of what a member has for itself."""
    return f"{name}_of_{member}"


@final
@record
class Half:
    """Members among which a block finds its own: those before the `end` of the first half of them,
    and the others; `taken`: the lines of a single one.
    """

    end: str = ""
    sides: tuple[Half, ...] = ()
    taken: tuple[str, ...] = ()


def selection(bundle: Bundle, code: str) -> tuple[tuple[str, ...], Half]:
    """The lines that declare the arguments of a block's member, and what the code asks of its grid;
    and how the block takes them.
    """
    own = [a for a in bundle.member.given if a.kind in OWN]
    lines = [f"{a.declaration.replace(EXCLUSIVE, '')};" for a in own]
    block, blocks = MEMBER.values()
    counts = "gridDim" in code
    lines.append(f"int {block} = (int)blockIdx.{bundle.axis};")
    lines += [f"int {blocks};"] if counts else []
    return tuple(lines), chosen(bundle, range(bundle.count), counts)


def chosen(bundle: Bundle, members: range, counts: bool, depth: int = 0) -> Half:
    """How a block, one of these members', takes what its member has: it asks whether it is of the
    first half of them, and so on.
    """
    if len(members) == 1:
        return Half(taken=taken(bundle, members[0], counts, depth))
    half = members[len(members) // 2]
    sides = range(members.start, half), range(half, members.stop)
    return Half(of(half - 1, END), tuple(chosen(bundle, side, counts, depth + 1) for side in sides))


def taken(bundle: Bundle, m: int, counts: bool, depth: int) -> tuple[str, ...]:
    """The lines by which a block takes what member `m` has for itself."""
    block, blocks = MEMBER.values()
    found = [f"{a.name} = {of(m, a.name)};" for a in bundle.member.given if a.kind in OWN]
    if counts:
        found.append(f"{blocks} = {of(m, END)}{f' - {of(m - 1, END)}' if m else ''};")
    if m:
        found.append(f"{block} -= {of(m - 1, END)};")
    return tuple(textwrap.wrap(" ".join(found), WIDTH - 4 - 4 * depth))


def of_member(body: str, bundle: Bundle) -> str:
    """A kernel's body, in which a block has its number among those of its member."""

    def of_its_own(found: re.Match[str]) -> str:
        return MEMBER[found[0].partition(".")[0]] if found[1] == bundle.axis else found[0]

    return WHOLE.sub(of_its_own, body)


# -------- A kernel as the text of a CUDA source.


LET, WAIT = "ge2_let_kernels();", "ge2_await_kernels();"
PARTS = {
    "ge2_read": "pack",
    "ge2_write": "pack",
    "ge2_some": "pack",
    "ge2_ahead": "ahead",
    "ge2_bitonic": "bitonic",
    "ge2_network": "network",
    "ge2_radix_": "radix",
    "ge2_team_": "team",
    "ge2_column_": "team",
    "ge2_columns_": "columns",
    "ge2_exact_": "exact",
    "ge2_extreme": "extreme",
    "ge2_last": "last",
    "ge2_fixed_": "fixed",
    "ge2_divisor": "divide",
    "ge2_over_": "divide",
    "ge2_root": "root",
    "ge2_rank": "order",
    "ge2_digit": "order",
    "ge2_windows_end": "order",
    "ge2_unnamed": "order",
    "ge2_front_": "order",
    "ge2_random_some": "draw",
    "ge2_scan_": "scan",
    "ge2_prefix_": "prefixes",
    "ge2_tile": "tile",
    "ge2_top_": "top",
    "ge2_scaled_": "scaled",
    "ge2_kept": "kept",
    "ge2_small_": "small",
    "ge2_many_": "many",
    "ge2_tensor_map": "hopper",
    "ge2_mma_": "mma",
    "ge2_attend_": "attend",
    "ge2_rounded_pair_": "pair",
    "ge2_brief_": "float",
    "ge2_grid_": "grid",
    "ge2_spread_": "spread",
}


def from_the_end(body: str) -> tuple[tuple[str, ...], str]:
    """A kernel's body whose first block does what is last, and the lines that declare its number."""
    axes = sorted({found[1] for found in BLOCK.finditer(body)})
    lines = [f"const int block_{a} = gridDim.{a} - 1 - blockIdx.{a};" for a in axes]
    return tuple(lines), BLOCK.sub(r"block_\1", body)


@final
@record
class Around:
    """The parts of a file that its body decides: headers, numbers, parameters, the first lines."""

    headers: tuple[str, ...]
    fixed: tuple[Fixed, ...]
    parameters: str
    lets: tuple[str, ...]
    declared: tuple[str, ...]
    half: Half | None  # of a kernel that does the work of several
    waits: tuple[str, ...]
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
        declared, half = selection(k.bundle, code) if k.bundle else ((), None)
        body = of_member(body, k.bundle) if k.bundle else body
        if k.backwards:
            declared, body = from_the_end(body)
        parameters = k.parameters.replace(EXCLUSIVE, "") if waits else k.parameters
        return Around(
            headers_of("\n".join((parameters, helpers, code))),
            tuple(each for each in k.fixed if re.search(rf"\b{each.name}\b", code)),
            parameters,
            (LET,) if k.lets else (),
            declared,
            half,
            (WAIT,) if waits else (),
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
    how = str(k.lets), "backwards" if k.backwards else ""
    return "\n".join([*head, *k.helpers, *how, *nested(k.body), k.template, *coded(k.view)])


# -------- Divisors of several numbers: a root is made with its inverse, any other with its reciprocal.
# A root and a division are each a dozen instructions and a branch, most of which are about operands
# near the bounds of their type. A root of what is known to be no tiny number is far from them.


Makers = Mapping[Held, Work]
DIVISOR = {FLOAT32: "ge2_divisor", FLOAT64: "ge2_divisor_of_f64"}  # prepared (`divide.cuh`)
LEAST = 2.0**-100  # whose root a kernel makes with its inverse (`include/ge2/root.cuh`), and more
MOST = 2.0**20  # numbers that are divided by it, and as little as one over this


def name_of(w: Work | None) -> str:
    """The operation of a work; "" for what is none."""
    eqn = None if w is None or w.step is None else w.step.eqn
    return eqn.op.name if w is not None and w.kind == "compute" and eqn is not None else ""


def is_rounding(w: Work) -> bool:
    return name_of(w) == "convert_element_type" and w.step.eqn.outs[0].type.dtype in HALF  # type: ignore[union-attr]


def divided_by(
    readers: Mapping[Held, Sequence[Work]], makers: Makers, homes: Mapping[Held, Home]
) -> dict[Held, list[Work]]:
    """The roots by which two numbers or more are divided, and those divisions."""
    found = {}
    for y, w in makers.items():
        if name_of(w) != "sqrt" or y.dtype != FLOAT32 or homes[y].dims:
            continue
        if least(w.xs[0], makers) < LEAST:
            continue
        over = [r for r in readers.get(y, ()) if is_over(r, y, makers)]
        if len(over) > 1:
            found[y] = over
    return found


def is_over(w: Work, root: Held, makers: Makers) -> bool:
    """True of a number that is divided by a root, or of one over the root."""
    if name_of(w) != "div" or w.xs[1] is not root:
        return False
    x = w.xs[0]
    while name_of(w := makers.get(x)) == "neg":  # type: ignore[assignment]
        (x,) = w.xs
    one = name_of(w) == "div" and is_moderate(w.xs[0]) and w.xs[1] is root
    return one or is_moderate(x)


def is_moderate(x: Held) -> bool:
    number = number_of(x)
    return number is not None and 1 / MOST <= abs(number) <= MOST


def number_of(x: Held) -> float | None:
    return float(x.leaf.value) if isinstance(x.leaf, Literal) else None  # type: ignore[arg-type]


def is_power(x: Held) -> bool:
    """True of a power of two, by which a product is exact."""
    number = number_of(x)
    return number is not None and abs(math.frexp(number)[0]) == 0.5


def least(x: Held, makers: Makers) -> float:
    """A number that no value is below, as far as the equations that make it tell.

    Sums, squares and absolute values of what is rounded keep to the bounds of exact ones.
    """
    number, w = number_of(x), makers.get(x)
    if number is not None:
        return number
    name = name_of(w)
    if w is None or not name:
        return -math.inf
    if name in ("square", "abs", "sqrt", "exp") or (name == "mul" and w.xs[0] is w.xs[1]):
        return 0.0
    if name == "multiply_add" and w.xs[0] is w.xs[1]:
        return least(w.xs[2], makers)
    if name == "add":
        return sum(least(each, makers) for each in w.xs)
    return -math.inf


def prepared(
    works: Iterable[Work],
    alike: Callable[[Held, Held], bool],
    fresh: Callable[[str], str],
    operand: Callable[[Held], str],
) -> tuple[dict[Held, str], list[Text]]:
    """The names of what many elements are divided by, brought into the form that quotients are made
    of, and the lines that bring it there. `alike`: whether elements of a dividend have one divisor.
    """
    found, lines = dict[Held, str](), list[Text]()
    for w in works:
        if w.step is None or w.step.eqn is None or w.step.eqn.op.name != "div" or w.y is None:
            continue
        x, by = w.xs
        if by in found or w.y.dtype not in DIVISOR or not alike(x, by):
            continue
        name = found[by] = fresh("by")
        made = f"ge2_divisor_{SUFFIX[w.y.dtype]}({operand(by)})"
        lines.append(Text(f"const {DIVISOR[w.y.dtype]} {name} = {made};"))
    return found, lines


def is_beside_one(w: Work, readers: Mapping[Held, Sequence[Work]]) -> bool:
    """True for a tanh that, or whose square, is read by sums and differences with 1 alone."""
    if name_of(w) != "tanh" or w.y is None or w.y.dtype != FLOAT32:
        return False
    of_y = readers.get(w.y, [])
    squares = [r for r in of_y if name_of(r) == "square"]
    others = [r for r in of_y if r not in squares]
    others += [r for s in squares for r in (readers.get(s.y, []) if s.y else [])]
    return bool(others) and all(
        name_of(r) in ("add", "sub") and any(number_of(x) == 1 for x in r.xs) for r in others
    )


def sincos_pairs(works: Iterable[Work], homes: Mapping[Held, Home]) -> dict[Work, Work]:
    """The sine and the cosine of one angle in one loop: for each of the two, the one that comes first."""
    found, first = dict[Work, Work](), dict[tuple[Held, int], Work]()
    for w in works:
        if name_of(w) not in ("sin", "cos") or w.y is None or w.y.dtype not in (FLOAT32, FLOAT64):
            continue
        if not homes[w.y].dims:
            other = first.setdefault((w.xs[0], id(w.home)), w)
            if name_of(other) != name_of(w):
                found[other] = found[w] = other
    return found
