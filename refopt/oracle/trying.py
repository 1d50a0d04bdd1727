"""The laws in one dtype: every case is tried, and then all failures are diagnosed together."""

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

from refopt.oracle import diagnosis, shrink
from refopt.oracle.broken import Broken, Caused, Crashed, Skipped
from refopt.oracle.diagnosis import Cause, Failure
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws import Law
from refopt.oracle.report import FAILED, PASSED, SKIPPED, Item

SECONDS = 5.0  # the time to look for smallest examples, in one dtype


class Tried:
    """The results of the laws in one dtype.

    Attributes:
        items: every case.
        failures: cases, or data of runs, that broke a law, each with the index of its item.
        causes: those that laws know.
        passed: cases in which a law held.
    """

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.items: list[Item] = []
        self.failures: list[tuple[int, Failure]] = []
        self.causes: dict[tuple[str, str], Cause] = {}
        self.passed: list[Case] = []

    def law(self, law: Law, command: str) -> None:
        """Try every case of a law, up to one that ends the process."""
        over, self.trial.law = "", law.id
        for one in [*law.tries(self.trial)]:
            item = Item(law.id, self.trial.dtype, one.label, PASSED)
            case = None
            try:
                if over:
                    raise Skipped(f"not tried, after {over}", lacks=True)
                case = one.case and one.case()
                one.holds(*([] if case is None else [case]))
            except Skipped as reason:
                item = item._replace(status=SKIPPED, text=str(reason), lacks=reason.lacks)
            except Broken as broken:
                item = item._replace(
                    status=FAILED, text=str(broken), ratio=broken.ratio, kind=broken.kind, command=command)
                if case is not None:
                    self.failures.append((len(self.items), Failure(law.id, one.label, case, broken, one.holds)))
                if isinstance(broken, Caused):
                    key = law.id, broken.kind
                    self.causes.setdefault(key, Cause(str(broken), [key], dtype=self.trial.dtype))
                over = f"the process had ended at {one.label}" if isinstance(broken, Crashed) else ""
            else:
                if isinstance(case, Case) and diagnosis.is_small(case):
                    self.passed.append(case)
            self.items.append(item)

    def explained(self, known: Sequence[str], diagnose: bool) -> list[Cause]:
        """The causes of failures; each law gets the smallest example of each kind of failure, and explanations.

        Args:
            known: the causes of failures in other dtypes.
            diagnose: whether to look for causes.
        """
        of_cases = [(k, x) for k, x in self.failures if isinstance(x.case, Case)]
        failures = [failure for _, failure in of_cases]
        causes = diagnosis.causes_of(self.trial, failures, self.passed, known) if diagnose and failures else []
        until, shown = time.monotonic() + SECONDS, set()
        for key in dict.fromkeys(x.key for x in failures):
            of_key = [cause for cause in causes if key in cause.failures]
            cause = of_key[0].text if of_key else key
            mine = [(k, x) for k, x in of_cases if x.key == key]
            with contextlib.suppress(Exception):  # an error of the subject must not become one of the check
                since = self._example(mine, until if cause not in shown else 0.0)
                if of_key and since:  # the first wrong step of any case
                    of_key[0].text = re.sub(r", from step \d+ on\b", f", from step {since} on", of_key[0].text)
            if diagnose and (of_key or any(x.is_bounded for _, x in mine)):
                k = self._worst(mine)[0]
                pattern = diagnosis.pattern_of(self.trial, [x for _, x in mine])
                reasons = tuple((text, x.share) for x in of_key for text in (x.text, *x.others))
                self.items[k] = self.items[k]._replace(pattern=pattern, reasons=reasons)
            shown.add(cause)
        return [*self.causes.values(), *causes]

    def _worst(self, failures: Sequence[tuple[int, Failure]]) -> tuple[int, Failure]:
        """The smallest of some failures."""
        return min(failures, key=lambda x: x[1].size)

    def _example(self, failures: Sequence[tuple[int, Failure]], until: float) -> int | None:
        """Shrink failures of one kind to the smallest example until a time; returns the first wrong step, if known."""
        k, worst = self._worst(failures)
        search = shrink.Search(worst.case, worst.holds, worst.broken)
        if not isinstance(worst.broken, Crashed) and until:
            search.run(until)
        self.items[k] = self.items[k]._replace(example=shrink.shown(search.case, search.broken, search.since))
        return search.since
