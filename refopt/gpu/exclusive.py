"""What is bound to arrays and tables on a device: one thread at a time, and no copies."""

import threading
from typing import Any, NoReturn

from refopt.gpu.runtime import Device


class Exclusive:
    """Each call is made as a whole: threads that call at the same time take turns.

    A subclass does its work under ``with self._turn`` and `enter`. What it has on the device is not copied with it, so
    a copy would write the same arrays without knowing of the original's steps; there is none.
    """

    def __init__(self, machine: Device) -> None:
        self.device = machine
        self._turn = threading.RLock()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """What ``copy``, ``deepcopy`` and ``pickle`` ask for."""
        name = type(self).__name__
        raise TypeError(f"{name}: expected no copy of it, since it is bound to its arrays; make another of others")
