"""What tests of the executor share."""

import pytest

from refopt.simt.lanes import run as lanes
from refopt.simt.machine.launch import Launch


@pytest.fixture
def by_lanes(monkeypatch):
    """Every launch is tried by lanes; the names of the kernels that run by threads after all."""
    names = []
    started = Launch.run
    monkeypatch.setattr(lanes, "LEAST", 1)
    monkeypatch.setattr(lanes, "WORTH", 0)
    monkeypatch.setattr(Launch, "run", lambda launch, args: [names.append(launch.name), started(launch, args)][1])
    return names
