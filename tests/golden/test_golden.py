"""Golden files: graphs after the last pass, kernels as they are rendered,
memory plans and launches.

`pytest tests/golden --update-golden` writes them anew; a diff of them is the record of what a
change does to programs. Nothing is compiled and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.compile.catalog import TARGETS, catalog_of
from ge2.targets.c.libraries import services
from ge2.targets.cuda.kernels.libraries import OfCudnn
from tests.golden.programs import PROGRAMS
from tests.golden.texts import text_of

HERE = Path(__file__).parent
FILES = {(target, name) for name, program in PROGRAMS.items() for target in program.targets}

# Variants of kernels by what only their text has, in a file of the target.
VARIANTS = {
    "c": {
        "elementwise, shared in parts": r"pointwise_\d+_part\(",
        "tiles of arrays that lie across": r"for \(int64_t \w0 = 0; \w0 < n_\w; \w0 \+= 32\)",
        "columns in panels": r"const int64_t (\w)0 = \1s \* 1024;",
        "tasks with partial sums": r"_sums \+ task \* n_\w",
        "sums in runs": r"at \+= 256",
        "sums over rows in runs": r"_from \+= 64",
        "compensated sums": r"ge2_compensate_",
        "rows kept in scratch": r"\(scratch \+ GE2_THREAD \* per_thread",
        "extremes beside NaN": r"\w+_nan \|= ",
        "product by BLAS": r"ge2_products_f32\(",
        "product that is no work for threads": r"ge2_product_alone_f32\(",
        "product of a size": r"ge2_product_tiny_f32\(",
        "product with few terms": r"ge2_product_terms_f32\(",
        "product with a vector": r"ge2_each_line_8_f32\(",
        "product by panels": r"ge2_tile_f32\(",
        "product and what follows": r"contraction_\d+_region_part\(",
        "file of two parts": r"GE2_SHARED void",
        "scan in chunks": r"chunks > 1 \? row\[c\]",
        "scan of columns": r"double state\[\d+\];",
        "loop with inlined kernels": r"GE2_FN int \w+\(",
        "loop that looks for interrupts": r"ge2_interrupted",
        "helpers of the user's": r"static inline double log_odds_f64",
    },
    "cuda": {
        "packs of neighbours": r"PACK .* neighbours along the lane",
        "elements of ranks that all blocks seek": r"ge2_top_count_all<",
        "packs in turns": r"constexpr int TURNS",
        "tiles that transpose": r"along each side of a tile",
        "several rows a block": r"teams of a block",
        "rows in shared memory": r"rows?_room|ge2_ahead<",
        "rows read again, shared by blocks": r"blockIdx\.y \* TEAM \+ t",
        "rows read ahead": r"const auto fetch = ",
        "rows in one block": r"ge2_columns_merge<",
        "picked element": r"if \(\w+ >= 0 && \w+ < (n_\w|\d+)\)",
        "pairs of half types": r"ge2_pair_max_bf16",
        "divisor of a row": r"ge2_divisor_f32\(",
        "columns": r"threads side by side, of a block",
        "narrow columns": r"rows that a thread reads at once",
        "two stages": r"/\* A finish\.",
        "product that goes on": r"/\* A contraction region\.",
        "product of 16 x 16": r"ge2_small_product<",
        "product in tiles": r"terms that a block has at once",
        "scan of rows": r"threads of a line",
        "scan that looks back": r"ge2_look_back<",
        "scan of columns": r"threads side by side, of a strip",
        "rows moved in packs": r"neighbours that a thread moves at once",
        "sums at indices by the first": r"the first update of a place adds all of them",
        "sums at indices by rank": r"ge2_rank\(",
        "sums at indices by digits": r"ge2_digit_moves<",
        "sums at indices by digits in tiles": r"ge2_digit_tile_moves<",
        "sums at indices in windows": r"/\* A sum by window\.",
        "largest in parts": r"/\* A top_k of parts\.",
        "persistent block": r"/\* A resident kernel\.",
        "persistent rows with a kept matrix": r"resident_kernel[^}]*\n(.*\n)*.*ge2_kept<",
        "persistent grid": r"ge2_grid_wait\(\)",
        "product shared by a grid": r"ge2_spread_product<",
        "launches in a graph's loop": r"# while ",
        "launches in a graph's branch": r"# match ",
        "kernel of the user's": r"/\* A golden_neighbours kernel\.",
    },
    "small_chip": {"persistent grid": r"ge2_grid_wait\(\)", "rows in memory": r"threads a row"},
}
PAIRS = [(target, variant) for target, each in VARIANTS.items() for variant in each]


@pytest.fixture(autouse=True)
def by_predictions() -> Iterator[None]:
    """What `ge2 tune` measured on a developer's machine changes no choice in these files."""
    with config.using(tune="off"):
        yield


@pytest.mark.parametrize(("target", "name"), sorted(FILES), ids=map("/".join, sorted(FILES)))
def test_text_is_as_it_was(target: str, name: str, golden: Any) -> None:
    if target == "c" and (toolchain() is None or not services().dgemm):
        pytest.skip("a machine without a C compiler or without NumPy's BLAS makes other programs")
    golden(f"{target}/{name}.txt", text_of(name, PROGRAMS[name], target))


def test_each_file_has_a_program() -> None:
    found = {(path.parent.name, path.stem) for path in HERE.glob("*/*.txt")}
    assert {pair for pair in found if pair[0] != "graphs"} == FILES


@cache
def golden_texts(target: str) -> str:
    return "\n".join(path.read_text() for path in sorted(HERE.glob(f"{target}/*.txt")))


# but those of a library that is asked for each graph, on a GPU: tests/kernels/test_cudnn.py has them;
# and those that leave steps apart, which then have families of their own
FAMILIES = dict.fromkeys(
    family
    for target in TARGETS
    for family in catalog_of(target)
    if not (isinstance(family, OfCudnn) or family.in_steps)
)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_is_chosen_in_a_golden_file(family: Any) -> None:
    target = {"c": "c", "cuda": "cuda", "": "*"}.get(family.target, "blocked")
    assert re.search(
        rf"^ *\d+ .*  {re.escape(family.name)}(?:,.*)?$", golden_texts(target), re.MULTILINE
    )


@pytest.mark.parametrize(("target", "variant"), PAIRS, ids=map(": ".join, PAIRS))
def test_each_variant_is_in_a_golden_file(target: str, variant: str) -> None:
    assert re.search(VARIANTS[target][variant], golden_texts(target))
