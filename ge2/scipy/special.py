"""The functions of `scipy.special` that ge2 traces, differentiates and compiles.

>>> float(erf(0.5).round(6))
0.5205
>>> float(ndtri(0.975).round(6))
1.959964
"""

from __future__ import annotations

from ge2.base.tracebacks import publish
from ge2.numpy.rare.special import *  # noqa: F403
from ge2.numpy.rare.special import __all__ as __all__

publish(globals())
