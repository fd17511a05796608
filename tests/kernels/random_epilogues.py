"""Random elementwise work on a product, as NumPy writes it, and three ways to evaluate it: traced, in
float64, and as a program in two steps does, which rounds the product before the work begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

import ge2
from tests.kernels.wgmma_cases import BF16, F16, F32, SLOPE, drawn, gelu

F64: Final = np.dtype("f8")
# continuous, so that an error of what they are of is not one of another branch; and small, so that
# nothing leaves the range of float16
UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "tanh": np.tanh,
    "minus": lambda x: -x,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "leaky": lambda x: np.where(x > 0, x, SLOPE * x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "gelu": gelu,
    "sin": np.sin,
    "decay": lambda x: np.exp(-np.abs(x)),
    "root": lambda x: np.sqrt(1 + np.abs(x)),
    "square": lambda x: np.square(np.tanh(x)),
    "scaled": lambda x: 0.5 * x,
    "triangle": lambda x: np.tril(x) if x.ndim == 2 else x,
    "some columns": lambda x: np.where(np.arange(x.shape[-1]) > 40, x, 0.5 * x),
    "some rows": lambda x: (
        np.where(np.arange(x.shape[0])[:, None] > 40, x, -x) if x.ndim == 2 else x
    ),
}
BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * np.tanh(y),
    "max": np.maximum,
    "min": np.minimum,
    "over": lambda x, y: x / (1 + np.abs(y)),
    "blend": lambda x, y: 0.75 * x + 0.25 * y,
}
SHAPES: Final[dict[str, Callable[[int, int], tuple[int, ...]]]] = {
    "row": lambda m, n: (m, 1),
    "column": lambda m, n: (n,),
    "scalar": lambda m, n: (1, 1),
    "full": lambda m, n: (m, n),
    "turned": lambda m, n: (n, m),
    "wide": lambda m, n: (m, n),
}
PRODUCT: Final = "product"
SECOND: Final = "second"  # product, of the same left factor


@dataclass(frozen=True)
class Node:
    """A value: the product or another array by its name, or what an operation makes of others."""

    name: str
    dtype: Any
    parts: tuple[Node, ...] = ()

    def __contains__(self, name: str) -> bool:
        return self.name == name or any(name in part for part in self.parts)


Held = Mapping[str, Any]


def traced(node: Node, held: Held) -> Any:
    """As a user writes it."""
    if not node.parts:
        x = held[node.name]
        return x.T if node.name == "turned" else x
    parts = [traced(part, held) for part in node.parts]
    if node.name == "cast":
        return parts[0].astype(node.dtype)
    return {**UNARY, **BINARY}[node.name](*parts)


def in_float64(node: Node, held: Held) -> Any:
    """Exactly, as casts would leave it if they rounded nothing."""
    if node.name == "cast":
        return in_float64(node.parts[0], held)
    if not node.parts:
        return traced(node, held)
    return {**UNARY, **BINARY}[node.name](*(in_float64(part, held) for part in node.parts))


def in_two_steps(node: Node, held: Held) -> Any:
    """In float32, of a product that was rounded; a cast rounds to both types."""
    if not node.parts:
        return traced(node, held)
    parts = [in_two_steps(part, held) for part in node.parts]
    if node.name == "cast":
        return rounded(rounded(parts[0], node.parts[0].dtype), node.dtype)
    return {**UNARY, **BINARY}[node.name](*parts)


def rounded(x: Any, dtype: Any) -> Any:
    return x.astype(dtype).astype(F32)


@dataclass(frozen=True)
class Program:
    """A product of factors that lie in some order, and what is made of it; `sums`: the results of
    which the sums of columns are results, too. `names`: of the arrays, in order. Factors of float32
    are multiplied as tf32, which has all their digits.
    """

    turned: tuple[bool, bool]
    nodes: tuple[Node, ...]
    sums: tuple[int, ...]
    names: tuple[str, ...]
    arrays: Held

    @property
    def function(self) -> Callable[..., Any]:
        return lambda *arrays: self.results(dict(zip(self.names, arrays, strict=True)), traced)

    @property
    def dtype(self) -> Any:
        """That of the factors."""
        return self.arrays["a"].dtype

    def results(self, held: dict[str, Any], evaluate: Callable[[Node, Held], Any]) -> Any:
        if PRODUCT not in held:
            rounds = evaluate is traced and self.dtype == F32
            matmul = partial(ge2.numpy.matmul, precision="tf32") if rounds else np.matmul
            held |= products(held, self.turned, matmul)
        found = [evaluate(node, held) for node in self.nodes]
        return (*found, *(np.sum(found[n], axis=0) for n in self.sums))

    def exactly(self) -> Any:
        return self.results({k: np.asarray(x, F64) for k, x in self.arrays.items()}, in_float64)

    def roughly(self) -> Any:
        """By a program in two steps."""
        held = {k: np.asarray(x, F32) for k, x in self.arrays.items()}
        found = products(held, self.turned, np.matmul)
        held |= {name: rounded(product, self.dtype) for name, product in found.items()}
        return self.results(held, in_two_steps)

    @property
    def terms(self) -> int:
        return int(self.arrays["a"].shape[0 if self.turned[0] else 1])


def products(held: Held, turned: tuple[bool, bool], matmul: Callable[..., Any]) -> dict[str, Any]:
    """The product, and the second one, if there is one."""
    a = held["a"].T if turned[0] else held["a"]
    factors = {name: held[x] for name, x in ((PRODUCT, "b"), (SECOND, "c")) if x in held}
    return {name: matmul(a, x.T if turned[1] else x) for name, x in factors.items()}


def programs(seed: int, multiple: int, pair: bool = False) -> Iterator[Program]:
    """Programs of a seed, until one's numbers stay small: those of every eighth are of float32.
    `multiple`: of this many elements columns and terms are, so that tensor maps take them. `pair`: of
    two products.
    """
    rng = np.random.default_rng(seed)
    while True:
        found = program(rng, multiple, few=seed % 2 == 0, wide=seed % 16 in (5, 6))
        yield paired(rng, found) if pair else found


def paired(rng: np.random.Generator, one: Program) -> Program:
    """A program whose values are made of a second product as well."""
    arrays = {k: x for k, x in one.arrays.items() if k != "b"}
    b = one.arrays["b"]
    c = rng.permutation(b.reshape(-1)).reshape(b.shape)
    nodes = tuple(joined(rng, node, Node(SECOND, one.dtype)) for node in one.nodes)
    held = {"a": arrays.pop("a"), "b": b, "c": c, **arrays}
    return replace(one, nodes=nodes, names=tuple(held), arrays=held)


def program(rng: np.random.Generator, multiple: int, few: bool, wide: bool) -> Program:
    """One with few results, which may leave by strips, or with many; of float32 if `wide`."""
    digits = (BF16, F16)[rng.integers(2)]
    half = F32 if wide else digits
    m, n, k = (int(rng.integers(low, high)) for low, high in ((33, 150), (33, 140), (17, 80)))
    n, k = -(-n // multiple) * multiple, -(-k // multiple) * multiple
    m = -(-m // multiple) * multiple
    turned = bool(rng.integers(2)), bool(rng.integers(2))
    if wide and multiple > 1:
        turned = False, True  # the terms of tf32 are neighbours in what tensor maps take
    count = int(rng.integers(1, 4) if few else rng.integers(11, 18))
    names = [str(x) for x in rng.choice([*SHAPES], size=int(rng.integers(0, 4)), replace=False)]
    nodes = tuple(root(rng, names, half) for _ in range(count))
    used = [name for name in names if any(name in node for node in nodes)]
    arrays = {
        "a": drawn(rng, (k, m) if turned[0] else (m, k), digits).astype(half),
        "b": (drawn(rng, (n, k) if turned[1] else (k, n), F32) / np.sqrt(k))
        .astype(digits)
        .astype(half),
        **{x: drawn(rng, SHAPES[x](m, n), F32 if x == "wide" else half) for x in used},
    }
    sums = tuple(i for i in range(count) if rng.random() < 0.3)
    return Program(turned, nodes, sums, tuple(arrays), arrays)


def root(rng: np.random.Generator, names: list[str], half: Any) -> Node:
    """A value that the product is part of."""
    found = grown(rng, names, half, int(rng.integers(1, 5)))
    if PRODUCT not in found:
        found = joined(rng, Node(PRODUCT, half), found)
    if rng.random() < 0.2:
        return Node("cast", F32 if found.dtype == half else half, (found,))
    return found


def grown(rng: np.random.Generator, names: list[str], half: Any, depth: int) -> Node:
    if not depth:
        name = str(rng.choice([PRODUCT, PRODUCT, *names]))
        return Node(name, F32 if name == "wide" else half)
    first = grown(rng, names, half, depth - 1)
    if rng.random() < 0.5:
        return Node(str(rng.choice([*UNARY])), first.dtype, (first,))
    return joined(rng, first, grown(rng, names, half, int(rng.integers(depth))))


def joined(rng: np.random.Generator, first: Node, second: Node) -> Node:
    """Of two values of one type: that which is rounded is a cast, and no part of an operation."""
    if first.dtype != second.dtype:
        first, second = (x if x.dtype == F32 else Node("cast", F32, (x,)) for x in (first, second))
    return Node(str(rng.choice([*BINARY])), first.dtype, (first, second))
