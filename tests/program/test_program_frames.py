"""What a step of a bound program spends on checks, counted in frames of Python: a tenth at most."""

import sys
from pathlib import Path

import numpy as np
import pytest
from program_cases import started

import refopt
from refopt.comm import local
from refopt.program import amp_program, passes, step_program

PACKAGE = Path(refopt.__file__).parent
NAMES = "check", "expect", "payload", "refuse"
PARAMS = [("bias", (4,)), *((f"layer{i}.weight", (4, 3)) for i in range(4))]


def adam(world_size=2):
    return step_program(PARAMS, "adam", lr=0.1, world_size=world_size)


def fused(program):
    return passes.pipeline(program, passes.coalesce_gradients, passes.fuse_all_reduce, passes.fuse_optimizer).program


def preset(program, name, rank):
    return passes.pipeline(program, *passes.preset(name, rank, 2)).program


PROGRAMS = {
    "plain": lambda rank: adam(),
    "fused": lambda rank: fused(adam()),
    "sharded": lambda rank: preset(adam(), "sharded", rank),
    "parameter server": lambda rank: preset(adam(1), "parameter_server", rank),
    "mixed precision": lambda rank: amp_program(PARAMS, "adam", lr=0.1, world_size=2),
    "mixed precision, sharded": lambda rank: preset(amp_program(PARAMS, "adam", lr=0.1, world_size=2), "sharded", rank),
}


def is_check(frame):
    """Whether a function says by its name that it checks something, or runs within `refopt.checks`."""
    code = frame.f_code
    if code.co_filename.startswith(str(PACKAGE)) and code.co_name.lstrip("_").startswith(NAMES):
        return True
    while frame is not None and not frame.f_code.co_filename.startswith(str(PACKAGE / "checks")):
        frame = frame.f_back
    return frame is not None


def frames_of(step):
    """How many calls of Python functions a step takes, and how many of these are checks."""
    counted = {"all": 0, "checks": 0}

    def profile(frame, event, _):
        if event == "call":
            counted["all"] += 1
            counted["checks"] += is_check(frame)

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return counted["all"], counted["checks"]


def counted(make, provided):
    """Frames of rank 0 in its third step."""

    def rank(world):
        program = make(world.rank)
        begun = {name for op in program.startup if op.type == "initialize" for name in op.writes}
        arrays = {
            name: np.ones(var.shape, var.dtype) for name, var in program.vars.items()
            if var.shape != (-1,) and name not in program.whole_of
            and (name in begun or (var.persistable and var.initial is None))
        }
        grads = {
            name: np.ones(program.vars[name].shape, program.vars[name].dtype)
            for op in program.main if op.type == "backward" for name in op.writes
        }
        gradients = grads if provided == "mapping" else lambda name, step: grads[name].copy()
        bound = started(program, arrays, comm=world, gradients=gradients)
        for _ in range(2):
            bound.step()
        if world.rank == 0:
            return frames_of(bound.step)
        return bound.step()

    return local.run(rank, 2)[0]


@pytest.mark.parametrize("provided", ["mapping", "function"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tenth_of_a_step_checks(name, provided):
    total, checks = counted(PROGRAMS[name], provided)
    assert 10 * checks <= total, f"{checks} of {total} frames"


def test_what_counts_as_a_check():
    """The count finds those of an update that is not bound, most of whose frames they are."""
    from refopt import cpu

    arrays = [[np.ones(4, np.float32)] for _ in range(2)]
    total, checks = frames_of(lambda: cpu.merged_sgd(*arrays, lr=0.1))
    assert 2 * checks > total
