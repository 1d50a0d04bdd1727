"""What several tests of the GPU's side share."""

import pytest

from refopt.gpu import runtime
from refopt.gpu.target import signature_of


class Recorder(runtime.Executor):
    """Notes the kernels of a plan and what they would be launched with."""

    def __init__(self):
        self.kernels = {}

    def prepare(self, made, grid, block, args, *how):
        self.kernels[made.name] = made, signature_of(args)
        return super().prepare(made, grid, block, args, *how)


@pytest.fixture
def recorder(monkeypatch):
    """The executor's place taken by one that notes kernels."""
    found = Recorder()
    monkeypatch.setattr(runtime, "_executor", lambda: found)
    return found


@pytest.fixture
def fake(monkeypatch):
    """The driver's place taken by one with the host's memory."""
    from gpu.fake_driver import stand_in

    yield from stand_in(monkeypatch)
