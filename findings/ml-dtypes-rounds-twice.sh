#!/usr/bin/env bash
# ml_dtypes 0.6.0: a cast from float64 or from a wide integer rounds twice.
#
# The value is rounded to float32 first and to the small format then. If the first rounding lands on the middle
# between two numbers of the small format, the second takes the even one, which can be the farther. A float64 a hair
# above the middle of 1 and its bfloat16 successor becomes 1. The integer 2**30 + 2**22 + 1 loses its last bit in the
# same way.
#
# Expected: the nearest value, as NumPy's own cast from float64 to float16 gives, and as float8_e4m3fn(x) gives for
# one Python float. The array cast of the same number differs from that constructor, so a reference that computes in
# float64 and stores a low-bit state disagrees with itself, depending on how it makes the number.
#
#> float64 to bfloat16: 1.0, nearest 1.0078125
#> int32 to bfloat16: 1073741824, nearest 1082130432
#> float64 to float8_e4m3fn: array 1.0, scalar 1.125, nearest 1.125
#> float64 to float16: 1.0009765625, nearest 1.0009765625
. "$(dirname "$0")/common.sh"
finding ml_dtypes==0.6.0 numpy==2.4.6 <<'PY'
import ml_dtypes
import numpy as np

above = 2.0**-40
x = np.array([1 + 2.0**-8 + above])
print(f"float64 to bfloat16: {float(x.astype(ml_dtypes.bfloat16)[0])}, nearest {1 + 2**-7}")
n = np.array([2**30 + 2**22 + 1], np.int32)
print(f"int32 to bfloat16: {int(n.astype(ml_dtypes.bfloat16)[0])}, nearest {2**30 + 2**23}")
x = np.array([1 + 2.0**-4 + above])
small = ml_dtypes.float8_e4m3fn
array, scalar = float(x.astype(small)[0]), float(small(float(x[0])))
print(f"float64 to float8_e4m3fn: array {array}, scalar {scalar}, nearest {1 + 2**-3}")
x = np.array([1 + 2.0**-11 + above])
print(f"float64 to float16: {float(x.astype(np.float16)[0])}, nearest {1 + 2**-10}")
PY
