#!/usr/bin/env bash
# ml_dtypes 0.6.0: the mean of 1,000 ones is 0.256 in bfloat16 and 0 in int4.
#
# np.sum adds one element after the other in the dtype of the array. In bfloat16 the sum stays at 256, since 256 + 1
# rounds to 256. In int4 it wraps at 8. The dot product of the same bfloat16 array is right: it accumulates in
# float32.
#
# Expected: NumPy documents that np.mean computes float16 in float32 and integers in float64, and np.sum widens small
# integers to the platform's. Neither happens for the types of ml_dtypes, and nothing is reported.
#
#> float16: mean 1.0, sum 1000, dot 1000
#> bfloat16: mean 0.255859375, sum 256, dot 1000
#> int8: mean 1.0, sum 1000
#> int4: mean 0.0, sum -8
#> bfloat16: standard deviation of equal elements 0.50390625
. "$(dirname "$0")/common.sh"
finding ml_dtypes==0.6.0 numpy==2.4.6 <<'PY'
import ml_dtypes
import numpy as np

for dtype in (np.float16, ml_dtypes.bfloat16, np.int8, ml_dtypes.int4):
    ones = np.ones(1000, dtype)
    dot = "" if "int" in ones.dtype.name else f", dot {int(ones @ ones)}"
    print(f"{ones.dtype.name}: mean {float(ones.mean())}, sum {int(ones.sum())}{dot}")
print("bfloat16: standard deviation of equal elements", float(np.ones(1000, ml_dtypes.bfloat16).std()))
PY
