"""`refopt.oracle.check` of optax's optimizers, and of steps of JAX's arrays, on the CPU."""

import pytest

from refopt import oracle

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

RIGHT = [
    ("sgd", "sgd", {}),
    ("momentum", "sgd", {}),
    ("momentum", "sgd", {"nesterov": True}),
    ("adam", "adam", {}),
    ("adamw", "adamw", {}),
    ("lion", "lion", {}),
    ("rmsprop", "rmsprop", {}),
    ("rmsprop", "rmsprop", {"eps_in_sqrt": False}),
    ("rmsprop", "rmsprop", {"centered": True}),
    ("adadelta", "adadelta", {}),
    ("lamb", "lamb", {}),
    ("nadam", "nadam", {}),
]


def step_law(routine, make, **options):
    return oracle.check(routine, make, laws=["L1"], examples=0, **options)


@pytest.mark.parametrize(("routine", "name", "options"), RIGHT)
def test_right_ones_pass(routine, name, options):
    report = step_law(routine, getattr(optax, name), **options)
    report.raise_if_failed()
    assert list(report.largest) == ["float32", "float64"]
    assert not jax.config.jax_enable_x64
    ratios = [ratio for slots in report.largest.values() for ratio in slots.values()]
    assert 0.02 < max(ratios) <= 0.6, report


@pytest.mark.parametrize(
    ("routine", "name", "options", "slot"),
    [
        ("lars_momentum", "lars", {}, "params"),
        ("adam", "amsgrad", {}, "moment2_max"),
        ("adamax", "adamax", {}, "inf_norm"),
        ("adagrad", "adagrad", {}, "moment"),
        ("adagrad", "adagrad", {"initial_accumulator_value": 0.0}, "params"),
        ("radam", "radam", {}, "params"),
        ("adam", "adam", {"eps_root": 0.25}, "params"),
        ("adam", "nadam", {}, "params"),
    ],
)
def test_other_formulas_fail(routine, name, options, slot):
    report = step_law(routine, getattr(optax, name), dtypes=["float32"], **options)
    assert report.wrong == ["L1"]
    assert slot in str(report)


def test_states_of_other_names_are_not_compared():
    report = step_law("momentum", optax.lion, dtypes=["float32"])
    assert not report.ok and not report.wrong
    text = "NOT COMPARED: no trace for velocities in its state of count, mu: names={'velocities': ...}"
    assert text in str(report).splitlines()[0]
    lion = step_law("lion", optax.lion, dtypes=["float32"], names={"moment": "mu"})
    assert lion.ok and lion.subject == "optax.lion, names={'moment': 'mu'}"


def test_novograd_knows_the_first_step_by_its_number():
    """And not by a norm of 0, which it has after gradients of 0, too."""
    report = step_law("novograd", optax.novograd, dtypes=["float32"])
    assert [item.label for item in report.of("failed")] == ["second_moment zero"]


def test_a_chain_of_ones_own():
    def mine(learning_rate, b1, b2, eps, weight_decay):
        return optax.chain(
            optax.scale_by_adam(b1, b2, eps), optax.add_decayed_weights(weight_decay), optax.scale(-learning_rate)
        )

    step_law("adamw", mine, dtypes=["float32"]).raise_if_failed()

    def decayed_first(learning_rate, b1, b2, eps, weight_decay):
        return optax.chain(
            optax.add_decayed_weights(weight_decay), optax.scale_by_adam(b1, b2, eps), optax.scale(-learning_rate)
        )

    assert step_law("adamw", decayed_first, dtypes=["float32"]).wrong == ["L1"]


def test_what_is_not_taken():
    report = oracle.check("sgd", optax.sgd, laws=["L8", "L14", "L15"], dtypes=["float32"])
    assert {item.status for item in report.items} == {"skipped"}
    assert "l2_decay (0 in the rule)" in str(report)


def test_subnormal_numbers_are_0():
    report = oracle.check("adam", optax.adam, laws=["L7"], dtypes=["float32"])
    assert not report.failed_laws
    report = oracle.check("adam", optax.adam, laws=["L7"], dtypes=["float32"], set={"flush_to_zero": False})
    assert report.wrong == ["L7"]


def test_16_bits_are_by_request():
    report = step_law("adam", optax.adam, dtypes=["bfloat16"])
    assert report.wrong == ["L1"]
    assert "16-bit dtypes by request" in str(report)


def test_a_step_of_arrays_of_jax():
    def momentum(params, grads, velocities, *, lr, mu):
        velocities = [mu * v + g for v, g in zip(velocities, grads, strict=True)]
        return [p - lr * v for p, v in zip(params, velocities, strict=True)], velocities

    report = oracle.check("momentum", momentum, arrays="jax", laws=["L1"], dtypes=["float32", "float64"])
    report.raise_if_failed()
    assert "JAX has no fp64 without jax_enable_x64" in str(report)
    assert list(report.largest["float32"]) == ["params", "velocities"]


@pytest.mark.parametrize(
    ("routine", "subject", "keywords", "text"),
    [
        ("adam", "adam", {"device": "cuda"}, "check: device: expected none but for torch, got 'cuda' for optax"),
        ("adam", "adam", {"b3": 0.5}, "check: optax.adam, b3=0.5: expected options of b1, .*, got b3"),
        ("adam", "adam", {"names": {"b1": "b1"}}, "check: names: expected no more than"),
    ],
)
def test_refused(routine, subject, keywords, text):
    with pytest.raises((TypeError, ValueError), match=text):
        oracle.check(routine, getattr(optax, subject), **keywords)
