"""The functions of `scipy.special` that ge2 traces, differentiates and compiles.

>>> float(erf(0.5).round(6))
0.5205
>>> float(ndtri(0.975).round(6))
1.959964
"""

from __future__ import annotations

from ge2.base.tracebacks import publish
from ge2.numpy.rare.special import (
    digamma,
    entr,
    erf,
    erfc,
    erfcinv,
    erfcx,
    erfinv,
    expit,
    gamma,
    gammaln,
    i0,
    i0e,
    i1,
    i1e,
    log_expit,
    log_ndtr,
    log_softmax,
    logit,
    logsumexp,
    ndtr,
    ndtri,
    polygamma,
    psi,
    softmax,
    xlog1py,
    xlogy,
)

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "expit", "gamma", "gammaln", "i0", "i0e",
    "i1", "i1e", "log_expit", "log_ndtr", "log_softmax", "logit", "logsumexp", "ndtr", "ndtri", "polygamma",
    "psi", "softmax", "xlog1py", "xlogy",
]  # fmt: skip

publish(globals())


def __dir__() -> list[str]:
    return __all__
