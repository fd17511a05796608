"""One line of the table as data: a function of plain NumPy, its arguments,
its peers, its targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, final

import numpy as np

import ge2
from benchmarks.options import Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import Row, Target
from benchmarks.timing import medians

ROUNDS, BUDGET = 11, 4.0
Call = Callable[[], Any]


@final
class Draw:
    """Draws the arguments.

    A quick run cuts every size to 64, so that sizes which are equal stay equal.
    """

    def __init__(self, quick: bool) -> None:
        self.rng = np.random.default_rng(0)
        self.most = 64 if quick else None

    def shape(self, *shape: int) -> tuple[int, ...]:
        return tuple(min(size, self.most or size) for size in shape)

    def normal(self, *shape: int) -> Any:
        return self.rng.standard_normal(self.shape(*shape), np.float32)

    def below(self, size: int, *shape: int) -> Any:
        """int32, which every peer takes as it is."""
        return self.rng.integers(0, *self.shape(size), self.shape(*shape), np.int32)


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What is computed:

    `function` itself or, where `wanted` names arguments, its derivative by them.
    """

    title: str
    function: Callable[..., Any]  # of arrays and of `xp`, the module whose arrays they are
    arguments: Callable[[Draw], tuple[Any, ...]]
    torch: Callable[..., Any]  # of torch and of tensors
    by_hand: Callable[..., Any] | None = None  # in NumPy; none: `function` itself
    wanted: tuple[int, ...] = ()
    targets: tuple[Target, ...] = ()
    tolerance: float = 1e-4  # of the largest number of a result


def squared(function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of squares of a function: a loss whose derivative is not trivial."""

    def loss(*arguments: Any, **which: Any) -> Any:
        return (function(*arguments, **which) ** 2).sum()

    return loss


def lines(workload: str, works: dict[str, Work], options: Options) -> list[Row]:
    return [measure(work, options) for name, work in works.items() if options.wants(workload, name)]


def measure(work: Work, options: Options) -> Row:
    arguments = work.arguments(Draw(options.quick))
    notes: dict[str, str] = {}
    compiled = ge2.jit(derived(ge2, work, np))
    found = candidates(work, compiled, arguments, notes)
    agree(work, found)
    notes |= remarks(executor_of(compiled, *arguments))
    times = medians(found, options.rounds_or(ROUNDS), BUDGET)
    targets = () if options.quick else work.targets
    sizes = {"arguments": [list(np.shape(a)) for a in arguments]}
    title = f"{work.title} (sizes cut)" if options.quick else work.title
    return Row(
        title, "seconds", times.pop("ge2"), times, targets, layout_of(arguments), sizes, notes
    )


def candidates(
    work: Work, compiled: Callable[..., Any], arguments: tuple[Any, ...], notes: dict[str, str]
) -> dict[str, Call]:
    hand = work.by_hand or work.function
    return {
        "ge2": lambda: compiled(*arguments),
        "numpy": lambda: hand(*arguments),
        **in_jax(work, arguments),
        **in_torch(work, arguments, notes),
    }


def derived(library: ModuleType, work: Work, xp: ModuleType) -> Callable[..., Any]:
    function = work.function if xp is np else partial(work.function, xp=xp)
    return library.grad(function, argnums=work.wanted) if work.wanted else function  # type: ignore[no-any-return]


def in_jax(work: Work, arguments: tuple[Any, ...]) -> dict[str, Call]:
    jax = peer("jax")
    if jax is None:
        return {}
    compiled = jax.jit(derived(jax, work, jax.numpy))
    on_device = jax.tree.map(jax.numpy.asarray, arguments)
    return {"jax": lambda: jax.block_until_ready(compiled(*on_device))}


def in_torch(work: Work, arguments: tuple[Any, ...], notes: dict[str, str]) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    tensors = [torch.as_tensor(a) for a in arguments]
    for i in work.wanted:
        tensors[i].requires_grad_()
    function = compiled_or_not(torch, partial(work.torch, torch), tensors, notes)
    if not work.wanted:
        return {"torch": lambda: function(*tensors)}
    by = [tensors[i] for i in work.wanted]
    return {"torch": lambda: torch.autograd.grad(function(*tensors), by)}


def compiled_or_not(
    torch: ModuleType, function: Callable[..., Any], arguments: Any, notes: dict[str, str]
) -> Callable[..., Any]:
    """The function compiled, or as it is, with a note that says why."""
    # else it takes this for its last function in other sizes, and leaves them open
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(
        lambda *tensors: function(*tensors), fullgraph=True
    )
    try:
        compiled(*arguments)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        notes["torch"] = f"runs uncompiled: {type(error).__name__}: {reason}"
        return function
    return compiled


def agree(work: Work, found: dict[str, Call]) -> None:
    """Every candidate must compute the same: AssertionError, naming the one that does not."""
    expected = leaves(found["numpy"]())
    for name, call in found.items():
        for y, y0 in zip(leaves(call()), expected, strict=True):
            assert (y.shape, y.dtype) == (y0.shape, y0.dtype), f"{work.title}: {name}"
            largest = np.abs(y0).max()
            atol = work.tolerance * largest
            np.testing.assert_allclose(y, y0, rtol=0, atol=atol, err_msg=f"{work.title}: {name}")


def leaves(result: Any) -> list[Any]:
    return [
        np.asarray(leaf) for leaf in (result if isinstance(result, (tuple, list)) else (result,))
    ]


def layout_of(arguments: tuple[Any, ...]) -> str:
    """Such as "float32 and int32, C order"."""
    arrays = [np.asarray(a) for a in arguments]
    orders = {"C order" if a.flags.c_contiguous else "strided" for a in arrays}
    return f"{' and '.join(dict.fromkeys(str(a.dtype) for a in arrays))}, {' and '.join(sorted(orders))}"
