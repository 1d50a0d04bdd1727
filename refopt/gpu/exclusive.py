"""What is bound to arrays and tables on a device: one thread at a time, and no copies."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from refopt.gpu.runtime import Device

Method = TypeVar("Method", bound=Callable)


class Exclusive:
    """Each call is made as a whole: threads that call at the same time take turns.

    The methods that a caller may call are `in_turn`. What a subclass has on the device is not copied with it, so a copy
    would write the same arrays without knowing of the original's steps; there is none.
    """

    def __init__(self, machine: Device) -> None:
        self.device = machine
        self._turn = threading.RLock()

    def _refuse_capture(self, routine: str, argument: str, stream: Any) -> None:
        """Raise where a new value would go into a captured graph."""
        if self.device.capturing(stream):
            expected = "expected no new value during a capture, which would put it into every replay"
            raise RuntimeError(f"{routine}: {argument}: {expected}; call set() between replays")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """What ``copy``, ``deepcopy`` and ``pickle`` ask for."""
        name = type(self).__name__
        raise TypeError(f"{name}: expected no copy of it, since it is bound to its arrays; make another of others")


def in_turn(method: Method) -> Method:
    """A method of an `Exclusive`, made as a whole, in a thread that has entered the device; which it leaves again."""

    @wraps(method)
    def whole(self: Exclusive, *args: Any, **named: Any) -> Any:
        with self._turn:
            leave = self.device.enter()
            if leave is None:
                return method(self, *args, **named)
            try:
                return method(self, *args, **named)
            finally:
                leave()

    return whole  # type: ignore[return-value]


class OnStream(Exclusive):
    """An `Exclusive` whose calls are on a stream."""

    def __init__(self, machine: Device, stream: Any, name: str) -> None:
        super().__init__(machine)
        self._name = name
        self._stream: Any = machine.stream(stream, f"{name}: stream")
        self._own_stream: Any = stream  # kept alive

    @property
    def stream(self) -> Any:
        """What calls are on, as the device has it: a handle, or a stream of the executor.

        It may be set to another: what follows there comes after all that has been enqueued on the one before. Where one
        of the two is being captured, that order is the caller's to see to.
        """
        return self._stream

    @stream.setter
    @in_turn
    def stream(self, stream: Any) -> None:
        machine, former, held = self.device, self._stream, self._own_stream
        now = machine.stream(stream, f"{self._name}: stream")
        if now != former and not (machine.capturing(former) or machine.capturing(now)):
            done = machine.new_event()
            done.record(former)
            done.wait(now)
        self._stream, self._own_stream = now, stream
        del held  # the former stream, until here
