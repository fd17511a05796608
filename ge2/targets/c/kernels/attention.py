"""Attention in C, forward and backward: blocks of scores that stay in the caches of a core."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, final

from ge2.base.arrays import FLOAT32, FLOAT64
from ge2.base.record import record
from ge2.choice import ONLY, Problem, Variant
from ge2.codegen.text import ALONE, Argument, CKernel, Operand, Sharing, Text
from ge2.ir import Eqn, Graph
from ge2.ops.attention import number_of
from ge2.ops.attention.form import Form
from ge2.ops.attention.ops import (
    SEVERAL_WIDTHS,
    FusedAttention,
    FusedBackward,
    Tiling,
    c_order,
    form_of,
    product_axes,
    tiling,
)
from ge2.ops.attention.scores import Scores, core_shapes, scores_of, way, without_band
from ge2.ops.dot import DotGeneral
from ge2.targets.c.emit import HELD, STORED, SUFFIX
from ge2.targets.c.emit.statements import ORDER
from ge2.targets.c.kernels import Head, Reads, ScoreStatements, batch_places, statements
from ge2.targets.c.kernels.generated import Generated, Pieces
from ge2.targets.c.kernels.products import CProduct
from ge2.targets.c.tuning import Attention, Caps

NONE: Final = ScoreStatements((), (), (), ("t",))
LOWEST: Final = {FLOAT32: "-0x1.fffffep127f", FLOAT64: "-0x1.fffffffffffffp1023"}


@final
@record
class Rows:
    """The start of the rows of an operand of a head, and the distance between them, in C."""

    begin: str
    step: str


@final
@record
class Left:
    """A cotangent of what scores are made of: its array, and its numbers of one head."""

    name: str
    how: str
    value: str
    size: str


@final
@record
class View:
    """The view that `templates/c/attention/forward.c.jinja` and `backward.c.jinja` print."""

    type: str
    suffix: str
    lowest: str
    rows: int
    keys: int
    width: int
    sharing: Sharing | None
    batch: tuple[Text, ...]
    first: tuple[Text, ...]
    q: Rows
    k: Rows
    v: Rows
    low: int | None
    high: int | None
    branch: bool
    inside: str
    edge: ScoreStatements
    whole: ScoreStatements
    y: Rows | None = None
    logs: Rows | None = None
    sink: str = ""
    ct: Rows | None = None
    sums: Rows | None = None
    dq: Rows | None = None
    dk: Rows | None = None
    dv: Rows | None = None
    slope: ScoreStatements = NONE
    lefts: tuple[Left, ...] = ()
    clause: str = ""
    partial: bool = False
    rows_sharing: Sharing | None = None


class Attends(Generated):
    """Families of attention, among which predictions decide."""

    products: int  # that a kernel has of each block
    ranked = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return refused(problem, caps)

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        """Blocks of as many queries as keys; smaller ones where fewer are seen."""
        for n in caps.tuning.attention.blocks:
            yield Variant(f"{n} x {n}", n)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The products and exponentials of the blocks that are seen, at the rate of one thread or more,
        while keys and values come from memory once.
        """
        form, found = self.found(problem)
        n: int = variant.plan
        tuning = caps.tuning.attention
        each = 2 * self.products * found.width + tuning.score
        each += tuning.turned * found.width // min(n, max(found.queries, 1))
        done = found.heads * visited(form, found, n) * each
        tasks = found.heads * self.parts(problem, found, n, tuning)
        team = min(caps.threads, tasks) if done > caps.tuning.regions.grain else 1
        one = replace(caps, threads=1).speed
        size: int = form.queries.base.type.dtype.itemsize
        rate = one.products * tuning.rate * 4 / size
        read = 2 * found.heads * found.keys * found.width * size / one.moved
        return one.launch + max(done / rate / max(team, 1), read)

    @abstractmethod
    def parts(self, problem: Problem, found: Tiling, n: int, tuning: Attention) -> int:
        """The tasks of a head, of blocks of n."""

    def found(self, problem: Problem) -> tuple[Form, Tiling]:
        """The form of a problem that is not refused, and the layouts of its operands."""
        form = form_of(problem.op.plain)  # type: ignore[attr-defined]
        found = laid_out(form, problem)
        assert isinstance(found, Tiling)
        return form, found

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        made = Writer(problem, variant.plan, caps).run()
        assert not isinstance(made, str)
        return Pieces((made,))


@final
class CAttention(Attends):
    name = "attention in C"
    products, ops = 2, (FusedAttention,)

    def parts(self, problem: Problem, found: Tiling, n: int, tuning: Attention) -> int:
        return -(-found.queries // n)


@final
class CAttentionBackward(Attends):
    """Cotangents of queries, keys and values, a head after the other."""

    name = "attention backward in C"
    products, ops = 5, (FusedBackward,)

    def parts(self, problem: Problem, found: Tiling, n: int, tuning: Attention) -> int:
        assert isinstance(problem.op, FusedBackward)
        return parts_of(problem.op, found, n, tuning)


@final
class CApart(Generated):
    """The user's equations one by one, each with a choice of its own."""

    name = "attention, step by step"
    ops = (FusedAttention, FusedBackward)
    code = "step by step"
    ranked = True

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        return ONLY

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Of products, and of exponentials and the arrays that regions between them write and read."""
        op = problem.op
        assert isinstance(op, FusedAttention | FusedBackward)
        back = isinstance(op, FusedBackward)
        made = (
            e for e in op.jaxpr.eqns if not back or e.op.name != "exp"
        )  # which forward has kept
        return sum(step_seconds(e, caps) for e in made)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        return Pieces(())


def step_seconds(eqn: Eqn, caps: Caps) -> float:
    """The library's product; of an exponential, and of a value between, part of a region."""
    problem = Problem.of(eqn, "c")
    if isinstance(eqn.op, DotGeneral):
        return CProduct().seconds(problem, Variant("BLAS"), caps)
    if eqn.op.name != "exp" or not eqn.outs[0].type.ndim:
        return 0.0
    work = eqn.outs[0].type.size * caps.tuning.attention.apart
    threads = caps.threads if work > caps.tuning.regions.grain else 1
    speed = replace(caps, threads=max(threads, 1)).speed
    return 2 * speed.launch + work / speed.single + 4 * eqn.outs[0].type.nbytes / speed.moved


def parts_of(op: FusedBackward, found: Tiling, n: int, tuning: Attention) -> int:
    """The parts of a head's keys that are tasks of a derivative: several of few heads, unless sums of
    each query are among the results. Sizes alone decide.
    """
    form = form_of(op.plain)
    if any(way(form, r) == "rows" for r in op.reads):
        return 1
    return max(1, min(tuning.tasks // max(found.heads, 1), -(-found.keys // n) // tuning.least))


def visited(form: Form, found: Tiling, n: int) -> int:
    """The pairs of queries and keys of a head in blocks that are seen."""
    band = without_band(scores_of(form), found.queries, found.keys).band
    total = 0
    for top in range(0, found.queries, n):
        rows = min(n, found.queries - top)
        begin = 0 if band.high is None else max(0, (top - band.high) // n * n)
        end = found.keys if band.low is None else min(found.keys, top + rows - band.low)
        total += rows * min(-(-max(end - begin, 0) // n) * n, max(found.keys - begin, 0))
    return total


def refused(problem: Problem, caps: Caps | None) -> str:
    """The reason why no kernel of ours serves attention; "" if one does."""
    form = form_of(problem.op.plain)  # type: ignore[attr-defined]
    if form.queries.base.type.dtype not in LOWEST or form.plain.outputs[0].type.dtype not in LOWEST:
        return "queries, keys, values and result are not of float32, or of float64"
    if form.soft is not None:
        return "it has dropout"
    if form.sunk is not None and form.sunk.base.type.dtype != form.queries.base.type.dtype:
        return "its sink is of another type"
    found = laid_out(form, problem)
    if isinstance(found, str):
        return found
    if found.widths is not None:
        return SEVERAL_WIDTHS
    if problem.settled and any(x.value for x in problem.arrays[0][: len(form.chains)]):
        return "an operand is a Python number"
    made = Writer(problem, 16, caps or Caps(1)).run()
    return made if isinstance(made, str) else ""


def placed(problem: Problem) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The operands of inputs and results; in C order, where that is not known yet."""
    if problem.settled:
        return problem.arrays
    ins = (Operand("in", n, c_order(t.shape)) for n, t in enumerate(problem.inputs))
    outs = (Operand("out", n, c_order(t.shape)) for n, t in enumerate(problem.outs))
    return tuple(ins), tuple(outs)


def arrays_of(form: Form, problem: Problem) -> list[Operand]:
    """Queries, keys, values and the result; and logarithms, and what a sink is made of; of a derivative
    the result's cotangent, logarithms, sums, and the cotangents of the three.
    """
    ins, outs = placed(problem)
    count = len(form.plain.inputs)
    bases = [ins[form.plain.inputs.index(c.base)] for c in form.chains]
    if isinstance(problem.op, FusedAttention):
        sink = [ins[form.plain.inputs.index(form.sunk.base)]] if form.sunk is not None else []
        return [*bases, *outs, *sink]
    logs, rows, ct, _ = ins[count:]
    return [*bases, ct, logs, rows, *outs[:3]]


def laid_out(form: Form, problem: Problem) -> Tiling | str:
    """The layouts of operands; or the reason why no kernel reads them so."""
    op, strides = problem.op, [x.strides for x in arrays_of(form, problem)]
    sink = strides.pop() if isinstance(op, FusedAttention) and form.sunk is not None else None
    sums = 2 if isinstance(op, FusedBackward) else len(strides) - 4
    if any(each[-1] != 1 for each in strides[4 + sums :]):
        return "features are not side by side"
    if isinstance(op, FusedBackward):
        shape, q = form.product.type.shape, form.queries.base.type.dtype
        if any(t.dtype != q for t in problem.outs):
            return "a cotangent is of another type"
        axes = core_shapes(form)
        if any(len(each) != len(form.batch) + 2 for each in axes) or 0 in shape:
            return "there are no queries or keys"
        long = [a for a in form.batch if shape[a] > 1]
        if any(a not in own for own in product_axes(form) for a in long):
            return "an operand has no axis of some heads"
        both = [r[1] for r in op.reads if way(form, r) == "both"]
        if any(a not in dims for dims in both for a in long):
            return "an array of queries and keys is of several heads, whose cotangents are added up"
        _, outs = placed(problem)
        pairs = zip(outs[3:], problem.outs[3:], strict=True)
        if any(x.strides != c_order(t.shape) for x, t in pairs):
            return "a cotangent of what scores are made of is not in C order"
    return tiling(form, strides[:4], strides[4 : 4 + sums], strides[4 + sums :], sink=sink)


@final
class Writer:
    """One kernel, of blocks of so many queries and keys."""

    def __init__(self, problem: Problem, blocks: int, caps: Caps) -> None:
        self.problem, self.op, self.blocks, self.caps = problem, problem.op, blocks, caps
        self.form = form_of(problem.op.plain)  # type: ignore[attr-defined]
        found = laid_out(self.form, problem)
        assert isinstance(found, Tiling)
        self.tiling, self.dtype = found, self.form.queries.base.type.dtype
        self.head, self.arrays = Head(caps), arrays_of(self.form, problem)
        self.scores: Scores = without_band(scores_of(self.form), found.queries, found.keys)
        ins, _ = placed(problem)
        operands = dict(zip(self.form.plain.inputs, ins, strict=False))
        self.reads = Reads(self.form, operands, self.head)

    def run(self) -> CKernel | str:
        """The kernel; or the reason why there is none."""
        form, t, s = self.form, self.tiling, self.scores
        back = isinstance(self.op, FusedBackward)
        edge = self.statements(s.edge, "e")
        whole = edge if s.edge == s.whole else self.statements(s.whole, "w")
        slope = self.slope() if back else NONE
        for each in (edge, whole, slope):
            if isinstance(each, str):
                return each
        assert not isinstance(edge, str) and not isinstance(whole, str)
        assert not isinstance(slope, str)
        head, n = self.head, self.blocks
        for name, size in (("n_queries", t.queries), ("n_keys", t.keys), ("n_heads", t.heads)):
            head.size(name, size)
        head.add(
            "factor", f"{HELD[self.dtype]} ", "constant", (self.dtype.type(s.factor), self.dtype)
        )
        bounds = (
            (s.band.low, "key_at + count - 1 <= top - ({})"),
            (s.band.high, "key_at >= top + rows - 1 - ({})"),
        )
        inside = " && ".join(test.format(b) for b, test in bounds if b is not None)
        ahead = *("y", "logs")[: len(self.problem.outs)], "sink"
        of_both = ("ct", "logs", "sums", "dq", "dk", "dv") if back else ahead
        names = ("q", "k", "v", *of_both)
        rows = {
            name: self.rows(i, name)
            for i, (name, _) in enumerate(zip(names, self.arrays, strict=False))
        }
        sink = self.sink(rows.pop("sink", None)) if not back else ""
        lefts = self.lefts(slope) if back else ()
        totals = [f"{left.name}_total" for left in lefts if left.how == "rows"]
        itemsize = self.dtype.itemsize
        own = (2 * t.width * n + 2 * n * n) if back else (t.width * n + n * n + n * t.width)
        per_thread = -(-own * itemsize // 64) * 64
        head.size("per_thread", per_thread)
        total = per_thread * max(self.caps.threads, 1)
        head.arguments["scratch"] = Argument("char *scratch", "scratch", total)
        parts = self.parts() if back else 1
        places = (*self.places(), *batch_places(form, head))
        first = tuple(dict.fromkeys((*edge.first, *whole.first, *slope.first)))
        view = View(
            STORED[self.dtype], SUFFIX[self.dtype], LOWEST[self.dtype], n, n, t.width,
            self.sharing(back), places, first, low=s.band.low, high=s.band.high,
            branch=whole is not edge and bool(inside), inside=inside, edge=edge, whole=whole,
            slope=slope, lefts=lefts, sink=sink,
            partial=parts > 1, rows_sharing=self.rows_sharing(parts),
            clause=f" reduction(+ : {', '.join(totals)})" if totals else "", **rows,
        )  # fmt: skip
        arguments = sorted(head.arguments.values(), key=lambda a: ORDER.index(a.kind))
        kind, template = ("attention_backward", "backward") if back else ("attention", "forward")
        return CKernel(
            kind, str(self.op.plain), tuple(arguments), (), 8 + len(s.edge.eqns),  # type: ignore[attr-defined]
            template=f"c/attention/{template}.c.jinja", view=view,
        )  # fmt: skip

    def sink(self, array: Rows | None) -> str:
        """The logit of the sink of query r of a block; "" if there is none."""
        sink = self.form.sink
        if sink is None or array is not None:
            return f"({array.begin})[(top + r) * {array.step}]" if array is not None else ""
        number = self.dtype.type(number_of(sink)), self.dtype
        return self.head.add("sink", f"{HELD[self.dtype]} ", "constant", number)

    def parts(self) -> int:
        """The parts of a head's keys, and the memory of their sums."""
        assert isinstance(self.op, FusedBackward)
        t = self.tiling
        count = parts_of(self.op, t, self.blocks, self.caps.tuning.attention)
        self.head.size("parts", count)
        if count > 1:
            nbytes = count * t.heads * t.queries * t.width * self.dtype.itemsize
            declared = f"{STORED[self.dtype]} *partial"
            self.head.arguments["partial"] = Argument(declared, "partial", nbytes)
        return count

    def rows_sharing(self, parts: int) -> Sharing | None:
        """Threads share the rows of which parts are added up."""
        if parts == 1:
            return None
        t = self.tiling
        return self.team(parts * t.heads * t.queries * t.width, "sums_work", "for schedule(static)")

    def statements(self, graph: Graph, mark: str) -> ScoreStatements | str:
        if graph.outputs == (self.form.product,):
            return NONE
        return statements(graph, self.reads, ("t",), self.form.dims, mark)

    def slope(self) -> ScoreStatements | str:
        """The derivative of scores; the cotangent itself, if it is a number."""
        op = self.op
        assert isinstance(op, FusedBackward)
        if op.slopes is None:
            return replace(NONE, results=("ct",))
        shape = self.form.product.type.shape
        dims = tuple(-1 if n == 1 else a for a, n in enumerate(shape))
        return statements(op.slopes, self.reads, ("t", "ct"), dims, "s")

    def lefts(self, slope: ScoreStatements) -> tuple[Left, ...]:
        """The cotangents of what scores are made of, as results."""
        op, form = self.op, self.form
        assert isinstance(op, FusedBackward)
        _, outs = placed(self.problem)
        sizes = {"rows": "n_queries", "keys": "n_keys", "both": "n_queries * n_keys"}
        found = list[Left]()
        for i, (r, value) in enumerate(zip(op.reads, slope.results[1:], strict=True)):
            name, how = f"left{i}", way(form, r)
            self.head.array(name, outs[3 + i], self.problem.outs[3 + i].dtype, written=True)
            found.append(Left(name, how, value, sizes[how]))
        return tuple(found)

    def sharing(self, back: bool) -> Sharing | None:
        """Threads share tasks, if there is enough to do."""
        t = self.tiling
        work = t.heads * visited(self.form, t, self.blocks) * t.width * (10 if back else 4)
        return self.team(work, "work", "for schedule(dynamic)")

    def team(self, work: int, name: str, schedule: str) -> Sharing | None:
        if self.caps.threads == ALONE:
            return None
        self.head.add("threads", "int ", "threads")
        test = f"threads > 1 && {self.head.size(name, work)} > {self.caps.tuning.regions.grain}"
        return Sharing(test, schedule, True)

    def places(self) -> tuple[Text, ...]:
        """The statements of the index along axes of batches as the operands have them."""
        batches, found, inner = self.tiling.batches, list[Text](), ""
        for i in reversed(range(len(batches))):
            size = self.head.size(f"n_batch{i}", batches[i].size)
            code = f"head{f' / ({inner})' if inner else ''}{f' % {size}' if i else ''}"
            found.append(Text(f"const int64_t batch{i} = {code};"))
            inner = f"{inner} * {size}" if inner else size
        return tuple(found)

    def rows(self, n: int, name: str) -> Rows:
        """The address at which operand n of a head begins."""
        head, t = self.head, self.tiling
        written = name in ("y", "dq", "dk", "dv") or (
            name == "logs" and not isinstance(self.op, FusedBackward)
        )
        terms = [head.array(f"{name}_in", self.arrays[n], self.dtype, written)]
        for i, b in enumerate(t.batches):
            if b.strides[n]:
                terms.append(f"batch{i} * {head.size(f'{name}_{i}', b.strides[n])}")
        return Rows(" + ".join(terms), head.size(f"{name}_step", t.rows[n]))
