"""``python -m refopt.simt script.py``: a script with the executor in place of `numba.cuda`."""

import sys

from .script import main

sys.exit(main())
