"""Running: what `jit` returns, and the programs behind it."""

from ge2.runtime.jit import clear_caches as clear_caches
from ge2.runtime.jit import disable_jit as disable_jit
from ge2.runtime.jit import jit as jit
