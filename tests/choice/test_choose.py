"""Choices: order, predictions, preferences, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import InputError, NoRuleError
from ge2.choice import Family, Pin, Prefs, Problem, Variant, prefs
from ge2.choice.choose import choose, settled
from ge2.cli import main
from ge2.ir import ArrayType
from ge2.ops.shape import Reshape, Transpose

T = ArrayType((4, 3), np.dtype(np.float32))
PROBLEM = Problem(Transpose((1, 0)), (T,), (T.with_shape((3, 4)),), "here")


class Offer(Family[int, str]):
    """Refuses chips below `least`, and predicts the seconds that it is given for its variants."""

    target = "here"

    def __init__(self, name: str, least: int = 0, **seconds: float | None) -> None:
        self.title, self.least, self.predicted = name, least, seconds or {"only": None}

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.title

    def refuses(self, problem: Problem, caps: int | None) -> str:
        return (
            f"the chip has {caps} of {self.least}" if caps is not None and caps < self.least else ""
        )

    def variants(self, problem: Problem, caps: int) -> tuple[Variant, ...]:
        return tuple(map(Variant, self.predicted))

    def seconds(self, problem: Problem, variant: Variant, caps: int) -> float | None:
        return self.predicted[variant.name]

    def kernels(self, problem: Problem, variant: Variant, caps: int) -> str:
        return f"{self.name} {variant.name} {caps}"


class Chip(int):
    """So many of what a kernel needs, on a kind of device that nothing was measured on."""

    kind = ""


def taken(*catalog: Offer, caps: int | None = 1, off: tuple[str, ...] = ()) -> str:
    chip = None if caps is None else Chip(caps)
    return choose(PROBLEM, chip, Prefs(frozenset(off)), catalog).taken.title


def test_the_first_that_does_not_refuse() -> None:
    assert taken(Offer("a", 2), Offer("b"), Offer("c")) == "b, only"
    assert taken(Offer("a", 2), Offer("b"), caps=2) == "a, only"
    assert taken(Offer("a", 2), Offer("b"), caps=None) == "a"  # nothing is known of the chip


def test_families_that_serve_other_operations_are_one_line() -> None:
    class Elsewhere(Offer):
        ops = (Reshape,)

        def refuses(self, problem: Problem, caps: int | None) -> str:
            raise AssertionError("nobody asks for more")

    catalog = Elsewhere("a"), Offer("b", 2), Elsewhere("c"), Offer("d")
    choice = choose(PROBLEM, Chip(1), Prefs(), catalog)
    taken = ["not b: the chip has 1 of 2", "d, only"]
    assert str(choice).splitlines() == ["2 families serve other operations", *taken]
    a, c = (f"not {name}: it serves other operations than transpose" for name in "ac")
    assert choice.in_words(every=True).splitlines() == [a, taken[0], c, taken[1]]
    assert str(choose(PROBLEM, Chip(1), Prefs(), catalog[2:])).startswith("1 family serves other")
    with pytest.raises(NoRuleError, match="it serves other operations than transpose"):
        choose(PROBLEM, Chip(1), Prefs(), catalog[:1])


def test_the_least_time_if_all_are_predicted() -> None:
    a, b = Offer("a", slow=3.0, quick=2.0), Offer("b", other=1.0)
    assert taken(a, b) == "b, other" and taken(a) == "a, quick"
    # Of c nothing is known: it comes after those before it, among which predictions decide.
    assert taken(a, Offer("c")) == "a, quick"
    assert taken(a, Offer("c"), b) == "a, quick"
    assert taken(Offer("c"), a) == "c, only"


def test_what_is_switched_off() -> None:
    assert taken(Offer("a"), Offer("b"), off=("a",)) == "b, only"
    with pytest.raises(NoRuleError, match="no kernel for"):
        taken(Offer("a"), off=("a",))


def test_what_a_pass_chose_stays_unless_it_refuses_what_is_known_later() -> None:
    """Such as rows that turn out to begin between multiples of 16 bytes."""
    picky, other = Offer("a", 2, one=1.0), Offer("b", two=2.0)
    kept = choose(PROBLEM, Chip(3), Prefs(), (other, picky))
    assert kept.taken.title == "a, one"

    def later(caps: int) -> str:
        return str(settled(kept, PROBLEM, Chip(caps), Prefs(), (other, picky)))

    assert later(2).startswith("a, one")
    assert later(1) == "b, two, predicted 2e+06 us"


def test_what_is_preferred() -> None:
    a, b = Offer("a", one=1.0), Offer("b", two=2.0)

    def by(**given: object) -> tuple[str, str]:
        found = choose(PROBLEM, Chip(1), Prefs(**given), (a, b))  # type: ignore[arg-type]
        return found.taken.title, found.by

    assert by() == ("a, one", "predicted")
    assert by(only=("b",)) == ("b, two", "order") and by(without=("a",)) == ("b, two", "order")
    assert by(only=("c",)) == ("a, one", "predicted")  # it does not serve, and something has to
    assert by(pins=(Pin("b", "two"),)) == ("b, two", "pinned")
    assert by(pins=(Pin("b", "three"),)) == ("a, one", "predicted")


def test_what_adds_up_in_any_order_is_asked_for() -> None:
    class AnyOrder(Offer):
        def variants(self, problem: Problem, caps: int) -> tuple[Variant, ...]:
            return (Variant("atomics", ordered=False), Variant("sorted"))

    a = AnyOrder("a", atomics=1.0, sorted=2.0)
    assert taken(a) == "a, sorted"
    found = choose(PROBLEM, Chip(1), Prefs(), (a,))
    assert [c.title for c in found.candidates] == ["a, sorted", "a, atomics"]
    assert "the same bits" in found.candidates[1].refusal
    assert choose(PROBLEM, Chip(1), Prefs(deterministic=False), (a,)).taken.title == "a, atomics"


def test_preferences_are_settings() -> None:
    with config.using(prefer=("product in C", "-region in C"), workspace=1, tune="off"):
        assert prefs() == Prefs(
            tune="off", only=("product in C",), without=("region in C",), workspace=1 << 20
        )
    with config.using(prefer=("-region in C",)):
        low = ge2.jit(lambda x: np.tanh(x) + 1).lower(np.ones(3))
        assert low.regions == 0 and low.executable.program.count("library") == 1
    with (
        config.using(prefer="product by BLASS"),
        pytest.raises(InputError, match="'product by BLASS'\n  try  'product by BLAS'"),
    ):
        ge2.jit(np.tanh)(np.ones(3))


def test_a_new_edition_builds_anew() -> None:
    before, f = config.key, ge2.jit(lambda x: x + 1)
    first = f.lower(np.ones(3)).executable
    config.renew()
    assert config.key != before and f.lower(np.ones(3)).executable is not first
    assert "kernels were registered since" in str(f.cache_report())


def test_a_choice_tells_all_of_it() -> None:
    found = choose(PROBLEM, Chip(1), Prefs(), (Offer("a", 2), Offer("b", one=2e-6, two=1e-6)))
    assert str(found).splitlines() == [
        "not a: the chip has 1 of 2",
        "b, two, predicted 1 us, by prediction",
        "or b, one, predicted 2 us",
    ]
    assert found.kernels() == "b two 1"


def test_one_kernel_or_two() -> None:
    """A region of reductions over a leading axis may be one kernel, or
    two with an array between them.
    """
    with ge2.config.using(executor="shim"):
        x = np.ones((64, 8), np.float32)
        low = ge2.jit(lambda x: (x - x.mean(0)) / x.std(0)).lower(x)
    (kernel,) = low.kernels
    assert str(kernel.choice).splitlines()[-2:] == [
        "region in CUDA, columns over axis 0",
        "or region in CUDA, in two",
    ]


def test_the_command_shows_choices(tmp_path, capsys) -> None:
    (tmp_path / "model.py").write_text("def f(x, y):\n    return x @ y\n")
    place = f"{tmp_path / 'model.py'}:f"
    main(
        [
            "show", place, "--args", "f32[64,64]", "f32[64,64]", "--stage", "choice", "--executor",
            "shim",
        ]
    )  # fmt: skip
    out = capsys.readouterr().out
    assert (
        "choice of small_product_0" in out
        and "\nsmall product in CUDA\nor product by BLAS\n" in out
    )
