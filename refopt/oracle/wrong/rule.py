"""What a wrong rule is: a routine's own, in which some text is other text."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from refopt.oracle.source import rewritten, substituted

NONE: Mapping[str, Any] = MappingProxyType({})


class Wrong(NamedTuple):
    """A rule that is wrong in one place.

    Attributes:
        name: what is wrong, as a diagnosis; ``None`` if the formula is right, and its roundings or what it makes of NaN
            and of the sign of 0 alone are others; or if it is a variant, which a choice names.
        how: what stands in the source of the right rule, and of what that calls, and what stands there instead; or a
            rule of its own, of the form of those in `refopt.cpu`.
        names: what new text refers to that its module has not.
    """

    name: str | None
    how: Mapping[str, str] | Callable[..., tuple]
    names: Mapping[str, Any] = NONE

    def of(self, rule: Callable[..., tuple], right: Callable[..., tuple] | None = None) -> Any:
        """A rule that is wrong so; ``right`` is what of it a rule of its own stands for, if that is less than all."""
        if isinstance(self.how, Mapping):
            return rewritten(rule, self.how, **self.names)
        return self.how if right is None else substituted(rule, {right: self.how})
