"""A traceback shows the lines of the user's program; those of ge2 are shown
when they are asked for.
"""

from __future__ import annotations

import inspect
import os
import pickle
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable
from heapq import nlargest
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base import record as recursion
from ge2.base.config import config
from ge2.base.source import PACKAGE
from ge2.base.tracebacks import called_name, inside, is_boundary

X = np.ones(3)


def raised(call: Callable[[], Any], mode: str = "short") -> BaseException:
    with config.using(traceback=mode), pytest.raises(BaseException) as caught:
        call()
    return caught.value


def functions(error: BaseException) -> list[str]:
    """The functions of a traceback, from the call on."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f.name if PACKAGE not in f.filename else "ge2" for f in frames][1:]


def product(x: Any) -> Any:
    return x @ np.ones((4, 4))


def loss(x: Any) -> Any:
    return ge2.jit(product)(x).sum()


def fails(*_: Any) -> Any:
    raise KeyError("mine")


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


@ge2.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), fails)
KEPT: list[Any] = []
ge2.jit(lambda x: (KEPT.append(x), x)[1])(X)

SHOWN: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "traced": (lambda: ge2.jit(product)(X), ["<lambda>", "product"]),
    "nested": (lambda: ge2.jit(ge2.value_and_grad(loss))(X), ["<lambda>", "loss", "product"]),
    "batched": (lambda: ge2.vmap(ge2.vmap(product))(np.ones((2, 3, 3))), ["<lambda>", "product"]),
    "looped": (
        lambda: ge2.lax.scan(lambda c, x: (product(c), x), X, X),
        ["<lambda>", "<lambda>", "product"],
    ),
    "traced alone": (lambda: ge2.jit(product).trace(X), ["<lambda>", "product"]),
    "in a rule": (
        lambda: ge2.grad(lambda x: doubled(x).sum())(X),
        ["<lambda>", "<lambda>", "fails"],
    ),
    "in a callback": (
        lambda: ge2.jit(lambda x: ge2.pure_callback(fails, x, x))(X),
        ["<lambda>", "fails"],
    ),
    "interrupted": (lambda: ge2.jit(interrupted)(X), ["<lambda>", "interrupted"]),
    "in Python's modules": (lambda: ge2.jit(lambda x: nlargest(2, x))(X), ["<lambda>", "<lambda>"]),
    "absent from ge2": (lambda: ge2.nonsense, ["<lambda>"]),
    "absent from a module": (lambda: ge2.numpy.nonsense, ["<lambda>"]),
    "pulled": (lambda: ge2.vjp(np.sin, X)[1](np.ones(4)), ["<lambda>"]),
    "function": (lambda: ge2.numpy.reshape(X, 7), ["<lambda>"]),
    "random": (lambda: ge2.random.normal("key"), ["<lambda>"]),
    "operator of a leak": (lambda: KEPT[0] + 1, ["<lambda>"]),
    "method of a leak": (lambda: KEPT[0].sum(), ["<lambda>"]),
    "ufunc of a leak": (lambda: np.sin(KEPT[0]), ["<lambda>"]),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_users_lines_are_shown_and_no_others(name: str) -> None:
    call, wanted = SHOWN[name]
    assert functions(raised(call)) == wanted


def test_all_of_them_when_they_are_asked_for() -> None:
    shown = functions(raised(lambda: ge2.jit(product)(X), "full"))
    assert [name for name in shown if name != "ge2"] == ["<lambda>", "product"]
    assert len(shown) > 8


def branch(x: Any) -> Any:
    try:
        return x if x.sum() > 0 else -x
    except TypeError as error:
        raise RuntimeError("mine") from error


def again(x: Any) -> Any:
    try:
        return x if x.sum() > 0 else -x
    except TypeError:
        return fails()


@pytest.mark.parametrize("function", [branch, again])
def test_what_led_to_an_error_loses_its_frames_too(function: Any) -> None:
    error = raised(lambda: ge2.jit(function)(X))
    first = error.__cause__ or error.__context__
    assert isinstance(first, ge2.errors.TracerBoolConversionError)
    assert [f.name for f in traceback.extract_tb(first.__traceback__)] == [function.__name__]


OURS: dict[str, Any] = {}
exec(
    compile(
        """
def handles(x):
    try:
        return {}[x]
    except KeyError:
        raise TypeError("outer")

def breaks(x):
    return {}[x]
""",
        "<ge2 of a test>",
        "exec",
    ),
    OURS,
)


def test_an_error_that_never_left_ge2_is_not_shown() -> None:
    error = raised(lambda: ge2.jit(lambda x: OURS["handles"](3))(X))
    assert "".join(traceback.format_exception(error)).count("Traceback") == 1
    assert not hasattr(error, "__notes__")  # it was raised on purpose


def test_one_that_nobody_meant_says_where_to_look() -> None:
    error = raised(lambda: ge2.jit(ge2.vmap(lambda x: OURS["breaks"](3)))(X))
    assert error.__notes__ == ["  (raised inside ge2, whose frames GE2_TRACEBACK=full shows)"]
    assert not hasattr(raised(lambda: ge2.jit(fails)(X)), "__notes__")
    # NumPy's own says the user's line alone, and a fix
    (note,) = raised(lambda: ge2.jit(lambda x: ge2.numpy.zeros(x))(X)).__notes__
    assert "  at   test_tracebacks.py:" in note and "  try  " in note
    # of a call that does not fit
    assert not hasattr(raised(lambda: ge2.jit(product)(X, X)), "__notes__")


@pytest.fixture
def mistake(tmp_path: Path) -> Path:
    file = tmp_path / "mistake.py"
    file.write_text(
        "import numpy as np, ge2\n"
        "def test_f():\n"
        "    def f(x):\n"
        "        if x.sum() > 0:\n"
        "            return x\n"
        "        return -x\n"
        "    y = ge2.jit(f)(np.ones(3))\n"
        "if __name__ == '__main__':\n"
        "    test_f()\n"
    )
    return file


def printed(*command: Any) -> str:
    path = os.pathsep.join(
        [str(Path(PACKAGE).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = {**os.environ, "GE2_TRACEBACK": "short", "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout + run.stderr


def test_python_prints_ten_lines(mistake: Path) -> None:
    text = printed(mistake)
    # a line of the module's more than a user has, who calls f there
    assert text.count("File ") == 3
    assert len(text.splitlines()) == 12
    assert PACKAGE not in text
    assert "\nge2.errors.TracerBoolConversionError: the truth of " in text


def test_pytest_shows_the_users_lines(mistake: Path) -> None:
    text = printed("-m", "pytest", "-q", "-p", "no:cacheprovider", mistake)
    assert "mistake.py:4: TracerBoolConversionError" in text
    assert PACKAGE not in text


def test_ipython_shows_the_users_lines(mistake: Path) -> None:
    formatter = pytest.importorskip("IPython.core.ultratb").FormattedTB(mode="Context")
    expected = pytest.raises(ge2.errors.TracerBoolConversionError)
    with config.using(traceback="short"), expected as caught:
        runpy.run_path(str(mistake), run_name="__main__")
    text = "\n".join(formatter.structured_traceback(caught.type, caught.value, caught.tb))
    assert "at   mistake.py:4 in f" in text
    assert PACKAGE not in text


def test_a_boundary_is_the_function_in_all_but_its_frame() -> None:
    assert pickle.loads(pickle.dumps(ge2.lax.scan)) is ge2.lax.scan
    assert pickle.loads(pickle.dumps(ge2.numpy.sum)) is ge2.numpy.sum
    assert "xs" in inspect.signature(ge2.lax.scan).parameters
    assert ge2.lax.scan.__module__ == "ge2.lax"
    assert ge2.numpy.sum.__doc__
    assert ge2.tree_util.tree_map is ge2.tree.map


def test_what_nests_too_deep_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each jitted function inside another takes frames of Python; with more of them it works."""

    def nested(levels: int) -> Any:
        f: Any = lambda x: x * 2  # noqa: E731
        for _ in range(levels):
            f = ge2.jit(lambda x, inner=f: inner(x) + 1)
        return f

    before, few = sys.getrecursionlimit(), len(inspect.stack(0)) + 300
    monkeypatch.setattr(recursion, "DEEP", few)
    try:
        sys.setrecursionlimit(few)
        with pytest.raises(RecursionError) as found:
            nested(20)(np.ones(3))
        assert sum("sys.setrecursionlimit" in note for note in found.value.__notes__) == 1
        sys.setrecursionlimit(few + 3_000)
        np.testing.assert_array_equal(nested(20)(np.ones(3)), 22.0)
    finally:
        sys.setrecursionlimit(before)


def test_a_function_under_several_names_is_one_object() -> None:
    modules = [ge2, ge2.debug, ge2.extend, ge2.lax, ge2.random, ge2.tree, ge2.tree_util]
    modules += [ge2.numpy, ge2.numpy.fft, ge2.numpy.linalg]
    objects: dict[int, set[int]] = {}
    for module in modules:
        for value in (getattr(module, name) for name in module.__all__):
            if isinstance(value, FunctionType):
                objects.setdefault(id(inside(value)), set()).add(id(value))
    assert len(objects) > 400
    assert all(len(each) == 1 for each in objects.values())
    assert ge2.remat is ge2.checkpoint
    assert ge2.numpy.amax is ge2.numpy.max


def test_help_names_a_function_as_it_is_imported() -> None:
    modules = [ge2, ge2.debug, ge2.extend, ge2.lax, ge2.random, ge2.tree, ge2.numpy, ge2.kernels]
    modules += [ge2.nn, ge2.nn.initializers, ge2.optim, ge2.io, ge2.io.torch, ge2.test_util]
    homes = {module.__name__: module for module in modules}
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, FunctionType) and is_boundary(value):
                found = called_name(inside(value), ())
                home, _, last = found.rpartition(".")
                if home in homes:
                    is_it = getattr(homes[home], last) is value
                    assert is_it or name == "permute_dims", found  # which NumPy has as transpose
                else:
                    assert home.startswith(("ge2.numpy.", "ge2.scipy.")), found
