"""Looking into running programs: `ge2.debug.print` and `ge2.debug.callback`."""

from __future__ import annotations

from ge2.base.tracebacks import publish
from ge2.transforms.custom_gradient import debug_callback as callback
from ge2.transforms.custom_gradient import debug_print as print

__all__ = ["callback", "print"]

publish(globals())
