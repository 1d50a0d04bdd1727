"""Objects that are bound to arrays and tables on a device: one thread at a time uses them, and they have no copies."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from refopt.gpu.runtime import Device

Method = TypeVar("Method", bound=Callable)


def in_turn(method: Method) -> Method:
    """Make a method of an `Exclusive` run as a whole, in a thread that enters the device and leaves it again."""

    @wraps(method)
    def whole(self: Any, *args: Any, **named: Any) -> Any:
        with self._turn:
            leave = self.device.enter()
            if leave is None:
                return method(self, *args, **named)
            try:
                return method(self, *args, **named)
            finally:
                leave()

    return whole  # type: ignore[return-value]


class Exclusive:
    """An object whose calls run on a stream, each as a whole: threads that call at the same time take turns.

    The public methods are `in_turn`. A copy would share the arrays on the device and write them without knowing of the
    original's steps, so copies are refused.
    """

    def __init__(self, machine: Device, stream: Any, name: str) -> None:
        self.device, self._name = machine, name
        self._turn = threading.RLock()
        self._stream: Any = machine.stream(stream, f"{name}: stream")
        self._own_stream: Any = stream  # kept alive

    def _refuse_capture(self, argument: str, how: str = "set") -> None:
        """Raise if a new value would become part of a captured graph."""
        if self.device.capturing(self._stream):
            expected = "expected no new value during a capture, since every replay would repeat it"
            raise RuntimeError(f"{self._name}: {argument}: {expected}; call {how}() between replays")

    @property
    def stream(self) -> Any:
        """The stream on which calls run, as the device represents it: a handle, or a stream of the executor.

        It may be set to another one, whose later work then waits for all work enqueued on the former. If either is
        being captured, the caller must ensure that order.
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
        del held  # which kept the former stream alive until here

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse ``copy``, ``deepcopy`` and ``pickle``, which call this."""
        name = type(self).__name__
        raise TypeError(f"{name}: cannot be copied, since it is bound to its arrays; make one for other arrays")
