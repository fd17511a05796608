"""Models and training runs outside of a program: files of arrays, states to resume from.

>>> import os, tempfile, numpy as np, ge2
>>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
>>> ge2.io.save(path, ge2.nn.Linear(np.ones((2, 3), np.float32)))
>>> ge2.io.load(path, into=ge2.nn.Linear(np.zeros((2, 3), np.float32))).weight.sum()
np.float32(6.0)
"""

from ge2.base.tracebacks import publish
from ge2.io import torch as torch
from ge2.io.training import Prefetch as Prefetch
from ge2.io.training import Progress as Progress
from ge2.io.training import prefetch as prefetch
from ge2.io.training import progress as progress
from ge2.io.training import read_log as read_log
from ge2.io.trees import GPT2 as GPT2
from ge2.io.trees import Map as Map
from ge2.io.trees import contents as contents
from ge2.io.trees import latest as latest
from ge2.io.trees import load as load
from ge2.io.trees import load_state as load_state
from ge2.io.trees import save as save
from ge2.io.trees import save_state as save_state

publish(globals(), advise=True, modules=("torch",))
