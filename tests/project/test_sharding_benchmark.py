"""What `benchmarks.sharding` measures: programs of real models, a small one run on the executor."""

import math
from functools import cache, partial

import pytest

from benchmarks import sharded_programs as programs
from refopt import gpu
from refopt.checks.dtypes import ITEM_SIZES
from refopt.comm import local
from refopt.gpu.coalesce import CHUNK
from refopt.program import counts, placement
from refopt.program.placement import Span, Task

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
    """All bytes once, calls as counted, no cast of a parameter, and the catalogue's bytes of the updates."""
    params = programs.params_of("bert-large")
    shares = shares_of(form)
    made = [programs.in_buckets(program, limit, batched) for program in shares]
    total = sum(math.prod(shape) for _, shape in params)
    for program in made:
        program.check()
        counted = counts.communicated(program, CHUNK["bytes"])
        found = {kind: [0, 0] for kind in counted}
        together = list(programs.calls_of(program))
        for kind, _, dtype, count in (call for calls in together for call in calls):
            found[kind][0] += 1
            found[kind][1] += count * ITEM_SIZES[dtype]
        sizes = {len(calls) for calls in together if calls[0].kind != "all_reduce"}
        assert (sizes == {2} or limit < math.inf) if batched else sizes == {1}
        assert {kind: tuple(each) for kind, each in found.items()} == counted and counts.param_casts(program) == 0
        assert [counts.communicated(program)[kind].bytes for kind in ("reduce", "broadcast")] == [
            (2 if form == programs.HALF else 4) * total, 2 * total]
        assert counted.get("all_reduce") == ((1, 4) if form == programs.CHECKED else None)
        placement.on_streams(program)
    each = 28 if form == programs.HALF else 30  # bytes per element
    assert [*map(programs.update_bytes, shares)] == [*map(programs.update_bytes, made)]
    assert sum(map(programs.update_bytes, made)) == each * total


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


def test_hidden_time():
    """Compute from 0 to 4 and 6 to 8; copies from 1 to 3, 2 to 5 and 7 to 9: 1 to 4 and 7 to 8 are beside compute."""

    def span(stream, start, stop):
        return Span(Task(0, "run", stream, -1, (), frozenset(), frozenset()), start, stop)

    spans = [span("compute", 0, 4), span("compute", 6, 8), span("copy_in", 1, 3), span("copy_out", 2, 5),
             span("copy_in", 7, 9), span("compute", 9, 9)]
    assert programs.hidden(spans) == 4
