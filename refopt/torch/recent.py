"""What is made for a set of gradients and may be wanted again: of many sets, what was used last is kept."""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
MOST = 8


class Recent(dict[Key, Value], Generic[Key, Value]):
    """At most `MOST` entries, in the order in which they were used."""

    def use(self, key: Key, value: Value) -> None:
        """Have an entry be the last that was used; the first goes where there are too many."""
        self.pop(key, None)
        self[key] = value
        if len(self) > MOST:
            del self[next(iter(self))]

    @property
    def last(self) -> Key:
        """The key that was used last."""
        return next(reversed(self))
