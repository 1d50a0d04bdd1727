"""The type of wrong rules: a routine's own rule with some text replaced."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from refopt.oracle.source import rewritten, substituted

NONE: Mapping[str, Any] = MappingProxyType({})


class Wrong(NamedTuple):
    """A rule that is wrong in one place.

    Attributes:
        name: the diagnosis.
        how: replacements in the source of the right rule and of the functions it calls; or a complete rule, with the
            signature of those in `refopt.cpu`.
        names: names in new text that the rule's module lacks.
        needs: what a step must take, or declare, for the rule to differ from the right one.
        rough: whether it differs from the right one by its rounding errors alone.
    """

    name: str
    how: Mapping[str, str] | Callable[..., tuple]
    names: Mapping[str, Any] = NONE
    needs: tuple[str, ...] = ()
    rough: bool = False

    def of(self, rule: Callable[..., tuple], right: Callable[..., tuple] | None = None) -> Any:
        """The wrong version of a rule; ``right`` is the part that a complete rule replaces, if not all of it."""
        if isinstance(self.how, Mapping):
            return rewritten(rule, self.how, **self.names)
        return self.how if right is None else substituted(rule, {right: self.how})
