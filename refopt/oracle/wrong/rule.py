"""What a wrong rule is."""

from collections.abc import Callable
from typing import NamedTuple


class Wrong(NamedTuple):
    """A rule that is wrong in one place, of the form of those in `refopt.cpu`.

    Attributes:
        name: what is wrong, as a diagnosis; ``None`` if the formula is right, and its roundings or what it makes of NaN
            and of the sign of 0 alone are others; or if it is a variant, which a choice names.
        rule: the rule.
        update: the rule without what comes before it, where it is right up to there: the gradient's sign, weight decay.
    """

    name: str | None
    rule: Callable[..., tuple]
    update: Callable[..., tuple] | None = None
