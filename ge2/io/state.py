"""The state of a training run, kept in a folder of numbered files from which it goes on."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np

from ge2.base.errors import ArgumentError, FileError
from ge2.base.log import warn
from ge2.base.source import here
from ge2.io.files import remove_unfinished, sync
from ge2.io.stored import Path, path_text
from ge2.io.trees import contents, load, save

T = TypeVar("T")
NAME: Final = re.compile(r"step-(\d{9,})\.safetensors")


def save_state(folder: Path, step: int, state: Any, *, keep: int | None = 3) -> str:
    """Writes a state to `folder`, under the number of a step, and returns the path.

    A state is any container of arrays: model, state of the optimiser, random key. Whenever the
    process is killed, the newest file is a whole one. Of all files the `keep` of most steps stay,
    and the one that is written; all for None.

    >>> import tempfile, numpy as np, ge2
    >>> folder = tempfile.mkdtemp()
    >>> for step in range(5):
    ...     _ = save_state(folder, step, {"w": np.full(3, step), "key": ge2.random.key(step)}, keep=2)
    >>> sorted(os.listdir(folder))
    ['step-000000003.safetensors', 'step-000000004.safetensors']
    """
    count: Any = step
    if not isinstance(count, int | np.integer) or count < 0 or (keep is not None and keep < 1):
        what = f"a step is a count, and keep at least 1; got {step!r:.60} and {keep!r:.60}"
        raise ArgumentError(what, where=here(), fix="int(step), and keep=None to keep all")
    root = path_text(folder)
    if not os.path.isdir(root):
        os.makedirs(root, exist_ok=True)
        sync(os.path.dirname(os.path.abspath(root)))
    remove_unfinished(root)
    path = os.path.join(root, f"step-{step:09d}.safetensors")
    save(path, state)
    for old in saved(root)[keep:] if keep else []:
        if old != path:
            with suppress(FileNotFoundError):  # another process removes it as well
                os.unlink(old)
    return path


def latest(folder: Path) -> str | None:
    """The path of the newest whole file in a folder of `save_state`; None if there is none.

    A file that is damaged is passed over with a warning.
    """
    for path in saved(path_text(folder)):
        try:
            contents(path)
        except FileNotFoundError:  # removed since, for a newer one
            return latest(folder)
        except FileError as error:
            warn(f"{str(error).splitlines()[0]}; an older state is taken")
        else:
            return path
    return None


def load_state(folder: Path, into: T) -> T:
    """The newest state in a folder, as the container `into`; `into` itself if there is none yet.

    A program that begins with it goes on where it was killed:

    >>> import tempfile, numpy as np, ge2
    >>> folder = tempfile.mkdtemp()
    >>> begin = {"step": 0, "w": np.zeros(2)}
    >>> load_state(folder, begin) is begin
    True
    >>> path = save_state(folder, 10, {"step": 10, "w": np.ones(2)})
    >>> load_state(folder, begin)
    {'step': 10, 'w': array([1., 1.])}
    """
    while (path := latest(folder)) is not None:
        with suppress(FileNotFoundError):  # removed since, for a newer one
            return resumed(path, into)
    return into


def resumed(path: str, into: T) -> T:
    try:
        found: T = load(path, into=into)
    except FileError as error:
        what, fix = (
            str(error).split("\n")[0],
            f"another folder, or ge2.io.load({path!r}, into=..., map=...)",
        )
        raise FileError(what, where=here(), fix=fix) from None
    return found


def saved(folder: str) -> list[str]:
    """The paths of the states in a folder, that of most steps first."""
    try:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    steps = {name: int(NAME.fullmatch(name)[1]) for name in names}  # type: ignore[index]
    return [os.path.join(folder, name) for name in sorted(names, key=steps.__getitem__)[::-1]]
