"""How many tests there are, counted as they are collected."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

COUNTS = pytest.StashKey[Counter]()
FILE = "REFOPT_COUNTS"  # where a collection in a process of its own leaves them


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """By where they run, before some are left out."""
    kinds = ("gpu", "slow")
    config.stash[COUNTS] = Counter(next(filter(item.get_closest_marker, kinds), "quick") for item in items)
    if FILE in os.environ:
        Path(os.environ[FILE]).write_text(json.dumps(config.stash[COUNTS]))
