"""`check`: hold a step to the laws, and report."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, flag, is_number, kind_of, shown, whole
from refopt.checks.arguments import names as list_of_names
from refopt.checks.dtypes import SIZES
from refopt.oracle.cases import has
from refopt.oracle.diagnosis import ENOUGH, Cause
from refopt.oracle.exceptions import covers, reason, reasons
from refopt.oracle.laws import LAWS, Law
from refopt.oracle.relations import check as check_relations
from refopt.oracle.report import FAILED, SKIPPED, Item, Report
from refopt.oracle.subjects import subject_of
from refopt.oracle.trial import FLUSHES, NO_ERROR, Trial
from refopt.oracle.trying import Tried, tries_of
from refopt.oracle.variants import ROUTINES, added, by_request, row_for

DTYPES = tuple(sorted(SIZES, key=["float32", "float64", "float16", "bfloat16"].index))

DEADLINE = 300.0  # seconds


def check(
    routine: str | None, subject: Any, *, dtypes: Iterable[str] | None = None, laws: Iterable[str] | None = None,
    set: Mapping[str, Any] | None = None, device: str | None = None, examples: int | None = None, seed: int = 0,
    expected_failures: Mapping[str, str] | str | os.PathLike | None = None,
    skips: Mapping[str, str] | str | os.PathLike | None = None, exact: bool = False,
    arrays: str | None = None, names: Mapping[str, str] | None = None,
    progress: Callable[[int, int, str], object] | None = None, diagnose: bool = True,
    process: bool | None = None, deadline: float = DEADLINE, secret: int | None = None, **options: Any,
) -> Report:  # fmt: skip
    """Hold an optimizer's step to the laws, and say what is wrong.

    The step is a function of lists of arrays, ``step(params, grads, *states, **numbers)``. It takes the slots of the
    routine in the catalogue's order, and numbers and choices by refopt's names; the number of the step from 1, if it
    asks for ``step``. It writes its arrays, or returns new lists. What it has no argument for, or raises
    NotImplementedError for, is skipped and listed.

    A class of optimizers of PyTorch's is a step as well: ``check("adamw", torch.optim.AdamW, fused=True)``.

    Whatever the step does or raises is a failure in the report, and never an error here.

    Args:
        routine: a name of `refopt.catalog.ROUTINES`; ``None`` for the laws that need no formula (docs/relations.md).
        subject: the step, or a `subject.Subject`.
        dtypes: of the parameters, of float32, float64, float16 and bfloat16; by default all, but fp32 and fp64 for
            unfused optimizers of PyTorch, whose arithmetic in 16-bit dtypes is not fp32.
        laws: ids, such as ``"L1"``; by default all but those by request.
        set: numbers and choices that the step has for itself, by name: ``{"epsilon_at": "uncorrected"}``; and
            ``"flush_to_zero": True`` for code that takes subnormal numbers for 0.
        arrays: what a function is given, of "numpy", "torch", "jax" and "cupy"; by default "numpy".
        device: of PyTorch's tensors; "cpu" by default.
        examples: how many more cases of the step are drawn at random; 5 by default. Without a routine there are none:
            `examples`, `secret` and `names` are refused.
        seed: what they, and all data, are drawn from.
        expected_failures: why a law need not hold, by its id or, in one dtype, as ``"L7-float32"``; or the path of a
            file that says so, of lines such as ``L7 # flushes to zero``. One that holds all the same makes the report
            fail.
        skips: what is left out, and why, in the same way.
        exact: hold the step to refopt's own bits as well.
        diagnose: look for what explains a failure, which takes some seconds; nothing does without a routine.
        progress: called before each law in each dtype: how many of them are done, of how many, and which one is next.
        process: where the step runs: in a process of its own, made anew where it ends, hangs or is spoiled, if there is
            a way to make one; if ``True``, nowhere else; if ``False``, in this process, where what it does to others'
            data shows, and its end is the end of all.
        deadline: seconds that a call of the step may take, in a process of its own.
        secret: what the data of L21 are drawn from; by default from the system, so that no step can have foreseen them.
            A failure says it.
        names: what an optimizer calls its states and numbers, by refopt's names, where PyTorch has other ones.
        options: further arguments of the class, such as ``fused=True``. Without a routine, ``symmetries``, ``states``
            and ``tolerance`` are those of `refopt.oracle.relations.check`.

    Raises:
        TypeError, ValueError: naming the argument, if these are not what is expected.

    >>> def my_sgd(params, grads, *, lr, l2_decay):
    ...     for p, g in zip(params, grads):
    ...         p -= lr * (g + l2_decay * p)
    >>> report = check("sgd", my_sgd, dtypes=["float32"], laws=["L1"])
    >>> report.ok
    True
    >>> def uphill(params, grads, *, lr, l2_decay):
    ...     for p, g in zip(params, grads):
    ...         p += lr * (g + l2_decay * p)
    >>> report = check("sgd", uphill, dtypes=["float32"], laws=["L1"])
    >>> print(str(report).splitlines()[0])
    uphill as sgd: WRONG, L1; 0 of 23 cases skipped (0 %)
    """
    started = time.perf_counter()
    diagnose = flag("check: diagnose", diagnose)
    process, deadline = where_steps_run(process, deadline)
    if routine is None:
        for what, value in (("examples", examples), ("names", names), ("secret", secret)):
            if value is not None:
                raise TypeError(f"check: {what}: expected none without a routine, got {shown(value)}")
        return check_relations(
            subject, dtypes=dtypes, laws=laws, set=set, device=device, seed=seed, expected_failures=expected_failures,
            skips=skips, exact=exact, arrays=arrays, progress=progress, process=process, deadline=deadline, **options,
        )  # fmt: skip
    row = ROUTINES[chosen("check: routine", routine, ROUTINES)]
    exact = flag("check: exact", exact)
    wanted = _laws(laws, exact)
    settings = _fixed(row, {} if set is None else set)
    count = whole("check: examples", 5 if examples is None else examples, least=0)
    seed = whole("check: seed", seed, least=0)
    allowed = _allowed(reasons("expected_failures", expected_failures), wanted)
    left_out = reasons("skips", skips)
    named: dict[str, Any] = dict(arrays=arrays, device=device, names=names, options=options)
    from refopt.oracle.process import in_process  # which imports much of the standard library

    with contextlib.ExitStack() as stack, np.errstate(all="ignore"):
        tested, remarks = in_process(
            subject_of, row, subject, process=process, deadline=deadline, stack=stack, **named
        )
        secret = int.from_bytes(os.urandom(6)) if secret is None else whole("check: secret", secret, least=0)
        of = _Asked(wanted, dtypes, settings, count, seed, secret, allowed, left_out, progress, diagnose)
        return _held(row, tested, of, remarks, started)


class _Asked(NamedTuple):
    """What is asked of a step, as `check` takes it."""

    wanted: list[Law]
    dtypes: Iterable[str] | None
    settings: dict[str, Any]
    examples: int
    seed: int
    secret: int
    allowed: dict[str, str]
    left_out: dict[str, str]
    progress: Callable[[int, int, str], object] | None
    diagnose: bool


def _held(row: Routine, tested: Any, of: _Asked, remarks: Sequence[str], started: float) -> Report:
    """Hold a subject to the laws, and report."""
    wanted, dtypes, settings, count, seed, secret, allowed, left_out, progress, diagnose = of
    asked = _listed("dtypes", dtypes, getattr(tested, "dtypes", DTYPES))
    tried = [chosen(f"check: dtypes[{i}]", x, SIZES) for i, x in enumerate(asked)]
    fixed = {**getattr(tested, "fixed", {}), **settings}
    _require_numbers(row, tested, fixed)
    row = row_for(row.name, [*fixed, *(name for name in added(row.name) if tested.takes(name))])
    items: list[Item] = []
    causes: list[Cause] = []
    largest: dict[str, dict[str, float]] = {}
    compared = unbounded = 0
    notes: dict[str, None] = dict.fromkeys([*getattr(tested, "notes", ()), *remarks])
    for kind in tried:
        if not has(kind):
            items += _uninstalled(kind, wanted)
            continue
        trial = Trial(row, tested, kind, seed, fixed, tried, secret)
        of_kind = Tried(trial)
        for law in wanted:
            if (because := reason(left_out, law.id, kind)) is not None:
                of_kind.items.append(Item(law.id, kind, law.name, SKIPPED, f"left out: {because}"))
                continue
            if progress is not None:
                done = tried.index(kind) * len(wanted) + wanted.index(law)
                progress(done, len(tried) * len(wanted), f"{law.id} {law.name}, {kind}")
            dtypes_of_law = tried if law.id == "L10" else [kind]
            command = _command(row, tested.name, dtypes_of_law, law, settings, count, seed, secret)
            of_kind.law(law, tries_of(law, trial, count), command)
        causes += of_kind.explained([cause.text for cause in causes if cause.share >= ENOUGH], diagnose)
        items += of_kind.items
        largest[kind] = dict(trial.largest)
        compared, unbounded = compared + trial.compared, unbounded + trial.unbounded
        notes |= dict.fromkeys([*_rounded(trial), *_silent(trial)])
        notes |= {f"what ran, {kind}: {', '.join(trial.paths)}": None} if trial.paths else {}
    notes |= dict.fromkeys(_of_items(items, compared, tested))
    if missing := _missing(row, tested, fixed):
        held = Trial(row, tested, tried[0], seed, fixed).numbers() if tried else {}
        notes[_not_taken(missing, held)] = None
    return Report(
        row.name, tested.name, items, {law.id: law.name for law in wanted}, largest=largest, compared=compared,
        unbounded=unbounded, expected_failures=allowed, dtypes=tried, notes=list(notes),
        causes=causes, seconds=time.perf_counter() - started,
    )  # fmt: skip


def where_steps_run(process: Any, deadline: Any, where: str = "check") -> tuple[Any, float]:
    """Where a step runs, and for how long; raises TypeError or ValueError, naming the argument."""
    if process is not None and not hasattr(process, "keep"):
        process = flag(f"{where}: process", process)
    if not is_number(deadline) or not 0 < float(deadline) < float("inf"):
        raise ValueError(f"{where}: deadline: expected a number of seconds above 0, got {shown(deadline)}")
    return process, float(deadline)


def _uninstalled(kind: str, wanted: Iterable[Law]) -> list[Item]:
    return [Item(law.id, kind, law.name, SKIPPED, "ml_dtypes is not installed") for law in wanted]


def _silent(trial: Trial) -> list[str]:
    return [f"not returned, so not compared: {', '.join(sorted(trial.silent))}"] if trial.silent else []


def _allowed(expected: Mapping[str, str], wanted: Iterable[Law]) -> dict[str, str]:
    """The expected failures of the laws that are asked of it."""
    ids = [law.id for law in wanted]
    return {entry: because for entry, because in expected.items() if any(covers(entry, x) for x in ids)}


def _not_taken(missing: Sequence[str], held: Mapping[str, float]) -> str:
    return f"not taken: {', '.join(f'{name} ({held[name]:g} in the rule)' for name in missing if held)}"


def _require_numbers(row: Routine, tested: Any, fixed: Mapping[str, Any]) -> None:
    """Refuse a step that is not told a number that has no default."""
    for name in (hyper.name for hyper in row.hypers if hyper.default is None):
        if not tested.takes(name) and name not in fixed:
            expected = f"expected a step that takes {name}, or set={{{name!r}: ...}}, got neither"
            raise TypeError(f"check: {tested.name}: {expected}")


def _missing(row: Routine, tested: Any, fixed: Mapping[str, Any]) -> list[str]:
    """The numbers of the routine that a step does not take."""
    own = [h.name for h in row.hypers if h.name not in by_request(row.name)]
    missing = [name for name in own if not tested.takes(name) and name not in fixed]
    return [name for name in missing if name != "seed" or tested.takes("rounding")]  # for stochastic rounding alone


def _of_items(items: Sequence[Item], compared: int, tested: Any) -> Iterator[str]:
    """What whoever wrote the step should know of what came of it."""
    if any(item.status == FAILED and NO_ERROR in item.text for item in items):
        yield "what a step does not take, such as a dtype, is skipped if it raises NotImplementedError"
    if not compared and (libraries := getattr(tested, "libraries", [])):
        yield f"the step was given arrays of NumPy; for others, arrays={' or '.join(map(repr, libraries))}"


def _rounded(trial: Trial) -> list[str]:
    """What a reader should know of numbers that the arithmetic has not."""
    if not trial.rounded:
        return []
    named = ", ".join(f"{name}={x:g}" for name, x in trial.rounded.items())
    real = np.dtype(trial.real).name
    text = f"{trial.dtype}: {named}: not numbers of {real}; that code may keep them in double is an error of the input"
    worst = max(trial.apart, key=lambda name: trial.apart[name], default="")
    if worst and trial.apart[worst] > 1:
        text += f", without which {worst} would be {trial.apart[worst]:.2g} times the bound"
    return [text]


def _listed(name: str, value: Any, default: Sequence[str]) -> tuple[str, ...]:
    return tuple(default) if value is None else list_of_names(f"check: {name}", value)


def _laws(laws: Any, exact: bool) -> list[Law]:
    asked = _listed("laws", laws, [law.id for law in LAWS.values() if not law.asked or exact])
    ids = [chosen(f"check: laws[{i}]", x, LAWS) for i, x in enumerate(asked)]
    return [law for law in LAWS.values() if law.id in ids]


def _fixed(row: Routine, settings: Any) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise TypeError(f"check: set: expected numbers and choices by name, got {kind_of(settings)}")
    hypers = {hyper.name: hyper for hyper in row.hypers}
    fixed: dict[str, Any] = {}
    for name, value in settings.items():
        if name in row.choices:
            fixed[name] = chosen(f"check: set[{name!r}]", value, row.choices[name])
        elif name == FLUSHES:
            fixed[name] = flag(f"check: set[{name!r}]", value)
        elif name in hypers:
            if not is_number(value) or not 0 <= float(value) < hypers[name].below:
                raise ValueError(f"check: set[{name!r}]: expected a number that {row.name} takes, got {shown(value)}")
            fixed[name] = float(value)
        else:
            known = ", ".join([*hypers, *row.choices, FLUSHES])
            raise ValueError(f"check: set: expected names of {known}, got {shown(name)}")
    return fixed


def _command(
    row: Routine, name: str, dtypes: list[str], law: Law, fixed: dict[str, Any], examples: int, seed: int,
    secret: int,
) -> str:  # fmt: skip
    named = f", set={fixed}" if fixed else ""
    named += (f", examples={examples}" if examples != 5 else "") + (f", seed={seed}" if seed else "")
    named += f", secret={secret}" if law.id == "L21" else ""
    return f"oracle.check({row.name!r}, {name}, dtypes={dtypes!r}, laws=[{law.id!r}]{named})"
