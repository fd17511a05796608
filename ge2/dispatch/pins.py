"""A project's file of kernels: those of its own, and those that problems are pinned to."""

from __future__ import annotations

import os
from typing import Any, Final

from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.base.tracebacks import hides
from ge2.choice.problem import Pin
from ge2.choice.user_kernels import at_line, is_kind, parsed
from ge2.compile.catalog import check_family
from ge2.dispatch.user_kernels import register

FILE: Final = "ge2-pins.toml"
KEYS: Final = {"kernels": "texts", "prefer": "texts", "pin": "tables"}
OF_PIN: Final = ("family", "variant", "problem")


@hides
def use(path: str = FILE) -> tuple[Pin, ...]:
    """Registers the kernels that a file names, and pins problems to families as it says; returns
    all pins in force.

    `kernels` and `prefer` are lists of folders, as `register` takes them, from the file's own;
    those of `prefer` are taken even where nothing was measured. Each `[[pin]]` has a `family`,
    perhaps a `variant`, and perhaps a `problem`: the class that `ge2 explain --all` prints. Its
    kernel is taken wherever it does not refuse. Programs that are built stay as they are.

    InputError, with file and line, where the file is wrong; and as `register`.
    """
    path, found = os.path.abspath(path), parsed(path)
    for key, value in found.items():
        if key not in KEYS:
            from difflib import get_close_matches

            (near,) = get_close_matches(key, KEYS, 1, 0.0)
            raise at_line(path, key, f"{key!r} is no key of a file of pins", f"{near} = ...")
        if not is_kind(value, KEYS[key]):
            raise at_line(path, key, f"{key} is to be {KEYS[key]}; it is {value!r}")
    folder = os.path.dirname(path)
    for prefer, key in ((False, "kernels"), (True, "prefer")):
        for each in found.get(key, ()):
            register(os.path.join(folder, each), prefer=prefer)
    new = tuple(pin_of(path, each) for each in found.get("pin", ()))
    older = [pin for pin in config.pins if pin not in new]
    pins: Any = (*new, *older)
    if pins != config.pins:
        config.update(pins=pins)
    return pins  # type: ignore[no-any-return]


def pin_of(path: str, said: dict[str, Any]) -> Pin:
    for key, value in said.items():
        if key not in OF_PIN or not isinstance(value, str):
            what = f"a pin has texts {', '.join(OF_PIN)}; it has {key} = {value!r}"
            raise at_line(path, key, what, 'family = "..."')
    if "family" not in said:
        raise at_line(path, "[[pin", "a pin names no family", 'family = "..."')
    try:
        check_family(said["family"])
    except InputError as error:
        raise at_line(
            path, "family", str(error).split("\n")[0], str(error).split("try  ")[-1]
        ) from None
    return Pin(said["family"], said.get("variant", ""), said.get("problem", ""))
