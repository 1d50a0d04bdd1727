"""`check` without a routine: hold an optimizer to relations, and report."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import chosen, flag, number, whole
from refopt.checks.arguments import names as list_of_names
from refopt.checks.dtypes import SIZES
from refopt.oracle.broken import Broken, Crashed, Skipped
from refopt.oracle.cases import has
from refopt.oracle.exceptions import covers, reason, reasons
from refopt.oracle.relations.every import RELATIONS, SYMMETRIES
from refopt.oracle.relations.relation import Relation
from refopt.oracle.relations.report import Related
from refopt.oracle.relations.runs import Optimizer
from refopt.oracle.relations.subject import optimizer_of
from refopt.oracle.relations.trial import Trial
from refopt.oracle.report import FAILED, PASSED, SKIPPED, Item

OWN = "symmetries", "states", "tolerance"  # arguments that only a check without a routine takes


def check(
    subject: Any, *, dtypes: Iterable[str] | None = None, laws: Iterable[str] | None = None, set: Any = None,
    device: str | None = None, seed: int = 0, expected_failures: Any = None, skips: Any = None, exact: bool = False,
    arrays: str | None = None, progress: Callable[[int, int, str], object] | None = None,
    process: Any = None, deadline: float, symmetries: Iterable[str] = (), states: Any = None,
    tolerance: float | None = None, **options: Any,
) -> Related:  # fmt: skip
    """Hold an optimizer to what needs no formula; the arguments are those of `refopt.oracle.check`, and three more.

    Args:
        symmetries: what the optimizer declares, of "sign", "elements" and "zero".
        states: what a function's states are before the first step, by name: a number, a dtype, or a function of a
            parameter; by default zeros of its dtype.
        tolerance: by how much results may differ where sums may be taken in another order, relative to a tensor's
            largest change; by default it is measured.
    """
    started = time.perf_counter()
    exact = flag("check: exact", exact)
    seed = whole("check: seed", seed, least=0)
    declared = list_of_names("check: symmetries", symmetries)
    declared = tuple(chosen(f"check: symmetries[{i}]", x, SYMMETRIES) for i, x in enumerate(declared))
    if tolerance is not None:
        tolerance = number("check: tolerance", tolerance, 0, finite=True)
    wanted = _wanted(laws, declared)
    allowed = reasons("expected_failures", expected_failures, RELATIONS)
    allowed = {entry: why for entry, why in allowed.items() if any(covers(entry, law.id) for law in wanted)}
    left_out = reasons("skips", skips, RELATIONS)
    named = {"numbers": set, "states": states, "arrays": arrays, "device": device, "options": options}
    asked = None if dtypes is None else list_of_names("check: dtypes", dtypes)
    from refopt.oracle.process import in_process  # which imports much of the standard library
    from refopt.oracle.relations.remote import RemoteOptimizer

    with contextlib.ExitStack() as stack:
        tested, remarks = in_process(
            optimizer_of, None, subject, kind=RemoteOptimizer, process=process, deadline=deadline, stack=stack, **named
        )
        asked = tested.dtypes if asked is None else asked
        tried = [chosen(f"check: dtypes[{i}]", x, SIZES) for i, x in enumerate(asked)]
        of = _Asked(wanted, tried, declared, left_out, seed, exact, tolerance, progress)
        items, compared, notes = _held(tested, of)
    notes = list(dict.fromkeys([*tested.notes, *remarks, *notes]))
    return Related(
        tested.name, items, {law.id: law.name for law in wanted}, compared=compared, expected_failures=allowed,
        dtypes=tried, notes=notes, seconds=time.perf_counter() - started,
    )  # fmt: skip


class _Asked(NamedTuple):
    """What is asked of an optimizer, as `check` takes it."""

    wanted: list[Relation]
    dtypes: list[str]
    declared: Sequence[str]
    left_out: dict[str, str]
    seed: int
    exact: bool
    tolerance: float | None
    progress: Callable[[int, int, str], object] | None


def _held(tested: Optimizer, of: _Asked) -> tuple[list[Item], int, list[str]]:
    """Hold an optimizer to the laws: what came of each case, how many elements were compared, and notes."""
    items: list[Item] = []
    notes: list[str] = []
    compared = 0
    for k, kind in enumerate(of.dtypes):
        trial = Trial(tested, kind, of.seed, exact=of.exact, tolerance=of.tolerance)
        if (why := _not_taken(trial)) is not None:
            items += [Item(law.id, kind, law.name, SKIPPED, why) for law in of.wanted]
            continue
        for j, law in enumerate(of.wanted):
            if (because := reason(of.left_out, law.id, kind)) is not None:
                items.append(Item(law.id, kind, law.name, SKIPPED, f"left out: {because}"))
                continue
            if of.progress is not None:
                of.progress(k * len(of.wanted) + j, len(of.dtypes) * len(of.wanted), f"{law.id} {law.name}, {kind}")
            items += _try_all(law, trial, _command(law, tested.name, kind, of))
        compared += trial.compared
        notes += _noted(trial)
    return items, compared, notes


def _command(law: Relation, name: str, dtype: str, of: _Asked) -> str:
    """The call that shows a failure again."""
    named = f", seed={of.seed}" if of.seed else ""
    named += f", symmetries={[*of.declared]}" if law.declared else ""
    return f"oracle.check(None, {name}, dtypes={[dtype]!r}, laws=[{law.id!r}]{named})"


def _wanted(laws: Any, declared: Sequence[str]) -> list[Relation]:
    """The laws that are asked for, or by default those that hold of what is declared."""
    if laws is None:
        return [law for law in RELATIONS.values() if law.declared in ("", *declared)]
    ids = [chosen(f"check: laws[{i}]", x, RELATIONS) for i, x in enumerate(list_of_names("check: laws", laws))]
    return [law for law in RELATIONS.values() if law.id in ids]


def _not_taken(trial: Trial) -> str | None:
    """Why no step can be taken in a dtype; ``None`` if one can. Finds how many axes tensors have to have."""
    if not has(trial.dtype):
        return "ml_dtypes is not installed"
    told = []
    for axes in (1, 2):
        trial.axes = axes
        shapes = trial.shapes([45, 300])
        params = trial.params(shapes)
        try:
            came = trial.after(params, trial.steps(shapes, 2))
        except Crashed as error:  # tensors of other shapes would only make it show less
            return str(error)
        except (Skipped, Broken) as error:
            told.append(str(error))
            continue
        if all(x.tobytes() == y.tobytes() for x, y in zip(params, came.params, strict=True)):
            told.append("two steps change no parameter")
            continue
        if not all(np.isfinite(x.astype(np.float64)).all() for x in came.params):
            told.append("two steps of finite gradients leave parameters that are not finite")
            continue
        return None
    return told[0]


def _try_all(law: Relation, trial: Trial, command: str) -> list[Item]:
    """Every case of a law, but for those after one in which the process has ended."""
    items: list[Item] = []
    trial.law, over = law.id, ""
    for one in law.tries(trial):
        item = Item(law.id, trial.dtype, one.label, PASSED)
        try:
            if over:
                raise Skipped(f"not tried, after the process had ended at {over}")
            one.holds()
        except Skipped as error:
            item = item._replace(status=SKIPPED, text=str(error))
        except Broken as error:
            item = item._replace(status=FAILED, text=str(error), command=command)
            over = one.label if isinstance(error, Crashed) else ""
        items.append(item)
    return items


def _noted(trial: Trial) -> list[str]:
    """What a reader should know of results that are within the tolerance alone."""
    if not trial.off:
        return []
    by_law = ", ".join(f"{law} {most}" for law, most in trial.off.items())
    measured = trial.tolerance()
    room = trial.given if trial.given is not None else measured.get("params", 0.0)
    return [f"{trial.dtype}: within {room:.2g} of the largest change, not bit for bit; ULPs at most: {by_law}"]
