"""`ge2 COMMAND`: imports the command that is asked for; an error of ours
becomes a line and an exit code.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version

from ge2.base.errors import Ge2Error
from ge2.base.record import record


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
