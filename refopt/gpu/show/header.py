"""The header of a listing: its subject, how its kernels are launched, and how it runs."""

import textwrap
from collections.abc import Sequence

from refopt.gpu.show.kernels import WORKLOAD, Launched, Launches, Request

WIDTH = 118
MODES = {
    "": "", "whole": "", "cooperative": " with a barrier across the grid",
    "overlapping": " whose blocks may start while the previous launch drains",
}


def header(asked: Request, launches: Launches) -> str:
    """The comment above a listing of the launches of a routine."""
    routine, dtypes, form, choices, hopper = asked
    by_chance = "bfloat16" in dtypes.values()  # only bf16 is rounded by chance; otherwise no kernel reads the seed
    lines = [f"refopt.gpu: {routine.merged_name}, form {form}{', on Hopper' * hopper}", ""]
    lines += _wrapped("arrays: ", [f"{name} {dtype}" for name, dtype in dtypes.items()])
    lines += _wrapped("choices: ", [f"{n}={value}" for n, value in choices.items() if by_chance or n != "rounding"])
    lines += _wrapped("rows of addresses: ", [f"{k} {n}" for k, n in enumerate(routine.slot_names) if n in dtypes])
    hypers = [f"{k} {hyper.name}" for k, hyper in enumerate(routine.hypers) if by_chance or not hyper.whole]
    lines += _wrapped("rows of hyper: ", hypers)
    if routine.scalars and routine.elementwise:
        lines += _wrapped("rows of carried: ", [f"{k} {name}" for k, name in enumerate(routine.scalars)])
    lines += ["", *_launched(launches, "matrices" if routine.matrix_arguments else "tensors"), ""]
    lines += _wrapped("", [HOW + ALONE * hopper])
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _launched(launches: Launches, what: str) -> list[str]:
    """The launches of a plan, before and in its steps."""
    lines = [f"Launches for the {what} of {WORKLOAD}, as kernel[blocks, threads]:"]
    lines += _wrapped("before the first step: ", _in_words(launches.before))
    if [x.kernel for x in launches.first] != [x.kernel for x in launches.steady]:
        lines += _wrapped("in the first step, and after refresh(): ", _in_words(launches.first))
    lines += _wrapped("in a step: ", _in_words(launches.steady))
    seen = {x.kernel for x in (*launches.before, *launches.first, *launches.steady)}
    others = [x for x in launches.prepared if x.kernel not in seen]
    return lines + _wrapped("after a step that is replayed: ", _in_words(others[:1]))


HOW = (
    "The compiler inlines every function into its kernel and rounds a * b + c twice. Where a function has PTX above "
    "it, the GPU runs the PTX instead. The executor runs this text unchanged, with the same bits. launch_bounds are "
    "the most threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler "
    "how many registers a thread may use."
)
ALONE = (
    " A function whose PTX is for Hopper only has no twin: it raises an error on the executor. The last of a launch's "
    "four numbers is its dynamic shared memory in bytes."
)


def _in_words(launches: Sequence[Launched]) -> list[str]:
    """Launches in words, grouped by kernel."""
    parts = []
    for kernel in dict.fromkeys(x.kernel for x in launches):
        own = [x for x in launches if x.kernel is kernel]
        least, most = min(x.grid for x in own), max(x.grid for x in own)
        grid = str(least) if least == most else f"{least} to {most}"
        if own[0].mode == "cooperative":
            grid = "as many as fit at a time"
        shared = f", 0, {kernel.dynamic_shared}" if kernel.dynamic_shared else ""
        times = f"{len(own)} times " if len(own) > 1 else ""
        parts.append(f"{times}{kernel.name}[{grid}, {own[0].block}{shared}]{MODES[own[0].mode]}")
    return parts


def _wrapped(lead: str, parts: Sequence[str]) -> list[str]:
    text = lead + ", ".join(parts)
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * len(lead), break_on_hyphens=False) if parts else []
