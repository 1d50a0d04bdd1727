#!/usr/bin/env bash
# numba-cuda 0.30.4, CUDA simulator: cuda.fma rounds twice.
#
# The simulator computes a * b + c with NumPy's scalars, so the product is rounded before the sum. For the usual
# error-free product, error = fma(a, b, -(a * b)), the result is always 0: compensated sums and exact division, which
# exist for the sake of that one rounding, cannot be tested with it, and seem to work.
#
# Expected: one rounding. The documentation calls it the fused multiply-add, and compiled code has fma.rn.f32. The
# list of what the simulator leaves out does not name it.
#
#> compiled: fma.rn.f32
#> simulator: error of the product 0.0
#> exact: error of the product 5.960464477539063e-08
. "$(dirname "$0")/common.sh"
finding "numba-cuda[cu13]==0.30.4" numba==0.68.1 numpy==2.4.6 nvidia-nvvm==13.4.92 <<'PY'
import os
import re
import sys

if "simulator" not in sys.argv:
    from numba import cuda, types

    ptx, _ = cuda.compile_ptx(lambda a, b, c: cuda.fma(a, b, c), (types.float32,) * 3, device=True, cc=(8, 0))
    print("compiled:", *re.findall(r"^\t((?:fma|mul|add)\.\S+)", ptx, re.M), flush=True)
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    os.execv(sys.executable, [sys.executable, "-W", "ignore", __file__, "simulator"])

import numpy as np
from numba import cuda


@cuda.jit
def error(out, a):
    out[0] = cuda.fma(a[0], a[0], -(a[0] * a[0]))


out, a = np.ones(1, np.float32), np.array([1 + 2.0**-12], np.float32)
error[1, 1](out, a)
print("simulator: error of the product", float(out[0]))
print("exact: error of the product", float(a[0]) ** 2 - float(a[0] * a[0]))
PY
