"""Byte-pair encoding as GPT-2's: text to tokens and back, by a checkpoint's own two files."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from unicodedata import category

END = "<|endoftext|>"
WORDS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


def printable():
    """The letter by which the files write each of the 256 bytes: those that print stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


LETTERS = printable()
BYTES = {letter: byte for byte, letter in LETTERS.items()}


def like(character):
    """An ASCII character of the same kind: a letter, a number, a space or something else."""
    if character.isascii():
        return "!" if "\x1c" <= character <= "\x1f" else character
    kind = {"L": "x", "N": "0"}.get(category(character)[0], "!")
    return "\t" if character.isspace() else kind


def words(text):
    """The pieces of a text that no token spans: words with the space before them, numbers, signs."""
    return [text[m.start() : m.end()] for m in WORDS.finditer("".join(map(like, text)))]


class Tokenizer:
    """`encode` and `decode` by a vocabulary {token: number} and merges, the first ones first."""

    def __init__(self, vocabulary, merges):
        self.vocabulary = vocabulary
        self.names = {number: token for token, number in vocabulary.items()}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.pieces = lru_cache(2**16)(self.pieces)

    @classmethod
    def of_folder(cls, folder):
        """From the vocab.json and merges.txt of a checkpoint."""
        vocabulary = json.loads(Path(folder, "vocab.json").read_text("utf-8"))
        lines = Path(folder, "merges.txt").read_text("utf-8").split("\n")
        merges = (tuple(x.split(" ")) for x in lines if x and not x.startswith("#version"))
        return cls(vocabulary, merges)

    @property
    def end(self):
        """The token between documents."""
        return self.vocabulary[END]

    def pieces(self, word):
        """The tokens of a word: of its bytes, the pair that was merged first, until none is left."""
        parts = [LETTERS[byte] for byte in word.encode("utf-8", "surrogatepass")]
        while pairs := {pair for pair in pairwise(parts) if pair in self.ranks}:
            parts = merged(parts, min(pairs, key=self.ranks.__getitem__))
        return [self.vocabulary[part] for part in parts]

    def encode(self, text):
        return [token for word in words(text) for token in self.pieces(word)]

    def decode(self, tokens):
        """The text of tokens; bytes that are no text, as of half a character, become U+FFFD."""
        letters = "".join(self.names[int(token)] for token in tokens)
        return bytes(BYTES[letter] for letter in letters).decode("utf-8", "replace")


def merged(parts, pair):
    """The parts, each occurrence of a pair as one."""
    found = []
    for part in parts:
        if found and (found[-1], part) == pair:
            found[-1] += part
        else:
            found.append(part)
    return found
