"""The cost model against messages that are counted one by one, and its fit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_cases import adam, few

from refopt.program import passes, placement, step_program
from refopt.program.placement import cost
from refopt.program.placement.cost import Link

LINK = Link(7.0, 3.0, 0.5)
DEVICES = 1, 2, 3, 4, 5, 7, 8


def seconds(rounds, link=LINK):
    """Time of rounds, each of messages at once: lists of (bytes, bytes added)."""
    return sum(max(link.alpha + n * link.beta + added * link.gamma for n, added in round_) for round_ in rounds)


def ring(devices, elements):
    """A ring all-reduce, played: who has the sum of whom, chunk by chunk; and the rounds that it took."""
    have = [[{rank} for _ in range(devices)] for rank in range(devices)]
    chunk, rounds = elements // devices, []
    for phase in range(2):
        for turn in range(devices - 1):
            moved = []
            for rank in range(devices):
                place = (rank + phase - turn) % devices
                moved.append(((rank + 1) % devices, place, set(have[rank][place])))
            for to, place, value in moved:
                have[to][place] = have[to][place] | value if phase == 0 else value
            rounds.append([(chunk, chunk if phase == 0 else 0)] * devices)
    assert all(part == set(range(devices)) for mine in have for part in mine), "not all have all"
    return rounds


def tree(devices, nbytes, added):
    """A binomial tree, played from the root: in each round, all who have it send it to one who has not."""
    have, rounds = {0}, []
    while len(have) < devices:
        new = {rank + len(have) for rank in have if rank + len(have) < devices}
        rounds.append([(nbytes, nbytes if added else 0)] * len(new))
        have |= new
    return rounds


def halves(devices, nbytes):
    """A binomial scatter: half of what each has goes on, until each has a share."""
    rounds, share = [], devices
    while share > 1:
        share //= 2
        rounds.append([(nbytes * share // devices, 0)])
    return rounds


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("chunk", [0, 1, 40])
def test_formulae_count_messages(devices, chunk):
    n = chunk * devices
    assert cost.all_reduce(LINK, n, devices) == pytest.approx(seconds(ring(devices, n)), rel=1e-12)
    rounds = ring(devices, n)
    assert cost.reduce_scatter(LINK, n, devices) == pytest.approx(seconds(rounds[: devices - 1]), rel=1e-12)
    assert cost.all_gather(LINK, n, devices) == pytest.approx(seconds(rounds[devices - 1 :]), rel=1e-12)
    assert cost.broadcast(LINK, n, devices) == pytest.approx(seconds(tree(devices, n, False)), rel=1e-12)
    assert cost.reduce(LINK, n, devices) == pytest.approx(seconds(tree(devices, n, True)), rel=1e-12)
    if not devices & (devices - 1):
        gather = [[(chunk, 0)] for _ in range(devices - 1)]
        assert cost.broadcast(LINK, n, devices, "scatter") == pytest.approx(seconds(halves(devices, n) + gather))
        down = [[(bytes_, bytes_)] for ((bytes_, _),) in halves(devices, n)]
        assert cost.reduce(LINK, n, devices, "scatter") == pytest.approx(seconds(down) + seconds(halves(devices, n)))


def test_numbers_by_hand():
    assert cost.send(LINK, 10) == 37
    assert cost.broadcast(LINK, 10, 5, "scatter") == pytest.approx((3 + 4) * 7 + 2 * 0.8 * 30)


# The fit.


@given(seed=st.integers(0, 99))
@few(25)
def test_fit_is_the_least_sum_of_squares(seed):
    """With noise: residuals are at right angles to both columns, and the textbook's formula says the same."""
    random = np.random.default_rng(seed)
    n = random.uniform(1, 1e6, 30)
    t = 1e-9 * n + random.uniform(0, 1e-3, 30)
    alpha, beta, _ = cost.fit(n, t)
    rest = alpha + beta * n - t
    assert abs(rest.sum()) < 1e-9 and abs((rest * n).sum()) < 1e-9 * 1e6
    slope = ((n - n.mean()) * (t - t.mean())).sum() / ((n - n.mean()) ** 2).sum()
    assert beta == pytest.approx(slope, rel=1e-6) and alpha == pytest.approx(t.mean() - slope * n.mean(), rel=1e-6)


def test_batches():
    """Two devices: the longest of the single calls. Four: a device that is no root has all to receive, or to send."""
    one = {root: cost.broadcast(LINK, n, 2) for root, n in ((0, 12), (1, 20))}
    assert cost.batch(LINK, "broadcast", {0: 12, 1: 20}, 2) == max(one.values()) == one[1]
    assert cost.batch(LINK, "reduce", {0: 12, 1: 20}, 2) == cost.reduce(LINK, 20, 2)
    assert cost.batch(LINK, "reduce", {1: 20}, 8) == cost.reduce(LINK, 20, 8)
    assert cost.batch(LINK, "broadcast", {0: 8, 1: 4, 2: 4}, 4) == 3 * 7 + 16 * 3  # rank 3
    assert cost.batch(LINK, "broadcast", {0: 4, 1: 4, 2: 4, 3: 80}, 4) == 2 * (7 + 80 * 3)  # the root with most
    assert cost.batch(LINK, "broadcast", {0: 4, 1: 80, 2: 80}, 4) == 3 * 7 + 164 * 3
    assert cost.batch(LINK, "broadcast", {0: 9}, 1) == 0


def test_a_batch_of_a_program():
    """What its calls move, root by root, on the stream for communication."""
    program = step_program([("a", (3,)), ("b", (5,)), ("c", (5,))], "sgd", world_size=2, lr=0.1)
    made = passes.fuse_reduces(passes.shard(program, 0, 2, "greedy").program).program
    plan = placement.on_streams(passes.batch_owners(made).program)
    seconds = placement.task_cost(plan, LINK, LINK, rate=1.0)
    (batch,) = (task for task in plan.tasks if plan.label(task).startswith("batch") and "@GRAD" in plan.label(task))
    assert batch.stream == "communication"
    assert seconds(batch) == cost.batch(LINK, "reduce", {0: 20 + 12, 1: 20}, 2) == 7 + 32 * 3.5


@given(messages=st.lists(st.integers(0, 2**30), min_size=2, max_size=9, unique=True), time=st.floats(1e-6, 1.0))
@few(50)
def test_fit_of_equal_times(messages, time):
    """What rounding takes below 0 is 0."""
    found = cost.fit(messages, [time] * len(messages))
    assert found.beta >= 0 and cost.send(found, 0) == pytest.approx(time, rel=1e-5)


def of(program, op):
    return cost.of_op(program, op, LINK, 1.0)


MADE = passes.send_to_owners(adam([("w", (8, 3))]), 2, min_block_size=12).program


@pytest.mark.parametrize(("call", "message"), [
    (lambda: cost.fit([1, 1], [1, 2]), "fit: messages: expected at least two different sizes, got 1"),
    (lambda: cost.fit([1, 2], [1]), r"fit: times: expected one for each of \(2,\) messages, got \(1,\)"),
    (lambda: cost.fit([1, 2], [1, math.nan]), "fit: times: expected finite numbers, got nan"),
    (lambda: cost.fit([1, -2], [1, 2]), "fit: messages: expected numbers of at least 0, got -2.0"),
    (lambda: cost.fit([1, 2], [3, 1]), "fit: times: expected them to grow with the messages, got a line of -2 second"),
    (lambda: cost.fit([1e6, 2e6], [3e-6, 1e-6]), "fit: times: expected them to grow with the messages, got a line of"),
    (lambda: of(sparse := adam([("w", (3, 2))], sparse=["w"]), sparse.main[0]), "of_op: op: expected dense tensors"),
    (lambda: of(MADE, next(op for op in MADE.main if op.type == "send")), "of_op: op: expected dense tensors"),
    (lambda: cost.reduce(LINK, 1, 6, "scatter"), "reduce: devices: expected a power of two, which scatter is for, got"),
    (lambda: cost.batch(LINK, "reduce", {2: 1}, 2), "batch: nbytes: root: expected an integer from 0 to 1, got 2"),
    (lambda: cost.pipelined([], 2), r"pipelined: stages: expected some times of at least 0, got none"),
    (lambda: cost.pipelined([1, -1], 2), r"pipelined: stages\[1\]: expected a number of at least 0, got -1"),
])
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("number", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["alpha", "beta", "gamma"])
def test_bad_links(name, number):
    link = LINK._replace(**{name: number})
    for call, *arguments in (
        (cost.send, 1), (cost.broadcast, 1, 2), (cost.reduce, 1, 2), (cost.all_reduce, 1, 2),
        (cost.reduce_scatter, 1, 2), (cost.all_gather, 1, 2), (cost.batch, "reduce", {}, 2),
    ):
        expected = f"^{call.__name__}: link: expected a finite {name} of at least 0, got {number!r}"
        with pytest.raises(ValueError, match=expected):
            call(link, *arguments)


def test_bytes():
    """Of a buffer, those of its tensors; of a variable in blocks, those of its blocks."""
    made = passes.send_to_owners(adam([("w", (8, 3))], config="amp"), 2, min_block_size=12).program
    assert cost.bytes_of(made, ["w@GRAD"]) == 48 == cost.bytes_of(made, ["w@GRAD.block0", "w@GRAD.block1"])
    assert cost.bytes_of(made, ["w_moment1_0"]) == 96


@pytest.mark.parametrize("rank", range(4))
def test_what_is_shared_out_by_element_takes_as_long_on_all_ranks(rank):
    """Also on the second, which has two thirds of c, and on the last, which has nothing."""
    program = step_program([("a", (3000,)), ("b", (5,)), ("c", (5000,))], "sgd", world_size=4, lr=0.1)
    made = passes.shard_elements(program, rank, 4).program
    ops = {op.type: op for op in made.main}
    assert cost.of_op(made, ops["reduce_scatter"], LINK, 1.0) == cost.reduce_scatter(LINK, 4 * 8005, 4)
    assert cost.of_op(made, ops["all_gather"], LINK, 1.0) == cost.all_gather(LINK, 4 * 8005, 4)
