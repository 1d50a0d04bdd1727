"""Where the arrays of a group are: a row of addresses for each slot, on the host and on the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refopt.gpu.runtime import Device


class AddressTable:
    """Addresses (S, n) of the arrays of n tensors in S slots, 0 for none, int64; or (n,) of one slot.

    Args:
        machine: what it is on.
        addresses: at first.
        units: of the same shape, the bytes that a thread accesses at a time, a power of two each.

    Attributes:
        host: the addresses, (S, n).
        array: the same on the device, once what has been enqueued is done, in the shape that was given.
        aligned: by tensor, whether all its arrays can be accessed by such units.
    """

    def __init__(self, machine: Device, addresses: np.ndarray, units: np.ndarray) -> None:
        # The second: bits that are 0 in an aligned address.
        self.host, self._lower = np.atleast_2d(addresses, units - 1)
        self._fits = (self.host & self._lower) == 0
        self._any_lower = np.bitwise_or.reduce(self._lower, 1).tolist()
        self.aligned: list[bool] = self._fits.all(0).tolist()
        self.array = machine.to_device(addresses)
        self._upload = machine.uploader(self.array)

    def keeps_alignment(self, rows: Mapping[int, np.ndarray]) -> bool:
        """Whether with other addresses in some rows the same tensors are aligned."""
        fits = self._fits
        for row, addresses in rows.items():
            if self._stay_aligned(row, addresses):
                continue
            now = (addresses & self._lower[row]) == 0
            if now.tobytes() != fits[row].tobytes():
                fits = fits.copy() if fits is self._fits else fits
                fits[row] = now
        return fits is self._fits or fits.all(0).tolist() == self.aligned

    def _stay_aligned(self, row: int, addresses: np.ndarray) -> bool:
        """Whether all of a row were aligned, and are at other addresses: the usual case, in two passes."""
        return not np.bitwise_or.reduce(addresses) & self._any_lower[row] and bool(self._fits[row].all())

    def put(self, rows: Mapping[int, np.ndarray], stream: Any) -> None:
        """Other addresses in some rows, in stream order; of each row, what lies between the first change and the last.

        The alignment of tensors has to be as before.
        """
        width = self.host.shape[1]
        for row, addresses in rows.items():
            held = self.host[row]
            changed = (addresses != held).nonzero()[0]
            if not changed.size:
                continue
            first, stop = int(changed[0]), int(changed[-1]) + 1
            held[first:stop] = addresses[first:stop]
            if not self._stay_aligned(row, addresses):
                self._fits[row] = (held & self._lower[row]) == 0
            self._upload(row * width + first, held[first:stop], stream)

    def put_again(self, stream: Any) -> None:
        """All of it once more, over what somebody else may have left in its place."""
        self._upload(0, self.host.reshape(-1), stream)
