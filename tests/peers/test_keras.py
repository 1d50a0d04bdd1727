"""Keras 3's optimizers on PyTorch's CPU tensors: independent code, each of several steps within the formula's bound.

Keras multiplies by the root of a mean square before it divides by another in Adadelta, adds epsilon to the mean square
before it subtracts the squared mean in the centered RMSProp, and decays the parameter before the step; NAdam's momentum
is beta1 times a difference. Each is a regrouping of as many roundings, at sizes that the formula's have, too. Powers
are by pow(), good to one ulp, which is two roundings; the first power is exact.
"""

import functools

import pytest

from peers.trials import Row, both_tests_of

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras's NAdam

UNCORRECTED = "epsilon_at=uncorrected"
ONE_RATE, NO_DECAY = {"lr_ratio": 1.0}, {"weight_decay": 0.0}
ROWS = [Row("adam", UNCORRECTED, "Adam", fixed=NO_DECAY),
        Row("adam", f"{UNCORRECTED}, with moment2_max", "Adam", {"amsgrad": True}, NO_DECAY),
        Row("adamw", UNCORRECTED, "AdamW", fixed=ONE_RATE),
        Row("adamw", f"{UNCORRECTED}, with moment2_max", "AdamW", {"amsgrad": True}, ONE_RATE),
        Row("rmsprop", "default", "RMSprop", fixed=NO_DECAY),
        Row("rmsprop", "with mean_grad", "RMSprop", {"centered": True}, NO_DECAY), Row("lion", "default", "Lion"),
        Row("lion", "no decay", "Lion"), Row("adadelta", "default", "Adadelta", fixed=NO_DECAY),
        Row("nadam", "default", "Nadam", fixed=NO_DECAY | {"decay_base": 0.96})]
THEIR_NAMES = {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon", "rho": "rho", "mu": "momentum"}
STATES = {"adam": {"moment1": "_momentums", "moment2": "_velocities", "moment2_max": "_velocity_hats"},
          "rmsprop": {"mean_square": "_velocities", "velocity": "_momentums", "mean_grad": "_average_gradients"},
          "lion": {"moment": "_momentums"},
          "adadelta": {"avg_squared_grad": "_accumulated_grads", "avg_squared_update": "_accumulated_delta_vars"},
          "nadam": {"moment1": "_momentums", "moment2": "_velocities"}}
STATES["adamw"] = STATES["adam"]


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """Keras on PyTorch; it leaves its settings in a folder of the test's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")
        patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        pytest.importorskip("torch")
        module = pytest.importorskip("keras")
    before = module.config.floatx()
    yield module
    module.config.set_floatx(before)


class OfKeras:
    def __init__(self, keras, row, x, numbers):
        keras.config.set_floatx(x.dtype.name)  # the learning rate's type
        self.keras, self.row = keras, row
        named = {THEIR_NAMES[name]: value for name, value in numbers.items() if name in THEIR_NAMES}
        self.param = keras.Variable(x, dtype=x.dtype.name)
        self.optimizer = getattr(keras.optimizers, row.peer)(**named, **row.switches)
        self.optimizer.build([self.param])

    def step(self, g, numbers):
        self.optimizer.learning_rate = numbers["lr"]
        for name in THEIR_NAMES.keys() & numbers.keys():
            setattr(self.optimizer, THEIR_NAMES[name], numbers[name])
        if "coeff" in numbers:
            self.optimizer.weight_decay = numbers["coeff"]
        self.optimizer.apply([self.keras.ops.array(g, dtype=g.dtype.name)])
        states = {name: getattr(self.optimizer, of, None) for name, of in STATES[self.row.routine].items()}
        variables = {"params": self.param} | {name: x[0] for name, x in states.items() if x}
        return {name: x.value.detach().numpy() for name, x in variables.items()}


@pytest.fixture
def make(keras):
    return functools.partial(OfKeras, keras)


test_within_the_bound, test_other_numbers_are_outside = both_tests_of(ROWS)
