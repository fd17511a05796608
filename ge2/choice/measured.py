"""A measurement of a kernel, and whether there are any: what a first call has to know of the record."""

from __future__ import annotations

import os
from functools import cache as once
from typing import Final, final

from ge2.base.cache import FORMAT
from ge2.base.config import cache_folder
from ge2.base.record import record
from ge2.base.source import FOLDER


@final
@record
class Measured:
    """How long a variant of a family took, in seconds: `median` of several runs, and their `spread`
    as a part of it.

    `code` is the content hash of what its text is made of, `verified` how far its results were from
    the reference, in words; `failure` is the reason why it did not serve, and then it has no time.
    `predicted`: the time that was expected, 0 if none was. `stale`: its text is another one today,
    so it is shown and not believed.
    """

    family: str
    variant: str = ""
    median: float = 0.0
    spread: float = 0.0
    code: str = ""
    device: str = ""
    driver: str = ""
    libraries: tuple[tuple[str, str], ...] = ()
    when: str = ""
    verified: str = ""
    failure: str = ""
    predicted: float = 0.0
    stale: bool = False

    @property
    def believed(self) -> bool:
        """True if its time may decide a choice."""
        return not self.failure and not self.stale and self.median > 0.0

    def __str__(self) -> str:
        if self.failure:
            words = f"failed when measured: {self.failure}"
        else:
            words = f"measured {self.median * 1e6:.3g} us, spread {self.spread:.1%}"
        return f"{words}, of another text" if self.stale else words


# ------------------------------------------------------------------------------- is there a record


TUNED: Final = "tuned"  # the folder of measurements, in that of the cache
SHIPPED: Final = os.path.join(FOLDER, "choice", "shipped")  # those that come with the package


def recorded_keys() -> frozenset[str]:
    """The keys of all that this user measured, looked up once a process."""
    return listed(cache_folder())


@once
def listed(folder: str | None) -> frozenset[str]:
    try:
        return frozenset(os.listdir(os.path.join(folder, TUNED, f"v{FORMAT}")) if folder else ())
    except OSError:
        return frozenset()


@once
def ships() -> bool:
    """True if measurements come with the package."""
    try:
        return any(name.endswith(".jsonl") for name in os.listdir(SHIPPED))
    except OSError:
        return False


def anything() -> bool:
    """True if there are measurements to read."""
    return bool(recorded_keys()) or ships()
