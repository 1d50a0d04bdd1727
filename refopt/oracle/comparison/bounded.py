"""Two implementations within the bound of one formula, and so within twice that of each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from refopt.oracle.checking import check
from refopt.oracle.comparison.report import Compared

LAWS = "L1", "L3", "L4", "L5"  # one step, many tensors, layouts and sizes


def within_bound(
    routine: str, pair: Sequence[Any], options: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
) -> Compared:
    """Check both against the bound of a routine on the same cases.

    Args:
        routine: its name.
        pair: both implementations.
        options: the options of each.
        common: arguments of `check` for both.

    Returns:
        A report whose items name the implementation that they belong to.
    """
    given = {name: x for name, x in common.items() if x is not None}
    reports = [
        check(routine, one, laws=LAWS, diagnose=False, **given, **of) for one, of in zip(pair, options, strict=True)
    ]
    items = [
        item._replace(label=f"{report.subject}: {item.label}", text=item.text and f"{report.subject}: {item.text}")
        for report in reports
        for item in report.items
    ]
    first, second = reports
    notes = dict.fromkeys([*first.notes, *second.notes, f"both within the bound of {routine}"])
    return Compared(
        f"{second.subject} compared with {first.subject}", items, first.laws,
        compared=min(first.compared, second.compared) if first.step_compared and second.step_compared else 0,
        expected_failures={}, dtypes=list(dict.fromkeys([*first.dtypes, *second.dtypes])), notes=list(notes),
        seconds=first.seconds + second.seconds, usual_dtypes=first.usual_dtypes,
    )
