"""Choices: order, predictions, preferences, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.errors import NoRuleError
from ge2.choice.choose import choose
from ge2.choice.problem import Family, Prefs, Problem, Variant
from ge2.cli.main import main
from ge2.ir import ArrayType
from ge2.ops.shape import Transpose

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


def taken(*catalog: Offer, caps: int | None = 1, off: tuple[str, ...] = ()) -> str:
    return choose(PROBLEM, caps, Prefs(frozenset(off)), catalog).taken.title


def test_the_first_that_does_not_refuse() -> None:
    assert taken(Offer("a", 2), Offer("b"), Offer("c")) == "b, only"
    assert taken(Offer("a", 2), Offer("b"), caps=2) == "a, only"
    assert taken(Offer("a", 2), Offer("b"), caps=None) == "a"  # nothing is known of the chip


def test_the_least_time_if_all_are_predicted() -> None:
    a, b = Offer("a", slow=3.0, quick=2.0), Offer("b", other=1.0)
    assert taken(a, b) == "b, other" and taken(a) == "a, quick"
    assert taken(a, Offer("c")) == "a, slow"  # of c nothing is known: the order decides


def test_what_is_switched_off() -> None:
    assert taken(Offer("a"), Offer("b"), off=("a",)) == "b, only"
    with pytest.raises(NoRuleError, match="no kernel for"):
        taken(Offer("a"), off=("a",))


def test_a_choice_tells_all_of_it() -> None:
    found = choose(PROBLEM, 1, Prefs(), (Offer("a", 2), Offer("b", one=2e-6, two=1e-6)))
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
