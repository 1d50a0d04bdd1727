"""What `benchmarks.sharding` measures: the programs of real models, and that of a small one, run on the executor."""

import math
from functools import partial

import pytest

from benchmarks import sharded_programs as programs
from refopt import gpu, placement
from refopt.comm import local
from refopt.gpu.coalesce import CHUNK
from refopt.sharding import bucket_counts, counts

SMALL = [("a", (9, 7)), ("b", (29,)), ("c", (7, 5, 3)), ("d", (1,)), ("e", (20, 7)), ("f", (48,))]


@pytest.mark.parametrize("form", programs.FORMS)
@pytest.mark.parametrize(("limit", "batched"), [(32.0, False), (32.0, True), (math.inf, True)])
def test_programs_of_bert_large(form, limit, batched):
    """Calls and bytes as the formula says, no cast of a parameter, and the catalogue's bytes of the updates."""
    params = programs.params_of("bert-large")
    shares = [programs.share(programs.whole(params, form, 2), rank, 2) for rank in range(2)]
    made = [programs.in_buckets(program, limit, batched) for program in shares]
    expected = bucket_counts.collectives(
        **programs.formula(params, form, 2, limit), chunk=CHUNK["bytes"], scan=form == programs.SCAN
    )
    for program in made:
        program.check()
        found = {kind: [0, 0] for kind in expected}
        together = list(programs.calls_of(program))
        for kind, _, dtype, count in (call for calls in together for call in calls):
            found[kind][0] += 1
            found[kind][1] += count * counts.ITEM_SIZES[dtype]
        sizes = {len(calls) for calls in together if calls[0].kind != "all_reduce"}
        assert (sizes == {2} or limit < math.inf) if batched else sizes == {1}
        assert {kind: tuple(each) for kind, each in found.items()} == expected
        assert counts.param_casts(program) == 0
        placement.on_streams(program)
    each = 28 if form == programs.HALF else 30  # bytes an element
    assert [*map(programs.update_bytes, shares)] == [*map(programs.update_bytes, made)]
    assert sum(map(programs.update_bytes, made)) == each * sum(math.prod(shape) for _, shape in params)


@pytest.mark.parametrize(("form", "odd"), [(form, False) for form in programs.FORMS] + [(programs.SCAN, True)])
@pytest.mark.parametrize("batched", [False, True])
def test_a_small_step_is_that_of_numpy(form, odd, batched):
    """Owned in several buckets, on two streams; with an inf, nothing changes."""
    expected = local.run(partial(programs.in_numpy, programs.unsharded(SMALL, form, 2), SMALL, odd), 2)

    def rank(world):
        program = programs.in_shards(programs.whole(SMALL, form, 2), world.rank, 2, 200 / 2**20, batched)
        assert program.counts()["batch" if batched else "reduce"] > 2
        arrays = {name: gpu.to_device(x) for name, x in programs.in_host(program, world.rank, odd).items()}
        made = placement.bind_schedule(programs.plan_of(program), arrays, comm=world)
        made.step()
        return {name: made.bound.read(name).tobytes() for name in programs.halves(program, SMALL)}

    assert local.run(rank, 2) == [{name: x.tobytes() for name, x in each.items()} for each in expected]
    whole = programs.unsharded(SMALL, form, 2)
    before = programs.in_host(whole, 0, odd)
    for (name, _), half in zip(SMALL, programs.halves(whole, SMALL), strict=True):
        assert (expected[0][half].tobytes() == before[name].astype("float16").tobytes()) == odd


def test_costs_of_measured_steps():
    """By the model: the longer of two owners in a batch, both in turn otherwise; an update after what it waits for."""
    params = [("a", (1 << 20,)), ("b", (1 << 20,))]
    link, rate = programs.cost.Link(1e-5, 1e-9, 5e-10), 1e-3  # GB/s, at which an update takes long
    for batched, times in ((True, 1), (False, 2)):
        program = programs.in_shards(programs.whole(params, programs.PLAIN, 2), 0, 2, math.inf, batched)
        about = {"workload": "two", "form": programs.PLAIN, "limit_mib": math.inf, "batched": batched}
        rows = programs.predicted(rate, link, [(about | {"ms": 1.0, "one_stream_ms": 1.0}, program)])
        calls = times * (2e-5 + (1 << 20) * (4 * 1.5e-9 + 2 * 1e-9))
        local_work = sum(
            programs.cost.of_op(program, op, link, rate * 1e9) for op in program.main if op.role == "optimize"
        )  # fmt: skip
        assert rows[1]["predicted_ms"] == pytest.approx((calls + local_work) * 1e3)
        assert rows[0]["predicted_ms"] <= rows[1]["predicted_ms"] and rows[0]["batched"] == batched
