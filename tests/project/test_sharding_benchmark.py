"""What `benchmarks.sharding` measures, and its model: programs of real models, a small one run on the executor."""

import json
import math
from functools import cache, partial

import pytest

from benchmarks import cost as costs
from benchmarks import sharded_programs as programs
from refopt import gpu
from refopt.checks.dtypes import ITEM_SIZES
from refopt.comm import local
from refopt.gpu.coalesce import CHUNK
from refopt.program import counts, placement
from refopt.program.placement import cost

WAY = "workload", "form", "limit_mib", "batched"
TIMES = "predicted_ms", "one_stream_ms", "updates_ms"
SMALL = [("a", (9, 7)), ("b", (29,)), ("c", (7, 5, 3)), ("d", (1,)), ("e", (20, 7)), ("f", (48,))]


@cache
def shares_of(form):
    """The programs of two ranks."""
    whole = programs.whole(programs.params_of("bert-large"), form, 2)
    return [programs.share(whole, rank, 2) for rank in range(2)]


def of_forms(*others):
    """Of each form the first of some ways, and of the last all; the rest repeats."""
    first, *more = others
    quick = [(form, *first) for form in programs.FORMS] + [(programs.CHECKED, *way) for way in more]
    slow = [pytest.param(form, *way, marks=pytest.mark.slow) for form in programs.FORMS for way in more
            if form != programs.CHECKED]
    return quick + slow


@pytest.mark.parametrize(("form", "limit", "batched"), of_forms((32.0, True), (32.0, False), (math.inf, True)))
def test_programs_of_bert_large(form, limit, batched):
    """Calls and bytes as the formula says, no cast of a parameter, and the catalogue's bytes of the updates."""
    params = programs.params_of("bert-large")
    shares = shares_of(form)
    made = [programs.in_buckets(program, limit, batched) for program in shares]
    expected = counts.bucketed_collectives(**programs.formula(params, form, 2, limit), chunk=CHUNK["bytes"],
                                           scan=form == programs.CHECKED)
    for program in made:
        program.check()
        found = {kind: [0, 0] for kind in expected}
        together = list(programs.calls_of(program))
        for kind, _, dtype, count in (call for calls in together for call in calls):
            found[kind][0] += 1
            found[kind][1] += count * ITEM_SIZES[dtype]
        sizes = {len(calls) for calls in together if calls[0].kind != "all_reduce"}
        assert (sizes == {2} or limit < math.inf) if batched else sizes == {1}
        assert {kind: tuple(each) for kind, each in found.items()} == expected and counts.param_casts(program) == 0
        placement.on_streams(program)
    each = 28 if form == programs.HALF else 30  # bytes per element
    assert [*map(programs.update_bytes, shares)] == [*map(programs.update_bytes, made)]
    assert sum(map(programs.update_bytes, made)) == each * sum(math.prod(shape) for _, shape in params)


@pytest.mark.parametrize(("form", "odd", "batched"), of_forms((False, True), (False, False), (True, True)))
def test_a_small_step_is_that_of_numpy(form, odd, batched):
    """Owned in several buckets, on two streams; with an inf that is looked for, nothing changes."""
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
        same = expected[0][half].tobytes() == before[name].astype("float16").tobytes()
        assert same == (odd and form == programs.CHECKED)


def test_costs_of_a_step():
    """The longer of two owners in a batch, both in turn otherwise; an update after what it waits for."""
    params = [("a", (1 << 20,)), ("b", (1 << 20,))]
    link, rate = cost.Link(1e-5, 1e-9, 5e-10), 1e-3  # GB/s, at which an update takes long
    for batched, times in ((True, 1), (False, 2)):
        program = programs.in_shards(programs.whole(params, programs.PLAIN, 2), 0, 2, math.inf, batched)
        calls = times * (2e-5 + (1 << 20) * (4 * 1.5e-9 + 2 * 1e-9))
        own = sum(cost.of_op(program, op, link, rate * 1e9) for op in program.main if op.role == "optimize")
        one, two = (costs.simulated(program, link, rate, streams) for streams in (1, 2))
        assert one.elapsed == pytest.approx(calls + own) and two.elapsed <= one.elapsed
        assert costs.milliseconds(two, 0.5) == pytest.approx((two.elapsed + two.hidden) * 1e3)


def test_the_results_are_those_of_the_report():
    """The committed predictions come from the committed measurements."""
    read = {what: json.loads((costs.RESULTS / f"{what}-h200-x2.json").read_text()) for what in ("sharding", "cost")}
    link, found = costs.link_of(read["sharding"]["curve"]), read["cost"]
    assert link._asdict() == pytest.approx(found["link"], rel=1e-6)
    measured = [row[key] for row in read["sharding"]["steps"] if "form" in row for key, _ in costs.HOWS.values()]
    assert [row["measured_ms"] for row in found["rows"]] == measured
    large = {**read["sharding"], "steps": [row for row in read["sharding"]["steps"] if row["workload"] == "bert-large"]}
    rates = costs.rates_of(large)
    steps = costs.steps_of(large, link, rates)
    beside = costs.besides(steps)
    rows = costs.compared(steps, beside)
    assert beside == pytest.approx(found["beside"], rel=1e-6)
    expected = [row["predicted_ms"] for row in found["rows"] if row["workload"] == "bert-large"]
    assert [row["predicted_ms"] for row in rows] == pytest.approx(expected, rel=1e-6)
    seen = {tuple(row[key] for key in WAY): row["predicted_ms"] for row in found["rows"] if row["how"] == "confined"}
    two = [row for row in found["more_ranks"] if row["world"] == 2 and tuple(row[key] for key in WAY) in seen]
    assert len(two) == 5 and all(row["predicted_ms"] == seen[tuple(row[key] for key in WAY)] for row in two)
    (four,) = costs.more_ranks(["bert-large"], link, rates, beside["confined"], worlds=(4,), ways=((128.0, True),))
    (same,) = (row for row in found["more_ranks"] if all(row[key] == four[key] for key in (*WAY, "world")))
    assert [same[key] for key in TIMES] == pytest.approx([four[key] for key in TIMES], rel=1e-6)
