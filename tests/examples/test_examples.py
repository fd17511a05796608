"""Each example runs at a small size; the programs assert that their figures are near the truth."""

from __future__ import annotations

import importlib

import pytest

from ge2.base.config import config

SMALL = {
    "clipped": {},
    "digits": {"epochs": 5, "width": 32, "required": 0.85},
    "gaussian_process": {"steps": 60},
    "hmc": {"steps": 150},
    "inverse_heat": {"n": 8, "times": 3, "between": 4, "steps": 150},
    "kalman": {"n": 60, "steps": 40},
    "lstm": {"length": 4, "width": 12, "steps": 150, "near": 0.8},
    "newton": {},
    "ode": {"steps": 100, "count": 30, "near": 0.1},
    "pinn": {"steps": 15, "width": 6},
    "ridge": {},
    "vae": {"steps": 200, "count": 100, "near": 0.3},
}


@pytest.mark.parametrize("name", SMALL)
def test_example(name, capsys):
    program = importlib.import_module(f"examples.{name}")
    with config.using(executor="blocked"):
        program.main(**SMALL[name])
    assert capsys.readouterr().out
