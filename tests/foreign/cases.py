"""What runs of each repository, and what is expected of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from refopt import simt


class Case(NamedTuple):
    """Some kernels of a repository. `defect` is what the executor is to report: an error that is really in them."""

    repository: str
    name: str
    run: Callable[[], Any]
    defect: type[BaseException] | None
    why: str


CASES: list[Case] = []


def case(repository: str, name: str, defect: type[BaseException] | None = None, why: str = "") -> Any:
    """Add a case; `why` says what is wrong in the kernel, or why it cannot run."""

    def add(run: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append(Case(repository, name, run, defect, why))
        return run

    return add


def outcome(which: Case) -> tuple[bool, str]:
    """Whether a case is as expected, and what happened in a line."""
    try:
        said = which.run()
    except BaseException as error:
        if which.defect is not None and isinstance(error, which.defect):
            return True, f"{type(error).__name__}: {which.why}"
        if isinstance(error, KeyboardInterrupt):
            raise
        first = str(error).splitlines()[0] if str(error) else ""
        return False, f"{type(error).__name__}: {first}"
    if which.defect is not None:
        return False, f"no {which.defect.__name__}, though {which.why}"
    return True, said or "passes"


def watched(run: Callable[[], Any]) -> Any:
    """Run with races looked for."""
    with simt.observe(count=False, watch=True):
        return run()
