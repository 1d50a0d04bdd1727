#!/usr/bin/env bash
# optax 0.2.8: inject_hyperparams(adamw) turns bfloat16 parameters into NaN in the first step; adamw alone does not.
#
# The wrapper casts every hyperparameter to the dtype of the first parameter of the tree. In bfloat16 the default b2 =
# 0.999 is 1.0: the second moment stays 0 and its bias correction divides by 0. With a float32 leaf in front, or one
# of float16, it works, so whether a model trains depends on the order of its parameters' names.
#
# Expected: the same step with and without the wrapper, which is documented to make hyperparameters schedulable. Its
# argument hyperparam_dtype is called an override "if specified"; a cast without it is not mentioned.
#
#> adamw: [-0.000999451, -0.000999451]
#> inject_hyperparams(adamw): [nan, nan], b2 = 1.000
#> with a float32 leaf in front: [-0.001000012, -0.001000012], b2 = 0.999
#> with hyperparam_dtype=float32: [-0.001000012, -0.001000012], b2 = 0.999
. "$(dirname "$0")/common.sh"
finding optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 ml_dtypes==0.6.0 <<'PY'
import jax.numpy as jnp
import optax

p = g = {"w": jnp.full(2, 0.125, jnp.bfloat16)}


def first(optimizer, p=p):
    return optimizer.update(p, optimizer.init(p), p)


def described(update, state):
    values = ", ".join(f"{float(x):.9f}".rstrip("0") for x in update["w"])
    return f"[{values}], b2 = {float(state.hyperparams['b2']):.3f}"


update, _ = first(optax.adamw(1e-3))
print("adamw:", [round(float(x), 9) for x in update["w"]])
wrapped = optax.inject_hyperparams(optax.adamw)(1e-3)
print("inject_hyperparams(adamw):", described(*first(wrapped)))
print("with a float32 leaf in front:", described(*first(wrapped, {"a": jnp.zeros(1), **p})))
in_float32 = optax.inject_hyperparams(optax.adamw, hyperparam_dtype=jnp.float32)(1e-3)
print("with hyperparam_dtype=float32:", described(*first(in_float32)))
PY
