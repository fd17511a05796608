"""GPT-2 of examples/gpt2 trains and writes on a GPU as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from examples.gpt2.__main__ import placed
from examples.gpt2.data import Tokens
from examples.gpt2.model import GPT2, Config
from examples.gpt2.sample import generate
from examples.gpt2.train import Options, started, training

pytestmark = pytest.mark.gpu
TINY = Config(vocabulary=64, context=32, width=64, layers=2, heads=2)


@pytest.mark.parametrize(("precision", "near"), [("f32", 1e-3), ("bf16", 2e-2)])
def test_losses_and_texts_are_those_of_the_cpu(precision, near, rng, cp):
    options = Options(steps=6, rate=1e-2, warmup=2, precision=precision)
    data = Tokens([np.tile(rng.integers(0, 64, 23), 20)], 32, 4)

    def run(device):
        start = started(TINY, GPT2.init(ge2.random.key(0), TINY), options)
        found = [(now, float(x)) for now, x in training(placed(start, device), data, options)]
        return [loss for _, loss in found], found[-1][0]["model"]

    (want, model), (losses, there) = run("cpu"), run("cuda")
    assert np.allclose(losses, want, rtol=near)
    assert isinstance(there.wte.weight, cp.ndarray)
    model = ge2.tree.map(lambda x: x.get(), there)
    texts = [
        list(generate(each, [1, 2, 3], 40, ge2.random.key(1), temperature=0.0))
        for each in (there, model)
    ]
    assert texts[0][:8] == texts[1][:8]
    assert len(texts[0]) == 40
