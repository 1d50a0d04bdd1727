#!/usr/bin/env bash
# ml_dtypes 0.6.0: an array of bfloat16 times a Python float is float32; times a Python int it stays bfloat16.
#
# So "m = beta * m + (1 - beta) * g" on bfloat16 arrays returns a state of four bytes an element that was never
# rounded to bfloat16, while "m *= beta" keeps the dtype: the two lines of one reference differ in bits and in size.
#
# Expected: NumPy 2 says that a Python float is weak, that is, takes the dtype of the array (NEP 50), as it does
# beside float16. JAX, which defines bfloat16 by ml_dtypes, treats it as weak beside bfloat16, too.
#
#> float16 * 0.9: float16
#> bfloat16 * 2: bfloat16
#> bfloat16 * 0.9: float32
#> bfloat16 *= 0.9: bfloat16
#> where(mask, bfloat16, 0.9): float64
#> float8_e4m3fn * 0.5: float32
. "$(dirname "$0")/common.sh"
finding ml_dtypes==0.6.0 numpy==2.4.6 <<'PY'
import ml_dtypes
import numpy as np

m = np.ones(4, ml_dtypes.bfloat16)
print("float16 * 0.9:", (m.astype(np.float16) * 0.9).dtype)
print("bfloat16 * 2:", (m * 2).dtype)
print("bfloat16 * 0.9:", (m * 0.9).dtype)
kept = m.copy()
kept *= 0.9
print("bfloat16 *= 0.9:", kept.dtype)
print("where(mask, bfloat16, 0.9):", np.where(m > 0, m, 0.9).dtype)
print("float8_e4m3fn * 0.5:", (m.astype(ml_dtypes.float8_e4m3fn) * 0.5).dtype)
PY
