#!/usr/bin/env bash
# ml_dtypes 0.6.0: np.sort leaves numbers unsorted if the bfloat16 array contains a NaN; np.median is then some
# element.
#
# Whoever takes a median or a quantile of gradient norms in bfloat16, for a clipping threshold, gets a finite,
# plausible and wrong number instead of the NaN that would stop the run.
#
# Expected: NumPy documents that NaN is sorted to the end, and np.median returns NaN if there is one. Both hold for
# float16 and float32. np.max of the same bfloat16 array does return NaN.
#
#> float16 sorted: [1.0, 2.0, 3.0, nan, nan]
#> bfloat16 sorted: [3.0, nan, 2.0, nan, 1.0]
#> float16 median: nan
#> bfloat16 median: 2.0
#> bfloat16 max: nan
. "$(dirname "$0")/common.sh"
finding ml_dtypes==0.6.0 numpy==2.4.6 <<'PY'
import ml_dtypes
import numpy as np

nan = float("nan")
for dtype in (np.float16, ml_dtypes.bfloat16):
    print(np.dtype(dtype).name, "sorted:", np.sort(np.array([3, nan, 2, nan, 1], dtype)).astype(float).tolist())
for dtype in (np.float16, ml_dtypes.bfloat16):
    print(np.dtype(dtype).name, "median:", float(np.median(np.array([3, nan, 2, nan, 1], dtype))))
print("bfloat16 max:", float(np.max(np.array([3, nan, 2, nan, 1], ml_dtypes.bfloat16))))
PY
