"""The launches of one step, and what a step passes on to the next."""

from typing import Any

from refopt.gpu.runtime import Device


class Launches:
    """The launches of one step of a group.

    ``steady`` has the launches of every step; ``first``, if given, those of a step to which nothing is carried over.
    """

    def __init__(self, machine: Device, steady: list, first: list | None = None) -> None:
        self.launches = len(steady)
        self._steady = machine.sequence(steady)
        self._first = machine.sequence(first) if first else None
        self._fresh = first is not None

    def __call__(self, stream: Any) -> None:
        if self._fresh and self._first:
            self._fresh = not self._first(stream)
        else:
            self._steady(stream)

    def forget(self, stream: Any) -> None:
        """Treat the next step as the first."""
        self._fresh = self._first is not None


class Alternating:
    """The launches of one step of a group that carries scalars, which alternate between two copies.

    Each argument has an entry per phase: ``steps`` reads the copy of the phase and writes the other, ``fetch`` fills
    the copy of the phase from the caller's arrays, and ``settle`` copies the other, which a step has written, to it. A
    captured step is always replayed in the phase of its capture, so it settles, with one more small launch, and so do
    all steps after it.
    """

    def __init__(self, machine: Device, steps: list[list], fetch: list, settle: list) -> None:
        self.launches = len(steps[0])
        self._fetch, self._settle = fetch, settle
        self._plain = [machine.sequence(step) for step in steps]
        self._settled = [machine.sequence([*step, last]) for step, last in zip(steps, settle, strict=True)]
        self._phase, self._settles = 0, False

    def __call__(self, stream: Any) -> None:
        if self._settles:
            self._settled[self._phase](stream)
        elif self._plain[self._phase](stream):
            self._phase = 1 - self._phase
        else:  # captured
            self._settle[self._phase](stream)
            self._settles = True

    def forget(self, stream: Any) -> None:
        """Fetch the scalars from the caller's arrays."""
        self._fetch[self._phase](stream)
