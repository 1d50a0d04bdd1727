"""Which device takes what: the one with the least load so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from refopt.checks.arguments import RANKS, chosen, shown, whole
from refopt.checks.arguments import names as listed_names
from refopt.program.model import Var, mapping


class Balancer:
    """Gives variables to devices, one call after the other, and remembers where they are.

    What it answers depends on all calls before: two that place the same variables in another order may place them
    elsewhere. So whatever must be on the device of a variable asks `device_of`, and a program is placed by a balancer
    of its own, which starts from no load.

    Attributes:
        devices: how many there are.
        loads: by device, the elements that it has been given.
        places: by name, the device that it was first recorded on.

    Source: Paddle's ``MultiDevSSAGraphBuilder::GetAppropriateDeviceID`` of PR 11221.
    """

    def __init__(self, devices: int, sizes: Mapping[str, int], unknown: str = "error") -> None:
        """No load on any device.

        Args:
            devices: how many there are, from 1 to 2**20.
            sizes: elements, not bytes, by name; see `sizes_of`.
            unknown: what a name that has no size is: an ``"error"``, as Paddle at first, or of no weight and
                ``"ignore"``d, as later.
        """
        self.devices = whole("Balancer: devices", devices, 1, RANKS)
        checked = mapping("Balancer: sizes", sizes)
        self._sizes = {name: whole(f"Balancer: sizes[{name!r}]", size) for name, size in checked.items()}
        self._unknown = chosen("Balancer: unknown", unknown, ("error", "ignore"))
        self._loads = [0] * self.devices
        self._places: dict[str, int] = {}

    def __copy__(self) -> Balancer:
        """A balancer that goes on from the same loads and places by itself."""
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
        """The device with the least load, the first of several; the elements of all names are then its load, too.

        A name counts as often as it comes, and again in each call. Nothing is recorded; see `record`.

        Args:
            names: at least one.

        Raises:
            ValueError: naming the name that has no size, or a size of less than 1; nothing has changed then.
            TypeError: if they are no names, or a single one.
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
        """Remember where a variable is; the first recording holds.

        Returns:
            The device that holds.

        Raises:
            ValueError: if there is no such device.
        """
        (key,) = listed_names("record: name", [name])
        return self._places.setdefault(key, whole(f"record: {key!r}: device", device, 0, self.devices - 1))

    def place(self, name: str) -> int:
        """The device of a variable: where it was recorded, or now by `get_appropriate_dev`, and recorded."""
        (name,) = listed_names("place: name", [name])
        if name not in self._places:
            self._places[name] = self.get_appropriate_dev([name])
        return self._places[name]

    def take(self, other: Balancer) -> None:
        """Go on from the loads and places of another balancer of as many devices."""
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
    """Elements by name of a program's variables; of a sparse one, those of all its rows."""
    checked = mapping("sizes_of: vars", vars)
    for name, var in checked.items():
        if not isinstance(var, Var):
            raise TypeError(f"sizes_of: vars[{name!r}]: expected a Var, got {shown(var)}")
    return {name: math.prod(var.shape) for name, var in checked.items() if -1 not in var.shape}
