"""A measurement of a kernel: what the record of measurements keeps of it."""

from __future__ import annotations

from typing import final

from ge2.base.record import record


@final
@record
class Measured:
    """How long a variant of a family took, in seconds: `median` of several runs, and their `spread`
    as a part of it.

    `code` is the content hash of what its text is made of, `verified` how far its results were from
    the reference, in words; `failure` is the reason why it did not serve, and then it has no time.
    `stale`: its text is another one today, so it is shown and not believed.
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
