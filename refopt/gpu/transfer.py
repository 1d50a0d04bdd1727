"""Copies of whole arrays of any library from the device to the host and back, in stream order."""

from typing import Any

import numpy as np

from refopt.checks import Array
from refopt.checks.dtypes import numpy_dtype
from refopt.gpu.arrays import describer, device_of
from refopt.gpu.runtime import device


class Transfer:
    """Copies to and from the machine of an array. They are complete after `finish`.

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
        self._images: list[np.ndarray] = []  # host memory of copies in progress

    def read(self, value: Any, array: Array) -> np.ndarray:
        """A host copy with the same axis order."""
        if self._machine.name == "executor":
            return value.copy_to_host(stream=self._stream)
        image, host = _image(array)
        if array.size:
            self._driver("cuMemcpyDtoHAsync", image.ctypes.data, array.address, image.nbytes)
        self._images.append(image)
        return host

    def write(self, value: Any, array: Array, host: np.ndarray) -> None:
        """Overwrite the array with one of the same shape and dtype."""
        if self._machine.name == "executor":
            value.copy_to_device(host, self._stream)
            return
        image, ordered = _image(array)
        ordered[...] = host
        if array.size:
            self._driver("cuMemcpyHtoDAsync", array.address, image.ctypes.data, image.nbytes)
        self._images.append(image)

    def finish(self) -> None:
        """Wait for the stream."""
        if self._machine.name == "executor":
            self._machine.synchronize()
        else:
            self._driver("cuStreamSynchronize")
        self._images.clear()

    def _driver(self, function: str, *args: Any) -> None:
        """Call a driver function whose last argument is the stream."""
        from cuda.bindings import driver

        from refopt.gpu.streams import checked

        checked(getattr(driver, function)(*args, self._stream))


def _image(array: Array) -> tuple[np.ndarray, np.ndarray]:
    """New host memory for an array's elements in their device order: as bytes, and as an array."""
    kind = numpy_dtype(array.dtype)
    image = np.empty(array.size * kind.itemsize, np.uint8)
    strides = array.strides if array.size else None
    return image, np.ndarray(array.shape, kind, image, strides=strides)
