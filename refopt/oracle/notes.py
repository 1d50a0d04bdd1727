"""What a reader of a report should know in addition to its verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from refopt.oracle.report import FAILED, SKIPPED, Item
from refopt.oracle.trial import NO_ERROR, NONE_FOUND


def of_trial(trial: Any) -> Iterator[str]:
    """For a dtype: what was compared less exactly or not at all, and which functions of a library ran."""
    if trial.row is None:
        if trial.off:
            within = f"within {trial.tolerance('params'):.2g} of the largest change, not bit for bit"
            yield f"{trial.dtype}: {within}; ULPs at most: {', '.join(f'{law} {x}' for law, x in trial.off.items())}"
        return
    if not trial.found:
        yield f"{trial.dtype}: {NONE_FOUND}, so L29 to L32 do not apply; for a class's own, add --with states=8bit"
    if trial.groups > 1:
        yield f"{trial.dtype}: states in groups: a large gradient affects up to {trial.groups} elements"
    if trial.rounded:
        named = ", ".join(f"{name}={x:g}" for name, x in trial.rounded.items())
        yield f"{trial.dtype}: {named}: not numbers of {np.dtype(trial.real).name}; code may keep them in double"
    if trial.silent:
        yield f"not returned, so not compared: {', '.join(sorted(trial.silent))}"
    if trial.paths:
        yield f"what ran, {trial.dtype}: {', '.join(trial.paths)}"


def of_items(items: Sequence[Item], compared: int, tested: Any, coded: bool) -> Iterator[str]:
    """Advice to the author of the step, and which laws compared states in few bits."""
    if coded:
        ran = dict.fromkeys(item.law for item in items if item.status != SKIPPED)
        yield f"states in few bits cannot be set, so cases that set them are skipped; laws that ran: {', '.join(ran)}"
    if any(item.status == FAILED and NO_ERROR in item.text for item in items):
        yield "to have a case skipped, such as a dtype, let the step raise NotImplementedError for it"
    if not compared and (libraries := getattr(tested, "libraries", [])):
        yield f"the step was given NumPy arrays; for others, pass arrays={' or '.join(map(repr, libraries))}"
