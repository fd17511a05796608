"""`ge2 COMMAND`: the command that is asked for is imported, and an error of ours becomes a line and an
exit code; and what commands share: tables, a user's function and its arguments.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Final

import ge2
from ge2.base.config import OLD, config
from ge2.base.errors import Ge2Error, InputError
from ge2.base.record import record
from ge2.choice.arguments import EXAMPLE, arguments
from ge2.ir import Graph


@record
class Command:
    """A module with `NAME_arguments(parser)` and `run_NAME(options) -> exit code`."""

    module: str
    summary: str


COMMANDS = {
    "cache": Command("ge2.cli.cache", "list, verify and empty the cache of compiled kernels"),
    "compile": Command(
        "ge2.cli.show", "write the CUDA kernels of a function and their cubins, with no GPU"
    ),
    "demo": Command(
        "ge2.cli.demo",
        "train a network on handwritten digits, or, with gpt, a small GPT-2 of letters",
    ),
    "doctor": Command(
        "ge2.cli.doctor", "say what ge2 finds on this machine, and how to mend what is broken"
    ),
    "explain": Command(
        "ge2.cli.kernels", "say for each kernel what it covers, what else could run, and why"
    ),
    "kernels": Command(
        "ge2.cli.kernels", "check a kernel of your own for a function, and race it with ge2's"
    ),
    "plot": Command("ge2.cli.cache", "draw the curves of a log that ge2.io.progress wrote"),
    "profile": Command(
        "ge2.cli.kernels", "time a call kernel by kernel, beside what the device could do"
    ),
    "show": Command(
        "ge2.cli.show", "print what a function becomes: graph, passes, regions, kernels"
    ),
    "tune": Command(
        "ge2.cli.kernels", "measure the candidates for each kernel, and keep what is best"
    ),
}

MISSPELT, FAILED, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        return unknown(name)
    try:
        code = dispatch(parser_for(name), words)
        sys.stdout.flush()  # so that what cannot be written is known here
        return code
    except Ge2Error as error:
        print(f"ge2: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\nge2: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output left, as `head` does; nothing more can be said
        sys.stderr.close()
        return FAILED
    except OSError as error:
        if error.filename is not None:  # of a file, not of our output
            raise
        print(f"ge2: the output cannot be written: {error.strerror}", file=sys.stderr)
        # for what Python still holds
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def dispatch(parser: argparse.ArgumentParser, words: list[str]) -> int:
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help()
        return 0
    module = importlib.import_module(COMMANDS[options.command].module)
    return int(getattr(module, f"run_{options.command}")(options))


def parser_for(name: str | None) -> argparse.ArgumentParser:
    """The parser; only the command that is asked for is imported, so `ge2 --help` is quick."""
    parser = argparse.ArgumentParser(
        prog="ge2", description="Compiles the array functions you write."
    )
    parser.add_argument("--version", action="version", version=f"ge2 {installed_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for key, command in COMMANDS.items():
        sub = commands.add_parser(key, help=command.summary, description=command.summary)
        if key == name:
            getattr(importlib.import_module(command.module), f"{key}_arguments")(sub)
    return parser


def unknown(name: str) -> int:
    near = get_close_matches(name, COMMANDS, n=1)
    hint = (
        f"did you mean 'ge2 {near[0]}'?"
        if near
        else f"there is {', '.join(COMMANDS)}; see 'ge2 --help'"
    )
    print(f"ge2: there is no command '{name}': {hint}", file=sys.stderr)
    return MISSPELT


def installed_version() -> str:
    try:
        return version("ge2")
    except PackageNotFoundError:
        return "from a checkout that is not installed"


# -------- A function of a user's file or module, named `FILE.py:function`, and its arguments. What
# the file does under `__main__` is not done.

# -------------------------------------------------------------------------------------------- words


def milliseconds(seconds: float) -> str:
    """
    >>> milliseconds(0.001), milliseconds(0.0012345), milliseconds(12.0)
    ('1 ms', '1.23 ms', '12000 ms')
    """
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def deliver(text: str, output: str | None) -> None:
    """Prints a text, or writes it to a file. Ge2Error if the file cannot be written."""
    if not output:
        print(text)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise Ge2Error(f"{output} cannot be written: {error.strerror}") from error


# -------------------------------------------------------------------------------------------- load


FORM: Final = "model.py:function, or package.module:function"


def load(place: str) -> tuple[Callable[..., Any], ModuleType]:
    """The function, and the module that it is of. InputError if there is no such thing."""
    path, colon, name = place.rpartition(":")
    if not colon or not path or not name:
        raise InputError(f"{place!r} names no function of a file or a module", fix=FORM)
    module = imported(path) if is_module(path) else module_of(path)
    return function_of(module, name, path), module


def is_module(path: str) -> bool:
    """True for the name of a module, unless a file is called so."""
    parts = path.split(".")
    return parts[-1] != "py" and all(map(str.isidentifier, parts)) and not os.path.isfile(path)


def imported(name: str) -> ModuleType:
    """The module of that name, which may be of the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and f"{name}.".startswith(f"{missing}."):
            near = get_close_matches(name, [f.removesuffix(".py") for f in os.listdir()], 1)
            fix = f"{near[0]}.py:..." if near else FORM
            raise InputError(f"there is no module {missing}", fix=fix) from None
        where = last_line(error, f"{name.replace('.', os.sep)}.py")
        raise Ge2Error(f"{name} fails when it is imported: {words(error)}", where=where) from error


def module_name(path: str) -> str:
    """The name of the file, unless another module has it."""
    name = os.path.splitext(os.path.basename(path))[0]
    return f"_shown_{name}" if name in sys.modules else name


def module_of(path: str) -> ModuleType:
    """The file as a module, which finds its neighbours as it would if it were run."""
    if not os.path.isfile(path):
        folder = os.path.dirname(path) or "."
        files = (
            [f for f in os.listdir(folder) if f.endswith(".py")] if os.path.isdir(folder) else []
        )
        near = get_close_matches(os.path.basename(path), files, 1)
        fix = os.path.join(os.path.dirname(path), near[0]) if near else FORM
        raise InputError(f"there is no file {path}", fix=fix)
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file", fix=FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        what = f"{path} fails when it is imported: {words(error)}"
        raise Ge2Error(what, where=last_line(error, path)) from error
    return module


def function_of(module: ModuleType, name: str, path: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, x in vars(found).items() if callable(x) and not n.startswith("_")]
            own = [n for n in known if getattr(vars(found)[n], "__module__", "") == module.__name__]
            near = get_close_matches(part, known, 3) or own[:5]
            fix = " or ".join(f"{path}:{n}" for n in near) or f"def {part} in {path}"
            raise InputError(f"{path} has no function {part}", fix=fix)
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{name} of {path} is no function: it is {found!r:.60}", fix=FORM)
    function: Callable[..., Any] = found
    return function


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def last_line(error: BaseException, path: str) -> str:
    """The line of the user's file that was being executed."""
    file, whole = os.path.basename(path), os.path.abspath(path)
    if isinstance(error, SyntaxError) and error.filename == whole:
        return f"{file}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == whole]
    return f"{file}:{frames[-1].lineno} in {frames[-1].name}" if frames else path


# ---------------------------------------------------------------------------------------- function
# A function and its arguments as every command names them.


FUNCTION: Final = "FILE.py:function"
HELP: Final = "a function of a file, or of a module, which is imported: model.py:f, package.model:f"


def add_function(parser: argparse.ArgumentParser) -> None:
    """The words that name a function, its arguments, and what is to become of it first."""
    parser.add_argument("place", metavar=FUNCTION, help=HELP)
    option = parser.add_argument
    option("--args", nargs="*", default=[], metavar="SPEC", help=f"its arguments, as in: {EXAMPLE}")
    option("--grad", action="store_true", help="its derivative by the first argument")
    option(
        "--vmap", metavar="AXES", help="it over an axis more of its arguments: 0, or 0,None of two"
    )


def add_executor(parser: argparse.ArgumentParser, *executors: str) -> None:
    words = "in place of GE2_EXECUTOR; emulator: for a GPU"
    known = lambda name: OLD.get(("executor", name), name)  # noqa: E731
    parser.add_argument("--executor", type=known, choices=executors, help=words)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file, not to the screen")


def named(options: argparse.Namespace, each: Callable[[Any], Any] | None = None) -> Look:
    """The function that the words of `add_function` name, with its arguments.

    `each` is done to every leaf of the arguments. InputError if there is no such function, or it
    takes no such arguments.
    """
    function, module = load(options.place)
    args, kwargs = arguments(options.args, vars(module))
    check(function, args, kwargs, options.place)
    if each is not None:
        args, kwargs = ge2.tree.map(each, (args, kwargs))
    return Look(transformed(function, options.grad, options.vmap), args, kwargs)


def transformed(function: Callable[..., Any], grad: bool, axes: str | None) -> Callable[..., Any]:
    """The function, its derivative, and either of them for each element along an axis."""
    function = ge2.grad(function) if grad else function
    if axes is None:
        return function
    try:
        in_axes = ast.literal_eval(axes)
    except (ValueError, SyntaxError):
        what = f"--vmap takes an axis of all arguments, or one for each; got {axes!r}"
        raise InputError(what, fix='--vmap 0, --vmap "0, None"') from None
    return ge2.vmap(function, in_axes)


def check(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], place: str
) -> None:
    """Refuses arguments that the function does not take."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = f"--args gives {len(args) + len(kwargs)}"
        names = " ".join(f'"{name}"' for name in signature.parameters)
        fix = f"--args {names}, in place of each name what it is, such as f32[128,64]"
        raise InputError(f"{place} takes {signature}; {given}: {error}", fix=fix) from None


class Look:
    """A function with its arguments; each thing about it is found when it is asked for."""

    def __init__(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self.function: Any = function if hasattr(function, "lower") else ge2.jit(function)
        self.args, self.kwargs = args, kwargs
        self.on_gpu = False  # whether its arrays are there

    def traced(self) -> Any:
        """The function's trace; no kernel is made for it."""
        with config.using(executor="reference"):
            return self.guarded(self.function.trace)

    def graph(self) -> Graph:
        graph: Graph = self.traced().jaxpr
        return graph

    def lowered(self) -> Any:
        return self.guarded(self.function.lower)

    def guarded(self, ask: Callable[..., Any]) -> Any:
        """The function, whose errors name the user's line."""
        try:
            return ask(*self.args, **self.kwargs)
        except Ge2Error:
            raise
        except Exception as error:
            inner = inspect.unwrap(self.function)
            path = getattr(getattr(inner, "__code__", None), "co_filename", "")
            raise Ge2Error(
                f"the function fails: {words(error)}", where=last_line(error, path)
            ) from error
