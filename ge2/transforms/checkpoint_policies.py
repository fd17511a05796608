"""The policies of checkpoints, which say what may be kept for the backward pass, under the names
they have in JAX.

>>> import numpy as np, ge2
>>> layer = ge2.checkpoint(lambda x, w: np.tanh(x @ w), policy=ge2.checkpoint_policies.dots_saveable)
>>> ge2.grad(lambda w: np.sum(layer(np.ones((1, 2)), w)))(np.zeros((2, 1)))
array([[1.],
       [1.]])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.ops.graphs.control import Policy

everything_saveable = Policy(("everything_saveable",))  # nothing is computed again
nothing_saveable = Policy(("nothing_saveable",))  # all is: as without a policy
dots_saveable = Policy(("dots_saveable",))  # the results of matrix products
checkpoint_dots = dots_saveable
# not of batches of them
dots_with_no_batch_dims_saveable = Policy(("dots_with_no_batch_dims_saveable",))
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Values that `checkpoint_name` gave one of these labels."""
    return Policy(("save_only_these_names", *checked(names_which_can_be_saved)))


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Values that have a label other than these."""
    return Policy(("save_any_names_but_these", *checked(names_not_to_save)))


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """All values but those that have one of these labels."""
    return Policy(("save_anything_except_these_names", *checked(names_not_to_save)))


def save_from_both_policies(policy_1: Any, policy_2: Any) -> Any:
    """A policy that saves what one of two policies saves. InputError for a policy that is no
    function.
    """
    for p in (policy_1, policy_2):
        if not callable(p):
            raise InputError(
                f"{p!r:.60} is no policy", where=here(), fix="one of ge2.checkpoint_policies"
            )
    if isinstance(policy_1, Policy) and isinstance(policy_2, Policy):
        return Policy(("save_from_both_policies", policy_1.rule, policy_2.rule))
    either: Callable[..., bool] = lambda op, *types, **params: bool(  # noqa: E731
        policy_1(op, *types, **params) or policy_2(op, *types, **params)
    )
    return either


def checked(names: tuple[Any, ...]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            got = f"{name!r:.60} ({type(name).__name__})"
            raise InputError(f"a policy is given names; got {got}", where=here(), fix="f('a', 'b')")
    return names
