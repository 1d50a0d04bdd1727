"""A cache for objects that are made for a set of gradients: it keeps the most recently used ones."""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
MOST = 8


class Recent(dict[Key, Value], Generic[Key, Value]):
    """At most `MOST` entries, in the order of their last use."""

    def use(self, key: Key, value: Value) -> None:
        """Make an entry the most recently used; if there are too many, the least recently used one goes."""
        self.pop(key, None)
        self[key] = value
        if len(self) > MOST:
            del self[next(iter(self))]

    @property
    def last(self) -> Key:
        """The key that was used last."""
        return next(reversed(self))
