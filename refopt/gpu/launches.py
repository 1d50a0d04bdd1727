"""The launches of one step, and what goes from a step to the next."""

from typing import Any

from refopt.gpu.runtime import Device


class Launches:
    """The launches of one step of a group.

    ``steady`` is what every step does; ``first``, if it differs, what a step does that has nothing carried
    over from the one before.
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
        """Take the next step as the first."""
        self._fresh = self._first is not None


class Alternating:
    """The launches of one step of a group that carries scalars, which change slots from step to step.

    Each argument has an entry per phase: ``steps`` reads the slot of the phase and writes the other, ``fetch``
    fills the slot of the phase from the caller's arrays, ``settle`` copies into it what a step has written to
    the other. A captured step is replayed in the phase it was captured in, so it settles, one small launch
    more, and so do all steps after it.
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
        """Take the scalars from the caller's arrays."""
        self._fetch[self._phase](stream)
