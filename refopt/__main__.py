"""``python -m refopt`` runs the command ``refopt``."""

from refopt.cli import run

run()
