"""Assigning variables to devices: to the one with the least load so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from refopt.checks.arguments import RANKS, chosen, mapped, shown, whole
from refopt.checks.arguments import names as listed_names
from refopt.program.model import Var


class Balancer:
    """Assigns variables to devices, one call after the other, and remembers where they are.

    Results depend on all earlier calls: placing the same variables in another order may give other devices. So code
    that must follow a variable asks `device_of`, and each program has its own balancer, which starts without load.

    Attributes:
        devices: how many there are.
        loads: by device, the elements assigned to it.
        places: by name, the device that was recorded first.

    Source: Paddle's ``MultiDevSSAGraphBuilder::GetAppropriateDeviceID`` of PR 11221.
    """

    def __init__(self, devices: int, sizes: Mapping[str, int], unknown: str = "error") -> None:
        """No load on any device.

        Args:
            devices: how many there are, from 1 to 2**20.
            sizes: elements, not bytes, by name; see `sizes_of`.
            unknown: whether a name without a size is an ``"error"``, as in Paddle at first, or ``"ignore"``d, with no
                weight, as later.
        """
        self.devices = whole("Balancer: devices", devices, 1, RANKS)
        checked = mapped("Balancer: sizes", sizes)
        self._sizes = {name: whole(f"Balancer: sizes[{name!r}]", size) for name, size in checked.items()}
        self._unknown = chosen("Balancer: unknown", unknown, ("error", "ignore"))
        self._loads = [0] * self.devices
        self._places: dict[str, int] = {}

    def __copy__(self) -> Balancer:
        """An independent balancer that continues from the same loads and places."""
        twin = type(self)(self.devices, self._sizes, self._unknown)
        twin.take(self)
        return twin

    @property
    def loads(self) -> tuple[int, ...]:
        return tuple(self._loads)

    @property
    def places(self) -> Mapping[str, int]:
        return MappingProxyType(self._places)

    def get_appropriate_dev(self, names: Iterable[str]) -> int:
        """The first device with the least load; the elements of all names are then added to its load.

        A name counts as often as it occurs, and again in each call. Nothing is recorded; see `record`.

        Args:
            names: at least one.

        Raises:
            ValueError: naming the name without a size, or with a size below 1; then nothing has changed.
            TypeError: they are not names, or a single string.
        """
        weight, checked = 0, listed_names("get_appropriate_dev: names", names)
        if not checked:
            raise ValueError("get_appropriate_dev: names: expected at least one name, got none")
        for k, name in enumerate(checked):
            if name not in self._sizes:
                if self._unknown == "error":
                    raise ValueError(f"get_appropriate_dev: names[{k}]: expected a name with a size, got {name!r}")
                continue
            if self._sizes[name] < 1:
                expected = f"expected {name!r} to have at least one element"
                raise ValueError(f"get_appropriate_dev: names[{k}]: {expected}, got {self._sizes[name]}")
            weight += self._sizes[name]
        device = self._loads.index(min(self._loads))
        self._loads[device] += weight
        return device

    def record(self, name: str, device: int) -> int:
        """Record where a variable is; only the first recording counts.

        Returns:
            The recorded device.

        Raises:
            ValueError: if there is no such device.
        """
        (key,) = listed_names("record: name", [name])
        return self._places.setdefault(key, whole(f"record: {key!r}: device", device, 0, self.devices - 1))

    def place(self, name: str) -> int:
        """The recorded device of a variable, or else one from `get_appropriate_dev`, which is then recorded."""
        (name,) = listed_names("place: name", [name])
        if name not in self._places:
            self._places[name] = self.get_appropriate_dev([name])
        return self._places[name]

    def take(self, other: Balancer) -> None:
        """Continue from the loads and places of another balancer of as many devices."""
        if not isinstance(other, Balancer):
            raise TypeError(f"take: expected a balancer, got {shown(other)}")
        if other.devices != self.devices:
            raise ValueError(f"take: expected a balancer of {self.devices} devices, got one of {other.devices}")
        self._loads, self._places = list(other.loads), dict(other.places)

    def device_of(self, name: str) -> int:
        """Where a variable was recorded.

        Raises:
            ValueError: if it never was.
        """
        if not isinstance(name, str) or name not in self._places:
            raise ValueError(f"device_of: expected a variable that has been placed, got {shown(name)}")
        return self._places[name]


def sizes_of(vars: Mapping[str, Var]) -> dict[str, int]:
    """Element counts of a program's variables by name; for a sparse one, of all its rows."""
    checked = mapped("sizes_of: vars", vars)
    for name, var in checked.items():
        if not isinstance(var, Var):
            raise TypeError(f"sizes_of: vars[{name!r}]: expected a Var, got {shown(var)}")
    return {name: math.prod(var.shape) for name, var in checked.items() if -1 not in var.shape}
