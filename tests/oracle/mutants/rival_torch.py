"""PyTorch's tests; see `oracle.mutants.rivals`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from oracle.mutants.rivals import Different, Twins, verdict
from refopt.checks.dtypes import numpy_dtype

ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
MAXIMUM = {"optional": ["moment2_max"]}
# The inputs of common_optimizers.py, as far as refopt has their numbers.
INPUTS: dict[str, list[dict[str, Any]]] = {
    "adam": [ADAM, ADAM | {"lr": 0.01}, ADAM | MAXIMUM],
    "adamw": [ADAM | {"coeff": 0.01}, ADAM | {"coeff": 0.01, "lr": 0.01}, ADAM | {"coeff": 0.1},
              ADAM | {"coeff": 0.1} | MAXIMUM],
    "sgd": [{"lr": 1e-3}, {"lr": 1e-2}, {"lr": 1e-3, "l2_decay": 0.5}],
    "momentum": [{"lr": 1e-3, "mu": 0.9}, {"lr": 1e-3, "mu": 0.9, "l2_decay": 0.1},
                 {"lr": 1e-3, "mu": 0.9, "l2_decay": 0.1, "use_nesterov": True}],
    "adagrad": [{"lr": 1e-2, "epsilon": 1e-10}, {"lr": 0.1, "epsilon": 1e-10}],
    "rmsprop": [{"lr": 1e-2, "rho": 0.99, "mu": 0.0, "epsilon": 1e-8},
                {"lr": 1e-3, "rho": 0.99, "mu": 0.0, "epsilon": 1e-8},
                {"lr": 1e-2, "rho": 0.99, "mu": 0.1, "epsilon": 1e-8, "optional": ["mean_grad"]}],
    "radam": [ADAM, ADAM | {"lr": 2e-3}, ADAM | {"epsilon": 1e-6}],
    "nadam": [ADAM | {"lr": 2e-3, "decay_base": 0.96**0.004}, ADAM | {"decay_base": 0.96**0.004},
              ADAM | {"lr": 2e-3, "decay_base": 0.96**0.006}],
    "adamax": [ADAM | {"lr": 2e-3}, ADAM | {"lr": 0.1}],
    "adadelta": [{"lr": 1.0, "rho": 0.9, "epsilon": 1e-6}, {"lr": 0.01, "rho": 0.9, "epsilon": 1e-6},
                 {"lr": 1.0, "rho": 0.95, "epsilon": 1e-6}]}
FUSED = "adam", "adamw", "sgd", "momentum", "adagrad"  # in four dtypes; the others in fp64, by foreach
STEPS = 7


def killed(step: Callable[..., Any], routine: str) -> bool | None:
    return verdict(tests(step, routine))


def tests(step: Callable[..., Any], routine: str) -> Iterator[Callable[[], None]]:
    for options in INPUTS.get(routine, ()):
        for dtype in ("float64", "float32", "float16", "bfloat16") if routine in FUSED else ("float64",):
            # Too small an epsilon is 0 in fp16; only the inputs of Adam and AdamW are changed.
            small = dtype == "float16" and routine in ("adam", "adamw")
            yield partial(model, step, routine, options | ({"epsilon": 0.1} if small else {}), dtype)
        yield partial(mixed, step, routine, options)
        if routine in FUSED:
            yield partial(found_inf, step, routine, options)
        if not options.get("l2_decay"):
            yield partial(zero_gradients, step, routine, options)


def model(step: Callable[..., Any], routine: str, options: dict[str, Any], dtype: str) -> None:
    """`_test_derived_optimizers`: two linear layers with sigmoids, their loss the sum of what comes out."""
    rng, real = np.random.default_rng(1), numpy_dtype(dtype)
    bounds = {(3, 2): 0.707, (3,): 0.707, (1, 3): 0.577, (1,): 0.577, (): 1.0}  # one over the root of a layer's inputs
    params = [np.asarray(rng.uniform(-x, x, shape)).astype(real) for shape, x in bounds.items()]
    twins = Twins(routine, step, params, options)
    for i in range(STEPS):
        without = range(5) if i == 2 else (2, 3, 4) if i in (3, 4) else (4,)
        twins.take([None if k in without else g for k, g in enumerate(gradients(twins.ours.params))])
        twins.close(tensors=4)


def gradients(params: list[Any]) -> list[np.ndarray]:
    """Of the model's loss, by hand."""
    w, b, u, c, last = (p.astype(np.float64) for p in params)
    x = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    hidden = 1 / (1 + np.exp(-(x @ w.T + b)))
    out = 1 / (1 + np.exp(-(hidden @ u.T + c)))
    of_out = out * (1 - out)
    of_hidden = of_out @ u * hidden * (1 - hidden)
    found = of_hidden.T @ x, of_hidden.sum(0), of_out.T @ hidden, of_out.sum(0), last
    return [np.asarray(g).astype(p.dtype) for g, p in zip(found, params, strict=True)]


def mixed(step: Callable[..., Any], routine: str, options: dict[str, Any]) -> None:
    """`test_mixed_device_dtype`: tensors of four dtypes in one list, gradients that stay the same."""
    rng = np.random.default_rng(2)
    kinds = [numpy_dtype(name) for name in ("float64", "float32", "float16", "bfloat16")] * 2
    twins = Twins(routine, step, [rng.random((2, 3)).astype(kind) for kind in kinds], options)
    grads = [rng.random((2, 3)).astype(kind) for kind in kinds]
    for _ in range(1 if routine in FUSED else STEPS):
        twins.take(grads)
    twins.close(times=5)


def found_inf(step: Callable[..., Any], routine: str, options: dict[str, Any]) -> None:
    """`test_fused_does_not_step_if_foundinf`."""
    twins = Twins(routine, step, [np.ones(1, np.float32) for _ in range(5)], options)
    if not twins.subject.takes("found_inf"):
        raise NotImplementedError
    twins.take([np.ones(1, np.float32)] * 5, found_inf=np.ones(1, np.float32))
    twins.close(states=False)


def zero_gradients(step: Callable[..., Any], routine: str, options: dict[str, Any]) -> None:
    """`test_step_is_noop_for_zero_grads`: with AdamW at a rate of 1e-5."""
    if routine == "adamw":
        options = options | {"lr": 1e-5, "coeff": 0.01}
    before = np.random.default_rng(3).normal(size=(5, 1)).astype(np.float32)
    twins = Twins(routine, step, [before.copy()], options)
    twins.take([np.zeros((5, 1), np.float32)])
    if not np.allclose(twins.theirs.slots["params"][0], before, rtol=1.3e-6, atol=1e-5):
        raise Different("params")
