"""Tokens in files, and batches of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


class Tokens:
    """Batches of stretches of tokens, which are files of uint16 that stay on disk, or arrays.

    No stretch spans two files. A batch depends on the seed and its number alone, so that training
    that was stopped goes on with the batches it would have had.
    """

    def __init__(self, sources, length, batch, seed=0):
        self.parts = [
            np.memmap(x, np.uint16, "r") if isinstance(x, str | Path) else x for x in sources
        ]
        self.length, self.batch, self.seed = length, batch, seed
        counts = [max(len(part) - length, 0) for part in self.parts]
        self.ends = np.cumsum(counts)
        if not self.ends[-1]:
            raise ValueError(f"no file has {length + 1} tokens: they have {counts}")

    def __getitem__(self, number):
        """Batch `number`: int32[batch, length + 1]."""
        starts = np.random.default_rng((self.seed, number)).integers(0, self.ends[-1], self.batch)
        return np.stack([self.stretch(start) for start in starts])

    def stretch(self, start):
        part = int(np.searchsorted(self.ends, start, "right"))
        start -= self.ends[part - 1] if part else 0
        return self.parts[part][start : start + self.length + 1].astype(np.int32)


def write(path, tokens):
    """A file of tokens, as `Tokens` reads them."""
    found = np.asarray(tokens)
    if found.size and found.max() >= 2**16:
        raise ValueError(f"token {found.max()} does not fit into 16 bits")
    found.astype(np.uint16).tofile(path)
