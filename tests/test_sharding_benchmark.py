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
@pytest.mark.parametrize("limit", [32.0, math.inf])
def test_programs_of_bert_large(form, limit):
    """Calls and bytes as the formula says, no cast of a parameter, and the catalogue's bytes of the updates."""
    params = programs.params_of("bert-large")
    made = [programs.in_shards(programs.whole(params, form, 2), rank, 2, limit) for rank in range(2)]
    expected = bucket_counts.collectives(
        **programs.about(params, form, 2, limit), chunk=CHUNK["bytes"], scan=form == programs.SCAN
    )
    for program in made:
        program.check()
        found = {kind: [0, 0] for kind in expected}
        for kind, _, dtype, count in programs.calls_of(program):
            found[kind][0] += 1
            found[kind][1] += count * counts.ITEM_SIZES[dtype]
        assert {kind: tuple(each) for kind, each in found.items()} == expected
        assert counts.param_casts(program) == 0
        placement.on_streams(program)
    each = 28 if form == programs.HALF else 30  # bytes an element
    assert sum(map(programs.update_bytes, made)) == each * sum(math.prod(shape) for _, shape in params)


@pytest.mark.parametrize(("form", "odd"), [(form, False) for form in programs.FORMS] + [(programs.SCAN, True)])
def test_a_small_step_is_that_of_numpy(form, odd):
    """Owned in several buckets, on two streams; with an inf, nothing changes."""
    expected = local.run(partial(programs.in_numpy, programs.unsharded(SMALL, form, 2), SMALL, odd), 2)

    def rank(world):
        program = programs.in_shards(programs.whole(SMALL, form, 2), world.rank, 2, 200 / 2**20)
        assert program.counts()["reduce"] > 2
        arrays = {name: gpu.to_device(x) for name, x in programs.in_host(program, world.rank, odd).items()}
        made = placement.bind_schedule(programs.plan_of(program), arrays, comm=world)
        made.step()
        return {name: made.bound.read(name).tobytes() for name in programs.halves(program, SMALL)}

    assert local.run(rank, 2) == [{name: x.tobytes() for name, x in each.items()} for each in expected]
    whole = programs.unsharded(SMALL, form, 2)
    before = programs.in_host(whole, 0, odd)
    for (name, _), half in zip(SMALL, programs.halves(whole, SMALL), strict=True):
        assert (expected[0][half].tobytes() == before[name].astype("float16").tobytes()) == odd
