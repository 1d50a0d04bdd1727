"""The addresses of a group's arrays: a row for each slot, on the host and on the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refopt.gpu.runtime import Device


class AddressTable:
    """Addresses (S, n) of the arrays of n tensors in S slots, 0 for none, int64; or (n,) of one slot.

    Args:
        machine: the machine of the table.
        addresses: the initial ones.
        units: of the same shape, the bytes that a thread accesses at a time, each a power of two.

    Attributes:
        host: the addresses, (S, n).
        array: the same on the device, after all enqueued work, in the shape of ``addresses``.
        aligned: by tensor, whether all its arrays can be accessed in these units.
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
        """Whether the same tensors stay aligned with other addresses in some rows."""
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
        """Whether all addresses of a row were aligned, and the new ones are, too: the usual case, in two passes."""
        return not np.bitwise_or.reduce(addresses) & self._any_lower[row] and bool(self._fits[row].all())

    def put(self, rows: Mapping[int, np.ndarray], stream: Any) -> None:
        """Write other addresses to some rows, in stream order: of each row, from the first to the last change.

        The alignment of tensors must not change.
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
        """Write the whole table again, since the replay of a graph may have overwritten it."""
        self._upload(0, self.host.reshape(-1), stream)
