"""``python -m refopt.simt script.py``: runs a script on the executor instead of `numba.cuda`."""

import sys

from .script import main

sys.exit(main())
