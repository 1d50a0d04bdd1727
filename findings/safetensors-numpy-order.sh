#!/usr/bin/env bash
# safetensors 0.8.0, safetensors.numpy: an array in Fortran order is saved with the right shape and permuted values.
#
# The bytes are written as they lie in memory and read as if they had been in C order. Transposed views and what
# scipy.linalg's eigh and qr return, as in the preconditioners of Shampoo, lie in Fortran order. The array equals its
# C-ordered copy in every comparison, so a check before saving finds nothing.
#
# Expected: an equal array after loading, or an error. The documentation asks for arrays that are "contiguous and
# dense", which NumPy says of this one (f_contiguous), and safetensors.torch refuses such a tensor with a ValueError.
#
#> saved: [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
#> loaded: [[0.0, 3.0, 1.0], [4.0, 2.0, 5.0]]
#> contiguous copy loaded: [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
. "$(dirname "$0")/common.sh"
finding safetensors==0.8.0 numpy==2.4.6 <<'PY'
import numpy as np
from safetensors.numpy import load, save

x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
assert x.flags.f_contiguous
print("saved:", x.tolist())
print("loaded:", load(save({"x": x}))["x"].tolist())
print("contiguous copy loaded:", load(save({"x": np.ascontiguousarray(x)}))["x"].tolist())
PY
