"""The ladders of LARS and LAMB: the reference's bits under any schedule, and traffic without a race."""

import types
from typing import NamedTuple

import numpy as np
import pytest

from gpu.test_ladder import back, normal, placed, same
from refopt import cpu, simt
from refopt.cpu.reduce import tree_sum
from refopt.gpu.cuda import Launch
from refopt.gpu.ladder import global_norm, lamb, lars

SIZES = [1, 0, 5, 300, 1023, 1025]
ON_GPU = [*SIZES, 1024, 2100, 64, 8191, 70001, 2**20 + 3]


class Ladder(NamedTuple):
    """A module, the routine of its reference and what the lists of a step are, in order, with the numbers of one."""

    module: types.ModuleType
    routine: str
    slots: tuple[str, ...]
    numbers: dict[str, float]
    traffic: int  # bytes per element

    def lists(self, sizes):
        """Random tensors; where there are several, one has no gradient and another is 0."""
        lists = [normal(k, sizes, np.square if slot == "moment2" else np.copy) for k, slot in enumerate(self.slots)]
        if len(sizes) > 3:
            lists[1][2][:] = 0
            lists[0][3][:] = 0
        return lists

    def launches(self, rung, device):
        return self.module.RUNGS[rung](*device, tuple(map(np.float32, self.numbers.values())))

    def given(self, lists):
        """The arguments of the routine; powers of beta are lists of arrays."""
        rounded = {name: float(np.float32(x)) for name, x in self.numbers.items()}
        for name in ("beta1_pow", "beta2_pow"):
            if name in rounded:
                rounded[name] = [np.full(1, rounded[name], np.float32) for _ in lists[0]]
        return dict(zip(self.slots, lists, strict=True)) | rounded

    def reference(self, lists):
        getattr(cpu, f"merged_{self.routine}")(**self.given(lists))


LADDERS = {"lars": Ladder(lars, "lars_momentum", ("params", "grads", "velocities"),
                          dict(lr=0.1, mu=0.9, lars_coeff=0.02, lars_weight_decay=0.05, epsilon=1e-6), 28),
           "lamb": Ladder(lamb, "lamb", ("params", "grads", "moment1", "moment2"),
                          dict(lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.05, beta1_pow=0.9**3,
                               beta2_pow=0.999**3), 40)}
RUNGS = [(name, rung) for name, ladder in LADDERS.items() for rung in ladder.module.RUNGS]
LONG = {"2": 2100, "4": 8200}  # more than one block takes, at each rung


def step(launches):
    for launch in launches:
        launch()


def without_decay(ladder):
    decay = "lars_weight_decay" if ladder.routine == "lars_momentum" else "weight_decay"
    return ladder._replace(numbers=ladder.numbers | {decay: 0})


# One sum in another order often rounds to the same number; of many, one does not.
MANY = [8] * 12 + [300] * 6 + [2100] * 3


@pytest.mark.parametrize(("name", "rung", "sizes", "shift", "decay"), [
    pytest.param(*row, *of, id=f"{row[0]}-{row[1]}-{what}", marks=[pytest.mark.slow] * (what == "aligned"))
    for row in RUNGS for what, of in {"two steps": (None, 1, True), "many sums": (MANY, 0, True),
                                      "no decay": ([2], 0, False), "aligned": (None, 0, True)}.items()])
def test_bits(name, rung, sizes, shift, decay, machine):
    """Without decay LAMB has no ratio, and LARS has one."""
    ladder = LADDERS[name] if decay else without_decay(LADDERS[name])
    before = ladder.lists(sizes or (ON_GPU if machine.name == "gpu" else [*SIZES, LONG[rung[-1]]]))
    device = placed(machine, before, shift)
    launches = ladder.launches(rung, device)
    for _ in range(1 if sizes else 2):
        step(launches)
        ladder.reference(before)
        assert same(before, back(device))


@pytest.mark.parametrize(("name", "rung"), RUNGS)
def test_a_fixed_order_has_the_same_bits_under_all_schedules(name, rung, executor):
    ladder, seen = LADDERS[name], set()
    for seed in range(2):
        device = placed(executor, ladder.lists([LONG[rung[-1]]]))
        with simt.observe(count=False, schedule="random", seed=seed):
            step(ladder.launches(rung, device))
        seen.add(b"".join(x.tobytes() for column in back(device) for x in column))
    assert len(seen) == 1


@pytest.mark.parametrize(("name", "rung"), RUNGS)
def test_traffic_without_a_race(name, rung, executor):
    """What the file says of bytes per element, of the caller's arrays and of others as large."""
    ladder = LADDERS[name]
    size = LONG[rung[-1]]
    device = placed(executor, ladder.lists([size]))  # which launches know by their addresses alone
    launches = ladder.launches(rung, device)
    with simt.observe(watch=True) as log:
        step(launches)
    scratch = {id(x): x for launch in launches for x in launch.args if getattr(x, "size", 0) >= 2048}
    large = {id(x): x for column in device for x in column} | scratch
    assert sum(log.bytes_read(x) + log.bytes_written(x) for x in large.values()) / size == ladder.traffic


@pytest.mark.parametrize("name", LADDERS)
def test_which_tensors_can_be_taken_four_at_a_time(name, executor):
    """Those all of whose arrays lie on 16 bytes."""
    lists = LADDERS[name].lists([8, 8, 8])
    columns = [list(column) for column in placed(executor, lists)]
    columns[1][2] = placed(executor, [[lists[1][2]]], 1)[0][0]
    assert global_norm.tables(columns, 2)[1].copy_to_host()[:, lars.ALIGNED].tolist() == [1, 1, 0]


@pytest.mark.parametrize(("name", "numbers"), [("lars", 4), ("lamb", 2)])
def test_a_block_joins_more_sums_than_it_has_threads(name, numbers, machine):
    """Each thread takes several of a level."""
    sums = np.square(np.random.default_rng(0).standard_normal((2, 300)), dtype=np.float32)
    device, rate = machine.to_device(sums), machine.to_device(np.zeros(1, np.float32))
    kernel = getattr(LADDERS[name].module, f"{name}_2_rate")
    Launch(kernel, 1, 32, (device, rate, *[np.float32(0.5)] * numbers))()
    assert device.copy_to_host()[:, 0].tobytes() == tree_sum(sums).tobytes()


@pytest.mark.parametrize("name", LADDERS)
def test_no_elements(name, executor):
    ladder = LADDERS[name]
    for rung in ladder.module.RUNGS:
        for sizes in ([], [0], [0, 0]):
            assert ladder.launches(rung, placed(executor, ladder.lists(sizes))) == []
