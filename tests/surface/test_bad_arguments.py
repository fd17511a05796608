"""Whatever a public function is given, its error says what, at which line, and what to try."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.scipy.special
from ge2.base.config import config
from ge2.errors import Ge2Error
from tests.exhaustive import sampled

MODULES = [
    ge2.numpy, ge2.numpy.linalg, ge2.numpy.fft, ge2.lax, ge2.random, ge2.tree, ge2.scipy.special,
]  # fmt: skip
X = np.arange(6.0).reshape(2, 3)
PROGRAMS = {"while_loop", "fori_loop"}  # loops of arguments that are no functions may never end
BAD: dict[str, Any] = {
    "a string": "abc",
    "None": None,
    "an object": object(),
    "a shape": np.zeros((2, 0, 5)),
    "a size": -99,
}


@pytest.fixture(autouse=True)
def numpys_own_settings() -> Iterator[None]:
    """`set_printoptions` takes some of what is bad, and other tests print."""
    with np.printoptions(), np.errstate():
        yield


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in MODULES:
        for name in module.__all__:
            f = getattr(module, name)
            if not isinstance(f, type | ModuleType) and callable(f) and name not in PROGRAMS:
                yield f"{module.__name__}.{name}", f


def calls(f: Callable[..., Any], bad: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Calls with something bad in the place of each argument in turn."""
    try:
        known = list(inspect.signature(f).parameters.values())
    except ValueError:
        known = []
    count = sum(p.default is p.empty and p.kind in (0, 1) for p in known) or 1
    for i in range(count):
        yield [bad if i == j else X for j in range(count)], {}
    for p in known:
        if p.default is not p.empty and p.kind in (1, 3):
            yield [X] * count, {p.name: bad}


def traced(f: Callable[..., Any], args: list[Any], named: dict[str, Any]) -> None:
    """The function called while a function is traced, its arrays as arguments of that."""
    arrays = [x for x in args if x is X]

    def program(*xs: Any) -> None:
        rest = iter(xs)
        f(*[next(rest) if x is X else x for x in args], **named)

    ge2.make_jaxpr(program)(*arrays)


def complaint(call: Callable[..., Any], *args: Any) -> str:
    """What is wrong with the error of a call; nothing if there is none, or NumPy's own."""
    try:
        call(*args)
    except Ge2Error as error:
        lacks = [w for w in ("at   .+:\\d+", "try  .+") if not re.search(f"\n  {w}", str(error))]
        return f"{lacks} of {error!r}" if lacks else ""
    except Exception as error:  # noqa: BLE001 any other is looked at
        notes = "\n".join(getattr(error, "__notes__", ()))
        ours = "raised inside ge2" in notes
        return (
            ""
            if not ours or re.search(r"\n  in   .+\n  at   .+\n  try  .+", "\n" + notes)
            else repr(error)
        )
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", BAD)
def test_bad_arguments_are_refused_with_a_line_and_a_remedy(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files by the name that they are given
    found = []
    with config.using(traceback="short", executor="reference"):
        for name, f in sampled(functions(), lambda each: f"{each[0]} of {kind}"):
            for args, named in calls(f, BAD[kind]):
                call = traced if name.startswith(("ge2.numpy", "ge2.lax")) else plain
                text = complaint(call, f, args, named)
                found += [f"{name}({len(args)} arguments, {list(named)}): {text}"] if text else []
    assert not found, "\n".join(found[:20])


def plain(f: Callable[..., Any], args: list[Any], named: dict[str, Any]) -> None:
    f(*args, **named)


def test_an_error_of_pythons_own_names_the_call_and_the_line() -> None:
    with config.using(traceback="short"), pytest.raises(TypeError) as caught:
        ge2.lax.associative_scan("abc", X)  # type: ignore[arg-type]
    text = "".join(traceback.format_exception_only(caught.value))
    assert (
        "  in   ge2.lax.associative_scan('abc', float64[2,3])\n  at   test_bad_arguments.py:"
        in text
    )
    assert "  try  help(ge2.lax.associative_scan), which lists what it takes" in text


def test_a_call_that_does_not_fit_shows_what_does() -> None:
    with config.using(traceback="short"), pytest.raises(TypeError) as caught:
        ge2.optim.sgd(lr=0.1)  # type: ignore[call-arg]
    place, fix = "".join(caught.value.__notes__).split("\n")
    assert place.startswith("  at   test_bad_arguments.py:")
    assert fix.startswith("  try  ge2.optim.sgd(rate, momentum=0.0, *, nesterov=False, decay=0.0")


def test_trees_that_differ_name_the_line() -> None:
    with pytest.raises(ge2.errors.PytreeError) as caught:
        ge2.tree.map(lambda a, b: a, (1, 2), (1,))
    assert "\n  at   test_bad_arguments.py:" in str(caught.value)
    assert str(caught.value).endswith(
        "\n  try  trees of one structure, which ge2.tree.structure(tree) shows"
    )


@dataclass
class Net:
    w: np.ndarray
    name: str = "a"


@dataclass
class Mended:
    w: np.ndarray
    name: str = field(default="a", metadata={"static": True})


def test_a_derivative_by_a_string_in_a_container_has_a_fix_that_works() -> None:
    f = ge2.grad(lambda p: ((p["w"] if isinstance(p, dict) else p.w) ** 2).sum())
    with pytest.raises(ge2.errors.GradientError) as caught:
        f(Net(X))
    fix = "name: str = dataclasses.field(metadata={'static': True}), or p without it"
    assert f"\n  try  {fix}" in str(caught.value)
    np.testing.assert_array_equal(f(Mended(X)).w, 2 * X)
    with pytest.raises(ge2.errors.GradientError, match="try  p without it"):
        f({"w": X, "name": "a"})
