"""Products with the library's epilogues: which regions are one, what the emulator makes of them, and
when they are chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Problem
from ge2.ops.graphs.contraction import is_contraction
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.kernels.libraries import BlasEpilogue
from ge2.targets.cuda.launch.library_call import HostProduct, Wanted
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.products.library_epilogue import matched
from tests.kernels.library_cases import CASES, LAYERS, NAME, called, relu
from tests.kernels.wgmma_cases import BF16, F16, F32, drawn, exactly, judge
from tests.together import needs_compiler


def regions(function: Any, *structs: Any) -> list[Region]:
    """The products of a program that go on, by whatever kernel."""
    with config.using(executor="shim", tuning=(H200,)):
        chosen = ge2.jit(function).lower(*structs).choices.values()
    found = [getattr(choice.problem, "op", None) for choice in chosen]
    return [op for op in found if is_contraction(op)]


@needs_compiler
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_values_are_those_of_numpy(name: str, dtype: Any) -> None:
    kind, function, exact, shapes = LAYERS[name]
    rng = np.random.default_rng(0)
    xs = [drawn(rng, s, dtype) for s in shapes]
    with config.using(executor="shim", prefer=(NAME,)):
        lowered = ge2.jit(function).lower(*xs)
        (choice,) = (c for c in lowered.choices.values() if c.taken.family.name == NAME)
        found = matched(choice.problem.op)
        assert found is not None and found.kind == kind
        y = ge2.jit(function)(*xs)
    terms = 37 * 48 if kind.endswith("BGRAD") else 48
    judge(y, exactly(exact, *xs), terms, roundings=2, slope=1.0)


def sigmoid_form(x: Any) -> Any:
    """GELU with tanh, written otherwise."""
    x = x.astype(F32)
    return x * ge2.nn.sigmoid(1.5957691216 * (x + 0.044715 * x**3))


def test_a_function_is_the_same_however_it_is_written() -> None:
    a, b, c = (ge2.ShapeDtypeStruct(s, BF16) for s in ((8192, 768), (768, 3072), (3072,)))
    (op,) = regions(lambda a, b, c: sigmoid_form(a @ b + c).astype(BF16), a, b, c)
    found = matched(op)
    assert found is not None and found.kind == "GELU_BIAS"


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_constants_may_be_those_of_the_half_type(dtype: Any) -> None:
    """As Python's numbers become beside its arrays; others that are near are not."""
    structs = [ge2.ShapeDtypeStruct(s, dtype) for s in ((8192, 768), (768, 3072), (3072,))]

    def written(root: float) -> Any:
        return lambda x: 0.5 * x * (1 + np.tanh(root * (x + 0.044715 * (x * x * x))))

    kinds = []
    for gelu in (written(0.7978845608), written(0.7978845608 + 2.0**-7)):
        (op,) = regions(lambda a, b, c, gelu=gelu: gelu(a @ b + c), *structs)
        kinds.append(getattr(matched(op), "kind", ""))
    assert kinds == ["GELU_BIAS", ""]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: np.maximum(a @ b + c, 1),
        lambda a, b, c: np.minimum(a @ b + c, 0),
        lambda a, b, c: relu(a @ b * c),
        lambda a, b, c: relu(a @ b) + c,
        lambda a, b, c: relu(2 * (a @ b) + c),
        lambda a, b, c: ge2.nn.silu(a @ b + c),
        lambda a, b, c: ge2.nn.gelu(a @ b + c, approximate=False),
        lambda a, b, c: relu(a @ b + c.reshape(-1, 1)),
        lambda a, b, c: (relu(a @ b + c), np.tanh(a @ b)),
        lambda a, b, c: np.tanh(a @ b)[:, ::-1] + c,
    ],
)
def test_all_else_is_none_of_them(function: Any) -> None:
    structs = [ge2.ShapeDtypeStruct(s, F16) for s in ((768, 768), (768, 768), (768,))]
    assert [matched(op) for op in regions(function, *structs)] in ([], [None])


def words(function: Any, *structs: Any) -> str:
    """The reason why the library's epilogue is refused for the product of a program."""
    (op,) = regions(function, *structs)
    types = [x.type for x in op.graph.inputs], [x.type for x in op.graph.outputs]
    return BlasEpilogue().refusal(Problem(op, *map(tuple, types), "cuda"), None)


def test_refusals_in_words() -> None:
    half = [ge2.ShapeDtypeStruct(s, BF16) for s in ((512, 768), (768, 768), (768,))]
    single = [ge2.ShapeDtypeStruct(s.shape, F32) for s in half]
    assert "none of the library's epilogues" in words(lambda a, b, c: np.tanh(a @ b + c), *half)
    mixed = words(lambda a, b, c: relu((a @ b).astype(F32) + c), half[0], half[1], half[2])
    assert mixed == "its further arrays are not all float32"
    with config.using(executor="shim", tuning=(H200,)):
        low = ge2.jit(lambda a, b, c: ge2.nn.gelu(a @ b + c)).lower(*single)
    assert "too coarse for float32" in "".join(map(str, low.choices.values()))


@pytest.mark.parametrize(
    ("sizes", "dtype", "taken"),
    [
        (
            (8192, 784, 1000),
            BF16,
            True,
        ),  # measured there: 31 us, beside 38 by the tiles of warp groups
        ((8192, 768, 3072), BF16, False),  # 69, beside 57
        ((4096, 1024, 4096), BF16, False),  # 59, beside 54
        ((4095, 767, 3071), BF16, False),  # 685, beside 77
    ],
)
def test_what_is_chosen_on_an_h200(sizes: Any, dtype: Any, taken: bool) -> None:
    m, k, n = sizes
    structs = [ge2.ShapeDtypeStruct(s, dtype) for s in ((m, k), (k, n), (n,))]
    with config.using(executor="shim", tuning=(H200,)):
        found = called(ge2.jit(lambda a, b, c: ge2.nn.gelu(a @ b + c)).lower(*structs))
    assert (NAME in found) == taken


def test_each_choice_has_a_name_of_its_own() -> None:
    """A kernel and a call of the library, of two products with regions."""

    def gradients(a: Any, b: Any, c: Any, d: Any, ct: Any) -> Any:
        return ge2.vjp(lambda a, b, c, d: ge2.nn.gelu(a @ b + c) @ d, a, b, c, d)[1](ct)

    shapes = (8192, 784), (784, 1000), (1000,), (1000, 512), (8192, 512)
    structs = [ge2.ShapeDtypeStruct(s, BF16) for s in shapes]
    with config.using(executor="shim", tuning=(H200,)):
        choices = ge2.jit(gradients).lower(*structs).choices
    found = {name: choices[name].taken.family.name for name in ("contraction_0", "dot_general_0")}
    assert found == {"contraction_0": "wgmma product and region", "dot_general_0": NAME}


def test_float32_has_no_second_pass_over_memory() -> None:
    structs = [ge2.ShapeDtypeStruct(s, F32) for s in ((8192, 784), (784, 1000), (1000,))]
    with config.using(executor="shim", tuning=(H200,)):
        lowered = ge2.jit(lambda a, b, c: relu(a @ b + c)).lower(*structs)
        assert called(lowered) == [NAME] and not lowered.kernels


@needs_compiler
def test_what_the_library_lacks_falls_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the device says so, when the program is built."""

    def product(self: ShimDevice, wanted: Wanted) -> HostProduct | None:
        return None if wanted.epilogue or wanted.algorithm else HostProduct(wanted)

    monkeypatch.setattr(ShimDevice, "product", product)
    monkeypatch.setattr("ge2.base.source._said", set())
    ge2.clear_caches()
    rng = np.random.default_rng(1)
    xs = [drawn(rng, s, F32) for s in ((400, 300), (300, 500), (500,))]
    _, function, exact, _ = LAYERS["relu of a bias"]
    with config.using(executor="shim", tuning=(H200,)):
        with pytest.warns(match="the library has no such product"):
            found = ge2.jit(function)(*xs)
        assert NAME not in called(ge2.jit(function).lower(*xs))
    judge(found, exactly(exact, *xs), 300)


def test_regions_that_count_are_none_of_the_librarys() -> None:
    """A value of no operands is no polynomial."""
    x = np.random.default_rng(0).normal(size=(3, 2)) + 1j

    def slope(x: Any) -> Any:
        y, back = ge2.vjp(lambda x: np.linalg.pinv(x, 1e-6), x)
        return back(y)[0]

    with config.using(executor="shim"):
        assert np.isfinite(ge2.jit(slope)(x)).all()
