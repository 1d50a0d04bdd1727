"""A call of a merged routine that both sides refuse, in the same words, and leave every byte as it was."""

import re

import pytest

from refopt import cpu, gpu
from refopt.oracle.exact.cases import arguments
from refopt.oracle.exact.placed import PlacedCase


def refuses(error, message):
    """What is done within is refused, with these words and no others."""
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def call(module, routine, slots, numbers):
    positional, named = arguments(routine, slots)
    getattr(module, routine.merged_name)(*positional, **named, **numbers)


def refused(machine, case, numbers, error, message):
    """Both sides raise the error, word for word, and change nothing."""
    expected = refuses(error, f"{case.routine.merged_name}: {message}")
    before = case.copy()
    with expected:
        call(cpu, case.routine, case.slots, numbers)
    placed = PlacedCase(machine, before)
    with expected:
        call(gpu, case.routine, placed.slots, numbers)
    for outcome in (case.outcome(), placed.outcome()):
        for slot, arrays in before.outcome().items():
            assert [x is None or x.tobytes() for x in arrays] == [x is None or x.tobytes() for x in outcome[slot]]
