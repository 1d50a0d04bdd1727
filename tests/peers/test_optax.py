"""optax's optimizers, on JAX's CPU arrays: independent code, each of several steps within the formula's bound.

optax adds an update, the negative step: lr, or its product with the decay, multiplies the whole at the end. It takes a
reciprocal root, good to two ulps, for the root and the quotient in RMSProp, where lr is the last of the factors. Powers
are worked out in fp64.
"""

import functools

import numpy as np
import pytest

from peers.trials import Row, both_tests_of

NO_DECAY = {"weight_decay": 0.0}
ROWS = [Row("adam", "default", "adam", fixed=NO_DECAY), Row("adamw", "default", "adamw", fixed={"lr_ratio": 1.0}),
        Row("adamw", "no decay", "adamw", fixed={"lr_ratio": 1.0}),
        Row("rmsprop", "default", "rmsprop", fixed=NO_DECAY),
        Row("rmsprop", "with mean_grad", "rmsprop", {"centered": True}, NO_DECAY),
        Row("rmsprop", "epsilon_at=outside", "rmsprop", {"eps_in_sqrt": False}, NO_DECAY),
        Row("lion", "default", "lion"), Row("lion", "no decay", "lion"), Row("adadelta", "default", "adadelta"),
        Row("lamb", "always_adapt=True", "lamb"), Row("novograd", "default", "novograd")]
THEIR_NAMES = {"lr": "learning_rate", "beta1": "b1", "beta2": "b2", "epsilon": "eps", "mu": "momentum",
               "coeff": "weight_decay", "weight_decay": "weight_decay", "rho": "rho"}
OF_ADAM = {"mu": "moment1", "nu": "moment2"}
STATES = {"adam": OF_ADAM, "adamw": OF_ADAM, "lamb": OF_ADAM, "rmsprop": {"mu": "mean_grad", "nu": "mean_square"},
          "lion": {"mu": "moment"}, "adadelta": {"e_g": "avg_squared_grad", "e_x": "avg_squared_update"},
          "novograd": {"mu": "moment", "nu": "second_moment"}}


@pytest.fixture(scope="module")
def optax():
    """optax, with JAX's fp64."""
    jax = pytest.importorskip("jax")
    module = pytest.importorskip("optax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield module
    jax.config.update("jax_enable_x64", before)


class OfOptax:
    """Its functions take numbers when they are made, and states are apart from them."""

    def __init__(self, optax, row, x, numbers):
        from jax import numpy as jnp

        self.optax, self.row, self.of_jax, self.param = optax, row, jnp.asarray, jnp.asarray(x)
        self.state = self.optimizer(numbers).init(self.param)

    def optimizer(self, numbers):
        own = THEIR_NAMES.keys() - self.row.fixed.keys()
        named = {THEIR_NAMES[name]: value for name, value in numbers.items() if name in own}
        if self.row.routine == "rmsprop":
            named["decay"] = named.pop("rho")
        return getattr(self.optax, self.row.peer)(**named, **self.row.switches)

    def step(self, g, numbers):
        update, self.state = self.optimizer(numbers).update(self.of_jax(g), self.state, self.param)
        self.param = self.optax.apply_updates(self.param, update)
        stored = {"params": self.param}
        for part in self.state:
            names = STATES[self.row.routine] | {"trace": "velocity"}
            stored |= {name: getattr(part, of) for of, name in names.items() if hasattr(part, of)}
        arrays = {name: np.asarray(x) for name, x in stored.items()}
        return arrays | {name: -arrays[name] for name in arrays if name == "velocity"}


@pytest.fixture
def make(optax):
    return functools.partial(OfOptax, optax)


test_within_the_bound, test_other_numbers_are_outside = both_tests_of(ROWS)
