"""Writes the types that numba-cuda infers, and what it refuses: refopt/simt/base/numba.json.

    python -m benchmarks.numba_types [FILE]

Needs numba-cuda, no GPU. Each expression is typed for all combinations of scalar types; one combination of each
signature is also compiled to PTX, since Numba refuses some signatures only then.
"""

import itertools
import json
import os
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.compiler import run_frontend
from numba.cuda.core.typed_passes import type_inference_stage
from numba.cuda.cudadrv.error import CudaSupportError
from numba.cuda.descriptor import cuda_target
from numba.cuda.np.numpy_support import ufunc_find_matching_loop

from refopt.simt.base import record

CAPABILITY = (9, 0)
NAMES = record.NAMES
TYPES = {name: getattr(types, "boolean" if name == "bool" else name) for name in NAMES}
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "<", "<=", ">", ">=", "==", "!="]
IN_PLACE = [f"{symbol}=" for symbol in OPERATORS[:12]]
ONE = """acos acosh asin asinh atan atanh ceil cos cosh degrees erf erfc exp exp2 expm1 fabs floor frexp gamma isfinite
isinf isnan lgamma log log10 log1p log2 modf radians sin sinh sqrt tan tanh trunc"""
TWO = "atan2 copysign fmod hypot ldexp nextafter pow remainder"
CMATH = """acos acosh asin asinh atan atanh cos cosh exp isfinite isinf isnan log log10 phase polar sin sinh sqrt tan
tanh"""
ATOMICS = "add sub max min nanmax nanmin and_ or_ xor inc dec exch"
HALF = """habs hadd hceil hcos hdiv heq hexp hexp10 hexp2 hfloor hfma hge hgt hle hlog hlog10 hlog2 hlt hmax hmin hmul
hne hneg hrcp hrint hrsqrt hsin hsqrt hsub htrunc"""
HALF_OF_TWO = ["hadd", "hdiv", "heq", "hge", "hgt", "hle", "hlt", "hmax", "hmin", "hmul", "hne", "hsub"]


def packed(combinations: list[tuple[str, ...]], signatures: Mapping[tuple[str, ...], tuple[str, ...]]) -> list[Any]:
    """A table from the signatures of those combinations of operands that Numba accepts."""
    written = min((_written(signatures, same) for same in (False, True)), key=lambda each: len(set(each.values())))
    legend = list(dict.fromkeys(written.values()))
    grid = "".join(_letter(legend.index(written[one])) if one in written else " " for one in combinations)
    return [legend, re.sub(r"(.)\1{2,}", lambda run: f"{len(run[0])}{run[1]}", grid)]


def _written(signatures: Mapping[tuple[str, ...], tuple[str, ...]], same: bool) -> dict[tuple[str, ...], str]:
    """tuple[str, ...]s as text, with = where no operand of the expression's is converted if ``same``."""
    count = len(next(iter(signatures)))
    kept = [same and all(one[n] == to[n] for one, to in signatures.items()) for n in range(count)]
    return {
        one: " ".join(["=" if kept[n] else name for n, name in enumerate(to[:-1])] + [to[-1]])
        for one, to in signatures.items()
    }


def _letter(number: int) -> str:
    return chr(number + (65 if number < 26 else 71 if number < 52 else 256 - 52))


def expressions() -> list[str]:
    """The expressions, with operands a, b and c, and A for an array of a's type."""
    found = [f"a {symbol} b" for symbol in OPERATORS] + [f"a {symbol} b" for symbol in IN_PLACE]
    found += ["1 if a else 0"]
    found += ["-a", "+a", "~a", "not a", "abs(a)", "round(a)", "round(a, b)", "int(a)", "float(a)", "bool(a)"]
    found += ["complex(a)", "complex(a, b)", "pow(a, b)", "divmod(a, b)", "max(a, b)", "min(a, b)", "sum((a, b))"]
    found += ["range(a)", "range(a, b)", "range(a, b, c)", "a.real", "a.imag", "a.conjugate()", "a.item()"]
    found += ["a.bit_count()", "A[b]", "A[0] = b", "cuda.activemask()", "cuda.lanemask_lt()"]
    found += [f"A.{name}()" for name in ("all", "any", "argmax", "argmin", "item", "mean", "prod", "std", "sum", "var")]
    found += [f"cmath.{name}(a)" for name in CMATH.split()]
    classes = [np.dtype(name).type.__name__ for name in NAMES]
    found += [what.format(name) for what in ("np.{}(a)", "a.view(np.{})") for name in classes]
    found += [f"math.{name}(a)" for name in ONE.split()] + [f"math.{name}(a, b)" for name in TWO.split()]
    for name in sorted(vars(np)):
        if isinstance(ufunc := getattr(np, name), np.ufunc) and ufunc.nin < 3 and ufunc.signature is None:
            found.append(f"np.{name}({'a, b' if ufunc.nin == 2 else 'a'})")
    found += ["np.angle(a)", "np.angle(a, b)", "np.imag(a)", "np.nan_to_num(a)", "np.real(a)", "np.sinc(a)"]
    found += ["np.shape(A)", "np.size(A)"]
    found += [f"cuda.{name}(a)" for name in ("popc", "clz", "ffs", "brev", "cbrt", "nanosleep", "syncwarp")]
    found += [f"cuda.syncthreads_{name}(a)" for name in ("count", "and", "or")]
    found += [f"cuda.{name}_sync(-1, a)" for name in ("all", "any", "eq", "ballot", "match_any", "match_all")]
    found += [f"cuda.shfl_{name}sync(-1, a, b)" for name in ("", "up_", "down_", "xor_")]
    found += ["cuda.fma(a, b, c)", "cuda.selp(a, b, c)"]
    found += [f"cuda.{name}(A, b)" for name in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv")]
    found += [f"cuda.{name}(A, 0, b)" for name in ("stcg", "stcs", "stwb", "stwt")]
    found += [f"cuda.atomic.{name}(A, 0, b)" for name in ATOMICS.split()]
    found += ["cuda.atomic.cas(A, 0, b, b)", "cuda.atomic.compare_and_swap(A, b, b)"]
    for name in HALF.split():
        count = {"hfma": 3}.get(name, 2 if name in HALF_OF_TWO else 1)
        found.append(f"cuda.fp16.{name}({', '.join('abc'[:count])})")
    return found


def function(text: str) -> Any:
    """The function of an expression's operands."""
    names = operands(text)
    parameters = ["A" if name == "a" and "A" in text else name for name in names]
    scope: dict[str, Any] = {}
    exec("import cmath, math, operator\nimport numpy as np\nfrom numba import cuda", scope)
    lines = [text, "return a"] if text[2:-2] in IN_PLACE else [text] if " = " in text else [f"return {text}"]
    exec("\n    ".join([f"def f({', '.join(parameters)}):", *lines]), scope)
    return scope["f"]


def operands(text: str) -> str:
    """The names of an expression's operands."""
    used = set(re.findall(r"\b[abcA]\b", text))
    return "".join(name for name in "abc" if name in used or (name == "a" and "A" in used))


def spelled(type_: Any) -> str:
    """A type's name; of a tuple, those of its items."""
    if isinstance(type_, types.BaseTuple):
        return ",".join(map(spelled, type_))
    if isinstance(type_, types.RangeType | types.Array):
        return spelled(type_.dtype)
    return str(types.unliteral(type_)).replace("boolean", "bool")


def arguments(text: str, given: tuple[str, ...]) -> tuple[Any, ...]:
    """Numba's types of the operands, of which an array is the first."""
    args = tuple(TYPES[name] for name in given)
    return (types.Array(args[0], 1, "C"), *args[1:]) if "A" in text else args


def inferred(made: Any, text: str, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """The types that the operands are converted to, and that of the result; None if Numba refuses the operands."""
    args = arguments(text, given)
    try:
        _, result, calls, _ = type_inference_stage(
            cuda_target.typing_context, cuda_target.target_context, run_frontend(made), args, None
        )
    except CudaSupportError:
        raise
    except Exception:
        return None
    ufunc = getattr(np, text.removeprefix("np.").partition("(")[0], None) if text.startswith("np.") else None
    if isinstance(ufunc, np.ufunc):  # it computes in a loop's types
        return (*map(spelled, ufunc_find_matching_loop(ufunc, args).inputs), spelled(result))
    signatures = [call for call in calls.values() if call is not None]
    taken = [spelled(arg) for arg in signatures[-1].args] if signatures else list(given)
    if "-1, " in text or "A, 0, " in text or "A[0]" in text:  # a mask, an index
        taken.pop("A" in text)
    if len(taken) < len(given) or not {*taken} <= {*NAMES}:  # a method, a tuple
        taken = list(given)
    return (*taken[: len(given)], spelled(result))


def compiles(made: Any, text: str, given: tuple[str, ...]) -> bool:
    """Whether it also compiles to PTX."""
    args = arguments(text, given)
    try:
        ptx, _ = cuda.compile(made, args, device=True, abi="numba", cc=CAPABILITY)
    except Exception:
        return False
    return "numba_cpow" not in ptx  # a function of Numba's for the CPU, which no GPU has


def start() -> None:
    """Prepare Numba to type and to compile without a GPU."""
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def table(text: str) -> list[Any] | None:
    """The signatures of an expression, by the types of its operands; None if Numba refuses all."""
    if text == "unified":
        return unified()
    made, count = function(text), len(operands(text))
    combinations = list(itertools.product(NAMES if count < 3 else NAMES[:12], repeat=count))
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    works: dict[tuple[str, ...], bool] = {}
    for given in combinations:
        if (signature := inferred(made, text, given)) is None:
            continue
        key = given if text.startswith("np.") else signature  # NumPy's are compiled as given
        if key not in works:
            works[key] = compiles(made, text, given)
        if works[key]:
            found[given] = signature
    return packed(combinations, found) if found else None


def unified() -> list[Any]:
    """The types of a variable that is of one type on one path and of another on another."""
    pairs, unify = list(itertools.product(NAMES, repeat=2)), cuda_target.typing_context.unify_pairs
    return packed(pairs, {(a, b): (a, b, spelled(one)) for a, b in pairs if (one := unify(TYPES[a], TYPES[b]))})


def main(path: str = "") -> None:
    """Write the record."""
    every = ["unified", *expressions()]
    with ProcessPoolExecutor(os.cpu_count(), initializer=start) as pool:
        tables = {text: found for text, found in zip(every, pool.map(table, every), strict=True) if found}
    for symbol in IN_PLACE:  # most are as the operator itself
        if tables.get(f"a {symbol} b") == tables[f"a {symbol[:-1]} b"]:
            del tables[f"a {symbol} b"]
    about = {name: version(name) for name in ("numba", "numba-cuda")}
    content = {"versions": about, "capability": CAPABILITY, "types": NAMES, "expressions": tables}
    with open(path or record.PATH, "w") as file:
        file.write(json.dumps(content, indent=0).replace('",\n"', '", "') + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
