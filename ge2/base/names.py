"""Texts of errors about names that a module does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# fmt: off
ELSEWHERE: Final = {  # names that users of JAX look for
    "PRNGKey": "ge2.random.key(seed)",
    "block_until_ready": "the result itself: it is NumPy's array, and is ready",
    "device_get": "x itself, NumPy's array; x.get() of CuPy's",
    "device_put": "np.asarray(x), or cupy.asarray(x): a function runs where its arguments are",
    "named_call": "ge2.named_scope(name)",
    "pmap": "ge2.vmap, on one device",
    "conv": "np.convolve of one axis; np.lib.stride_tricks.sliding_window_view and np.einsum of more",
    "dot": "np.dot, or ge2.numpy.dot_general",
    "tree_map": "ge2.tree.map(f, tree)",
}
CONVOLUTION: Final = "np.einsum of np.lib.stride_tricks.sliding_window_view: there are no convolutions yet"
INSIDE: Final = {  # and users of PyTorch and optax, in a module of ge2
    "ge2.nn": {
        "functional": "ge2.nn itself, whose functions have small letters: nn.relu, nn.cross_entropy",
        "Parameter": "the array itself: the fields of a module are its parameters",
        "ModuleList": "a list of modules in a field",
        "ModuleDict": "a dict of modules in a field",
        "Dense": "ge2.nn.Linear.init(key, ins, outs)",
        "Flatten": "lambda x: x.reshape(len(x), -1)",
        "Identity": "lambda x: x",
        "swish": "ge2.nn.silu",
        "MSELoss": "ge2.nn.mse(predictions, targets)",
        "mse_loss": "ge2.nn.mse(predictions, targets)",
        "L1Loss": "ge2.nn.mae(predictions, targets)",
        "l1_loss": "ge2.nn.mae(predictions, targets)",
        "smooth_l1_loss": "ge2.nn.huber(predictions, targets)",
        "nll_loss": "ge2.nn.cross_entropy(logits, labels)",
        "BCELoss": "ge2.nn.binary_cross_entropy(p, targets)",
        "BCEWithLogitsLoss": "ge2.nn.binary_cross_entropy(x, targets, with_logits=True)",
        "binary_cross_entropy_with_logits": "ge2.nn.binary_cross_entropy(x, targets, with_logits=True)",
        "scaled_dot_product_attention": "ge2.nn.attention(q, k, v)",
        "Conv1d": CONVOLUTION, "Conv2d": CONVOLUTION, "Conv": CONVOLUTION, "conv2d": CONVOLUTION,
    },
    "ge2.optim": {
        "apply_updates": "params, state = optimizer.update(grads, state, params)",
        "chain": "optimizer.update(ge2.optim.clip_by_global_norm(grads, 1.0), state, params)",
        "clip": "ge2.optim.clip_by_value(grads, limit)",
        "clip_grad_norm_": "ge2.optim.clip_by_global_norm(grads, limit)",
        "lr_scheduler": "a schedule as the rate: ge2.optim.adam(ge2.optim.cosine(1e-3, 100, 1000))",
        "warmup_cosine_decay_schedule": "ge2.optim.cosine(peak, warmup, steps, end)",
        "cosine_decay_schedule": "ge2.optim.cosine(peak, 0, steps, end)",
        "linear_schedule": "ge2.optim.linear(start, end, steps)",
        "exponential_decay": "ge2.optim.exponential(start, factor, steps)",
        "piecewise_constant_schedule": "ge2.optim.step_decay(start, factor, steps)",
        "MultiSteps": "ge2.optim.accumulate(optimizer, steps)",
        "incremental_update": "ge2.optim.ema(decay)",
        "masked": "mask= of an optimiser for its decay, or ge2.optim.split(mask, first, second)",
        "multi_transform": "ge2.optim.split(mask, first, second)",
    },
    "ge2.io": {
        "DataLoader": "ge2.io.prefetch of a generator of batches",
        "save_checkpoint": "ge2.io.save_state(folder, step, state)",
        "load_checkpoint": "ge2.io.load_state(folder, into=state)",
        "save_model": "ge2.io.save(path, model)",
        "load_model": "ge2.io.load(path, into=model)",
        "tqdm": "ge2.io.progress(iterable)",
    },
    "a module": {
        "parameters": "ge2.tree.leaves(model)",
        "named_parameters": "ge2.tree.leaves_with_path(model)",
        "state_dict": "ge2.io.save(path, model)",
        "load_state_dict": "ge2.io.load(path, into=model)",
        "forward": "model(x)",
        "apply": "model(x)",
        "train": "model(x, key=key), which trains unless training=False",
        "eval": "model(x, training=False)",
        "zero_grad": "nothing: ge2.grad makes new gradients",
        "to": "ge2.tree.map(cupy.asarray, model)",
        "cuda": "ge2.tree.map(cupy.asarray, model)",
        "half": "ge2.autocast(loss, 'f16')",
    },
}
# fmt: on


def lacking(module: str, name: str, names: Iterable[str]) -> str:
    """The text of an AttributeError: the name, and one of the module's that is like it.

    >>> print(lacking("ge2", "gard", ["grad", "jit"]))
    module 'ge2' has no attribute 'gard'
      try  ge2.grad
    """
    from difflib import get_close_matches  # for errors alone

    plain = {n.replace("_", "").lower(): n for n in names}
    near = get_close_matches(name.replace("_", "").lower(), plain, 1, cutoff=0.7)
    fix = INSIDE.get(module, {}).get(name) or ELSEWHERE.get(name, "")
    fix = fix or (f"{module}.{plain[near[0]]}" if near else "")
    return f"module {module!r} has no attribute {name!r}" + (f"\n  try  {fix}" if fix else "")
