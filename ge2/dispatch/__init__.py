"""Running: what `jit` returns, and the programs behind it."""

from ge2.dispatch.jit import checking_leaks as checking_leaks
from ge2.dispatch.jit import clear_caches as clear_caches
from ge2.dispatch.jit import debug_infs as debug_infs
from ge2.dispatch.jit import debug_nans as debug_nans
from ge2.dispatch.jit import disable_jit as disable_jit
from ge2.dispatch.jit import jit as jit
