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
        self.aligned = self._aligned(self.host)
        self.array = machine.to_device(addresses)
        self._upload = machine.uploader(self.array)

    def keeps_alignment(self, rows: Mapping[int, np.ndarray]) -> bool:
        """Whether the same tensors stay aligned with other addresses in some rows."""
        host = self.host.copy()
        for row, addresses in rows.items():
            host[row] = addresses
        return self._aligned(host) == self.aligned

    def _aligned(self, host: np.ndarray) -> list[bool]:
        return ((host & self._lower) == 0).all(0).tolist()

    def put(self, rows: Mapping[int, np.ndarray], stream: Any) -> None:
        """Write other addresses to some rows, in stream order. The alignment of tensors must not change."""
        width = self.host.shape[1]
        for row, addresses in rows.items():
            self.host[row] = addresses
            self._upload(row * width, addresses, stream)

    def put_again(self, stream: Any) -> None:
        """Write the whole table again, since the replay of a graph may have overwritten it."""
        self._upload(0, self.host.reshape(-1), stream)
