"""The laws as tests of pytest: an item for each law in each dtype."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from refopt.catalog import ROUTINES
from refopt.checks.arguments import chosen
from refopt.oracle import checking
from refopt.oracle.cases import has
from refopt.oracle.checking import DTYPES
from refopt.oracle.expected_failures import reasons
from refopt.oracle.laws import LAWS
from refopt.oracle.report import SKIPPED


class Check(NamedTuple):
    """One law in one dtype, to be called by a test."""

    routine: str
    subject: Any
    law: str
    dtype: str
    named: dict[str, Any]

    def __call__(self) -> None:
        """Hold the step to the law; fails with the report, and skips if all of it is skipped."""
        __tracebackhide__ = True
        report = checking.check(self.routine, self.subject, laws=[self.law], dtypes=[self.dtype], **self.named)
        if report.failed_laws:
            pytest.fail(str(report), pytrace=False)
        skipped = report.of(SKIPPED)
        if len(skipped) == len(report.items):
            pytest.skip("; ".join(dict.fromkeys(item.text for item in skipped)) or "no cases")


def parametrize(
    routine: str, subject: Any, *, dtypes: Iterable[str] | None = None, laws: Iterable[str] | None = None,
    expected_failures: Any = None, **named: Any,
) -> Any:  # fmt: skip
    """A decorator that makes a test an item for each law in each dtype.

    The test has an argument ``check`` and calls it::

        @oracle.parametrize("adamw", my_step, expected_failures={"L7": "it flushes subnormal numbers to zero"})
        def test_adamw(check):
            check()

    Args:
        routine, subject: as `refopt.oracle.check` takes them.
        dtypes: of the parameters; by default all that NumPy has here.
        laws: ids; by default all but those by request.
        expected_failures: why a law need not hold, by its id, or the path of a file of lines ``L7 # why``. Its items
            are marked ``xfail``, strictly: one that passes in any dtype fails.
        named: other arguments of `refopt.oracle.check`.

    Raises:
        TypeError, ValueError: naming the argument, if these are not what is expected.
    """
    chosen("parametrize: routine", routine, ROUTINES)
    kinds = [x for x in DTYPES if has(x)] if dtypes is None else list(dtypes)
    asked = [law.id for law in LAWS.values() if not law.asked] if laws is None else list(laws)
    checking.check(routine, subject, laws=asked, dtypes=[], **named)  # which refuses what is not expected
    allowed = reasons(expected_failures, asked)
    items = []
    for law in asked:
        why = allowed.get(law)
        marks = [pytest.mark.xfail(strict=True, reason=why)] if why is not None else []
        for dtype in kinds:
            items.append(pytest.param(Check(routine, subject, law, dtype, named), id=f"{law}-{dtype}", marks=marks))
    return pytest.mark.parametrize("check", items)
