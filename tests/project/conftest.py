"""The tests as they are collected: how many there are, and their markers."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

ITEMS = pytest.StashKey[list[pytest.Item]]()
FILE = "REFOPT_COUNTS"  # where a collection in a process of its own leaves how many there are
TESTS = Path(__file__).parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before some are left out."""
    config.stash[ITEMS] = [*items]
    if FILE in os.environ:
        Path(os.environ[FILE]).write_text(json.dumps(counted(items)))


def counted(items):
    """How many there are by where they run."""
    return Counter(next(filter(item.get_closest_marker, ("gpu", "slow")), "quick") for item in items)


def every_item(config):
    """Those of this run, if it has collected all tests, or None."""
    return config.stash[ITEMS] if [Path(x).resolve() for x in config.args] == [TESTS] else None
