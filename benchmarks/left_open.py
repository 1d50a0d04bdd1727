"""Operations whose results CUDA or Numba leaves open: what a GPU gives, and what the executor gives.

    python -m benchmarks.left_open [--out benchmarks/results/left_open-DEVICE.json]

Conversions of floats that an integer type cannot represent, signed overflow, and functions that are rounded in their
own ways. Each row is one kernel, compiled by numba-cuda as it is installed, except that ``a * b + c`` is rounded twice.
Without a GPU, the record is ``left_open.json``, with the executor's part alone.
"""

import argparse
import contextlib
import functools
import itertools
import linecache
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, begin, closure, save, short_name
from refopt import simt

SHOWN = 4  # inputs of a row that are shown with their results
MANY = 4_000  # inputs of a function
NEAREST = 0.501  # ULPs from the exact result that the nearest float may be, as far as 80 bits tell
BEYOND = [300.7, -1.5, 70000.5, -70000.5, 1e10, -1e10, 1e20, -1e20, math.inf, -math.inf, math.nan]
SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]
OVERFLOW = {  # an expression of integers, and the type of its result
    "x + 1 > x": bool, "x - 1 < x": bool, "x + 1 - 1": np.int64, "x * 2 // 2": np.int64, "-x": np.int64,
    "abs(x)": np.int64, "x // -1": np.int64, "x << 1 >> 1": np.int64, "x << y": np.int64, "x >> y": np.int64,
    "x // (y - y)": np.int64, "x % (y - y)": np.int64,
}
FUNCTIONS = {  # the range of the arguments; of positive ones, the logarithms are spread evenly
    "math.exp": (-20, 20), "math.expm1": (-5, 5), "math.log": (1e-9, 1e9), "math.log2": (1e-9, 1e9),
    "math.log10": (1e-9, 1e9), "math.log1p": (1e-9, 1e9), "cuda.cbrt": (1e-9, 1e9), "math.sqrt": (1e-9, 1e9),
    "math.sin": (-100, 100), "math.cos": (-100, 100), "math.tan": (-100, 100), "math.asin": (-1, 1),
    "math.acos": (-1, 1), "math.atan": (-10, 10), "math.sinh": (-10, 10), "math.cosh": (-10, 10),
    "math.tanh": (-3, 3), "math.asinh": (-10, 10), "math.acosh": (1, 1e9), "math.atanh": (-1, 1), "math.erf": (-3, 3),
    "math.erfc": (-3, 3), "math.gamma": (0.1, 20), "math.lgamma": (0.1, 1e3),
}
PAIRS = {"x % y": (-100, 100), "x // y": (-100, 100), "x ** y": (0.01, 10), "math.pow(x, y)": (0.01, 10),
         "math.atan2(x, y)": (-10, 10), "math.hypot(x, y)": (-10, 10), "math.fmod(x, y)": (-100, 100)}
# In 80 bits, if long double has them: those that NumPy has.
EXACT = {x: getattr(np, x.partition(".")[2]) for x in FUNCTIONS if hasattr(np, x.partition(".")[2])}


@contextlib.contextmanager
def stock() -> Iterator[tuple[Any, Callable]]:
    """numba-cuda as it is installed: its ``cuda``, and a ``jit`` whose kernels round ``a * b + c`` twice."""
    import numba_cuda  # noqa: F401  (Without it numba.cuda may be Numba's own.)
    from numba import cuda
    from numba.cuda.cudadrv import nvvm

    contracting = nvvm.compile_ir
    nvvm.compile_ir = functools.partial(contracting, fma=0)
    try:
        yield cuda, lambda function: cuda.jit(function, lto=False)  # as a decorator, jit drops the argument
    finally:
        nvvm.compile_ir = contracting


def kernel(expression: str, cuda: Any, jit: Callable) -> Any:
    """A kernel that computes an expression of x and y for each element."""
    text = (
        "def kernel(x, y, out):\n    i = cuda.grid(1)\n    if i < out.size:\n"
        f"        out[i] = each(x[i], y[i])\n\ndef each(x, y):\n    return {expression}\n"
    )
    file = f"<{expression}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    scope = {"cuda": cuda, "math": math, "np": np}
    exec(compile(text, file, "exec"), scope)
    scope["each"] = cuda.jit(device=True)(scope["each"])
    return jit(scope["kernel"])


def results(cuda: Any, jit: Callable, expression: str, x: np.ndarray, y: np.ndarray, dtype: Any) -> np.ndarray:
    """What a kernel gives for all elements."""
    out = cuda.to_device(np.zeros(len(x), dtype))
    kernel(expression, cuda, jit)[-(-len(x) // 128), 128](cuda.to_device(x), cuda.to_device(y), out)
    return out.copy_to_host()


def inputs() -> Iterator[tuple[str, str, np.ndarray, np.ndarray, Any]]:
    """The rows: part, expression, arguments and the type of the results."""
    for source, target in itertools.product(("float16", "float32", "float64"), SIGNED + UNSIGNED):
        with np.errstate(over="ignore"):
            x = np.array(BEYOND, source)
        x = x[~fits(x, target)]
        yield "conversions", f"np.{target}(x)", x, x, target
        if np.dtype(target).itemsize < 8:
            yield "conversions", f"0 - np.{target}(x)", x, x, np.int64
    for source, (expression, result) in itertools.product(SIGNED, OVERFLOW.items()):
        info, shift = np.iinfo(source), "y" in expression and "-" not in expression
        x, y = np.array(list(itertools.product([info.min, info.max, -3, 5], [64, 70, -1] if shift else [1])), source).T
        yield "overflow", expression, x.copy(), y.copy(), result
    rng = np.random.default_rng(0)
    for dtype, (name, (low, high)) in itertools.product(("float32", "float64"), (FUNCTIONS | PAIRS).items()):
        spread = rng.uniform if low <= 0 or high < 100 else lambda a, b, n: np.exp(rng.uniform(*np.log([a, b]), n))
        x, y = (spread(low, high, MANY).astype(dtype) for _ in range(2))
        yield "functions", name if name in PAIRS else f"{name}(x)", x, y, dtype


def fits(x: np.ndarray, target: str) -> np.ndarray:
    """Which floats an integer type can represent, truncated."""
    info, wide = np.iinfo(target), x.astype(np.longdouble)
    return (wide > np.longdouble(info.min) - 1) & (wide < np.longdouble(info.max) + 1)


def row(expression: str, x: np.ndarray, y: np.ndarray, here: np.ndarray, there: np.ndarray | None) -> dict[str, Any]:
    """A row of the record: how many results differ, by how many ULPs at most, and the first of them.

    Of functions in fp64, also how many results are not the nearest floats, and the largest error in ULPs.
    """
    made: dict[str, Any] = {"expression": expression, "of": x.dtype.name, "inputs": len(x)}
    if (exact := EXACT.get(expression.removesuffix("(x)"))) and x.dtype == np.float64:
        for by, given in (("executor", here), ("gpu", there)):
            if given is not None:
                errors = np.abs(given - exact(x.astype(np.longdouble))) / np.spacing(np.abs(given))
                made[f"{by}_not_nearest"] = int(np.count_nonzero(errors > NEAREST))
                made[f"{by}_error"] = float(errors.max())
    if there is None:
        return made
    differ = (here != there) & ((here == here) | (there == there))
    at = np.flatnonzero(differ)[:SHOWN]
    made["differing"] = int(np.count_nonzero(differ))
    if here.dtype.kind == "f":
        with np.errstate(all="ignore"):
            made["ulps"] = float(np.max(np.where(differ, np.abs(here - there) / np.spacing(np.abs(here)), 0)))
    columns = (x, y, there, here) if "y" in expression else (x, there, here)
    return made | {"first": [[column[k].item() for column in columns] for k in at]}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/left_open-DEVICE.json")
    options = parser.parse_args()
    report = begin("benchmarks.left_open", "python -m benchmarks.left_open", also=closure("refopt.simt"))
    report |= {"what": "left_open", "conversions": [], "overflow": [], "functions": []}
    on_gpu = report["device"] != "none"
    name = f"left_open-{short_name(report['device'])}" if on_gpu else "left_open"
    warnings.simplefilter("ignore")
    with stock() if on_gpu else contextlib.nullcontext((None, None)) as (cuda, jit):
        for part, expression, x, y, dtype in inputs():
            here = results(simt.cuda, simt.cuda.jit, expression, x, y, dtype)
            try:
                there = results(cuda, jit, expression, x, y, dtype) if on_gpu else None
                report[part].append(row(expression, x, y, here, there))
            except Exception as error:  # numba-cuda refuses it
                report[part].append({"expression": expression, "of": x.dtype.name, "refused": str(error)[:200]})
            print(part, report[part][-1], flush=True)
    save(report, options.out or RESULTS / f"{name}.json")


if __name__ == "__main__":
    main()
