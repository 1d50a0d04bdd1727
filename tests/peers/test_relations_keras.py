"""`check(None, ...)`, `identify` and `compare` of Keras 3's optimizers: theirs hold; planted defects show."""

import functools
import importlib.util
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from peers.test_keras import keras  # noqa: F401
from peers.trials import check
from refopt import oracle
from refopt.oracle.memory import dense
from refopt.oracle.subjects import subject_of
from refopt.oracle.subjects.function import Function
from refopt.oracle.subjects.keras import names_of
from refopt.oracle.subjects.keras_peers import PEERS

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
LAWS = ["L2", "L2", "L15", "L4", "L4", "L17", "L16"]  # L3, of a thousand tensors, is for one of them
SHORT = {"dtypes": ["float32"]}
FOUND = [*PEERS, "amsgrad", "nesterov"]
OPTIONS = {"sgd": {"momentum": 0.0}, "amsgrad": {"amsgrad": True}, "nesterov": {"nesterov": True}}
# In PyTorch's arithmetic, in which Keras's epsilon of Adamax is beside the norm, which shows where it is large.
NUMBERS = {"adamax": "epsilon=1e-07"}


@pytest.fixture
def optimizers(keras):  # noqa: F811
    return keras.optimizers


def holds(subject, **options):
    report = check(None, subject, **{"laws": LAWS, **SHORT, **options})
    assert report.ok and not report.failed_laws, str(report)
    return report


@pytest.mark.parametrize(("name", "compared"), [
    ("SGD", 446783), ("Adam", 1340317), ("Nadam", 1340317), ("Muon", 1307837), ("Adafactor", 895491)])
def test_classes_hold(optimizers, name, compared):
    """All that they have: so many elements, of states too."""
    report = holds(getattr(optimizers, name))
    assert report.compared == compared
    assert {item.law for item in report.of("passed")} == {*LAWS}
    assert {item.text for item in report.of("skipped")} == {"a Keras optimizer has no groups"}
    assert report.subject == f"keras.optimizers.{name}"


def test_states_are_those_of_tensors(optimizers):
    """Adafactor's rows and columns, and not what it has in their place for a vector."""
    expected = {"Adam": [{"momentums": (2, 3), "velocities": (2, 3)}, {"momentums": (4,), "velocities": (4,)}],
                "Adafactor": [{"r": (2,), "c": (3,), "v": (2, 3)}, {"v": (4,)}]}
    for name, of in expected.items():
        run = subject_of(None, getattr(optimizers, name)).start([dense(np.ones(shape)) for shape in ((2, 3), 4)])
        assert [{key: x.shape for key, x in one.items()} for one in run.states()] == of


def test_what_is_taken(optimizers, keras):  # noqa: F811
    """Whether or not optax, whose functions take a learning rate as well, has been imported."""
    pytest.importorskip("optax")
    before = keras.config.floatx()
    adam = optimizers.Adam
    for subject in (adam(0.0625, beta_1=0.5), functools.partial(adam, beta_1=0.5), lambda: adam(0.0625),
                    lambda learning_rate: adam(learning_rate), lambda: optimizers.LossScaleOptimizer(adam(0.0625)),
                    optimizers.LossScaleOptimizer(adam(0.0625))):
        holds(subject, laws=["L16"], dtypes=["float64"])
    assert oracle.identify(adam(0.0625, beta_1=0.5)).matches[0].numbers["beta1"] == 0.5
    assert oracle.identify(lambda: adam(0.0625, beta_1=0.5)).matches[0].numbers["lr"] == 0.0625
    assert keras.config.floatx() == before


def test_a_decorated_step_is_no_optimizer_to_be_made(optimizers):
    """It is not called to find out: what it takes is told by its signature."""
    calls = []

    def step(params, grads, *, lr):
        """Of whatever arrays."""

    @functools.wraps(step)
    def decorated(*args, **named):
        calls.append((args, named))
        return optimizers.SGD(0.5)

    assert isinstance(subject_of(None, decorated), Function) and not calls


def test_names_that_are_taken(optimizers):
    """Of a class all but self, also those that it passes on; of a function all but what has any name."""

    class Decays(optimizers.SGD):
        def __init__(self, learning_rate=0.25, decays=2.0, **options):
            super().__init__(learning_rate, **options)

    found = names_of(Decays, first=1)
    assert (found["learning_rate"], found["decays"], found["momentum"]) == (0.25, 2.0, 0.0) and "self" not in found
    assert names_of(lambda rate, b1=0.5, **others: None, first=1) == {"rate": inspect.Parameter.empty, "b1": 0.5}


def test_what_is_refused(optimizers):
    one = optimizers.Adam(0.0625)

    class Forgets(optimizers.SGD):
        def __init__(self, learning_rate=0.1, extra=1.0, **options):
            super().__init__(learning_rate, **options)
            self.extra = extra

    for subject, options, words in (
        (lambda: one, {}, "expected a new optimizer from each call"),
        (Forgets(extra=0.5), {}, "expected a get_config with 'extra', which is 0.5"),
        (optimizers.Adam, {"beta": 1.0}, "expected an optimizer, got ValueError: .*beta"),
        (optimizers.LossScaleOptimizer, {}, "missing 1 required positional argument: 'inner_optimizer'"),
        (optimizers.Adam, {"set": {"mu": 0.5}}, "set: expected it only for a function")):
        with pytest.raises(TypeError, match=words):
            check(None, subject, **options)
    with pytest.raises(ValueError, match="device: expected none except for torch, got 'cpu' for Keras"):
        check(None, optimizers.Adam, device="cpu")
    assert not one.built


def momentum(optimizers, ops):
    class Momentum(optimizers.Optimizer):
        """Right: with a number of steps and a momentum."""

        def __init__(self, learning_rate=0.1, **options):
            super().__init__(learning_rate, **options)

        def build(self, variables):
            super().build(variables)
            self.buffers = self.add_optimizer_variables(variables, "buffer")

        def update_step(self, gradient, variable, learning_rate):
            i = self._get_variable_index(variable)
            self.assign(self.buffers[i], 0.9 * self.buffers[i] + gradient)
            self.one(variable, self.buffers[i] * ops.cast(learning_rate, variable.dtype))

        def one(self, variable, change):
            self.assign_sub(variable, change / ops.cast(self.iterations + 1, variable.dtype))

    class Counts(Momentum):
        def one(self, variable, change):
            self.__dict__["count"] = vars(self).get("count", 0) + 1
            self.assign_sub(variable, change / self.count)

    class Flat(Momentum):
        def one(self, variable, change):
            variable.value.reshape(-1).sub_(change.reshape(-1))

    class OfOneShape(Momentum):
        def update_step(self, gradient, variable, learning_rate):
            like = next(i for i, p in enumerate(self._trainable_variables) if p.shape == variable.shape)
            super().update_step(gradient, self._trainable_variables[like], learning_rate)

    class Spoils(Momentum):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient.mul_(0.5), variable, learning_rate)

    class WritesNext(Momentum):
        def one(self, variable, change):
            super().one(variable, change)
            whole = variable.value
            if whole.numel() and whole.untyped_storage().nbytes() > whole.numel() * whole.itemsize:
                whole.as_strided((1,), (1,), whole.storage_offset() - 1).add_(1)

    return Momentum, {"L16": Counts, "L4": Flat, "L2": OfOneShape, "L4 gradients": Spoils, "L4 around": WritesNext}


def test_planted_defects(optimizers, keras):  # noqa: F811
    right, defects = momentum(optimizers, keras.ops)
    holds(right, symmetries=["sign", "elements", "zero"])
    for law, kind in defects.items():
        report = check(None, kind, laws=LAWS, **SHORT)
        assert law.split()[0] in report.wrong, f"{law}: {report}"


@pytest.mark.parametrize("routine", FOUND)
def test_which_routine(optimizers, routine):
    ours = {"amsgrad": "adam", "nesterov": "momentum"}.get(routine, routine)
    kinds = {name.lower(): x for name, x in vars(optimizers).items() if isinstance(x, type)}
    found = oracle.identify(kinds["sgd" if ours == "momentum" else ours], **OPTIONS.get(routine, {}))
    assert found.routine == ours and found.dtype == "float64", str(found)
    assert NUMBERS.get(routine, "") in str(found)
    # Numbers are those of fp64, the learning rate among them.
    assert found.matches[0].off < (2.0**-22 if routine in NUMBERS else 2.0**-40)
    assert (PEERS[ours].choices | found.matches[0].numbers | found.choices).items() >= PEERS[ours].choices.items()
    assert (found.matches[0].states == ("moment2_max",)) == (routine == "amsgrad")


def test_decay_and_none(optimizers):
    decayed = oracle.identify(optimizers.SGD, weight_decay=0.25)
    assert decayed.routine == "momentum" and decayed.choices["decay"] == "decoupled", str(decayed)
    assert oracle.identify(optimizers.Muon).routine is None


def test_two_implementations(optimizers):
    class Other(optimizers.Adam):
        """The class itself, not the one that Keras has for its backend: tensor by tensor."""

    assert oracle.compare(optimizers.Adam, Other, within="measured", parts=["C1", "C4"], **SHORT).ok
    options = {"within": "measured", "parts": ["C6"], "beta_1": 0.75, **SHORT}  # of both, unless one has its own
    for own in (0.75, 0.5):
        assert oracle.compare(optimizers.Adam, Other, options_b={"beta_1": own}, **options).ok == (own == 0.75)


def test_adam_in_bf16_stands_still(optimizers):
    """0.999 is 1 in bf16, so the correction of the second moment is 0, and so is the step."""
    report = check(None, optimizers.Adam, dtypes=["bfloat16"], laws=["L17"])
    assert not report.ok and "two steps change no parameter" in str(report)
    assert check(None, optimizers.Adam, dtypes=["bfloat16"], laws=["L17"], beta_2=0.9375).ok


SCRIPT = """
import keras
from refopt import oracle
for dtype in ("float32", "float64"):
    report = oracle.check(None, keras.optimizers.SGD, momentum=0.9, dtypes=[dtype], laws=["L4", "L4", "L16"])
    assert report.ok and not report.failed_laws, str(report)
    assert {item.law for item in report.of("passed")} == {"L4", "L4", "L16"}
    assert {item.text for item in report.of("skipped")} == {
        "writes no array",
        f"arrays of Keras on {keras.backend.backend()} have no layout that a caller can choose",
    }
print(oracle.identify(keras.optimizers.AdamW).routine)
"""


@pytest.mark.parametrize("backend", ["jax", pytest.param("numpy", marks=pytest.mark.slow)])
def test_other_backends(backend, tmp_path):
    for name in ("keras", backend):  # Keras is not imported here, where it would have another backend
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    env = os.environ | {"KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.split()[-1] == "adamw", done.stderr


def test_with_a_routine_it_is_refused(optimizers):
    with pytest.raises(TypeError, match=r"expected .* as adam, got one of Keras, for laws without a formula"):
        check("adam", optimizers.Adam)
