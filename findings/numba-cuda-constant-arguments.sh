#!/usr/bin/env bash
# numba-cuda 0.30.4: a device function is compiled again for each Python integer and bool among its arguments.
#
# A call such as load(x, 3) makes a version of load for the number 3, with a parameter of an ordinary integer, and so on
# for each number. The instructions of all versions are the same. Kernels that call small functions with constant
# places, such as parts of a row, take several times as long to compile. NumPy's constants do not have that effect, nor
# do Python's floats.
#
# Expected: a version for each type, as numba.njit makes for calls from Python. For calls from compiled functions it
# makes a version for each integer, too.
#
#> Python's int: 8 versions
#> NumPy's int64: 1 versions
#> Python's bool: 2 versions
#> NumPy's bool_: 1 versions
#> Python's float: 1 versions
#> numba.njit, 3 ints of a compiled function: 3 versions
#> numba.njit, 3 ints from Python: 1 versions
. "$(dirname "$0")/common.sh"
finding "numba-cuda[cu13]==0.30.4" numba==0.68.1 numpy==2.4.6 nvidia-nvvm==13.4.92 <<'PY'
from types import SimpleNamespace

import numba
import numpy as np
from numba import cuda, types
from numba.cuda import dispatcher

# Without a GPU: it is asked only for its compute capability.
dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(8, 0))


def versions(constants):
    """How many versions of a device function a kernel has that calls it with each of eight constants."""
    a, b, c, d, e, f, g, h = constants
    add = cuda.jit(device=True)(lambda x, k: x + k)

    def kernel(x):
        x[0] += add(x[1], a) + add(x[1], b) + add(x[1], c) + add(x[1], d)
        x[0] += add(x[1], e) + add(x[1], f) + add(x[1], g) + add(x[1], h)

    cuda.compile_ptx(kernel, types.void(types.float64[:]), cc=(8, 0))
    return len(add.overloads)


print("Python's int:", versions(range(8)), "versions")
print("NumPy's int64:", versions(map(np.int64, range(8))), "versions")
print("Python's bool:", versions([True, False] * 4), "versions")
print("NumPy's bool_:", versions(map(np.bool_, [True, False] * 4)), "versions")
print("Python's float:", versions(map(float, range(8))), "versions")

inside, outside = numba.njit(lambda x, k: x + k), numba.njit(lambda x, k: x + k)
numba.njit(lambda x: inside(x, 0) + inside(x, 1) + inside(x, 2))(1.0)
for k in range(3):
    outside(1.0, k)
print("numba.njit, 3 ints of a compiled function:", len(inside.overloads), "versions")
print("numba.njit, 3 ints from Python:", len(outside.overloads), "versions")
PY
