"""A checked call with other arrays in place of some: what is cheap to see, for those who do it every step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.checks.arguments import shown
from refopt.checks.arrays import Array
from refopt.checks.call import Call
from refopt.checks.dtypes import ITEM_SIZES

Extents = np.ndarray  # (2, n): where each array that is there begins and ends, in bytes
# Where each of some arrays is, if all are, but for that, as others were; it has a list to keep what it likes in.
Locate = Callable[[str, Sequence[Any], Sequence[Array | None], list], list[int] | None]


class Bound:
    """A checked call whose arrays may be exchanged for others that are like them.

    Args:
        call: what has been checked as a whole.
        locate: as above; it is given how errors begin, the arrays, what those before were like, and its list.

    Attributes:
        addresses: by slot, where the array of each tensor is, 0 if there is none, int64.
        there: by slot, whether there is one.
        empty: the tensors that have no elements.
    """

    def __init__(self, call: Call, locate: Locate) -> None:
        self._call, self._locate = call, locate
        self.addresses = {slot: np.array([a.address if a else 0 for a in xs], np.int64) for slot, xs in _rows(call)}
        self.there = {slot: np.array([a is not None for a in arrays], bool) for slot, arrays in _rows(call)}
        self.empty = [i for i, param in enumerate(call.arrays["params"]) if param and not param.size]
        self._bytes = {slot: np.array([_nbytes(a) for a in arrays], np.int64) for slot, arrays in _rows(call)}
        # Bits that are 0 in an address that elements of the dtype may have.
        self._lower = {slot: np.array([_item(a) - 1 for a in arrays], np.int64) for slot, arrays in _rows(call)}
        self._looks: dict[str, list] = {slot: [] for slot in call.arrays}
        self._moved: set[str] = set()  # slots whose arrays in the call are not where it says
        self._given: tuple[list, np.ndarray] = [], np.zeros(0, np.int64)  # by a caller, last, and as addresses
        self._written_slots = frozenset(slot.name for slot in call.routine.slots if slot.written)
        self._written: Extents | None = None  # of all arrays that are written, in order; None if not known

    @property
    def call(self) -> Call:
        """The call as it is at present."""
        for slot in self._moved:
            arrays, addresses = self._call.arrays[slot], self.addresses[slot].tolist()
            self._call.arrays[slot] = [a and _at(a, place) for a, place in zip(arrays, addresses, strict=True)]
            if self._call.slots[slot] is None:
                self._call.slots[slot] = self._call.arrays[slot]
        self._moved.clear()
        return self._call

    def located(self, slots: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        """The addresses of other arrays, if each is like the one before and has memory of its own.

        Returns:
            By slot, as `addresses`; ``None`` if anything is not as it was, for `refopt.checks.check` to find out what.
        """
        name, moved = self._call.routine.merged_name, {}
        for slot, values in slots.items():
            arrays = self._call.arrays[slot]
            if not isinstance(values, Sequence) or len(values) != len(arrays):
                return None
            places = self._locate(f"{name}: {slot}", values, arrays, self._looks[slot])
            if places is None:
                return None
            moved[slot] = np.array(places, np.int64)
            if self.misplaced(slot, moved[slot]).any():
                return None
        return moved if self._apart(moved) else None

    def misplaced(self, slot: str, addresses: np.ndarray) -> np.ndarray:
        """By tensor, whether elements of the slot's dtype cannot be at an address."""
        return (addresses & self._lower[slot]) != 0

    def given(self, where: str, addresses: Any) -> np.ndarray:
        """Addresses as given by a caller, as `addresses` has them; raises if they are no integers, or not as many."""
        before, places = self._given
        if type(addresses) is list and addresses == before:
            return places
        count = len(self._call.arrays["params"])
        try:
            places = np.array(addresses)
        except ValueError:  # of lists of several lengths
            places = np.array(None)
        if places.shape != (count,) or (places.dtype.kind not in "iu" and count):
            raise TypeError(f"{where}: expected {count} integers, as many as planned, got {shown(addresses)}")
        places = places.astype(np.int64)
        if (places < 0).any():
            i = int((places < 0).argmax())
            raise ValueError(f"{where}[{i}]: expected an address from 0 to 2**63 - 1, got {addresses[i]}")
        if type(addresses) is list:
            self._given = addresses.copy(), places
        return places

    def check_places(self, where: str, slot: str, addresses: np.ndarray) -> None:
        """Refuse an address that no element of the slot's dtype can have."""
        wrong = self.misplaced(slot, addresses)
        if wrong.any():
            i = int(wrong.argmax())
            item, array = int(self._lower[slot][i]) + 1, self._call.arrays[slot][i]
            expected = f"expected an address divisible by {item}, as {array and array.dtype} needs"
            raise ValueError(f"{where}[{i}]: {expected}, got one with remainder {addresses[i] % item}")

    def stand_ins(self, slot: str, addresses: np.ndarray, there: np.ndarray) -> list[Array | None]:
        """Arrays of which the addresses alone are known: as those before, or where there were none, as parameters."""
        arrays = self.call.arrays
        likes = [array or param for array, param in zip(arrays[slot], arrays["params"], strict=True)]
        rows = zip(likes, addresses.tolist(), there, strict=True)
        return [like._replace(address=address) if here and like else None for like, address, here in rows]

    def exchange(self, slot: str, values: list | None, addresses: np.ndarray) -> None:
        """Have other arrays in a slot: what they are, ``None`` if that is not known, and where."""
        self._call.slots[slot] = values  # type: ignore[assignment]
        if addresses.tobytes() != self.addresses[slot].tobytes() or values is None:
            self.addresses[slot] = addresses
            self._moved.add(slot)
            if slot in self._written_slots:
                self._written = None

    def _apart(self, moved: Mapping[str, np.ndarray]) -> bool:
        """Whether no array that is written shares memory with any other."""
        moved = {slot: places for slot, places in moved.items() if (places != self.addresses[slot]).any()}
        if not moved:
            return True
        if not self._written_slots.isdisjoint(moved):
            places = self.addresses | moved
            extents = [self._extents(slot, places[slot]) for slot in places]
            shared = extents_of(list(self._call.shared.values()))
            return not overlap([*extents, shared], [*(slot in self._written_slots for slot in places), False])
        if self._written is None:
            # They do not overlap, so where they end is in order as well.
            both = [self._extents(slot, self.addresses[slot]) for slot in self._written_slots]
            self._written = np.sort(np.concatenate(both, 1), 1)
        return not any(_within(self._extents(slot, places), self._written) for slot, places in moved.items())

    def _extents(self, slot: str, addresses: np.ndarray) -> Extents:
        some = self._bytes[slot].nonzero()[0]
        starts = addresses[some]
        return np.stack([starts, starts + self._bytes[slot][some]])


def _rows(call: Call) -> Sequence[tuple[str, list[Array | None]]]:
    return list(call.arrays.items())


def _nbytes(array: Array | None) -> int:
    return array.size * ITEM_SIZES[array.dtype] if array else 0


def _item(array: Array | None) -> int:
    return ITEM_SIZES[array.dtype] if array and array.size else 1


def _at(array: Array, address: int) -> Array:
    return array if array.address == address else array._replace(address=address)


def _within(extents: Extents, others: Extents) -> bool:
    """Whether one of some extents shares memory with one of others, which are in order and share none themselves."""
    if not others.shape[1] or not extents.shape[1]:
        return False
    starts, stops = extents[:, extents[0].argsort()]  # a search in order finds in the cache what it reads
    before = others[0].searchsorted(stops)
    return bool(((before > 0) & (others[1][before - 1] > starts)).any())


def extents_of(arrays: Sequence[Array | None]) -> Extents:
    """The extents of those that are there and have elements."""
    spans = [(a.address, a.address + a.size * ITEM_SIZES[a.dtype]) for a in arrays if a and a.size]
    return np.array(spans, np.int64).reshape(-1, 2).T


def overlap(extents: Sequence[Extents], written: Sequence[bool]) -> bool:
    """Whether an array that is written, one flag for each group, shares memory with any other."""
    starts, stops = np.concatenate(extents, 1)
    flags = np.repeat(written, [each.shape[1] for each in extents])
    order = np.argsort(starts, kind="stable")
    starts, stops, flags = starts[order], stops[order], flags[order]
    before = [np.maximum.accumulate(x)[:-1] for x in (stops, np.where(flags, stops, 0))]
    return bool(((starts[1:] < before[0]) & flags[1:] | (starts[1:] < before[1])).any())
