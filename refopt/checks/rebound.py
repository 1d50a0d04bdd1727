"""Replacement of arrays in a checked call, with checks that are cheap enough for every step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.checks.arguments import listed, shown
from refopt.checks.arrays import Array
from refopt.checks.dtypes import ITEM_SIZES, WIDEST

Extents = np.ndarray  # (2, n): the addresses at which each present array begins and ends, in bytes
Moved = tuple[np.ndarray, list[Any] | None, bool, bool]  # see `Bound.moved`
# The addresses of arrays if each is, apart from its address, like the one before; else None. The last argument is a
# list in which the function may keep state.
Locate = Callable[[str, Sequence[Any], Sequence[Array | None], list], list[int] | None]


class Bound:
    """Checked lists of arrays, which may be replaced by similar ones.

    Args:
        name: the beginning of errors.
        slots: the lists by slot, as passed; they are kept up to date.
        arrays: the same arrays, described, by slot; `settle` brings them up to date.
        locate: a `Locate` function of the beginning of errors, the arrays, the descriptions before, and its list.
        written: the slots whose arrays are written.
        shared: other arrays, which are only read.

    Attributes:
        addresses: by slot, the address of each tensor's array as int64, 0 if there is none.
        there: by slot, whether each tensor has an array.
        empty: the tensors without elements.
    """

    def __init__(
        self, name: str, slots: dict[str, Any], arrays: dict[str, list[Array | None]], locate: Locate,
        written: Iterable[str] = (), shared: Iterable[Array] = (),
    ) -> None:
        self._name, self._slots, self._arrays, self._locate = name, slots, arrays, locate
        first = next(iter(arrays.values()))
        self._count, self.empty = len(first), [i for i, array in enumerate(first) if array and not array.size]
        rows = list(arrays.items())
        self.addresses = {slot: np.array([a.address if a else 0 for a in row], np.int64) for slot, row in rows}
        self.there = {slot: np.array([a is not None for a in row], bool) for slot, row in rows}
        self._bytes = {slot: np.array([_nbytes(a) for a in row], np.int64) for slot, row in rows}
        # The address bits that must be 0 for elements of the dtype.
        self._lower = {slot: np.array([_item(a) - 1 for a in row], np.int64) for slot, row in rows}
        self._looks: dict[str, list] = {slot: [] for slot in arrays}
        self._moved: set[str] = set()  # slots whose descriptions have outdated addresses
        self._written, self._shared = frozenset(written), list(shared)
        self._others: Extents | None = None  # of all written arrays, sorted; None if not known

    def settle(self) -> None:
        """Update the descriptions of moved arrays; they also replace arrays of which only addresses are known."""
        for slot in self._moved:
            rows = zip(self._arrays[slot], self.addresses[slot].tolist(), strict=True)
            self._arrays[slot] = [x if not x or x.address == place else x._replace(address=place) for x, place in rows]
            if self._slots[slot] is None:
                self._slots[slot] = self._arrays[slot]
        self._moved.clear()

    def located(self, slots: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        """The addresses of other arrays, if each is like the one before and none overlap.

        Returns:
            By slot, like `addresses`; ``None`` if anything has changed, in which case `refopt.checks.check` finds what.
        """
        moved = {}
        for slot, values in slots.items():
            arrays = self._arrays[slot]
            if not isinstance(values, Sequence) or len(values) != len(arrays):
                return None
            places = self._locate(f"{self._name}: {slot}", values, arrays, self._looks[slot])
            if places is None:
                return None
            moved[slot] = np.array(places, np.int64)
            if self.misplaced(slot, moved[slot]).any():
                return None
        return moved if self._apart(moved) else None

    def misplaced(self, slot: str, addresses: np.ndarray) -> np.ndarray:
        """By tensor, whether an address is misaligned for the slot's dtype."""
        return (addresses & self._lower[slot]) != 0

    def _shifted(self, slot: str, addresses: Any) -> np.ndarray | None:
        """A copy of other addresses for a slot that is read, if they are int64, present and aligned as now."""
        held = self.addresses.get(slot) if isinstance(slot, str) and slot not in self._written else None
        if held is None or type(addresses) is not np.ndarray or addresses.dtype != np.int64:
            return None
        if addresses.shape != held.shape or (addresses != 0).tobytes() != self.there[slot].tobytes():
            return None
        changes = np.bitwise_or.reduce(addresses ^ held)
        return addresses.copy() if changes > 0 and not changes & (WIDEST - 1) else None

    def moved(self, where: str, slot: str, addresses: Any, arrays: Any) -> Moved:
        """Check a caller's new arrays for a slot: their addresses, and the arrays or ``None``.

        Returns:
            The addresses in the form of `addresses`; the arrays as a list, ``None``, or descriptions if some were added
            or removed and no arrays were passed; whether some were; and whether addresses are known to have changed by
            multiples of `WIDEST` alone.

        Raises:
            TypeError, ValueError: naming the argument and the index.
        """
        if arrays is None and (shifted := self._shifted(slot, addresses)) is not None:
            return shifted, None, False, True
        if not isinstance(slot, str) or slot not in self.addresses:
            raise TypeError(f"{where}: slot: expected one of {', '.join(self.addresses)}, got {shown(slot)}")
        places = self._places_of(f"{where}: addresses", addresses)
        values = None if arrays is None else listed(f"{where}: arrays", arrays)
        if values is None and slot in self._written:
            why = "since states are read from them"
            raise TypeError(f"{where}: arrays: expected the arrays of {slot}, {why}, got None")
        if values is not None and len(values) != self._count:
            raise ValueError(f"{where}: arrays: expected {self._count} entries, as planned, got {len(values)}")
        there, before = places != 0, self.there[slot]
        if self.empty:
            there[self.empty] = before[self.empty] if values is None else [values[i] is not None for i in self.empty]
        if there.tobytes() != before.tobytes():
            return places, self._stand_ins(where, slot, places, there) if values is None else values, True, False
        if (wrong := self.misplaced(slot, places)).any():
            i = int(wrong.argmax())
            item, array = int(self._lower[slot][i]) + 1, self._arrays[slot][i]
            expected = f"expected an address divisible by {item}, as {array and array.dtype} needs"
            raise ValueError(f"{where}: addresses[{i}]: {expected}, got one with remainder {places[i] % item}")
        return places, values, False, False

    def _places_of(self, where: str, addresses: Any) -> np.ndarray:
        """A caller's integers in the form of `addresses`."""
        try:
            places = np.array(addresses)
        except Exception:  # entries that are not numbers may fail when converted
            places = np.array(None)
        if places.shape != (self._count,) or (places.dtype.kind not in "iu" and self._count):
            raise TypeError(f"{where}: expected {self._count} integers, as many as planned, got {shown(addresses)}")
        places = places.astype(np.int64)
        if (places < 0).any():
            i = int((places < 0).argmax())
            raise ValueError(f"{where}[{i}]: expected an address from 0 to 2**63 - 1, got {addresses[i]}")
        return places

    def _stand_ins(self, where: str, slot: str, addresses: np.ndarray, there: np.ndarray) -> list[Array | None]:
        """Descriptions of arrays of which only addresses are known: like those before, or else like the parameters."""
        self.settle()
        likes = [x or y for x, y in zip(self._arrays[slot], next(iter(self._arrays.values())), strict=True)]
        for i, like in enumerate(likes):
            if like is None and there[i]:
                expected = f"expected the arrays of {slot}, since {slot}[{i}] is new"
                raise TypeError(f"{where}: arrays: {expected}, got None")
        rows = zip(likes, addresses.tolist(), there, strict=True)
        return [like._replace(address=address) if here and like else None for like, address, here in rows]

    def exchange(self, slot: str, values: list | None, addresses: np.ndarray) -> None:
        """Set the arrays of a slot, or ``None`` if only their addresses are known, and the addresses."""
        self._slots[slot] = values
        if values is None or addresses.tobytes() != self.addresses[slot].tobytes():
            self.addresses[slot] = addresses
            self._moved.add(slot)
            if slot in self._written:
                self._others = None

    def _apart(self, moved: Mapping[str, np.ndarray]) -> bool:
        """Whether no written array shares memory with any other."""
        moved = {slot: places for slot, places in moved.items() if (places != self.addresses[slot]).any()}
        if not moved:
            return True
        if not self._written.isdisjoint(moved):
            places = self.addresses | moved
            extents = [*(self._extents(slot, places[slot]) for slot in places), extents_of(self._shared)]
            return not overlap(extents, [*(slot in self._written for slot in places), False])
        if not self._written:
            return True
        if self._others is None:
            # They do not overlap, so their ends are sorted too.
            both = [self._extents(slot, self.addresses[slot]) for slot in self._written]
            self._others = np.sort(np.concatenate(both, 1), 1)
        return not any(_within(self._extents(slot, places), self._others) for slot, places in moved.items())

    def _extents(self, slot: str, addresses: np.ndarray) -> Extents:
        some = self._bytes[slot].nonzero()[0]
        starts = addresses[some]
        return np.stack([starts, starts + self._bytes[slot][some]])


def _nbytes(array: Array | None) -> int:
    return array.size * ITEM_SIZES[array.dtype] if array else 0


def _item(array: Array | None) -> int:
    return ITEM_SIZES[array.dtype] if array and array.size else 1


def _within(extents: Extents, others: Extents) -> bool:
    """Whether any of some extents shares memory with any of others, which are sorted and do not overlap."""
    if not others.shape[1] or not extents.shape[1]:
        return False
    starts, stops = extents[:, extents[0].argsort()]  # searching in order uses the cache well
    before = others[0].searchsorted(stops)
    return bool(((before > 0) & (others[1][before - 1] > starts)).any())


def extents_of(arrays: Sequence[Array | None]) -> Extents:
    """The extents of the arrays that are present and have elements."""
    return np.array([a.span for a in arrays if a and a.size], np.int64).reshape(-1, 2).T


def overlap(extents: Sequence[Extents], written: Sequence[bool]) -> bool:
    """Whether a written array shares memory with any other; ``written`` has a flag for each group."""
    starts, stops = np.concatenate(extents, 1)
    flags = np.repeat(written, [each.shape[1] for each in extents])
    order = np.argsort(starts, kind="stable")
    starts, stops, flags = starts[order], stops[order], flags[order]
    before = [np.maximum.accumulate(x)[:-1] for x in (stops, np.where(flags, stops, 0))]
    return bool(((starts[1:] < before[0]) & flags[1:] | (starts[1:] < before[1])).any())
