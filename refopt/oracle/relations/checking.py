"""`check` without a routine: hold an optimizer to relations, and report."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from refopt.checks.arguments import chosen, flag, number, whole
from refopt.checks.arguments import names as list_of_names
from refopt.checks.dtypes import SIZES
from refopt.oracle.cases import has
from refopt.oracle.exceptions import covers, reason, reasons
from refopt.oracle.relations.every import RELATIONS, SYMMETRIES
from refopt.oracle.relations.relation import Relation, Try
from refopt.oracle.relations.report import Related
from refopt.oracle.relations.subject import optimizer_of
from refopt.oracle.relations.trial import Trial
from refopt.oracle.report import FAILED, PASSED, SKIPPED, Item
from refopt.oracle.trial import Broken, Skipped

OWN = "symmetries", "states", "tolerance"  # arguments that only a check without a routine takes


def check(
    subject: Any, *, dtypes: Iterable[str] | None = None, laws: Iterable[str] | None = None, set: Any = None,
    device: str | None = None, seed: int = 0, expected_failures: Any = None, skips: Any = None, exact: bool = False,
    arrays: str | None = None, progress: Callable[[int, int, str], object] | None = None,
    symmetries: Iterable[str] = (), states: Any = None, tolerance: float | None = None, **options: Any,
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
    tested = optimizer_of(subject, numbers=set, states=states, arrays=arrays, device=device, options=options)
    asked = tested.dtypes if dtypes is None else list_of_names("check: dtypes", dtypes)
    tried = [chosen(f"check: dtypes[{i}]", x, SIZES) for i, x in enumerate(asked)]
    items: list[Item] = []
    notes: dict[str, None] = dict.fromkeys(tested.notes)
    compared = 0
    for k, kind in enumerate(tried):
        trial = Trial(tested, kind, seed, exact=exact, tolerance=tolerance)
        if (why := _not_taken(trial)) is not None:
            items += [Item(law.id, kind, law.name, SKIPPED, why) for law in wanted]
            continue
        for j, law in enumerate(wanted):
            if (because := reason(left_out, law.id, kind)) is not None:
                items.append(Item(law.id, kind, law.name, SKIPPED, f"left out: {because}"))
                continue
            if progress is not None:
                progress(k * len(wanted) + j, len(tried) * len(wanted), f"{law.id} {law.name}, {kind}")
            named = (f", seed={seed}" if seed else "") + (f", symmetries={[*declared]}" if law.declared else "")
            command = f"oracle.check(None, {tested.name}, dtypes={[kind]!r}, laws=[{law.id!r}]{named})"
            items += _try_all(law, trial, command)
        compared += trial.compared
        notes |= dict.fromkeys(_noted(trial))
    return Related(
        tested.name, items, {law.id: law.name for law in wanted}, compared=compared, expected_failures=allowed,
        dtypes=tried, notes=list(notes), seconds=time.perf_counter() - started,
    )  # fmt: skip


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
        except (Skipped, Broken) as error:
            told.append(str(error))
            continue
        if all(x.tobytes() == y.tobytes() for x, y in zip(params, came.params, strict=True)):
            told.append("two steps change no parameter")
            continue
        return None
    return told[0]


def _try_all(law: Relation, trial: Trial, command: str) -> list[Item]:
    """Every case of a law."""
    items = []
    trial.law = law.id
    for one in law.tries(trial):
        items.append(_tried(law, one, trial, command))
    return items


def _tried(law: Relation, one: Try, trial: Trial, command: str) -> Item:
    try:
        one.holds()
    except Skipped as error:
        return Item(law.id, trial.dtype, one.label, SKIPPED, str(error))
    except Broken as error:
        return Item(law.id, trial.dtype, one.label, FAILED, str(error), command=command)
    return Item(law.id, trial.dtype, one.label, PASSED)


def _noted(trial: Trial) -> list[str]:
    """What a reader should know of results that are within the tolerance alone."""
    if not trial.off:
        return []
    by_law = ", ".join(f"{law} {most}" for law, most in trial.off.items())
    measured = trial.tolerance()
    room = trial.given if trial.given is not None else measured.get("params", 0.0)
    return [f"{trial.dtype}: within {room:.2g} of the largest change, not bit for bit; ULPs at most: {by_law}"]
