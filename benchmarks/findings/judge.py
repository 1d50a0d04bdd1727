"""What the oracle says of one optimizer, as a row of the record."""

import inspect
import time
from functools import partial
from typing import Any

from benchmarks.findings.subjects import NUMBERS, Subject

PEERS = "torch", "timm"  # which are held to the formula that they are, too; optax, in tests/peers/verdicts.py
# Without a formula; of other libraries in fp32, since few of their differences are of a dtype.
DTYPES = {"torch": ("float32", "float64", "float16", "bfloat16")}
FEWER = ("float32",)
# What by default does nothing, and with it whole branches of a step.
AWAKE = {"weight_decay": 0.0625, "momentum": 0.875}
COMPILED = ("torchao",)  # which compile each shape anew: as they are in Python, since there are hundreds of shapes
TEXT = 300  # characters of a failure that are kept


def judged(subject: Subject, process: bool | None = None) -> dict[str, Any]:
    """A row: what the optimizer is, and by law what does not hold, without a formula and of each one that it is.

    Args:
        process: as `refopt.oracle.check` has it.
    """
    started = time.perf_counter()
    row = {"library": subject.library, "subject": str(subject)} | _judged(subject, process)
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def _judged(subject: Subject, process: bool | None) -> dict[str, Any]:
    from refopt import oracle

    if subject.library != "optax":
        import torch

        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)  # memory that is not initialised is NaN, and shows
        if subject.library in COMPILED:
            torch.compile = lambda function, **_: function
    row: dict[str, Any] = {}
    dtypes = DTYPES.get(subject.library, FEWER)
    try:
        made = subject.load()
        options: dict[str, Any] = dict(subject.options)
        awake = awakened(made) | options
        own = {"device": subject.device} if subject.device != "cpu" else {}
        found = oracle.identify(made, names=NUMBERS.get(str(subject).partition(",")[0]), **own, **options)
        row["identity"] = str(found.matches[0]) if found.matches else None
        reports = [("none", oracle.check(None, made, dtypes=dtypes, process=process, **own, **awake))]
    except (TypeError, ValueError) as error:  # it is not taken
        return row | {"not_taken": _short(str(error))}
    if not reports[0][1].compared:
        why = next((item.text for item in reports[0][1].items), "")
        return row | {"not_taken": _short(why)}
    routines = subject.routines
    if not routines and found.routine and subject.library in PEERS:
        routines = (found.routine,)
    held = partial(oracle.check, diagnose=False, process=process)
    for routine in routines:
        try:
            reports.append((routine, held(routine, made, dtypes=subject.dtypes, **own, **options)))
        except (TypeError, ValueError) as error:
            row.setdefault("not_held", {})[routine] = _short(str(error))
    row["checks"] = [
        _summary(subject._replace(options=awake if routine == "none" else options), routine, report)
        for routine, report in reports
    ]
    return row


def awakened(made: Any) -> dict[str, Any]:
    """Options that are 0 by default, and are not to be."""
    accepted = inspect.signature(made).parameters
    defaults = {name: accepted[name].default for name in AWAKE if name in accepted}
    return {name: AWAKE[name] for name, x in defaults.items() if x is None or x == 0}


def _summary(subject: Subject, routine: str, report: Any) -> dict[str, Any]:
    return {
        "as": routine, "compared": report.compared, "skipped": len(report.of("skipped")), "cases": len(report.items),
        "dtypes": report.dtypes, "failed": {law: _of_law(subject, routine, report, law) for law in report.failed_laws},
    }


def _of_law(subject: Subject, routine: str, report: Any, law: str) -> dict[str, Any]:
    items = [item for item in report.of("failed") if item.law == law]
    worst = max(items, key=lambda item: item.ratio or 0)
    return {
        "dtypes": list(dict.fromkeys(item.dtype for item in items)), "cases": len(items), "text": _short(worst.text),
        "labels": list(dict.fromkeys(item.label for item in items))[:3], "ratio": worst.ratio,
        "command": command(subject, routine, law, worst.dtype),
    }


def command(subject: Subject, routine: str, law: str, dtype: str) -> str:
    """What shows a failure again."""
    named = " ".join(f"{name}={_written(value)}" for name, value in subject.options.items())
    parts = [f"refopt check {subject.module}:{subject.name} --as {routine}", f"--with {named}" if named else ""]
    parts += [f"--device {subject.device}" if subject.device != "cpu" else "", f"--dtype {dtype} --law {law}"]
    return " ".join(filter(None, parts))


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(text: str) -> str:
    lines = " ".join(text.split())
    return lines if len(lines) <= TEXT else f"{lines[: TEXT - 3]}..."
