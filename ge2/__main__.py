"""`python -m ge2`: the command line, where `ge2` is not on the path."""

from __future__ import annotations

import sys

from ge2.cli import main

sys.exit(main())
