"""GPU-Puzzles: the fourteen puzzles, each with a solution in place of its blank, checked by their own library.

The library draws with packages that stand-ins take the places of; nothing is drawn.
"""

import contextlib
import io
import re
import sys
import typing
from types import ModuleType
from unittest.mock import MagicMock

from foreign.cases import case, watched
from foreign.repositories import BUILD, files

from refopt import simt

NAME = "srush/GPU-Puzzles"
_GUARDED = "if i < size and j < size:\n    out[i, j] = "
_FOLD = """\
cache[local_i] = a[{index}] if i < size else 0
cuda.syncthreads()
half = TPB // 2
while half:
    if local_i < half:
        cache[local_i] += cache[local_i + half]
    cuda.syncthreads()
    half //= 2
if local_i == 0:
    out[{out}] = cache[0]"""
_SOLUTIONS = [
    "out[local_i] = a[local_i] + 10", "out[local_i] = a[local_i] + b[local_i]",
    "if local_i < size:\n    out[local_i] = a[local_i] + 10",
    "if local_i < size and local_j < size:\n    out[local_i, local_j] = a[local_i, local_j] + 10",
    "if local_i < size and local_j < size:\n    out[local_i, local_j] = a[local_i, 0] + b[0, local_j]",
    "if i < size:\n    out[i] = a[i] + 10",
    f"j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y\n{_GUARDED}a[i, j] + 10",
    "if i < size:\n    out[i] = shared[local_i] + 10",
    """\
if i < size:
    shared[local_i] = a[i]
cuda.syncthreads()
if i < size:
    total = shared[local_i]
    if local_i > 0:
        total += shared[local_i - 1]
    if local_i > 1:
        total += shared[local_i - 2]
    out[i] = total""",
    """\
if i < size:
    shared[local_i] = a[i] * b[i]
cuda.syncthreads()
if local_i == 0:
    total = 0.0
    for k in range(size):
        total += shared[k]
    out[0] = total""",
    """\
values = cuda.shared.array(TPB_MAX_CONV, numba.float32)
weights = cuda.shared.array(MAX_CONV, numba.float32)
if i < a_size:
    values[local_i] = a[i]
if local_i < b_size:
    weights[local_i] = b[local_i]
else:
    beyond = local_i - b_size
    if i - b_size + TPB < a_size and beyond < b_size:
        values[TPB + beyond] = a[i - b_size + TPB]
cuda.syncthreads()
if i < a_size:
    total = 0.0
    for k in range(b_size):
        if i + k < a_size:
            total += values[local_i + k] * weights[k]
    out[i] = total""",
    _FOLD.format(index="i", out="cuda.blockIdx.x"), _FOLD.format(index="batch, i", out="batch, 0"),
    """\
total = 0.0
for k in range(0, size, TPB):
    a_shared[local_i, local_j] = a[i, k + local_j] if i < size and k + local_j < size else 0
    b_shared[local_i, local_j] = b[k + local_i, j] if j < size and k + local_i < size else 0
    cuda.syncthreads()
    for n in range(TPB):
        total += a_shared[local_i, n] * b_shared[n, local_j]
    cuda.syncthreads()
if i < size and j < size:
    out[i, j] = total"""]


def solved() -> str:
    """The puzzles with their blanks filled in, as a script."""
    source = (files(NAME, ["GPU_puzzlers.py", "lib.py"]) / "GPU_puzzlers.py").read_text()
    solutions = iter(_SOLUTIONS)

    def fill(blank: re.Match) -> str:
        return "\n".join(blank[1] + line for line in next(solutions).splitlines())

    source = re.sub(r"^( *)# FILL ME IN.*$", fill, source, flags=re.M)
    if (left := len(list(solutions))) != 0:
        raise ValueError(f"{left} puzzles are missing")
    return re.sub(r"^(!|problem\.show).*$", "", source, flags=re.M)


def drawing() -> dict[str, ModuleType]:
    """Stand-ins for what the library draws with."""
    chalk, colour = ModuleType("chalk"), ModuleType("colour")
    vars(chalk).update({"image": MagicMock(), "Tuple": typing.Tuple})  # noqa: UP006
    vars(colour)["Color"] = MagicMock()
    colour.Color.return_value.range_to.return_value = []
    return {"chalk": chalk, "colour": colour}


def solve() -> str:
    """Run all puzzles; says how many of their checks passed."""
    file = BUILD / "kernels" / "puzzles.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(solved())
    printed, path = io.StringIO(), str(BUILD / NAME.replace("/", "+"))
    stand_ins = drawing()
    sys.modules.update(stand_ins)
    sys.path.insert(0, path)
    try:
        with simt.replace_numba(), contextlib.redirect_stdout(printed):
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "puzzles"})
    finally:
        sys.path.remove(path)
        for name in (*stand_ins, "lib"):
            sys.modules.pop(name, None)
    checks = file.read_text().count("problem.check()")
    passed = printed.getvalue().count("Passed Tests!")
    if passed != checks:
        raise AssertionError(f"{passed} of {checks} checks passed: {printed.getvalue()}")
    return f"{len(_SOLUTIONS)} puzzles, {passed} checks pass"


case(NAME, "solved")(solve)
case(NAME, "solved, watched")(lambda: watched(solve))
