"""ONNX's reference implementation of its training operators, in NumPy: independent code, within the formula's bound.

It evaluates scalars, and steps that they are in, in double, and what it returns is rounded to the tensors' type here.
"""

import functools

import numpy as np
import pytest

from peers.trials import Row, both_tests_of

DOMAIN = "ai.onnx.preview.training"
NO_DECAY, UNDAMPENED = {"weight_decay": 0.0}, {"dampening": 0.0}
ROWS = [Row("adam", "epsilon_at=uncorrected", "Adam", fixed=NO_DECAY),
        Row("adagrad", "default", "Adagrad", fixed=NO_DECAY),
        Row("momentum", "default", "Momentum", {"mode": "standard", "beta": 1.0}, UNDAMPENED),
        Row("momentum", "use_nesterov=True", "Momentum", {"mode": "nesterov", "beta": 1.0}, UNDAMPENED),
        Row("momentum", "no decay", "Momentum", {"mode": "standard", "beta": 1.0}, UNDAMPENED)]
# Attributes are of fp32, which the numbers of a trial are, too.
ATTRIBUTES = {"adam": {"beta1": "alpha", "beta2": "beta", "epsilon": "epsilon"},
              "adagrad": {"epsilon": "epsilon"}, "momentum": {"mu": "alpha", "l2_decay": "norm_coefficient"}}
STATES = {"adam": ("moment1", "moment2"), "adagrad": ("moment",), "momentum": ("velocities",)}


@pytest.fixture(scope="module")
def onnx():
    pytest.importorskip("onnx.reference")
    return pytest.importorskip("onnx")


class OfOnnx:
    """A model of one operator; the count of steps and the states are its inputs."""

    def __init__(self, onnx, row, x, numbers):
        self.onnx, self.row, self.t = onnx, row, 0
        self.slots = {"params": x} | {name: np.zeros_like(x) for name in STATES[row.routine]}

    def model(self, real, numbers):
        make, kind = self.onnx.helper, self.onnx.helper.np_dtype_to_tensor_dtype(real)
        names = ["R", "T", "params", "grads", *STATES[self.row.routine]]
        outputs = [f"new_{name}" for name in self.slots]
        attributes = {of: numbers[name] for name, of in ATTRIBUTES[self.row.routine].items()}
        attributes |= {"norm_coefficient": attributes.get("norm_coefficient", 0.0)} | dict(self.row.switches)
        node = make.make_node(self.row.peer, names, outputs, domain=DOMAIN, **attributes)
        whole = self.onnx.TensorProto.INT64
        values = [make.make_tensor_value_info(name, whole if name == "T" else kind, None) for name in names]
        results = [make.make_tensor_value_info(name, kind, None) for name in outputs]
        return make.make_model(make.make_graph([node], "step", values, results),
                               opset_imports=[make.make_opsetid("", 21), make.make_opsetid(DOMAIN, 1)])

    def step(self, g, numbers):
        self.t += 1
        real, lr = g.dtype, np.array(numbers["lr"], g.dtype)
        run = self.onnx.reference.ReferenceEvaluator(self.model(real, numbers)).run
        new = run(None, {"R": lr, "T": np.array(self.t, np.int64), "grads": g} | self.slots)
        self.slots = {name: np.asarray(x).astype(real) for name, x in zip(self.slots, new, strict=True)}
        return self.slots


@pytest.fixture
def make(onnx):
    return functools.partial(OfOnnx, onnx)


test_within_the_bound, test_other_numbers_are_outside = both_tests_of(ROWS)
