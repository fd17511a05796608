"""A measurement of a kernel, and whether there are any: what a first call has to know of the
record.
"""

from __future__ import annotations

import os
from functools import cache as once
from typing import Final, NamedTuple

from ge2.base.cache import FORMAT, content_key
from ge2.base.config import cache_folder, config
from ge2.base.source import FOLDER


class Measured(NamedTuple):  # a record takes three times as long to read
    """The time of a variant of a family, in seconds: `median` of several runs, and their `spread`
    as a part of it.

    `code` is the content hash of its kernels but for their numbers, `verified` how far its results
    were from the reference, in words; `failure` is the reason why it did not serve, and then it has no time.
    `predicted`: the time that was expected, 0 if none was. `stale`: its kernels have another text
    today, so it is shown and not believed.
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
    return listed(_folder(config.cache_dir))


@once
def _folder(setting: str) -> str:
    folder = cache_folder()
    return os.path.join(folder, TUNED, f"v{FORMAT}") if folder else ""


@once
def listed(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder) if folder else ())
    except OSError:
        return frozenset()


@once
def key_of(device: str) -> str:
    """The key of all that is known of a kind of device."""
    return content_key("tuned", device)


@once
def shipped_name(device: str) -> str:
    """The file with what ships for a kind of device."""
    return f"{''.join(c if c.isalnum() else '_' for c in device.lower())}.jsonl"


def is_measured(device: str) -> bool:
    """True if there are measurements of a kind of device to read."""
    return key_of(device) in recorded_keys() or shipped_name(device) in listed(SHIPPED)
