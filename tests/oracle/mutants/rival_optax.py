"""optax's test that an optimizer converges; see `oracle.mutants.rivals`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from oracle.mutants.rivals import Different, verdict
from refopt.catalog import ROUTINES
from refopt.oracle.cases import alike, draw
from refopt.oracle.subjects.function import Function

BETAS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
# The rates of _OPTIMIZERS_UNDER_TEST, other numbers by default as in optax/_src/alias.py.
UNDER_TEST: dict[str, list[dict[str, Any]]] = {
    "adadelta": [{"lr": 0.1, "rho": 0.9, "epsilon": 1e-6}],
    "adagrad": [{"lr": 1.0, "epsilon": 1e-7}], "adam": [BETAS | {"lr": 1e-1}], "adamax": [BETAS | {"lr": 1e-1}],
    "adamw": [BETAS | {"lr": 1e-1, "coeff": 1e-4}],
    "lamb": [{"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.0, "always_adapt": True}],
    "lars_momentum": [{"lr": 1.0, "mu": 0.9, "lars_coeff": 0.001, "lars_weight_decay": 0.0, "epsilon": 0.0}],
    "lion": [{"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "coeff": 1e-4}],
    "nadam": [BETAS | {"lr": 1e-2, "decay_base": 0.0}],
    "novograd": [{"lr": 1e-3, "beta1": 0.9, "beta2": 0.25, "epsilon": 1e-6, "weight_decay": 0.0}],
    "radam": [BETAS | {"lr": 5e-3}], "rmsprop": [{"lr": 5e-3, "rho": 0.9, "mu": 0.0, "epsilon": 1e-8},
                {"lr": 5e-3, "rho": 0.9, "mu": 0.9, "epsilon": 1e-8}],
    "momentum": [{"lr": 1e-3, "mu": 0.9}]}
STEPS = 10_000
ALIKE = 300


def parabola(x: np.ndarray) -> np.ndarray:
    return 2 * (x - np.array([1.0, -1.0, 1.0], np.float32))


def rosenbrock(x: np.ndarray) -> np.ndarray:
    a, b = x
    return np.array([2 * (a - 1) - 400 * a * (b - a * a), 200 * (b - a * a)], np.float32)


TARGETS = ((parabola, [-1.0, 10.0, 1.0], [1.0, -1.0, 1.0]), (rosenbrock, [0.0, 0.0], [1.0, 1.0]))


def killed(make: Callable[[], Callable[..., Any]], routine: str,
           right: Callable[..., Any] | None = None) -> bool | None:
    """Of what makes a step. With ``right``, one that has its bits for 300 steps is taken to go on so, and passes."""
    if right is not None and routine in UNDER_TEST and all(alike_first(make, routine, right)):
        return False
    return verdict(tests(make(), routine))


def alike_first(make: Callable[[], Callable[..., Any]], routine: str, right: Callable[..., Any]) -> Iterator[bool]:
    step = make()
    for options in UNDER_TEST[routine]:
        for gradient, first, _ in TARGETS:
            try:
                runs = [trained(one, routine, options, gradient, first, ALIKE) for one in (step, right)]
            except Exception:  # an error of a step is one of its test
                yield False
            else:
                yield runs[0] == runs[1]


def tests(step: Callable[..., Any], routine: str) -> Iterator[Callable[[], None]]:
    for options in UNDER_TEST.get(routine, ()):
        for gradient, first, last in TARGETS:
            yield partial(converges, step, routine, options, gradient, first, last)


def converges(step: Callable[..., Any], routine: str, options: dict[str, Any], gradient: Any, first: list,
              last: list) -> None:
    """`test_optimization`: close to the optimum after so many steps."""
    found = np.frombuffer(trained(step, routine, options, gradient, first, STEPS)[-1], np.float32)
    if not np.allclose(found, last, rtol=3e-2, atol=3e-2):
        raise Different("params")


def trained(step: Callable[..., Any], routine: str, options: dict[str, Any], gradient: Any, first: list,
            steps: int) -> list[bytes]:
    """The bytes of the parameter after each of the first steps, and after the last."""
    row = ROUTINES[routine]
    subject = Function(row, step)
    numbers = {h.name: options.get(h.name, h.default) for h in row.hypers}
    case = draw(row, [(len(first),)], [alike("float32")], seed=0, numbers=numbers, choices={})
    lists = [case.slots[name] for name in subject.positional]
    params = case.slots["params"]
    params[0][...] = first
    counts, place = subject.takes("step"), subject.positional.index("grads")
    found = []
    with np.errstate(all="ignore"):
        for k in range(steps):
            lists[place] = [gradient(params[0])]
            step(*(list(values) for values in lists), **options, **({"step": k + 1} if counts else {}))
            if k < ALIKE or k == steps - 1:
                found.append(params[0].tobytes())
    return found
