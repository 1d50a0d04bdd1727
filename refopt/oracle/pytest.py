"""The laws as pytest tests: an item for each law in each dtype."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from refopt.catalog import KNOWN
from refopt.checks.arguments import chosen
from refopt.oracle import checking
from refopt.oracle.exact.cases import has
from refopt.oracle.exceptions import reason, reasons
from refopt.oracle.process import Kept
from refopt.oracle.report import SKIPPED, Report


class Check(NamedTuple):
    """One law in one dtype, for a test to call."""

    routine: str
    subject: Any
    law: str
    dtype: str
    dtypes: tuple[str, ...]
    named: dict[str, Any]

    def __call__(self) -> None:
        """Check the step against the law; fails with the report, and skips if every case is skipped.

        The step law fails if it is skipped in every dtype of the test, so that no test passes without a comparison.
        """
        __tracebackhide__ = True
        report = self._report(self.law, [self.dtype])
        if report.wrong:
            pytest.fail(str(report), pytrace=False)
        if report.failed_laws:
            pytest.xfail(report.expected_failures[self.law])
        skipped = report.of(SKIPPED)
        if len(skipped) < len(report.items):
            return
        if self.law == "L1":
            everywhere = self._report("L1", self.dtypes, examples=0, diagnose=False)
            if len(everywhere.of(SKIPPED)) == len(everywhere.items):
                pytest.fail(str(everywhere), pytrace=False)
        pytest.skip("; ".join(dict.fromkeys(item.text for item in skipped)) or "no cases")

    def _report(self, law: str, dtypes: Sequence[str], **others: Any) -> Report:
        return checking.check(self.routine, self.subject, laws=[law], dtypes=dtypes, **self.named | others)


def parametrize(
    routine: str, subject: Any, *, dtypes: Iterable[str] | None = None, laws: Iterable[str] | None = None,
    expected_failures: Any = None, skips: Any = None, **named: Any,
) -> Any:
    """A decorator that makes a test an item for each law in each dtype.

    The test has an argument ``check`` and calls it::

        @oracle.parametrize("adamw", my_step, expected_failures={"L7": "it flushes subnormal numbers to zero"})
        def test_adamw(check):
            check()

    Args:
        routine, subject: as in `refopt.oracle.check`.
        dtypes: those of the parameters; by default those of `refopt.oracle.check` that NumPy has here.
        laws: ids; by default those of `refopt.oracle.check`.
        expected_failures: why a law need not hold, by its id, or in one dtype, as ``"L7-float32"``; or the path of a
            file of lines ``L7 # why``. Its items are marked as strict ``xfail``: passing is a failure.
        skips: what is left out, and why, in the same form. Its items are marked ``skip``.
        named: other arguments of `refopt.oracle.check`.

    Raises:
        TypeError, ValueError: naming the argument, if it is not what is expected.
    """
    chosen("parametrize: routine", routine, KNOWN)
    asked = [*checking.check(routine, subject, laws=laws, dtypes=[], **named).laws]  # it validates the arguments
    tried = checking.check(routine, subject, laws=[], dtypes=dtypes, **named).dtypes
    tried = tried if dtypes is not None else [x for x in tried if has(x)]
    named.setdefault("process", Kept())  # shared by all items, since starting it costs most
    expected, left_out = reasons("expected_failures", expected_failures), reasons("skips", skips)
    items = []
    for law in asked:
        for dtype in tried:
            marks = []
            if (because := reason(left_out, law, dtype)) is not None:
                marks.append(pytest.mark.skip(reason=because))
            elif (because := reason(expected, law, dtype)) is not None:
                marks.append(pytest.mark.xfail(strict=True, reason=because))
            held = Check(routine, subject, law, dtype, tuple(tried), named)
            items.append(pytest.param(held, id=f"{law}-{dtype}", marks=marks))
    return pytest.mark.parametrize("check", items)
