"""The data of ``refopt verify``: all that a routine depends on changes bits in it, so that none can be wrong unseen."""

import inspect
import sys
from dataclasses import replace
from functools import cache

import pytest

from refopt import cli, cpu
from refopt.catalog import KNOWN, ROUTINES, data, workloads
from refopt.cli import verify
from refopt.cli.verify.compare import idle, reference
from refopt.oracle import ulp

GATE = {"grad_factor", "found_inf"}  # what the gradient check leaves on the device


def cases(of):
    """Each of these of each routine, with all dtype configurations that the routine has."""
    return [pytest.param(routine, which, id=f"{routine.name}-{getattr(which, 'name', which)}")
            for routine in ROUTINES.values() for which in of(routine)]


every_dtype = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
SOME = "fp32", "bf16-sr"  # the exact one, and the coarsest, which has a seed


def dtypes_of(routine, every=True):
    names = verify.DTYPES if every else SOME if verify.offered(routine, SOME[1]) else ("fp32", "bf16")
    return [name for name in names if verify.offered(routine, name) and not verify.unavailable(name, routine)]


@cache
def case_of(routine, dtype, workload="resnet50"):
    """A part of what verify computes: the first tensors, smaller; some are zero, or have gradients that are."""
    scaled, _ = verify.extents(workloads.load(workload), "executor", cap=16)
    return verify.make_case(routine, replace(scaled, tensors=scaled.tensors[:12]), dtype, steps=2)


def bits_of(case):
    return [ulp.bits(x).tobytes() for slots in reference(case) for xs in slots.values() for x in xs]


@cache
def bits_as_given(routine, dtype):
    return bits_of(case_of(routine, dtype))


@every_dtype
@pytest.mark.parametrize(("routine", "hyper"), cases(lambda routine: routine.hypers))
def test_every_number_changes_bits(routine, hyper, every):
    """Scaled by 0.9, or another seed, in every dtype configuration; of a tensor's own numbers, each tensor's."""
    for dtype in dtypes_of(routine, every):
        if hyper.whole and not verify.DTYPES[dtype].chance:
            continue
        case = case_of(routine, dtype)

        def other(value, hyper=hyper):
            return value + 1 if hyper.whole else 0.9 * value

        values = [numbers[hyper.name] for numbers in case.hypers]
        values = [[*map(other, value)] if isinstance(value, list) else other(value) for value in values]
        changed = [{**numbers, hyper.name: value} for numbers, value in zip(case.hypers, values, strict=True)]
        assert changed != case.hypers, dtype
        assert bits_of(case._replace(hypers=changed)) != bits_as_given(routine, dtype), dtype


@pytest.mark.parametrize(("routine", "choice"), cases(lambda routine: routine.choices))
def test_every_choice_changes_bits(routine, choice):
    """Each of its values differs from the first, in some dtype configuration: not every one has masters or bf16."""
    chosen, (first, *others) = {}, routine.choices[choice]
    cases = [case for dtype in dtypes_of(routine) if choice not in (case := case_of(routine, dtype)).choices]

    class Chosen(data.Case):
        choices = property(lambda self: chosen)

    def bits(case, value):
        nonlocal chosen
        chosen = {choice: value}
        return bits_of(Chosen(*case))

    for value in others:
        assert any(bits(case, value) != bits(case, first) for case in cases), value


@pytest.mark.parametrize(("routine", "slot"), cases(lambda routine: routine.scalars))
def test_every_scalar_changes_bits(routine, slot):
    """Those of tensors, too, beyond their own slot."""
    case = case_of(routine, "fp32")
    scaled = {**case.slots, slot: [x * x.dtype.type(0.9) for x in case.slots[slot]]}
    before, after = reference(case)[0], reference(case._replace(slots=scaled))[0]
    assert any(a.tobytes() != b.tobytes() for a, b in zip(before["params"], after["params"], strict=True))


@every_dtype
@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)
def test_every_tensor_moves(routine, every):
    """At the sizes of the executor, where a tensor of 16 elements may lie still as a whole."""
    workload, _ = verify.extents(workloads.load("resnet50"), "executor", None, not routine.elementwise)
    for dtype in dtypes_of(routine, every):
        case = data.make_case(routine, workload, dtype, 2)
        assert not idle(case, reference(case))


@pytest.mark.parametrize("workload", list(workloads.WORKLOADS))
def test_radam_is_rectified_and_is_not(workload):
    """At every step."""
    lengths = [reference(case_of(ROUTINES["radam"], dtype, workload)) for dtype in ("fp32", "fp16")]
    first = [case_of(ROUTINES["radam"], dtype, workload).slots["rho"] for dtype in ("fp32", "fp16")]
    for before in (*first, *(after[0]["rho"] for after in lengths)):
        rectified = [bool(rho[0] > 5) for rho in before]
        assert any(rectified) and not all(rectified)


@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)
def test_numbers_are_those_of_the_signature(routine):
    parameters = inspect.signature(getattr(cpu, routine.merged_name)).parameters
    known = {*routine.slot_names, *(hyper.name for hyper in routine.hypers), *routine.choices, *GATE}
    assert set(parameters) <= known
    used = {*data.hypers(routine, workloads.load("resnet50"), 0)}
    assert used == set(parameters) - {*routine.slot_names, *routine.choices, *GATE}


def test_a_routine_for_matrices_has_those_of_the_model(capsys, monkeypatch):
    """And says how many these are."""
    monkeypatch.setattr(data, "FEW", 2)
    resnet = workloads.load("resnet50")
    assert [tensor.name for tensor in data.matrices(resnet, "executor").tensors][-1] == "fc.weight"
    assert [max(tensor.elements for tensor in data.matrices(resnet, machine, most).tensors) for machine, most in (
        ("executor", None), ("gpu", None), ("executor", 100))] == [300, 59_902, 100]
    assert len(data.matrices(resnet, "gpu")) == 2 and len(data.matrices(resnet, "gpu", 100)) == 54
    muon = KNOWN["muon"]
    assert [dtype for dtype in data.DTYPES if not data.offered(muon, dtype)] == ["bf16-sr", "fp32-8", "bf16+8-8"]
    assert cli.main(["verify", "--routine", "muon", "--dtype", "fp32"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "54 of the 161 are matrices, 53 of them kernels of convolutions" in out
    assert "2 of them are taken: " in out and "fp32 merged 2 1 18 9 " in out and "scaled to" not in out
    assert "fp32 merged, Gram 2 1 30 15 " in out and "2 of 2 equal in every bit; launches and bytes as" in out
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # without bf16, in which it iterates
    assert [dtype for dtype in data.DTYPES if not data.unavailable(dtype, muon)] == ["fp64"]
