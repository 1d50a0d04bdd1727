#!/usr/bin/env bash
# numba-cuda 0.30.4: n ** 2 of integers is an integer whose value was rounded to float64; n * n is exact.
#
# The compiled code multiplies in int64, converts the product to float64, and converts that to int64. Above 2**53 the
# last bits are lost: 94906267 ** 2 = 9007199515875289 becomes 9007199515875288. A product that wraps is still
# rounded.
#
# Expected: the bits of n * n. The result is typed int64, Numba's own CPU target returns the exact square, and so do
# NumPy and the simulator. Hashes and random generators with powers in them differ from their reference on the GPU
# alone.
#
#> n * n: int64, mul.lo.s64
#> n ** 2: int64, mul.lo.s64 cvt.rn.f64.s64 cvt.rzi.s64.f64
#> n ** 3: int64, mul.lo.s64 mul.lo.s64 cvt.rn.f64.s64 cvt.rzi.s64.f64
#> CPU target, 94906267 ** 2: 9007199515875289
#> through float64: 9007199515875288
. "$(dirname "$0")/common.sh"
finding "numba-cuda[cu13]==0.30.4" numba==0.68.1 numpy==2.4.6 nvidia-nvvm==13.4.92 <<'PY'
import re

import numba
import numpy as np
from numba import cuda, types

for text, function in {"n * n": lambda n: n * n, "n ** 2": lambda n: n**2, "n ** 3": lambda n: n**3}.items():
    ptx, result = cuda.compile_ptx(function, (types.int64,), device=True, cc=(8, 0))
    print(f"{text}: {result},", *re.findall(r"^\t((?:mul|cvt)\.\S+)", ptx, re.M))
print("CPU target, 94906267 ** 2:", numba.njit(lambda n: n**2)(np.int64(94906267)))
print("through float64:", int(float(94906267**2)))
PY
