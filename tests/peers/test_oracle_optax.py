"""`refopt.oracle.check` of optax's optimizers, and of steps of JAX's arrays, on the CPU."""


import pytest

from peers.trials import check, right

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")


def step_law(routine, make, **options):
    return check(routine, make, laws=["L1"], examples=0, **options)


def test_what_is_not_taken():
    report = check("sgd", optax.sgd, laws=["L8", "L14", "L15"], dtypes=["float32"])
    assert {item.status for item in report.items} == {"skipped"}
    assert "l2_decay (0 in the rule)" in report.details()


def test_subnormal_numbers_are_0():
    report = check("adam", optax.adam, laws=["L7"], dtypes=["float32"])
    assert not report.failed_laws
    report = check("adam", optax.adam, laws=["L7"], dtypes=["float32"], set={"flush_to_zero": False})
    assert report.wrong == ["L7"]


def test_a_step_of_arrays_of_jax():
    def momentum(params, grads, velocities, *, lr, mu):
        velocities = [mu * v + g for v, g in zip(velocities, grads, strict=True)]
        return [p - lr * v for p, v in zip(params, velocities, strict=True)], velocities

    report = right("momentum", momentum, arrays="jax", laws=["L1"], dtypes=["float32", "float64"])
    assert "JAX has no fp64 without jax_enable_x64" in report.details()
    assert list(report.largest["float32"]) == ["params", "velocities"]


@pytest.mark.parametrize(("routine", "subject", "keywords", "text"), [
    ("adam", "adam", {"device": "cuda"}, "check: device: expected none except for torch, got 'cuda' for optax"),
    ("adam", "adam", {"b3": 0.5}, "check: optax.adam, b3=0.5: expected options of b1, .*, got b3"),
    ("adam", "adam", {"names": {"b1": "b1"}}, "check: names: expected no more than"),
    ("adam", "adamw_like", {}, "adamw_like: expected a GradientTransformation, got float")])
def test_refused(routine, subject, keywords, text):
    with pytest.raises((TypeError, ValueError), match=text):
        check(routine, getattr(optax, subject, adamw_like), **keywords)


def adamw_like(learning_rate, b1, b2):
    return learning_rate


def test_beside_torch_they_are_still_optax_s():
    """A function of a learning rate is no function of parameters."""
    pytest.importorskip("torch")
    report = step_law("adagrad", optax.adagrad, dtypes=["float32"])
    assert report.ok and report.subject == "optax.adagrad"
