"""The exercises of notebooks/exercises: solutions, stubs, and wrong answers, judged."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "notebooks"
sys.path.insert(0, str(FOLDER))
