"""The problem that all kernels of regions share, and each equation as a statement."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.codegen.axes import Loop, Work
from ge2.codegen.kernel_values import Held, Param, Placed, Step, Tiling, Values
from ge2.codegen.layout import Home, homes
from ge2.codegen.text import Operand, Text, axes_of, guard, works_of
from ge2.ir import Eqn, Literal, Names, Op, Var, write
from ge2.ir.text import eqn_text
from ge2.ops.graphs import Rolled, Runs
from ge2.ops.graphs.region import Region
from ge2.ops.index import Gather
from ge2.ops.random import Draw
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Iota
from ge2.targets.cuda.emit import (
    divided_by,
    is_beside_one,
    is_power,
    is_rounding,
    name_of,
    number_of,
    sincos_pairs,
    words,
)
from ge2.targets.cuda.emit.words import (
    HELD,
    OF_PACK,
    RESERVED,
    SHORT,
    STORED,
    SUFFIX,
    Marks,
    Places,
    expression,
    helpers_of,
    label,
    number,
    retyped,
    widened,
)

UNROLL = "#pragma unroll"
# functions, and those in their place where all that is made of them is rounded to bfloat16
BRIEF = {
    "ge2_tanh_f32(": "ge2_brief_tanh(",
    "ge2_exp_f32(": "ge2_brief_exp(",
    "ge2_logistic_f32(": "ge2_brief_logistic(",
    "ge2_div_f32(": "ge2_brief_div(",
}


@final
@record
class Plain:
    """Statements of values that do not lie along a thread's neighbours; `at` is their column, as that
    of all stages.
    """

    at: int
    lines: tuple[Text, ...]
    kind: ClassVar = "statements"


def tested(tests: Sequence[str], lines: Sequence[Text]) -> list[Text]:
    """Statements that are done where all tests hold."""
    return [guard(" && ".join(tests), lines)] if tests else list(lines)


class Problem:
    """A region as works over axes, of which those are joined that every array treats as one."""

    def __init__(
        self, region: Region, operands: Mapping[Var, Operand], names: Names | None = None
    ) -> None:
        self.region, self.operands = region, operands
        self.names = Names() if names is None else names
        self.names.take(region.graph)  # as its text has them
        self.values = Values(region, Tiling(region.space), self.names).run()
        works, outs = works_of(self.values, region, self.names, label)
        self.works, self.outs = works, outs
        # arrays of which each element is read by itself, where there is one
        self.placed = {s.xs[0].leaf for s in self.values.steps if s.placed is not None}
        self.placed |= {*self.values.tables.values()}
        # results that are written elsewhere, the index along each axis along which they are
        self.landing = {w.param: w.xs[1:] for w in works if w.param and w.xs[1:]}
        self.axes = axes_of(self.values, region, works, outs, operands, SHORT)

    @property
    def text(self) -> str:
        """The graph, for people, with the names that the kernel has."""
        return write(self.region.graph, names=self.names)

    @property
    def folded(self) -> list[Work]:
        return [w for w in self.works if w.kind == "fold"]

    @property
    def lane(self) -> int:
        """The axis along which most elements lie side by side; -1 where there is none."""
        return self.lane_of(self.axes.sizes)

    def strewn(self, lane: int) -> list[Param]:
        """The results of which neighbours along an axis are written by themselves."""
        return [p for p, there in self.landing.items() if any(lane in x.axes for x in there)]

    def lane_of(self, axes: Iterable[int]) -> int:
        """The same among some of the axes."""
        return max(axes, key=lambda a: (self.along(a), a), default=-1)

    def along(self, a: int) -> int:
        """The number of elements that are side by side along an axis, less those that are apart; of an
        array that is read at indices as many as the space has.
        """
        space, strides = math.prod(self.axes.sizes.values()), self.axes.strides
        side_by_side = sum(strides[p].get(a) == 1 for p in self.values.tables.values())
        return self.axes.along(a) + side_by_side * space


class Statements:
    """Works as lines of CUDA, once the loops are settled. `v` numbers the elements of a thread."""

    def __init__(self, problem: Problem, places: Places, root: Loop) -> None:
        self.problem, self.places, self.root = problem, places, root
        self.homes: dict[Held, Home] = homes(root)
        # values that a thread keeps, of which other stages compute one of the same name again
        once = {x.name for x, home in self.homes.items() if not home.dims}
        self.twice = {x.name for x, home in self.homes.items() if home.dims} & once
        self.makers = {w.y: w for w in root.everything() if w.y is not None}
        self.readers = self.read_by()
        self.roots = divided_by(self.readers, self.makers, self.homes)
        self.pairs = sincos_pairs(root.everything(), self.homes)
        self.products = self.summed()
        self.rounded = self.only_stored()
        self.helpers: dict[str, None] = {}  # of users' expressions
        self.in_order = False  # whether a thread meets elements in the order of their places
        self.kept_at = "v"  # the place of the current element, of those that a thread keeps
        self.v = ""  # how the element along the lane is told, where several are at hand
        self.packs: dict[Param, str] = {}  # arrays of which several elements were read before
        self.divisors: dict[Held, str] = {}  # what many elements are divided by, prepared
        self.names_taken: Counter[str] = Counter()  # words that this kernel has names of
        self.apart = False  # whether no current element is at a place that it is compared with
        self.near = ""  # "_near" where no such number is far from 1
        self.striped: dict[Work, str] = {}  # states of which each neighbour has its own
        self.packed: dict[Work, str] = {}  # folds that take in neighbours at once, which are there
        # random bits, and what is read at indices, of which several elements were made before
        self.drawn: dict[Held, str] = {}
        self.widened: set[Param] = set()  # arrays of half types that were read as floats
        self.written: dict[Param, str] = {}  # results of which several elements are written after
        self.brief = False  # whether all results are rounded to bfloat16, and functions may be too
        self.beside_one = set[Work]()  # values that are added to 1, or taken from it
        self.contracted: dict[Work, Work] = {}  # sums and products, by what they take in
        self.late: set[Param] = set()  # of these, those that are rounded when they are written
        self.windowed: dict[Work, str] = {}  # elements that lie elsewhere, of which packs were read
        # how places along the lane compare with others, where a thread's neighbours are whole packs
        self.marks: Marks | None = None
        self.threads = 0  # of a block whose warps write rows together, where rows begin anywhere

    def fresh(self, word: str) -> str:
        """A name that no other value of the kernel has: `by`, `by1`, ... The word is a reserved one."""
        assert word in RESERVED, word
        self.names_taken[word] += 1
        return f"{word}{self.names_taken[word] - 1 or ''}"

    # -- values

    def line(self, w: Work) -> Text:
        if w.kind == "store":
            return self.stored(w)
        assert w.step is not None and w.y is not None
        comment = self.note(w.step.eqn)
        if w in self.packed:
            return Text(f"{self.packed[w]}[v] = {self.operand(w.xs[0])};", comment)
        if w.kind == "fold":
            return Text(self.fused(w) or self.taken(w), comment)
        if w.y in self.roots:
            root = f"ge2_root_f32({self.operand(w.xs[0])})"
            return Text(f"const ge2_root {label(w.y.name)} = {root};", comment)
        if w in self.pairs and not self.brief:
            return Text(self.sincos(w, self.pairs[w]), comment)
        home, code = self.homes[w.y], self.computed(w)
        if home.dims:
            return Text(f"{self.kept(w.y, home)} = {code};", comment)
        return Text(f"const {HELD[w.y.dtype]} {label(w.y.name)} = {code};", comment)

    def sincos(self, w: Work, first: Work) -> str:
        """A sine or a cosine of a pair: the first of them computes both, the other takes its own."""
        assert w.y is not None and first.y is not None
        both = f"{label(first.y.name)}_sincos"
        code = f"const {HELD[w.y.dtype]} {label(w.y.name)} = {both}.{name_of(w)};"
        if w is not first:
            return code
        made = f"ge2_sincos_{SUFFIX[w.y.dtype]}({self.operand(w.xs[0])})"
        return f"const auto {both} = {made}; {code}"

    def summed(self) -> dict[Held, Work]:
        """Products that are only added up: a sum takes each in as it is, and rounds once."""
        found = {
            y: w
            for y, w in self.makers.items()
            if name_of(w) == "mul" and y.dtype in (FLOAT32, FLOAT64) and not self.homes[y].dims
            if all(
                r.kind == "fold" and words.op_of(r).name == "reduce_sum"
                for r in self.readers.get(y, ())
            )
        }
        return self.left_out(found)

    def only_stored(self) -> dict[Held, Work]:
        """Values that are rounded to a half type and only stored, as what they are."""
        found = {
            y: w
            for y, w in self.makers.items()
            if is_rounding(w) and not self.homes[y].dims
            if self.readers.get(y) and all(r.kind == "store" for r in self.readers[y])
        }
        return self.left_out(found)

    def be_brief(self) -> None:
        """Takes the hardware's functions, which are exact enough if all results become bfloat16."""
        self.brief = True
        self.contract()

    def contract(self) -> None:
        """A product that is only added to one value, or taken from it, and a sum with 1 that is only
        multiplied, are one operation with what reads them. And a tanh that is only taken from 1, or
        added to it, need be no more exact near 0 than elsewhere.

        For results that are rounded to half types, or added up: their own last bits are nobody's.
        """
        computed = [w for w in self.root.everything() if w.kind == "compute"]
        self.beside_one = {w for w in computed if is_beside_one(w, self.readers)}
        for w in computed:
            inner = next((self.makers[x] for x in w.xs if self.taken_in_by(w, x)), None)
            if inner is not None and inner not in self.contracted:
                self.contracted[w] = inner
        self.left_out({inner.y: inner for inner in self.contracted.values() if inner.y is not None})

    def taken_in_by(self, w: Work, x: Held) -> bool:
        """True if a sum takes in the product x, or a product the sum of x and 1."""
        inner, name = self.makers.get(x), name_of(w)
        if inner is None or inner.home is not w.home or self.readers.get(x) != [w]:
            return False
        if w in self.contracted.values() or x.dtype != FLOAT32 or self.homes[x].dims:
            return False
        if name in ("add", "sub"):
            both = len(w.xs) == 2 and w.xs[0] is not w.xs[1]
            return both and name_of(inner) in ("mul", "square")
        return (
            name == "mul" and name_of(inner) == "add" and any(number_of(x) == 1 for x in inner.xs)
        )

    def fused_with(self, w: Work, inner: Work) -> str:
        """A sum with the product in it, or a product with the sum of 1 and something."""
        (other,) = [x for x in w.xs if x is not inner.y]
        if name_of(w) in ("add", "sub"):
            a, b = map(self.operand, (*inner.xs, *inner.xs)[:2])  # or the square of one
            c = self.operand(other)
            if name_of(w) == "sub":
                a, c = (f"-{a}", c) if other is w.xs[0] else (a, f"-{c}")
            return f"ge2_fma_f32({a}, {b}, {c})"
        (term,) = [x for x in inner.xs if number_of(x) != 1] or inner.xs[:1]
        return f"ge2_fma_f32({self.operand(other)}, {self.operand(term)}, {self.operand(other)})"

    def left_out(self, found: dict[Held, Work]) -> dict[Held, Work]:
        """The works, which are no statements of their own."""
        for w in found.values():
            assert w.home is not None
            w.home.children.remove(w)
        return found

    def read_by(self) -> dict[Held, list[Work]]:
        found: dict[Held, list[Work]] = {}
        for w in self.root.everything():
            for x in w.xs:
                found.setdefault(x, []).append(w)
        return found

    def fused(self, w: Work) -> str:
        """The statement that adds a product; nothing if what is folded is no such one."""
        product = self.products.get(w.xs[0])
        if product is None:
            return ""
        a, b = map(self.operand, product.xs)
        return f"{self.state(w)} = ge2_fma_{SUFFIX[w.xs[0].dtype]}({a}, {b}, {self.state(w)});"

    def taken(self, w: Work) -> str:
        """The statement that takes a value into the state of a fold."""
        state, value = self.state(w), self.operand(w.xs[0])
        if self.is_next(w):
            return f"{state} = {words.next_taken(w, state, value, self.index(w))};"
        return words.taken_in(w, state, value, self.index(w) if words.indexed(w) else "")

    def is_next(self, w: Work) -> bool:
        """True of a fold that knows a place, and meets values in the order of their places."""
        return self.in_order and words.indexed(w) and w.xs[0].dtype in (FLOAT32, FLOAT64)

    def index(self, w: Work) -> str:
        """The place of an element along the axis that is folded."""
        (a,) = w.over
        letter = self.places.letters[a]
        return f"{letter} + {self.v}" if self.v and a == self.places.lane else letter

    def state(self, w: Work) -> str:
        """The state of a reduction, for the current element."""
        assert w.y is not None
        if w in self.striped:
            return self.striped[w]
        name, home = words.state_of(w), self.homes[w.y]
        return f"{name}{self.at(home)}" if home.dims else name

    def kept(self, x: Held, home: Home) -> str:
        return f"{self.name(x)}{self.at(home)}"

    def name(self, x: Held) -> str:
        return f"{x.name}_kept" if x.name in self.twice else label(x.name)

    def at(self, home: Home) -> str:
        """The place of a value among those that the thread keeps."""
        return f"[{self.kept_at}]"

    def stored(self, w: Work) -> Text:
        p = w.param
        assert p is not None
        dtype, rounded = p.var.type.dtype, self.rounded.get(w.xs[0])
        if p in self.late:
            return Text(f"{self.written[p]} = {self.operand((rounded or w).xs[0])};")
        if rounded is not None:
            x = rounded.xs[0]
            value = f"ge2_cast_{SUFFIX[x.dtype]}_{SUFFIX[dtype]}({self.operand(x)})"
        else:
            value = self.operand(w.xs[0])
        if dtype in HALF and rounded is None:
            value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
        if p in self.written:
            return Text(f"{self.written[p]} = {value};")
        return Text(f"{self.places.result(p)}[{self.landed(p, self.v)}] = {value};")

    def landed(self, p: Param, v: str = "") -> str:
        """The index of an element of a result, some of which are written elsewhere."""
        return self.places.element(p, v, self.known(p))

    def known(self, p: Param) -> dict[int, str]:
        return {x.axes[0]: self.operand(x) for x in self.problem.landing.get(p, ())}

    def pack_of(self, p: Param, pack: int, left: str) -> tuple[Text, ...]:
        """The pack that elements of a result are collected in, and its writing, if that is not done
        elsewhere; `left`: how many elements there still are.
        """
        wide, stored = min(self.places.wide(p), pack), STORED[p.var.type.dtype]
        self.written[p] = f"{p.name}_at.at[v]"
        if p in self.late:
            return (Text(f"ge2_some<{HELD[p.var.type.dtype]}, PACK> {p.name}_at;"),)
        declared = Text(f"ge2_some<{stored}, PACK> {p.name}_at;")
        if wide < pack and self.threads:
            lane = self.places.lane
            extent, n = self.places.extent(lane), self.places.axes.sizes[lane]
            given = f"{self.places.row(p, self.known(p))}, {p.name}_at, mine, {extent}"
            wide = wide if n % wide == 0 else 1
            return declared, Text(f"ge2_write_row<PACK, {wide}, {self.threads}>({given});")
        to = f"{self.places.result(p)} + {self.landed(p)}"
        return declared, Text(f"ge2_write<PACK, {wide}>({to}, {p.name}_at{left});")

    def computed(self, w: Work) -> str:
        assert w.y is not None and w.step is not None
        if w.step.placed is not None:
            return self.elsewhere(w, w.step.placed)
        if w.step.runs:
            return self.index_in(w.y, w.step.runs)
        if w.step.eqn is not None and isinstance(w.step.eqn.op, Gather):
            return self.gathered(w) if w.y.var else self.row(w, w.step.eqn)
        return self.calculated(w, w.y, w.step)

    def row(self, w: Work, eqn: Eqn) -> str:
        """The offset of the elements of an array that indices name, which wrap around."""
        op, x, places = eqn.op, eqn.inputs[0], self.places
        assert isinstance(op, Gather) and isinstance(x, Var) and w.y is not None
        terms = []
        for k, (index, a) in enumerate(zip(w.xs, op.axes, strict=True)):
            size = places.size(f"{w.y.name}{k}_size", x.type.shape[a])
            step = places.size(f"{w.y.name}{k}_step", places.operands[x].strides[a])
            wrapped = f"ge2_index_{SUFFIX[index.dtype]}({self.operand(index)}, {size})"
            terms.append(f"{wrapped} * {step}")
        return " + ".join(terms)

    def gathered(self, w: Work) -> str:
        """An element of an array that is read at indices."""
        assert w.y is not None
        table, place = w.xs
        found = self.drawn.get(w.y) or (
            f"{self.places.array(table.leaf)}[{self.in_row(table.leaf, place)}]"
        )
        return widened(table.dtype, found) if table.dtype in HALF else found

    def row_read(self, w: Work, width: str, pack: int, left: str) -> list[Text]:
        """The reading of a thread's elements of a row that an index names, where they are neighbours."""
        eqn, y = None if w.step is None else w.step.eqn, w.y
        if eqn is None or not isinstance(eqn.op, Gather) or y is None or y.var is None or pack == 1:
            return []
        (table, place), x, lane = w.xs, eqn.inputs[0], self.places.lane
        if lane in place.axes or self.problem.axes.strides[table.leaf].get(lane) != 1:
            return []
        assert isinstance(x, Var)
        rows = [self.places.operands[x].strides[a] for a in eqn.op.axes]
        wide, name = min(self.places.wide(table.leaf, rows), pack), f"{self.name(y)}_read"
        at = f"{self.places.array(table.leaf)} + {self.in_row(table.leaf, place)}"
        self.drawn[y] = f"{name}{OF_PACK}"
        return [Text(f"const auto {name} = ge2_read<{width}, {wide}>({at}{left});")]

    def in_row(self, p: Param, place: Held) -> str:
        """The index of an element whose row begins at a place."""
        element, row = self.places.element(p, self.v), self.operand(place)
        return row if element == "0" else f"{row} + {element}"

    def calculated(self, w: Work, y: Held, step: Step) -> str:
        """The expression that an equation computes."""
        eqn, operands = step.eqn, [self.operand(x) for x in w.xs]
        dtype = w.xs[0].dtype if w.xs else None
        if eqn is None:  # a half type is widened
            leaf = w.xs[0].leaf
            if isinstance(leaf, Param) and self.places.operands[leaf.var].value:
                return operands[0]  # a number is handed over as float32
            if leaf in self.widened:
                return operands[0]
            return widened(step.xs[0].dtype, operands[0])
        op: Any = eqn.op
        assert dtype is not None
        if w in self.contracted:
            return self.fused_with(w, self.contracted[w])
        if op.name == "eq" and (found := self.counted(w)):
            return found
        if isinstance(op, ArgReduce | Reduce | Rolled):
            return of_one(op, operands[0], dtype)
        if w.xs[-1] in (self.divisors | self.roots) and (found := self.over(w, y, operands[0])):
            return found
        if isinstance(op, Draw):
            if y in self.drawn:
                return self.drawn[y]
            place = " + ".join([self.places.among(sorted(y.axes), self.v), *operands[2:]])
            return f"ge2_random_bits_{SUFFIX[op.dtype]}({', '.join(operands[:2])}, {place})"
        if w in self.beside_one and not self.brief:
            return f"ge2_tanh_beside_one({operands[0]})"
        if op.retypes:
            return retyped(operands[0], eqn)
        return self.expressed(op, operands, dtype, y.dtype)

    def over(self, w: Work, y: Held, x: str) -> str:
        """A quotient by what is prepared; "" of any other work."""
        by = w.xs[-1]
        if by in self.divisors and name_of(w) == "div":
            return f"ge2_over{self.near}_{SUFFIX[y.dtype]}({x}, {self.divisors[by]})"
        if w not in self.roots.get(by, ()):
            return ""
        root = label(by.name)
        if is_power(w.xs[0]):
            return f"ge2_mul_f32({x}, {root}.inverse)"
        return f"ge2_over_root_f32({x}, {root})"

    def elsewhere(self, w: Work, placed: Placed) -> str:
        """An element of what lies elsewhere than the space, where there is one; else zero."""
        assert w.step is not None
        x, leaf = w.xs[0], w.xs[0].leaf
        test = " && ".join(text for _, text in self.bounds(w, placed))
        if placed.var is None:
            if isinstance(leaf, Literal) and leaf.value is np.True_:
                return test or "true"
            found = self.operand(x)
        elif w in self.windowed:
            found = self.windowed[w]
        else:
            known = {a: self.operand(held) for a, held in placed.places}
            place = self.places.element(leaf, self.v, known)
            place += self.places.back(w.step.y.name, placed)
            found = f"{self.places.array(leaf)}[{place}]"
            found = widened(x.dtype, found) if x.dtype in HALF else found
        zero = number(0, FLOAT32 if x.dtype in HALF else x.dtype)
        return f"{test} ? {found} : {zero}" if test else found

    def index_in(self, y: Held, runs: Runs) -> str:
        """The index along an axis that is gone through in runs."""
        (a,), places = y.axes, self.places
        at, parts = places.at(a, self.v), list[str]()
        for n, (begin, index, step) in enumerate(runs):
            by = places.size(f"{y.name}_by{n}", index - step * begin)
            found = f"{at} + {by}" if step else by
            if n < len(runs) - 1:
                found = f"{at} < {places.size(f'{y.name}_to{n}', runs[n + 1][0])} ? {found}"
            parts.append(found)
        return " : ".join(parts)

    def bounds(self, w: Work, placed: Placed) -> Iterator[tuple[int, str]]:
        """The conditions along an axis under which an operand of a pad has an element."""
        assert w.step is not None
        places, name, marks = self.places, w.step.y.name, self.marks
        for a, low, end, size in placed.bounds:
            at, letter = places.at(a, self.v), places.letters[a]
            if marks is not None and a == places.lane:
                yield from ((a, test) for test in (marks.at_least(low), marks.below(end)) if test)
                continue
            if low > 0:
                named = marks.name(low, a) if marks else places.size(f"{name}_from_{letter}", low)
                yield a, f"{at} >= {named}"
            if end < size:
                named = marks.name(end, a) if marks else places.size(f"{name}_to_{letter}", end)
                yield a, f"{at} < {named}"

    def expressed(self, op: Any, operands: list[str], dtype: np.dtype, out: np.dtype) -> str:
        """The expression of an operation; a user's own has helpers."""
        if op.edition:
            self.helpers.update(dict.fromkeys(helpers_of(op.lowering.helpers, dtype)))
            return expression(op.lowering.cuda or op.lowering.expression, operands, dtype, out)
        found = expression(op.lowering.expression, operands, dtype, out)
        called = found[: found.find("(") + 1]
        return found.replace(called, BRIEF[called], 1) if self.brief and called in BRIEF else found

    def counted(self, w: Work) -> str:
        """A condition: an element is the one at a place, by its distance from the first of a pack."""
        away = self.away(w) if self.v else ""
        return away and ("false" if self.apart else f"{away} == (uint32_t){self.v}")

    def away(self, w: Work) -> str:
        """The distance from the first of a pack to a place that is compared with; "" of other works."""
        eqn, lane = None if w.step is None else w.step.eqn, self.places.lane
        if w.kind != "compute" or eqn is None or eqn.op.name != "eq" or lane < 0:
            return ""
        counts = [x for x in w.xs if isinstance(x.leaf, Iota) and x.dtype == np.int32]
        counts = [x for x in counts if x.axes == (lane,)]
        others = [x for x in w.xs if lane not in x.axes]
        if len(counts) != 1 or len(others) != 1:
            return ""
        return f"(uint32_t){self.operand(others[0])} - (uint32_t){self.places.letters[lane]}"

    def operand(self, x: Held) -> str:
        """A value, wherever it is."""
        leaf = x.leaf
        if isinstance(leaf, Param):
            return self.load(leaf)
        if isinstance(leaf, Literal):
            return self.places.number(leaf, x.dtype)
        if isinstance(leaf, Iota):
            return self.places.count(leaf, x, self.v)
        home, w = self.homes[x], self.makers[x]
        if w.kind == "fold":
            return words.read(w, self.state(w))
        if x in self.roots:
            return f"{label(x.name)}.value"
        return self.kept(x, home) if home.dims else label(x.name)

    def load(self, p: Param) -> str:
        if self.places.operands[p.var].value:
            return self.places.value(p)
        if p in self.packs:
            return self.packs[p]
        return f"{self.places.array(p)}[{self.places.element(p, self.v)}]"

    def note(self, eqn: Eqn | None) -> str:
        """The equation, as the graph above the kernel has it."""
        return eqn_text(eqn, self.problem.names) if eqn is not None else ""

    # -- loops over the elements of a thread

    def read_in(self, works: Sequence[Work]) -> list[Param]:
        """The arrays that works read."""
        read = [x for w in works for x in w.xs]
        aside = self.products | self.rounded
        aside |= {w.y: w for w in self.contracted.values() if w.y is not None}
        read += [x for y in read if y in aside for x in aside[y].xs]
        found = [x.leaf for x in read if isinstance(x.leaf, Param)]
        found = [p for p in found if p not in self.problem.placed]
        return [p for p in dict.fromkeys(found) if not self.places.operands[p.var].value]


def of_one(op: Op, x: str, dtype: np.dtype) -> str:
    """What a fold leaves of one element, or what is written where it belongs."""
    if op.name == "reduce_sum" and dtype != BOOL:
        return expression("ge2_add({0}, {1})", [x, number(0, dtype)], dtype, dtype)
    return "0" if isinstance(op, ArgReduce) else x


def unrolled(letter: str, count: str, body: Sequence[Text]) -> Text:
    """A loop that the compiler writes out, so that what it indexes stays in registers."""
    return Text(
        f"for (int {letter} = 0; {letter} < {count}; {letter}++)", body=tuple(body), pragma=UNROLL
    )


def mentions(lines: Sequence[Text], name: str) -> bool:
    """True if a name stands in any of the lines."""
    return any(re.search(rf"\b{name}\b", t.code) or mentions(t.body, name) for t in lines)
