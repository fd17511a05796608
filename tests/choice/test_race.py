"""Races: what is checked, what never wins, what is written down; in C and on the emulator."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import compile
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompileError
from ge2.choice import Family, Problem, Variant, record
from ge2.choice.bench import GUARD, Bench, Images, Prepared, Run, is_close
from ge2.choice.choose import Candidate
from ge2.cli import main
from ge2.compile import race
from ge2.ir import Graph
from ge2.program import Program
from ge2.program.assembler import Clock, HostClock
from ge2.targets.cuda.kernels.made import MadeBefore
from ge2.targets.cuda.kernels.tensor_cores import Apart, GemmMmaPair, LoopApart, OneByOne
from tests.together import needs_compiler


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(record, "_taken", {})
    monkeypatch.setattr(race, "LEAST", 1e-6)
    monkeypatch.setattr(
        compile, "SCALE", 512
    )  # each test measures this machine anew, of small arrays
    monkeypatch.setattr(compile, "SIDE", 64)
    with config.using(cache_dir=str(tmp_path), threads=2, progress="off"):
        record.forget()
        ge2.clear_caches()
        yield
    record.forget()


# ------------------------------------------------------------------------- candidates in Python


class Chip:
    kind, driver, libraries = "a chip", "1", ()


def right(x: Any, y: Any) -> None:
    y[...] = x.view(np.float32).reshape(4, 3).T.ravel().view(np.uint8)


def slow(x: Any, y: Any) -> None:
    for _ in range(400):
        right(x, y)


def wrong(x: Any, y: Any) -> None:
    right(x, y)
    y[-4:] = 0


def unwritten(x: Any, y: Any) -> None:
    """What was there stays there."""


def outside(x: Any, y: Any) -> None:
    right(x, y)
    y.base[GUARD - 1] = 0


def over_input(x: Any, y: Any) -> None:
    right(x, y)
    x[:4] = 0


def hungry(x: Any, y: Any) -> None:
    raise MemoryError("8 TB")


def broken(x: Any, y: Any) -> None:
    raise CompileError("error: expected ';'")


def endless(x: Any, y: Any) -> None:
    time.sleep(0.3)
    right(x, y)


WAYS = {
    f.__name__: f
    for f in (slow, right, wrong, unwritten, outside, over_input, hungry, broken, endless)
}


class InPython(Family[Chip, Any]):
    name, target = "python", "c"

    def refuses(self, problem: Problem, caps: Chip | None) -> str:
        return ""

    def variants(self, problem: Problem, caps: Chip) -> Iterator[Variant]:
        return (Variant(name) for name in WAYS)

    def kernels(self, problem: Problem, variant: Variant, caps: Chip) -> Any:
        return WAYS[variant.name]


class PythonBench(Bench):
    def __init__(self, program: Program) -> None:
        (step,) = program.steps
        super().__init__(program, step, (InPython(),), Chip())

    @property
    def problem(self) -> Problem:
        return Problem.of(self.step.eqn, "c", self.program.operand)

    @property
    def clock(self) -> Clock:
        return HostClock()

    def put(self, memory: Any) -> Any:
        return memory.copy()

    def get(self, memory: Any) -> Any:
        return memory

    def prepared(self, candidate: Candidate) -> Prepared:
        work: Callable[[Any, Any], None] = candidate.family.kernels(
            self.problem, candidate.variant, self.caps
        )

        def bound(memory: dict[int, Any], images: Images) -> Run:
            x, y = (memory[id(a.buffer)] for a in (*images.inputs, *images.outs) if a is not None)
            return lambda: work(x[GUARD:-GUARD], y[GUARD:-GUARD])

        return Prepared((candidate.title,), bound)


def turned() -> Program:
    x = np.ones((4, 3), np.float32)
    graph = ge2.make_jaxpr(lambda x: x.T.copy())(x).graph
    assert isinstance(graph, Graph)
    program: Program = ge2.jit(lambda x: x.T.copy()).lower(x).executable.program
    return program


def test_what_is_wrong_never_wins_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = turned()
    kernels = tuple(s for s in program.steps if s.kind in ("kernel", "copy"))
    monkeypatch.setattr(race, "LONG", 0.2)  # others may have the processor for a while
    monkeypatch.setattr(race, "FAR", 2.0)
    bench = PythonBench(Program(program.graph, kernels, program.buffers, program.layouts, "c"))
    found = race.race(bench)
    assert found is not None and found.winner == "python, right" and found.changed
    reasons = {row.variant: row.failure for row in found.entry.rows}
    assert reasons.pop("right") == reasons.pop("slow") == ""
    assert reasons.pop("wrong").startswith("its result is ")
    assert reasons.pop("unwritten").startswith(
        "its result is nan, as if it were not written, at [0, 0]"
    )
    assert reasons.pop("outside") == reasons.pop("over_input") == "it writes outside of its result"
    assert reasons.pop("endless").endswith(" s, and the limit of candidates is 0.2 s")
    assert reasons.pop("hungry") == "there is no memory for it: 8 TB"
    assert reasons.pop("broken").startswith("CompileError: error: expected ';'") and not reasons
    again, _ = record.find("a chip", record.class_of(bench.problem), bench.catalog)
    assert again is not None and again.best is not None and again.best.variant == "right"
    assert again.best.verified and again.best.when and again.best.median > 0


def test_candidates_are_made_ready_at_once() -> None:
    both = threading.Barrier(2, timeout=10)
    met = list[str]()

    class AtOnce(PythonBench):
        def ahead(self, candidate: Candidate) -> Run:
            name = candidate.variant.name
            if name == "hungry":
                raise MemoryError  # it is raised again when the candidate is checked
            return lambda: met.append(name) if name != "right" and name != "slow" else wait(name)

    def wait(name: str) -> None:
        both.wait()
        met.append(name)

    bench = AtOnce(turned())
    race.ahead([bench], float("inf"))
    assert {*met} == {*WAYS} - {"hungry"} and "wanted" in vars(bench.images[1])
    met.clear()
    race.ahead([AtOnce(turned())], time.monotonic() - 1)
    assert not met


def test_blocks_of_results_are_compared_as_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ge2.choice.bench.BLOCK", 2)
    w = np.array([1.0, 2.0, np.inf, np.nan, -np.inf, 0.0, 3.0])
    for n, each in ((0, 1.0), (0, 1.1), (2, 1.0), (2, -np.inf), (3, 0.0), (5, np.inf), (6, np.nan)):
        y = w.copy()
        y[n] = each
        same = bool(np.allclose(y, w, 1e-3, 1e-3, equal_nan=True))
        assert is_close(y, w, 1e-3, 1e-3) == same == (n == 0 and each == 1.0)
        assert not is_close(y, w + 1, 1e-3, 1e-3) and is_close(y, y, 1e-3, 1e-3)


# --------------------------------------------------------------------------------- real programs


def rows(x: Any) -> Any:
    y = x - x.mean(1, keepdims=True)
    return y / np.sqrt((y * y).mean(1, keepdims=True)), np.sort(x, 1), x[::-1, 1:] @ x.T[1:]


def test_a_program_in_c() -> None:
    x = np.random.default_rng(0).random((64, 128), np.float32)
    f = ge2.jit(rows)
    before = f(x)
    low = f.lower(x)
    tuned = race.tune(low.executable)
    assert len(tuned.races) == 3 and tuned.left == 0
    assert all(not row.failure for each in tuned.races for row in each.entry.rows)
    ge2.clear_caches()
    again = ge2.jit(rows).lower(x)
    assert [c.by for c in again.choices.values()] == ["measured"] * 3  # type: ignore[attr-defined]
    # what is built stays as it is, and says so
    assert [c.by for c in low.choices.values()] == ["order"] * 3  # type: ignore[attr-defined]
    for y, z in zip(before, ge2.jit(rows)(x), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5)
    warm = race.tune(again.executable)
    assert not warm.races and warm.known == 3
    with config.using(tune="off"):
        off = ge2.jit(rows).lower(x).choices.values()
        assert {c.by for c in off} == {"order"}  # type: ignore[attr-defined]


def test_a_program_on_the_emulator() -> None:
    x = np.random.default_rng(0).random((8, 16), np.float32)
    with config.using(executor="shim"):
        low = ge2.jit(rows).lower(x)
        tuned = race.tune(low.executable)
        failures = [row.failure for each in tuned.races for row in each.entry.rows]
        assert len(tuned.races) >= 2 and not any(failures)
        ge2.clear_caches()
        found = ge2.jit(rows).lower(x).choices.values()
        assert [c.by for c in found].count("measured") == len(tuned.races)  # type: ignore[attr-defined]


def loop(x: Any) -> Any:
    for _ in range(40):
        x = np.tanh(x) * 0.5 + x[::-1] * 0.25
    return x


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("f", "shapes", "joint", "apart"),
    [
        (loop, ((64,),), "persistent kernel in CUDA, one block", LoopApart.name),
        (
            lambda a, b: np.tanh(a @ b),
            ((16, 16), (16, 16)),
            "small product and region in CUDA",
            Apart.name,
        ),
        (
            lambda a, b, c: np.maximum(a @ b + c, 0),
            ((600, 900), (900, 40), (40,)),
            "product by BLAS and its epilogue",
            Apart.name,
        ),
        (
            lambda a, b, c: np.tanh(np.maximum(a, 0) @ b + c),
            ((16, 24), (24, 18), (18,)),
            "small product and region in CUDA",
            MadeBefore.name,
        ),
    ],
)
def test_several_steps_are_raced_as_one_kernel_and_apart(
    f: Any, shapes: Any, joint: str, apart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(bench: Bench, racers: list[race.Racer], end: float) -> None:
        for racer in racers:
            racer.times.append(1e-6 if racer.candidate.family.name == winner else 1e-3)

    monkeypatch.setattr(race, "timed", timed)
    rng = np.random.default_rng(0)
    xs = [rng.random(shape, np.float32) for shape in shapes]
    with config.using(executor="shim"):
        for winner in (joint.partition(",")[0], apart):
            ge2.clear_caches()
            low = ge2.jit(f).lower(*xs)
            (found,) = race.tune(low.executable, again=True).races
            assert found.winner.startswith(winner) and not any(r.failure for r in found.entry.rows)
            assert [p.partition(",")[0] for p, _ in found.predicted][1] == apart.partition(",")[0]
            ge2.clear_caches()
            built = ge2.jit(f).lower(*xs).choices.values()
            titles = {c.taken.title: c.by for c in built}  # type: ignore[attr-defined]
            measured = [title for title, by in titles.items() if by == "measured"]
            assert measured == ([joint] if joint.startswith(winner) else [])
        np.testing.assert_allclose(ge2.jit(f)(*xs), f(*xs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("winner", [GemmMmaPair.name, OneByOne.name])
def test_pairs_are_raced_with_one_product_after_the_other(
    winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which the second may be a kernel with the region."""

    def timed(bench: Bench, racers: list[race.Racer], end: float) -> None:
        for racer in racers:
            racer.times.append(1e-6 if racer.candidate.family.name == winner else 1e-3)

    monkeypatch.setattr(race, "timed", timed)
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((72, 66)).astype(ml_dtypes.bfloat16) for _ in range(3)]
    gate = ge2.jit(lambda x, w, v: np.tanh(x @ w.T) * (x @ v.T))
    with config.using(executor="shim"):
        tuned = race.tune(gate.lower(*xs).executable, again=True)
        (found,) = (r for r in tuned.races if OneByOne.name in dict(r.predicted))
        assert found.winner.startswith(winner)
        assert not any(row.failure for row in found.entry.rows)
        ge2.clear_caches()
        kinds = {k.choice.family.name for k in gate.lower(*xs).kernels}
        assert (winner in kinds) == winner.startswith("mma")


def test_no_time_is_left() -> None:
    x = np.ones((64, 128), np.float32)
    tuned = race.tune(ge2.jit(rows).lower(x).executable, budget=0.0)
    assert not tuned.races and tuned.left == 3


# ------------------------------------------------------------------------------------- functions


def by(f: Any, *xs: Any) -> set[str]:
    return {c.by for c in f.lower(*xs).choices.values()}


def double(x: Any) -> Any:
    return np.tanh(x) * 2


BIG = np.linspace(0, 1, 1 << 13, dtype=np.float32)


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Says which variant wins from now on, whatever the machine does meanwhile."""

    def won_by(variant: str) -> None:
        def timed(bench: Bench, racers: list[race.Racer], end: float) -> None:
            for racer in racers:
                racer.times.append(1e-6 if racer.candidate.variant.name == variant else 1e-3)

        monkeypatch.setattr(race, "timed", timed)

    return won_by


def taken(low: Any) -> list[tuple[str, str]]:
    return [(c.taken.variant.name, c.by) for c in low.choices.values()]


def test_a_function_is_tuned(raced: Callable[[str], None]) -> None:
    raced("one thread")
    f = ge2.jit(double)
    assert by(f, BIG) == {"order"}
    found = f.tune(ge2.ShapeDtypeStruct(BIG.shape, BIG.dtype))
    assert len(found.races) == 1 and "1 races in " in str(found) and found.changed
    assert taken(f.lower(BIG)) == [("one thread", "measured")]
    assert not f.tune(BIG).races
    again = f.tune(BIG, again=True)
    assert len(again.races) == 1 and not again.changed  # it has won before
    np.testing.assert_allclose(f(BIG), double(BIG), rtol=1e-6)
    with pytest.raises(ArgumentError, match="a budget is a number of seconds, 0 or more; got -1"):
        f.tune(BIG, budget=-1)


def test_another_winner_is_for_what_is_built_next(raced: Callable[[str], None]) -> None:
    """What is built keeps its kernels; calls after that build anew, also of other functions."""
    f, other = ge2.jit(double), ge2.jit(lambda x: np.tanh(x) * 2)
    low, before = other.lower(BIG), config.key
    other(BIG)
    raced("")
    f.tune(BIG)  # won by what was taken: nothing is built anew
    assert config.key is before and other.lower(BIG).executable is low.executable
    raced("one thread")
    f.tune(BIG, again=True)
    assert config.key is not before and taken(low) == [("", "order")]
    assert taken(other.lower(BIG)) == [("one thread", "measured")]
    with config.using(tune="off"):
        assert taken(other.lower(BIG)) == [("", "order")]


def test_what_is_built_inside_is_tuned(raced: Callable[[str], None]) -> None:
    raced("one thread")
    f, before = ge2.jit(double), config.key
    with ge2.tuning(budget=30):
        f(BIG)
        assert taken(f.lower(BIG)) == [("one thread", "measured")]
    assert config.key is not before  # which built programs with what lost
    assert len(record.entries()) == 1 and by(ge2.jit(double), BIG) == {"measured"}
    with ge2.tuning(budget=0):
        ge2.jit(lambda x: np.exp(x) + 1)(BIG)
    assert len(record.entries()) == 1


def test_on_measures_when_a_program_is_built(
    raced: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    raced("one thread")
    with config.using(tune="on"):
        f = ge2.jit(double)
        f(BIG)
        assert taken(f.lower(BIG)) == [("one thread", "measured")] and record.entries()
        monkeypatch.setattr(race, "race", None)  # nothing is measured by a call, or in a warm start
        f(BIG)
        ge2.clear_caches()
        record.forget()
        assert taken(ge2.jit(double).lower(BIG)) == [("one thread", "measured")]


def test_off_is_a_function_of_code_and_chip_alone(raced: Callable[[str], None]) -> None:
    import ge2.choice as built
    from ge2.targets.c.tuning import Caps

    with config.using(tune="off"):
        found = str(next(iter(ge2.jit(double).lower(BIG).choices.values())))
    raced("one thread")
    ge2.jit(double).tune(BIG)
    usual = Caps(2).usual
    built.keep_speed(Caps(2).kind, usual.__class__(1.0, 1.0, 1, 1.0, 1.0, 1.0, 1.0))
    assert Caps(2).speed != usual
    with config.using(tune="off"):
        ge2.clear_caches()
        assert Caps(2).speed == usual
        assert str(next(iter(ge2.jit(double).lower(BIG).choices.values()))) == found


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "model.py").write_text(
        "import numpy as np\n\ndef f(x):\n    return np.tanh(x) * 2\n"
    )
    place = f"{tmp_path / 'model.py'}:f"
    assert main(["tune", place, "--args", "f32[8192]"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("problem ") and "1 races in " in out and "region in C" in out
    assert main(["tune", place, "--args", "f32[8192]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"races": []}
    keep_predicted()
    assert main(["tune", "--report"]) == 0
    report = capsys.readouterr().out.splitlines()
    assert report[0].split()[:2] == ["device", "family"]
    (line,) = (line for line in report if line.startswith("a chip") and " a " in line)
    assert line.split()[-6:] == ["1", "1.50", "1.00", "x", "3.00", "x"]
    assert main(["tune"]) == 1
    assert "ge2 tune takes a function, or --report" in capsys.readouterr().err


def keep_predicted() -> None:
    from ge2.choice import Measured

    problem = record.ProblemClass("a form", ("4",))
    rows = [Measured("a", "", 3.0, predicted=2.0), Measured("b", "", 1.0, predicted=2.5)]
    record.keep("a chip", problem, True, rows)


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "shim"])
def test_numbers_of_a_type_that_the_host_computes(executor: str) -> None:
    """As an optimiser's corrections, powers of the number of a step: no array holds them."""
    x = np.ones((512, 300), np.float32)

    def corrected(n: int, x: Any) -> Any:
        return np.sum(x / (1 - 0.9**n), axis=-1)

    with config.using(executor=executor):
        f = ge2.jit(corrected)
        assert "f32[] = convert_element_type" in f.lower(2, x).as_text("graph")
        found = f.tune(2, x, budget=20, again=True)
    assert found.races
    for each in found.races:
        assert each.entry.best and not any(r.failure for r in each.entry.rows), each.entry.rows
