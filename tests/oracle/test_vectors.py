"""Test vectors: their schema, that what `refopt.cpu` makes is within their bounds, and a C program that reads them."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from oracle.kept import assert_kept, digest, digits
from refopt import cli, cpu, oracle
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle import cases
from refopt.oracle.exact.laws import reference
from refopt.oracle.portable import SCHEMA
from refopt.oracle.portable.make import _bounded
from refopt.oracle.variants import row_for

SOURCE = Path(__file__).parents[2] / "examples" / "adamw_vectors.c"


def floats(texts):
    return np.array([float.fromhex(x) for x in texts])


def came_to(case, routine):
    """What `refopt.cpu` makes of a case that was read from JSON."""
    row = row_for(routine, [])
    dtype = numpy_dtype(case["dtype"])
    real = np.dtype(np.float64 if dtype == np.float64 else np.float32)  # of powers and the like
    scalars = {slot.name for slot in row.slots if slot.scalar}
    slots = {name: [floats(x).astype(real if name in scalars else dtype)] for name, x in case["inputs"].items()}
    slots |= {slot.name: None for slot in row.slots if slot.name not in slots}
    numbers = {name: float.fromhex(x) for name, x in case["numbers"].items()}
    choices = {name: values[0] for name, values in row.choices.items()} | case["choices"]
    if any(hyper.name == "seed" for hyper in row.hypers):
        numbers["seed"] = 0
    return reference(cases.Case(row, slots, [numbers], choices, case["step"]))


GRAM = {"restarts": (2,), "compute": "float16", "coefficients": "polar_express"}


@pytest.mark.parametrize(("routine", "dtype"), [
    ("adam", "float32"), ("lamb", "float32"), ("lion", "bfloat16"), ("radam", "float32"),
    *(pytest.param(x, "float32", marks=pytest.mark.slow) for x in ROUTINES if x not in ("adam", "lamb", "radam")),
    *(pytest.param(x, "bfloat16", marks=pytest.mark.slow) for x in ("adam", "lamb"))])
def test_what_is_written_holds_of_the_reference(routine, dtype):
    """By what stands in the file alone: hexadecimal numbers, values and bounds."""
    read = json.loads(oracle.vectors(routine, dtypes=[dtype], examples=1).to_json())
    for case in read["cases"]:
        got = came_to(case, routine)
        for slot, of in case["expected"].items():
            value, bound = floats(of["value"]), floats(of["bound"])
            assert (abs(got[slot][0].astype(np.float64).reshape(-1) - value) <= bound).all(), (case["name"], slot)
            assert (bound[np.isfinite(bound)] >= 0).all()
    # A gradient that its decay cancels has none: an element, where L2 decay comes before a quotient of moments.
    unbounded = ~np.isfinite(floats(read["cases"][0]["expected"]["params"]["bound"]))
    assert unbounded.sum() == (routine in ("adam", "nadam"))


def test_the_schedule_of_muon_is_what_was_set():
    case = oracle.vectors("muon", dtypes=["float32"], examples=0, set=GRAM).cases[0]
    arrays = {name: case.inputs[name].copy() for name in ("params", "grads", "velocities")}
    cpu.merged_muon(*([x] for x in arrays.values()), **case.numbers, **case.choices)
    value, bound = case.expected["params"]
    assert GRAM.items() <= case.choices.items() and (abs(arrays["params"].astype(np.float64) - value) <= bound).all()


@pytest.mark.parametrize("routine", ["radam", "muon", pytest.param("sgd", marks=pytest.mark.slow)])
def test_the_schema(routine):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    set_ = GRAM if routine == "muon" else {}
    read = json.loads(oracle.vectors(routine, dtypes=["float32", "bfloat16"], examples=1, set=set_).to_json())
    jsonschema.validate(read, SCHEMA)
    read["cases"][0]["numbers"]["lr"] = 0.1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(read, SCHEMA)


def test_a_bound_is_no_larger_than_it_has_to_be():
    """A rule that is wrong in one place is outside of it."""
    made = oracle.vectors("adamw", dtypes=["float64"])
    plain = next(case for case in made.cases if case.name == "step 7")
    inside = next(case for case in made.cases if case.name == "step 7, epsilon_at=uncorrected")
    value, bound = plain.expected["params"]
    other, _ = inside.expected["params"]
    assert (abs(value - other) > 1e6 * bound).all() and (bound < 1e-14).all()


def test_every_choice_and_state_is_in_a_case():
    made = oracle.vectors("adam", dtypes=["float32"])
    assert {case.choices["epsilon_at"] for case in made.cases} == {"corrected", "uncorrected"}
    assert any("moment2_max" in case.inputs for case in made.cases)
    assert len({case.name for case in made.cases}) == len(made.cases) == 22
    bounds = np.concatenate([case.expected["params"][1] for case in made.cases])
    assert np.log2(bounds[np.isfinite(bounds)]).mean() == pytest.approx(-17.806, abs=0.02)
    held = oracle.vectors("adam", dtypes=["float32"], set={"epsilon_at": "uncorrected", "lr": 0.5})
    assert {case.choices["epsilon_at"] for case in held.cases} == {"uncorrected"}
    assert {case.numbers["lr"] for case in held.cases} == {0.5}
    other = oracle.vectors("adam", dtypes=["float32"], seed=1)
    assert (other.cases[0].inputs["params"] != made.cases[0].inputs["params"]).any()


@pytest.mark.slow
def test_variants():
    made = oracle.vectors("adam", dtypes=["float64"], set={"weight_decay": 0.25, "decay": "decoupled"}, examples=0)
    plain = oracle.vectors("adam", dtypes=["float64"], examples=0)
    assert made.cases[0].choices["decay"] == "decoupled" and made.cases[0].numbers["weight_decay"] == 0.25
    assert (made.cases[0].expected["params"][0] != plain.cases[0].expected["params"][0]).all()


def test_the_command(capsys, tmp_path):
    assert cli.main(["vectors", "sgd", "--dtype", "fp32", "--examples", "0"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["routine"] == "sgd" and read["dtypes"] == ["float32"]
    path = tmp_path / "sgd.json"
    assert cli.main(["vectors", "sgd", "--to", str(path), "--set", "lr=0.5"]) == 0
    assert float.fromhex(json.loads(path.read_text())["cases"][0]["numbers"]["lr"]) == 0.5
    assert cli.main(["vectors", "sgd", "--set", "mu=1"]) == 2
    assert cli.main(["vectors", "sgd", "--to", str(tmp_path / "no" / "sgd.json")]) == 2


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def made(source):
        folder = tmp_path_factory.mktemp("c")
        (folder / "a.c").write_text(source)
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", folder / "a", folder / "a.c", "-lm"],
                       check=True)
        return folder / "a"

    return made


WRONG = {
    "epsilon inside the root": ("sqrt(v[i] / (1 - pow(b2, step))) + eps", "sqrt(v[i] / (1 - pow(b2, step)) + eps)"),
    "no correction": ("(m[i] / (1 - pow(b1, step)))", "m[i]"),
    "decay after the step": ("lr * decay * p[i] +", "lr * decay * (p[i] - lr * m[i]) +"),
    "fp32": ("double root =", "float root =")}


def test_a_c_program_reads_them(compiled, tmp_path):
    path = tmp_path / "adamw.json"
    made = oracle.vectors("adamw", dtypes=["float64"])
    path.write_text(made.to_json())
    done = subprocess.run([compiled(SOURCE.read_text()), path], capture_output=True, text=True)
    plain = [x for x in made.cases if x.choices["epsilon_at"] == "corrected" and "moment2_max" not in x.inputs]
    plain = [x for x in plain if not x.choices.get("maximize")]
    assert done.returncode == 0 and done.stdout == f"{len(plain)} cases, 0 wrong\n"


@pytest.mark.parametrize("what", WRONG)
def test_a_c_program_that_is_wrong_is_outside_the_bounds(what, compiled, tmp_path):
    source = SOURCE.read_text()
    assert source.count(WRONG[what][0]) == 1
    path = tmp_path / "adamw.json"
    path.write_text(oracle.vectors("adamw", dtypes=["float64"]).to_json())
    done = subprocess.run([compiled(source.replace(*WRONG[what])), path], capture_output=True, text=True)
    assert done.returncode == 1 and "elements are off" in done.stdout


def test_what_has_no_bound_may_be_anything():
    """An infinite parameter less an infinite gradient, beside a finite one."""
    x = np.array([np.inf, 1], np.float32)
    values, bounds = _bounded(oracle.expect("sgd", params=[x], grads=[x.copy()], lr=0.5)["params"][0])
    assert np.isnan(values[0]) and bounds[0] == np.inf and values[1] == 0.5 and bounds[1] < 1e-6


def test_hexadecimal_numbers_are_exact():
    made = oracle.vectors("sgd", dtypes=["float32"], examples=0)
    case = made.cases[0]
    assert repr(made) == f"<Vectors: sgd, {len(made.cases)} cases of float32>"
    read = json.loads(oracle.vectors("sgd", dtypes=["float32"], examples=0).to_json())["cases"][0]
    assert (floats(read["inputs"]["params"]) == case.inputs["params"]).all()
    assert math.isclose(float.fromhex(read["numbers"]["lr"]), case.numbers["lr"], rel_tol=0)


OF_VARIANTS = {"adagrad": {"lr_decay": 0.125, "initial_accumulator": 0.5}, "momentum": {"dampened_from": 2},
               "muon": {"lookahead": "corrected"}, "novograd": {"first_norm": "by_number"}}


@pytest.mark.parametrize(("routine", "dtype"), [
    ("adagrad", "float32"), ("adadelta", "float16"), ("lars_momentum", "float32"), ("momentum", "bfloat16"),
    ("muon", "float32"), ("novograd", "float64"), ("rmsprop", "float32")])
def test_vectors_are_what_they_were(routine, dtype):
    """The same cases; and values and bounds of four digits."""
    made = oracle.vectors(routine, dtypes=[dtype], examples=1, set=OF_VARIANTS.get(routine, {}))
    cases = []
    for case in made.cases:
        inputs = {slot: digest(x.tobytes().hex()) for slot, x in case.inputs.items() if routine != "muon"}
        expected = {slot: digits({"value": value, "bound": bound}, 4) for slot, (value, bound) in case.expected.items()}
        cases.append((case.name, case.dtype, case.step, case.numbers, case.choices, inputs, expected))
    assert_kept({f"{routine} {dtype} vectors": f"{len(cases)} of {digest(cases)}"})


@pytest.mark.parametrize(("step", "share"), [(1, 1.0), (2, 0.125), (3, 0.125)])
def test_the_first_norm_by_number_is_that_of_step_1(step, share):
    """Whatever the average is: here 0, as after gradients of zeros, of which no vector is."""
    p, g = np.random.default_rng(step).normal(size=(2, 5))
    numbers = dict(lr=0.1, beta1=0.9, beta2=0.875, epsilon=0.01, first_norm="by_number")
    found = oracle.expect("novograd", params=[p], grads=[g], moment=[np.zeros(5)], second_moment=[np.zeros(1)],
                          step_number=[np.full(1, step, np.float64)], **numbers)
    assert found["second_moment"][0].value[0] == pytest.approx(share * np.sum(g * g), rel=1e-12)
