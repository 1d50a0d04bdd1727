"""Apex's tests; see `oracle.mutants.rivals`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from oracle.mutants.rivals import Twins, verdict

ADAM = {"lr": 5e-4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
OPTION = {"lr": 0.01, "beta1": 0.6, "beta2": 0.9, "epsilon": 3e-6}
NOVOGRAD = {"lr": 1e-3, "beta1": 0.95, "beta2": 0.0, "epsilon": 1e-8, "weight_decay": 0.0}
STEPS = 7
LENET = (6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 256), (120,), (84, 120), (84,), (10, 84), (10,)
MANY = (64, 1024), (64,), (64, 2048), (505, 1024), (1,)


def killed(step: Callable[..., Any], routine: str) -> bool | None:
    return verdict(tests(step, routine))


def tests(step: Callable[..., Any], routine: str) -> Iterator[Callable[[], None]]:
    run = partial(compared, step, routine)
    if routine in ("adam", "adamw"):
        none = {"coeff": 0.0} if routine == "adamw" else {}
        yield partial(run, ADAM | none, [278011])
        yield partial(run, OPTION | none, [1])
        yield partial(native, step, routine, ADAM | none | {"lr": 1e-5})
    elif routine == "momentum":
        yield partial(run, {"lr": 0.25, "mu": 0.125}, [278011])
    elif routine == "adagrad":
        yield partial(run, {"lr": 5e-4, "epsilon": 1e-8}, [278011])
        yield partial(run, {"lr": 5e-4, "epsilon": 1e-8}, MANY)
        yield partial(run, {"lr": 0.01, "epsilon": 3e-6}, [1])
    elif routine == "lamb":
        for decay in (0.0, 0.01):
            more = {"weight_decay": decay, "always_adapt": True}
            yield partial(run, ADAM | more, [18011], close=True)
            yield partial(run, OPTION | more, [1], close=True)
            yield partial(run, ADAM | more, MANY, close=True)
    elif routine == "novograd":
        yield partial(run, NOVOGRAD, [278011])
        yield partial(run, NOVOGRAD, [278011], dtype=np.float16)
        yield partial(run, NOVOGRAD, MANY)


def compared(step: Callable[..., Any], routine: str, options: dict[str, Any], shapes: Any, close: bool = False,
             dtype: type = np.float32) -> None:
    """`gen_single_type_test` and `test_multi_params`: parameters and gradients from 0 to 1, as they come."""
    rng = np.random.default_rng(9876)
    twins = Twins(routine, step, [rng.random(shape).astype(dtype) for shape in shapes], options)
    for _ in range(STEPS):
        grads = [rng.random(shape).astype(dtype) for shape in shapes]
        if routine == "lamb":  # FusedLAMB clips the norm of all gradients to 1
            norm = float(np.sqrt(sum(float(np.vdot(g, g)) for g in grads)))
            grads = [g * np.float32(1 / max(norm, 1)) for g in grads]
        twins.take(grads)
        if close:
            twins.close(states=False)
        else:
            twins.within(1e-3, 1)


def native(step: Callable[..., Any], routine: str, options: dict[str, Any]) -> None:
    """`testNative`: weights, at a rate of 1e-5 within 1e-3, and the same again before each of 100 steps."""
    rng = np.random.default_rng(0)
    params = [rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.prod(shape[1:]) ** 0.5) for shape in LENET]
    twins = Twins(routine, step, params, options)
    for _ in range(100):
        twins.take([rng.normal(scale=1e-3, size=shape).astype(np.float32) for shape in LENET])
        for x, y in zip(twins.ours.params[::2], twins.theirs.params[::2], strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-3, atol=1e-3)
        twins.resync()
