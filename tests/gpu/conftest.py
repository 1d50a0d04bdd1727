"""What several tests of the GPU's side share."""

import pytest


@pytest.fixture
def fake(monkeypatch):
    """The driver's place taken by one with the host's memory."""
    from gpu.fake_driver import stand_in

    yield from stand_in(monkeypatch)
