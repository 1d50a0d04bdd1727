"""``python -m refopt`` is the command ``refopt``."""

import sys

from refopt.cli import main

sys.exit(main())
