#!/usr/bin/env bash
# optax 0.2.8: clip_by_global_norm(1.0) leaves bfloat16 gradients of a norm of 2, or more the more tensors there are.
#
# global_norm adds the squared norms of the leaves in their dtype, one after the other. In bfloat16 that sum stops
# growing at 256 equal terms, so the norm of 1,000 leaves of norm 1 is found to be 16 instead of 31.6. One array of
# the same 1,000 numbers is right, since JAX accumulates within an array in float32.
#
# Expected: the documented norm of all leaves, in which the split of the parameters into arrays has no part.
#
#> 1,000 arrays of one element: norm 16.0, after clipping to 1: 1.976
#> one array of 1,000 elements: norm 31.625, after clipping to 1: 1.004
. "$(dirname "$0")/common.sh"
finding optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 ml_dtypes==0.6.0 <<'PY'
import jax
import jax.numpy as jnp
import numpy as np
import optax

for name, gradients in {
    "1,000 arrays of one element": [jnp.ones(1, jnp.bfloat16)] * 1000,
    "one array of 1,000 elements": [jnp.ones(1000, jnp.bfloat16)],
}.items():
    clip = optax.clip_by_global_norm(1.0)
    clipped, _ = clip.update(gradients, clip.init(gradients))
    norm = np.linalg.norm(np.concatenate([np.asarray(x, np.float64) for x in jax.tree.leaves(clipped)]))
    print(f"{name}: norm {float(optax.global_norm(gradients))}, after clipping to 1: {norm:.4g}")
PY
