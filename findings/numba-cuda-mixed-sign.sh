#!/usr/bin/env bash
# numba-cuda 0.30.4: uint64 and int64 are added as integers and compared as float64.
#
# "a - b" of a uint64 and an int64 is an int64, and a % 8 is one. But "a == b", "a < b", max(a, b) and divmod(a, 8)
# convert both to float64 first, where 2**53 + 1 and 2**53 are the same number. So a == b can be true while a - b is
# 1, and divmod(a, 8) returns two floats where a // 8 and a % 8 are integers. Offsets and counters of random
# generators are uint64, Python's literals are int64: the comparison with a literal above 2**53 goes through float64,
# too.
#
# Expected: one rule for both. Python and NumPy 2 compare such numbers exactly, as the simulator does. Numba's notes
# on integer typing warn that arithmetic of the two may become float64, which is no longer so.
#
#> a - b: int64, no conversion
#> a % 8: int64, no conversion
#> a == b: bool, cvt.rn.f64.u64 cvt.rn.f64.s64 setp.eq.f64
#> a < b: bool, cvt.rn.f64.u64 cvt.rn.f64.s64 setp.lt.f64
#> a == 2**53 + 1: bool, cvt.rn.f64.u64 setp.eq.f64
#> max(a, b): float64, cvt.rn.f64.u64 cvt.rn.f64.s64 setp.gt.f64 selp.f64
#> divmod(a, 8): UniTuple(float64 x 2)
#> NumPy, uint64(2**53 + 1) == int64(2**53): False
. "$(dirname "$0")/common.sh"
finding "numba-cuda[cu13]==0.30.4" numba==0.68.1 numpy==2.4.6 nvidia-nvvm==13.4.92 <<'PY'
import re

import numpy as np
from numba import cuda, types


def compiled(function, *arguments):
    """The type of the result and the names of the instructions that involve float64."""
    ptx, result = cuda.compile_ptx(function, arguments, device=True, cc=(8, 0))
    return result, " ".join(re.findall(r"^\t((?:cvt|setp|selp)\S*f64\S*)", ptx, re.M)) or "no conversion"


a, b = types.uint64, types.int64
for text, function in {
    "a - b": lambda a, b: a - b,
    "a % 8": lambda a, b: a % 8,
    "a == b": lambda a, b: a == b,
    "a < b": lambda a, b: a < b,
    "a == 2**53 + 1": lambda a, b: a == 9007199254740993,
    "max(a, b)": lambda a, b: max(a, b),
}.items():
    print(f"{text}: {', '.join(map(str, compiled(function, a, b)))}")
print("divmod(a, 8):", compiled(lambda a: divmod(a, 8), a)[0])
print("NumPy, uint64(2**53 + 1) == int64(2**53):", np.uint64(2**53 + 1) == np.int64(2**53))
PY
