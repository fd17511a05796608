"""`ge2 demo gpt`: trains the model of letters of examples/gpt2, and writes a text by it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

from ge2.base.errors import ArgumentError
from ge2.base.source import templates
from ge2.cli.load import Progress, columns

STEPS, LETTERS = 1000, 400
OTHERS = ("epochs", "json", "kernels", "output")


def example(name: str) -> Any:
    """A module of examples/, which is beside the templates in a checkout and in a wheel."""
    if "examples" not in sys.modules:
        spec = ModuleSpec("examples", None, is_package=True)
        spec.submodule_search_locations = [os.path.join(os.path.dirname(templates()), "examples")]
        sys.modules["examples"] = module_from_spec(spec)
    return importlib.import_module(f"examples.{name}")


def run(options: argparse.Namespace) -> int:
    """Trains and writes; 0 if the model knows more of unseen text than a table of pairs of letters."""
    others = [f"--{name}" for name in OTHERS if getattr(options, name)]
    if others or options.device != "cpu":
        what = f"ge2 demo gpt does not take {others[0] if others else '--device cuda'}"
        raise ArgumentError(what, fix="ge2 demo gpt --steps 1000 --seed 0")
    characters, steps = example("gpt2.characters"), options.steps or STEPS
    print("A small GPT-2 learns the letters of Python's help, float32, on the CPU\n")
    progress, began = Progress("training", steps, "steps"), time.perf_counter()
    model, alphabet, held, table = characters.train(
        steps, lambda step, loss: progress(step, f"loss {loss:.3f}"), seed=options.seed
    )
    rows = [
        ("trained", f"{steps} steps in {time.perf_counter() - began:.0f} s, compiling included"),
        ("unseen text", f"{held:.3f} nats a letter"),
        ("a table of pairs", f"{table:.3f} nats a letter, the exact one of all the text"),
    ]
    print(f"\n{columns(rows)}\n\nIt writes:\n")
    print(characters.write(model, alphabet, "The ", LETTERS, options.seed))
    if held < table:
        return 0
    print("\nFAILED: a table of pairs of letters knows more.")
    return 1
