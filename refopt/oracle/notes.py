"""What a reader of a report should know in addition to its verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from refopt.oracle.item import FAILED, Item
from refopt.oracle.trial import NO_ERROR, NONE_FOUND


def of_trial(trial: Any) -> Iterator[str]:
    """For a dtype: what was compared less exactly or not at all, and which functions of a library ran."""
    if trial.row is None:
        if trial.off:
            by_law = ", ".join(f"{law} {most}" for law, most in trial.off.items())
            within = f"within {trial.tolerance('params'):.2g} of the largest change, not bit for bit"
            yield f"{trial.dtype}: {within}; ULPs at most: {by_law}"
        return
    if trial.coded and trial.found:
        yield "states in few bits cannot be set: cases that set them are skipped, runs from the first step compared"
    if not trial.found:
        yield f"{trial.dtype}: {NONE_FOUND}, so L29 to L32 do not apply"
    if trial.groups > 1:
        yield f"{trial.dtype}: states in groups: a large gradient affects up to {trial.groups} elements"
    if trial.rounded:
        named = ", ".join(f"{name}={x:g}" for name, x in trial.rounded.items())
        kept = f"not numbers of {np.dtype(trial.real).name}; code that keeps them in double is allowed for"
        yield f"{trial.dtype}: {named}: {kept}"
    if trial.silent:
        yield f"not returned, so not compared: {', '.join(sorted(trial.silent))}"
    if trial.paths:
        yield f"what ran, {trial.dtype}: {', '.join(trial.paths)}"


def of_items(items: Sequence[Item], compared: int, tested: Any) -> Iterator[str]:
    """Advice to the author of the step."""
    if any(item.status == FAILED and NO_ERROR in item.text for item in items):
        yield "to have a case skipped, such as a dtype, let the step raise NotImplementedError for it"
    if not compared and (libraries := getattr(tested, "libraries", [])):
        yield f"the step was given NumPy arrays; for others, pass arrays={' or '.join(map(repr, libraries))}"
