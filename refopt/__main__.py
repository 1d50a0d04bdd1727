"""``python -m refopt`` is the command ``refopt``."""

from refopt.cli import run

run()
