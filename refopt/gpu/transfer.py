"""Copies of whole arrays of any library from the device to the host and back, in stream order."""

from typing import Any

import numpy as np

from refopt.checks import Array
from refopt.gpu.arrays import describer, device_of
from refopt.gpu.runtime import device


class Transfer:
    """Copies to and from the machine of an array. They are complete when a call returns.

    Methods take each array itself and its description from ``describe``; it must be dense. `refopt.state.state_dict`
    and `refopt.state.load` take a `Transfer` as their ``memory``.

    Args:
        first: one of the arrays.
        stream: the stream of the last step; copies are ordered after its work.
        where: the prefix of error messages.
    """

    def __init__(self, first: Any, stream: Any = 0, where: str = "transfer") -> None:
        self._machine = device(device_of([first]))
        self._stream = self._machine.stream(stream)
        if self._machine.capturing(self._stream):
            raise RuntimeError(f"{where}: stream: expected no capture while states are read or written")
        self.describe = describer(self._machine.name)

    def read(self, value: Any, array: Array) -> np.ndarray:
        """A host copy with the same axis order."""
        own = self._own(value, array)
        return own.copy_to_host(np.empty_like(own.data), self._stream)

    def write(self, value: Any, array: Array, host: np.ndarray) -> None:
        """Overwrite the array with one of the same shape and dtype."""
        self._own(value, array).copy_to_device(host, self._stream)

    def _own(self, value: Any, array: Array) -> Any:
        """The array as one of refopt's."""
        return value if self._machine.name == "executor" else self._machine.view(value, 0, array.shape, array.strides)
