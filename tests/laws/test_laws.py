"""What holds for every operation: its type rule, text, derivatives and batches
agree with its reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import FLOAT64, INEXACT
from ge2.base.errors import NoRuleError
from ge2.ir import type_of
from ge2.test_util import laws
from ge2.test_util.laws import DIFFERENTIABLE, graph_of, types_of
from ge2.transforms.graphs import DERIVE, jvp_graph
from tests.exhaustive import sampled
from tests.laws.sample import Sample
from tests.laws.samples import SAMPLES

NAMES = [op.name for op in ops.ALL]
every_op = pytest.mark.parametrize("name", NAMES)


def test_every_op_is_listed_once_and_found_by_its_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
    recognised = {op.name for op in ops.ATTENTION}  # in graphs, with laws of their own
    assert set(NAMES) | recognised == set(ops.TABLE)


# ------------------------------------------------------------------------------------------ samples


def drawn(
    name: str, rng: np.random.Generator, dtypes: Any = None
) -> Iterator[tuple[Sample, tuple[Any, ...]]]:
    """The samples of an operation, each with operands of a tenth of its dtypes (of those in
    `dtypes`), or of one.
    """
    for i, sample in enumerate(SAMPLES[name]):
        known = [dtype for dtype in sample.dtypes if dtypes is None or dtype in dtypes]
        for dtype in sampled(known, lambda dtype, i=i: f"{name} {i} of {dtype}"):
            yield sample, sample.draw(rng, dtype)


def smooth(
    name: str, rng: np.random.Generator
) -> Iterator[tuple[Sample, tuple[Any, ...], tuple[bool, ...]]]:
    """Samples with a derivative, and by which operands."""
    for sample, arrays in drawn(name, rng, DIFFERENTIABLE):
        wanted = tuple(type_of(x).dtype in INEXACT for x in arrays)
        results = {t.dtype for t in sample.op.infer(*types_of(arrays))} & INEXACT
        if any(wanted) and results and results <= set(DIFFERENTIABLE):
            yield sample, arrays, wanted


# --------------------------------------------------------------------------------------------- laws


@every_op
def test_the_type_rule_is_the_type_of_the_reference(name: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng):
        laws.type_rule(sample.op, arrays)


@every_op
def test_references_take_any_layout_and_write_to_no_operand(
    name: str, rng: np.random.Generator
) -> None:
    for sample, arrays in drawn(name, rng):
        laws.any_layout(sample.op, arrays)


@every_op
def test_the_text_reads_back(name: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng):
        laws.text(sample.op, arrays)


@every_op
def test_equal_operations_are_interchangeable(name: str, rng: np.random.Generator) -> None:
    first, second = SAMPLES[name][0].op, ops.TABLE[name](**SAMPLES[name][0].op.params())
    assert first == second
    assert hash(first) == hash(second)


@every_op
def test_vjp_is_the_transpose_of_the_differences(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if not sample.reverse:
            with pytest.raises(NoRuleError):
                laws.pulled(graph_of(sample.op, types_of(arrays)), wanted)
            continue
        laws.reverse(sample.op, arrays, wanted, rng, sample.constant)


@every_op
def test_jvp_is_the_differences_and_agrees_with_vjp(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if sample.forward:
            laws.forward(sample.op, arrays, wanted, rng, sample.constant, sample.reverse)
            continue
        with pytest.raises(NoRuleError):
            jvp_graph(graph_of(sample.op, types_of(arrays)), wanted, DERIVE)


@every_op
def test_one_operand_at_a_time_has_the_same_derivative(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if sample.reverse:
            laws.one_at_a_time(sample.op, arrays, wanted, rng)


@pytest.mark.exhaustive
@every_op
def test_the_second_derivative_is_the_differences_of_the_first(
    name: str, rng: np.random.Generator
) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if sample.reverse and not sample.constant:
            laws.second_order(sample.op, arrays, wanted, rng)


@every_op
def test_derivatives_in_every_dtype_are_those_of_float64_rounded(
    name: str, rng: np.random.Generator
) -> None:
    for sample, arrays in drawn(name, rng, INEXACT - set(DIFFERENTIABLE)):
        laws.rounded(sample.op, arrays, rng)


@every_op
def test_a_batch_is_the_loop(name: str, rng: np.random.Generator) -> None:
    """A tenth of the samples, and of each value of the operation one of arrays with elements."""
    cases = []
    for i, sample in enumerate(SAMPLES[name]):
        usual = (d for d in (FLOAT64, np.dtype("i4"), np.dtype(bool)) if d in sample.dtypes)
        dtype = next(usual, sample.dtypes[0])
        cases.append((i, sample.op, [sample.draw(rng, dtype) for _ in range(3)]))
    taken = sampled(
        cases,
        lambda case: f"batches of {name} {case[0]}",
        lambda case: (case[1], all(np.size(x) > 1 for x in case[2][0])),
    )
    for _, op, draws in taken:
        if draws[0]:
            laws.batches(op, draws)


def test_an_empty_batch(rng: np.random.Generator) -> None:
    for name in NAMES:
        sample = SAMPLES[name][0]
        laws.empty_batch(
            sample.op, sample.draw(rng, FLOAT64 if FLOAT64 in sample.dtypes else sample.dtypes[0])
        )
