"""`check`: check a step against the laws, and report."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, flag, is_number, number, shown, whole
from refopt.checks.dtypes import SIZES, lacking
from refopt.oracle.diagnosis import ENOUGH, Cause
from refopt.oracle.diagnosis.growth import require_schedule
from refopt.oracle.exceptions import covers, reason, reasons
from refopt.oracle.laws import FEW_BITS, LAWS, SYMMETRIES, Law
from refopt.oracle.report import FAILED, SKIPPED, Item, Report
from refopt.oracle.settings import all_chosen, settings_of
from refopt.oracle.trial import FLUSHES, NO_ERROR, NONE_FOUND, Trial
from refopt.oracle.trying import Tried
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
    process: bool | None = None, deadline: float = DEADLINE, secret: int | None = None,
    symmetries: Iterable[str] = (), states: Mapping[str, Any] | str | None = None, tolerance: float | None = None,
    allow_skips: Iterable[str] = (), **options: Any,
) -> Report:
    """Check an optimizer's step against the laws, and report what is wrong.

    The step is a function of lists of arrays, ``step(params, grads, *states, **numbers)``. It takes the slots of the
    routine in the catalogue's order, numbers and choices by refopt's names, and, if it has an argument ``step``, the
    number of the step from 1. It writes its arrays, or returns new lists. Cases that it has no argument for, or raises
    NotImplementedError for, are skipped and listed.

    A PyTorch optimizer class is a step as well: ``check("adamw", torch.optim.AdamW, fused=True)``.

    Whatever the step does or raises is a failure in the report, never an error of `check`.

    Args:
        routine: a name of `refopt.catalog.KNOWN`; ``None`` for the laws that need no formula.
        subject: the step, or a `subject.Subject`.
        dtypes: those of the parameters, from float32, float64, float16 and bfloat16; by default all, except for unfused
            PyTorch optimizers: fp32 and fp64, since their arithmetic in 16-bit dtypes is not fp32.
        laws: ids, such as ``"L1"``; by default all except those on request, or of symmetries that are not declared.
        set: numbers and choices that are built into the step, by name: ``{"epsilon_at": "uncorrected"}``; of Muon also
            ``coefficients`` and ``restarts``; and
            ``"flush_to_zero": True`` for code that treats subnormal numbers as 0.
        arrays: the library whose arrays a function gets, from "numpy", "torch", "jax" and "cupy"; by default "numpy".
        device: of PyTorch's tensors; "cpu" by default.
        examples: how many more cases of the step are drawn at random; 5 by default. Without a routine there are none:
            `examples`, `secret` and `names` are refused.
        seed: the seed of these cases and of all data.
        expected_failures: why a law need not hold, by its id or, in one dtype, as ``"L7-float32"``; or the path of a
            file with lines such as ``L7 # flushes to zero``. The report fails if such a law holds.
        skips: what is left out, and why, in the same form.
        exact: check against refopt's own bits as well; without a routine, require runs to agree bit for bit.
        diagnose: look for causes of failures, which takes a few seconds; it has no effect without a routine.
        progress: called before each law in each dtype with how many of them are done, how many there are, and which one
            is next.
        process: by default the step runs in a separate process, which is replaced if it ends, hangs or is spoiled, if
            one can be made; ``True`` requires that; ``False`` runs it in this process, where it may change others'
            data, and ends the check if it ends the process.
        deadline: how many seconds a call of the step may take in a separate process.
        secret: the seed of the data of L21; by default from the system, so that no step can foresee the data. A failure
            prints it.
        names: what an optimizer calls its states and numbers, by refopt's names, if it differs from PyTorch, and what a
            step calls its arguments, if it differs from refopt.
        symmetries: those that the optimizer declares, from "sign", "elements" and "zero".
        states: without a routine, a function's states before the first step, by name: a number, a dtype, or a function
            of a parameter; by default zeros of the parameter's dtype. With a routine, this declares that states are in
            few bits, as does "8bit" for an optimizer of PyTorch. If that keeps none, the report says so.
        tolerance: by how much the results of runs may differ where sums may be taken in another order, relative to a
            tensor's largest change; by default it is measured.
        allow_skips: laws of which more than a fifth of the cases may be skipped. Cases that a step has no argument
            for, such as a gate, do not count as skipped.
        options: further arguments of the class, such as ``fused=True``. Those that have the name of an argument here
            are bound: ``functools.partial(refopt.torch.AdamW, states="8bit")``.

    Raises:
        TypeError, ValueError: naming the argument, if it is not what is expected.

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
    uphill as sgd: WRONG, L1; 0 of 24 cases skipped (0 %)
    """
    started = time.perf_counter()
    diagnose = flag("check: diagnose", diagnose)
    process, deadline = where_steps_run(process, deadline)
    row = None if routine is None else ROUTINES[chosen("check: routine", routine, ROUTINES)]
    for what, value in {"examples": examples, "names": names, "secret": secret}.items() if row is None else ():
        if value is not None:
            raise TypeError(f"check: {what}: expected none without a routine, got {shown(value)}")
    declared = all_chosen("check: symmetries", symmetries, SYMMETRIES)
    if row is not None and states:
        declared.append(chosen("check: states", states, (FEW_BITS,)) if isinstance(states, str) else FEW_BITS)
    if tolerance is not None:
        tolerance = number("check: tolerance", tolerance, 0, finite=True)
    exact = flag("check: exact", exact)
    there = {law.id: law for law in LAWS.values() if law.runs or row is not None}
    wanted = _laws(laws, exact, declared, there)
    settings = {} if row is None else settings_of("check", row, {} if set is None else set, flags=[FLUSHES])
    expected = reasons("expected_failures", expected_failures, there)
    of = _Asked(
        wanted, dtypes, settings, declared,
        whole("check: examples", 5 if examples is None else examples, least=0), whole("check: seed", seed, least=0),
        int.from_bytes(os.urandom(6)) if secret is None else whole("check: secret", secret, least=0),
        {entry: why for entry, why in expected.items() if any(covers(entry, law.id) for law in wanted)},
        reasons("skips", skips, there),
        all_chosen("check: allow_skips", allow_skips, there), exact, tolerance, progress, diagnose,
    )
    named: dict[str, Any] = dict(arrays=arrays, device=device, options=options)
    named |= {"states": states} | ({"numbers": set} if row is None else {"names": names})
    from refopt.oracle.process import in_process  # it imports much of the standard library

    with contextlib.ExitStack() as stack, np.errstate(all="ignore"):
        tested, remarks = in_process(row, subject, process=process, deadline=deadline, stack=stack, **named)
        return _held(row, tested, of, remarks, started)


class _Asked(NamedTuple):
    """The validated arguments of `check`."""

    wanted: list[Law]
    dtypes: Iterable[str] | None
    settings: dict[str, Any]
    declared: list[str]
    examples: int
    seed: int
    secret: int
    allowed: dict[str, str]
    left_out: dict[str, str]
    allow_skips: list[str]
    exact: bool
    tolerance: float | None
    progress: Callable[[int, int, str], object] | None
    diagnose: bool


def _held(row: Routine | None, tested: Any, of: _Asked, remarks: Sequence[str], started: float) -> Report:
    """Check a subject against the laws, those of a routine or those that need no formula, and report."""
    usual = getattr(tested, "dtypes", DTYPES)
    tried = all_chosen("check: dtypes", usual if of.dtypes is None else of.dtypes, DTYPES)
    fixed = {**getattr(tested, "fixed", {}), **of.settings}
    if row is not None:
        _require_numbers(row, tested, fixed)
        require_schedule("check", row, fixed)
        row = row_for(row.name, [*fixed, *(name for name in added(row.name) if tested.takes(name))])
    items: list[Item] = []
    causes: list[Cause] = []
    trials: list[Any] = []
    notes: dict[str, None] = dict.fromkeys([*getattr(tested, "notes", ()), *remarks])
    for kind in tried:
        if why := lacking(kind):
            items += [Item(law.id, kind, law.name, SKIPPED, why, lacks=True) for law in of.wanted]
            continue
        trial = Trial(
            row, tested, kind, of.seed, fixed, tried, of.secret, of.tolerance, of.exact and row is None,
            FEW_BITS in of.declared, of.examples,
        )
        of_kind = _of_dtype(trial, of, tried)
        causes += of_kind.explained([cause.text for cause in causes if cause.share >= ENOUGH], of.diagnose)
        items += of_kind.items
        trials.append(trial)
        notes |= dict.fromkeys(_notes_of_trial(trial))
    compared = sum(trial.compared for trial in trials)
    failed = {item.law for item in items if item.status == FAILED}
    excused = {law: because for law, because in getattr(tested, "excused", {}).items() if law in failed}
    if row is not None:
        notes |= dict.fromkeys(_notes_of_items(items, compared, tested, any(x.coded and x.found for x in trials)))
        if missing := _missing(row, tested, fixed):
            held = trials[0].numbers() if trials else {}
            left_out = ", ".join(f"{name} ({held[name]:g} in the rule)" for name in missing if held)
            notes[f"numbers not taken: {left_out}"] = None
    return Report(
        row and row.name, tested.name, items, {law.id: law.name for law in of.wanted},
        largest={x.dtype: dict(x.largest) for x in trials if row}, compared=compared,
        unbounded=sum(trial.unbounded for trial in trials), expected_failures=excused | of.allowed, dtypes=tried,
        notes=list(notes), causes=causes, seconds=time.perf_counter() - started, allow_skips=of.allow_skips,
        usual_dtypes=of.dtypes is None,
    )


def _of_dtype(trial: Any, of: _Asked, dtypes: Sequence[str]) -> Tried:
    """Try every case of every law in a dtype."""
    tried = Tried(trial)
    kind = trial.dtype
    if trial.coded or any(law.runs for law in of.wanted):
        trial.settle()
    for k, law in enumerate(of.wanted):
        if (because := reason(of.left_out, law.id, kind)) is not None:
            tried.items.append(Item(law.id, kind, law.name, SKIPPED, f"left out: {because}", lacks=True))
            continue
        if of.progress is not None:
            done = dtypes.index(kind) * len(of.wanted) + k
            of.progress(done, len(of.wanted) * len(dtypes), f"{law.id} {law.name}, {kind}")
        again = _command(trial, dtypes if law.id == "L10" else [kind], law, of)
        tried.law(law, again)
    return tried


def _notes_of_trial(trial: Any) -> Iterator[str]:
    """Notes on a dtype: what was compared less exactly or not at all, and which functions of a library ran."""
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


def _notes_of_items(items: Sequence[Item], compared: int, tested: Any, coded: bool) -> Iterator[str]:
    """Advice to the author of the step, and which laws compared states in few bits."""
    if coded:
        ran = dict.fromkeys(item.law for item in items if item.status != SKIPPED)
        yield f"states in few bits cannot be set, so cases that set them are skipped; laws that ran: {', '.join(ran)}"
    if any(item.status == FAILED and NO_ERROR in item.text for item in items):
        yield "to have a case skipped, such as a dtype, let the step raise NotImplementedError for it"
    if not compared and (libraries := getattr(tested, "libraries", [])):
        yield f"the step was given NumPy arrays; for others, pass arrays={' or '.join(map(repr, libraries))}"


def where_steps_run(process: Any, deadline: Any, where: str = "check") -> tuple[Any, float]:
    """Validate ``process`` and ``deadline``; raises TypeError or ValueError, naming the argument."""
    if process is not None and not hasattr(process, "keep"):
        process = flag(f"{where}: process", process)
    if not is_number(deadline) or not 0 < float(deadline) < float("inf"):
        raise ValueError(f"{where}: deadline: expected a number of seconds above 0, got {shown(deadline)}")
    return process, float(deadline)


def _require_numbers(row: Routine, tested: Any, fixed: Mapping[str, Any]) -> None:
    """Refuse a step that does not take a number without a default."""
    for name in (hyper.name for hyper in row.hypers if hyper.default is None):
        if not tested.takes(name) and name not in fixed:
            expected = f"expected a step that takes {name}, or set={{{name!r}: ...}}, got neither"
            raise TypeError(f"check: {tested.name}: {expected}")


def _missing(row: Routine, tested: Any, fixed: Mapping[str, Any]) -> list[str]:
    """The numbers of the routine that a step does not take."""
    own = [h.name for h in row.hypers if h.name not in by_request(row.name)]
    missing = [name for name in own if not tested.takes(name) and name not in fixed]
    return [name for name in missing if name != "seed" or tested.takes("rounding")]  # only for stochastic rounding


def _laws(laws: Any, exact: bool, declared: Sequence[str], there: Mapping[str, Law]) -> list[Law]:
    """The requested laws, by default all that apply to the declared symmetries."""
    usual = [law.id for law in there.values() if law.declared in ("", *declared) and (not law.asked or exact)]
    ids = all_chosen("check: laws", usual if laws is None else laws, there)
    return [law for law in there.values() if law.id in ids]


def _command(trial: Trial, dtypes: Sequence[str], law: Law, of: _Asked) -> str:
    """The call that reproduces a failure."""
    routine = None if trial.row is None else trial.row.name
    named = f", set={of.settings}" if of.settings else ""
    named += (f", examples={of.examples}" if of.examples != 5 else "") + (f", seed={of.seed}" if of.seed else "")
    named += f", secret={of.secret}" if law.secret and routine else ""  # only cases have secret data
    states = "states" if getattr(trial.subject, "is_function", False) else repr(FEW_BITS)
    named += f", states={states}" if trial.coded else f", symmetries={[*of.declared]}" if law.declared else ""
    return f"oracle.check({routine!r}, {trial.subject.name}, dtypes={[*dtypes]!r}, laws=[{law.id!r}]{named})"
