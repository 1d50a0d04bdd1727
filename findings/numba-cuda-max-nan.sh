#!/usr/bin/env bash
# numba-cuda 0.30.4: what max does with a NaN depends on the types and on the number of its arguments.
#
# max(a, b) of two float32 is the instruction max.f32, which returns the number if the other is NaN, in either order.
# With a third argument, or an integer 0 as the second, it is comparisons and selections, where a NaN in front stays
# and a later one is dropped. numpy.maximum in the same kernel passes every NaN on. So whether a ReLU or an absolute
# maximum hides a NaN depends on whether 0 is written as 0 or as float32(0).
#
# Expected: one rule. Python's max keeps the first argument if comparisons are false, as Numba's CPU target and the
# CUDA simulator do; numpy.maximum is documented to propagate.
#
#> max(a, b): max.f32
#> max(a, float32(0)): max.f32
#> max(a, 0): setp.lt.f64 selp.f64
#> max(a, b, c): setp.gt.f32 selp.f32 setp.lt.f32 selp.f32
#> numpy.maximum(a, b): setp.nan.f32 setp.nan.f32 selp.f32 setp.ge.f32 selp.f32 selp.f32
#> CPU target: max(nan, 1) = nan, max(1, nan) = 1.0
. "$(dirname "$0")/common.sh"
finding "numba-cuda[cu13]==0.30.4" numba==0.68.1 numpy==2.4.6 nvidia-nvvm==13.4.92 <<'PY'
import re

import numba
import numpy as np
from numba import cuda, types

zero = np.float32(0)
for text, function in {
    "max(a, b)": lambda a, b, c: max(a, b),
    "max(a, float32(0))": lambda a, b, c: max(a, zero),
    "max(a, 0)": lambda a, b, c: max(a, 0),
    "max(a, b, c)": lambda a, b, c: max(a, b, c),
    "numpy.maximum(a, b)": lambda a, b, c: np.maximum(a, b),
}.items():
    ptx, _ = cuda.compile_ptx(function, (types.float32,) * 3, device=True, cc=(8, 0))
    print(f"{text}:", *re.findall(r"^\t((?:max|setp|selp)\.\S+)", ptx, re.M))
larger = numba.njit(lambda a, b: max(a, b))
nan, one = np.float32("nan"), np.float32(1)
print(f"CPU target: max(nan, 1) = {larger(nan, one)}, max(1, nan) = {larger(one, nan)}")
PY
