"""Sharding by element: equal parts for all ranks, the bits of the step that is not sharded, and what stays out."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from compositions import REMAINDERS, Composition, same, steps, violation
from hypothesis import given
from hypothesis import strategies as st
from program_cases import edited, few, put, started, values

from refopt.catalog import ROUTINES, workloads
from refopt.comm import CommError, local
from refopt.cpu.reduce import sum_of_squares, tree_sum
from refopt.program import Op, Program, Var, bind, ops, passes, step_program
from refopt.program.backends import Cpu
from refopt.program.gpu.backend import Gpu
from refopt.program.model import Part

BACKENDS = pytest.mark.parametrize("backend", ["cpu", "gpu"])
PARAMS = [("a.w", (33, 64)), ("a.b", (7,)), ("b.w", (1025,)), ("c", ())]
CUT = "shard_elements", {"limit": 0.011}  # two buffers of these
MERGED = "fuse_optimizer", {"form": "merged", "per_buffer": True}
FOLDED = ("optimize_cast", {}), ("fold_casts", {})
AMP = {"lr": 0.5, "loss_scale": 8.0, "max_norm": 0.5}


def mixed(*chain, optimizer="adam", ranks=3, **options):
    return Composition("amp_program", PARAMS, optimizer, {**AMP, **options}, ranks, passes=chain)


def plain(*chain, optimizer="adam", ranks=3, **options):
    return Composition("step_program", PARAMS, optimizer, {"lr": 0.5, **options}, ranks, passes=chain)


WITH_KERNELS = [plain(CUT, MERGED, config=REMAINDERS[0], state_dtype="uint8"),
                plain(CUT, MERGED, ranks=4, config="bf16"), plain(CUT, MERGED), plain(CUT, config="amp", early=True),
                mixed(*FOLDED, CUT, MERGED, accumulate=2)]
WITH_NORMS = [
    mixed(*FOLDED, CUT, ("offload", {}), optimizer="lamb"), plain(CUT, optimizer="lamb", ranks=2, config="fp64"),
    mixed(*FOLDED, CUT, mu=0.5, optimizer={"a.w": "novograd", "a.b": "lamb", "b.w": "lars_momentum", "c": "adam"})]
WITH_NORMS = [replace(case, params=[("a.w", (65, 128)), *PARAMS[1:]]) for case in WITH_NORMS]  # of several tiles a rank
OTHERS = [  # in which kernels do what they do above
    mixed(CUT, ("offload", {})), mixed(*FOLDED, CUT, accumulate=3, reduced="float16", fp32=["c"]),
    mixed(*FOLDED, CUT, MERGED, max_norm=None), mixed(CUT, reduced="float16", ranks=2),
    plain(CUT, config="bf16", rounding="stochastic"),
    mixed(CUT, MERGED, optimizer={"a.w": "adam", "a.b": "lamb", "b.w": "adam", "c": "adam"}, ranks=2),
    replace(plain(CUT, MERGED, ranks=2), tied=("a.w",), frozen=("a.b",))]


@pytest.mark.clause("N11")
@pytest.mark.parametrize(("case", "backend"), [
    *((case, backend) for case in WITH_KERNELS for backend in ("cpu", "gpu")),
    *(pytest.param(case, backend, marks=[pytest.mark.slow] * (backend == "gpu"))
      for case in OTHERS for backend in ("cpu", "gpu")),
    *((case, "cpu") for case in WITH_NORMS),
], ids=lambda x: x if isinstance(x, str) else " ".join([x.make[:4], *(name for name, _ in x.passes)]))
def test_the_bits_are_those_of_the_step(case, backend):
    """Parameters on all ranks, checkpoints, and runs that go on from one."""
    assert not violation(case, backend), case
    assert all(applied for _, applied, _ in case.reasons), case.reasons


@pytest.mark.clause("N11")
@pytest.mark.parametrize("case", WITH_NORMS, ids=["lamb", "fp64", "several"])
def test_norms_of_tensors_that_are_cut(machine, case):
    """A rank's updates by kernels, from sums of tiles, which ranks add up in one small all-reduce for all norms."""
    program = case.rewritten()[0]
    tiles = {name for op in program.main if op.type == "norm_tiles" for name in op.outputs["tiles"]}
    assert len(tiles) == 1 and [op.reads for op in program.main if op.type == "all_reduce"][-1:] == [(*tiles,)]
    chosen = [op for op in program.main if "params" in op.outputs or op.type in ("norm_tiles", "join_tiles")]
    vars = [program.vars[name] for op in chosen for name in (*op.reads, *op.writes) if name != "found_inf"]
    host = {x.name: np.asarray(np.clip(values(x.dtype, x.shape, *map(ord, x.name)), 0.25, 0.75)) for x in vars}
    host["found_inf"] = np.zeros(1, np.float32)
    placed = {name: machine.to_device(x) for name, x in host.items()}
    for backend, arrays in ((Cpu(), host), (Gpu(placed.values(), 0), placed)):
        context = ops.Context(program, arrays, backend, None, None)
        runners = ops.Runners([ops.bind(context, op) for op in chosen])
        for found in (0, 1):  # a step, and one that is skipped
            backend.write(arrays["found_inf"], np.full(1, found, np.float32))
            runners.run()
    assert all(same(x, placed[name].copy_to_host()) for name, x in host.items())


@pytest.mark.clause("N11")
@given(case=steps(), limit=st.sampled_from([1e-4, 4e-3, 32.0]), after=st.lists(st.sampled_from(
    ["optimize_cast", "fold_casts", "fuse_optimizer", "offload", "fuse_all_reduce", "shard"]), max_size=2))
@few(125)
def test_of_any_step(case, limit, after):
    chain = [("optimize_cast", {}), ("fold_casts", {}), ("shard_elements", {"limit": limit})]
    case = replace(case, passes=(*chain, *((name, {}) for name in after)))
    assert not violation(case), case


def parts(program, ranks, **options):
    return [passes.shard_elements(program, rank, ranks, **options).program for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_ranks_keep_as_much_to_a_tile_of_each_buffer(ranks):
    program = step_program(workloads.load("resnet50").tensors, "adam", lr=0.1, world_size=ranks)
    made = parts(program, ranks, limit=8.0)
    (buckets,) = {part.counts()["all_gather"] for part in made}
    moments = [sum(math.prod(var.shape) for name, var in part.vars.items() if "moment1" in name) for part in made]
    total = sum(math.prod(shape) for _, shape in workloads.load("resnet50").tensors)
    assert sum(moments) == total
    padded = sum(-(-math.prod(shape) // 1024) * 1024 for _, shape in workloads.load("resnet50").tensors)
    assert max(moments) <= padded / ranks + 1024 * buckets and buckets > 3


def test_gradients_of_micro_steps_are_added_up_where_their_sums_are():
    """Of fp32 gradients a rank has those of its elements alone, and the reductions are in fp16."""
    program = mixed(accumulate=2, reduced="float16").program(2)
    made = parts(program, 2)
    assert [p.counts()["reduce_scatter"] for p in made] == [2, 2]
    wide = [sum(math.prod(var.shape) for name, var in p.vars.items() if name.endswith("@GRAD") or "@GRAD.shard" in name
                if var.dtype == "float32") for p in made]
    assert sum(wide) == sum(math.prod(shape) for _, shape in PARAMS)
    assert {p.vars[name].dtype for p in made for op in p.main if op.type == "reduce_scatter" for name in op.reads} == {
        "float16"}


def test_a_tensor_across_a_border_is_cut_there():
    one, two, three = parts(plain().program(3), 3, limit=0.011)
    assert one.vars["b.w_moment1_0.shard0"].shape == (1024,)
    assert two.vars["a.w_moment1_0.shard1"].part == Part("a.w_moment1_0", (33, 64), 1024)
    assert three.vars["a.w_moment1_0.shard2"].shape == (33 * 64 - 2 * 1024,)
    cuts = [{op.writes for op in p.main if op.type == "split_by_ref"} for p in (one, two, three)]
    assert cuts[0] == cuts[1] == cuts[2] and len(cuts[0]) == 4


def test_a_rank_with_padding_alone_takes_the_same_numbers():
    program = step_program([("a", (5,))], "adam", lr=0.1, world_size=3)
    made = parts(program, 3)
    assert [op.type for op in made[2].main] == ["backward", "reduce_scatter", "all_gather", "merged_adam"]
    case = Composition("step_program", [("a", (5,))], "adam", {"lr": 0.1}, 3, passes=(("shard_elements", {}),))
    assert not violation(case)


def reasons(case, **options):
    result = passes.shard_elements(case.rewritten()[0], 0, case.ranks, **options)
    return result.applied, " ".join(result.reasons)


@pytest.mark.parametrize(("case", "applied", "reason"), [
    (plain(ranks=1), False, "one rank owns everything"),
    (plain(sparse=["a.w"]), True, "'a.w' is left to all ranks: 'a.w@GRAD@DENSE' has no all_reduce of its own"),
    (replace(plain(), params=[*PARAMS, ("e", (0, 3))]), True, "'e' is left to all ranks: it has no elements"),
    (plain(("coalesce_gradients", {})), False, "'a.w@GRAD' is already in a buffer, or cut"),
    (plain(("coalesce_gradients", {}), ("fuse_all_reduce", {})), False, "has no all_reduce of its own"),
    (mixed(("coalesce_gradients", {}), ("fuse_all_reduce", {}), reduced="float16"), False, "no all_reduce of its own"),
    (plain(("shard", {})), False, "gradients are already reduced to owners, or parameters broadcast by them"),
    (plain(("shard_elements", {})), False, "gradients are already reduced to owners"),
    (plain(("fuse_optimizer", {"form": "flat"})), False, "updates a buffer; apply fuse_optimizer afterwards"),
    (plain(("offload", {})), False, "is not memory that only its update uses from step to step"),
    (mixed(("optimize_cast", {})), False, "after its update; apply fold_casts first")])
def test_what_is_left_to_all_ranks(case, applied, reason):
    found, why = reasons(case)
    assert found == applied and reason in why


def reduced_twice(program):
    again = next(op for op in program.main if op.reads == ("a.b@GRAD",) and op.type == "all_reduce")
    return edited(program, lambda op: [op, op] if op is again else [op])


def kept(program):
    lasting = replace(program.vars["a.b@GRAD"], persistable=True, initial=0.0)
    return program.replace(vars={**program.vars, "a.b@GRAD": lasting})


def changed_first(program):
    first = Op("scale", {"x": ("a.b",)}, {"out": ("a.b",)}, {"scale": 0.5}, "forward")
    return program.replace(main=[first, *program.main])


@pytest.mark.parametrize(("change", "reason"), [
    (reduced_twice, "'a.b@GRAD' is reduced twice"), (kept, "'a.b@GRAD' lives from step to step"),
    (changed_first, "other ops change it, too")])
def test_what_stays_whole(change, reason):
    program = change(step_program(PARAMS, "adam", lr=0.1, world_size=2))
    assert passes.shard_elements(program, 0, 2).reasons == (f"'a.b' is left to all ranks: {reason}",)


OWNED = {"config": "bf16", "rounding": "stochastic"}


@pytest.mark.parametrize(("role", "after", "applied", "options"), [
    ("optimize", 0, False, {}), ("communicate", 0, True, {}), ("communicate", 1, False, {}),
    ("communicate", 0, False, OWNED)])
def test_what_reads_a_parameter_after_its_update(role, after, applied, options):
    """Of the optimizer's stage, or before other updates, it would read elements that have not arrived."""
    program = step_program(PARAMS, "adam", lr=0.1, world_size=2, **options)
    look, place = Op("look", {"x": ("a.w",)}, {}, {}, role), len(program.main) - after
    result = passes.shard_elements(program.replace(main=[*program.main[:place], look, *program.main[place:]]), 0, 2)
    assert result.applied == (applied or options == OWNED)  # of other tensors
    assert ("look of 'a.w' needs 'a.w' after its update" in " ".join(result.reasons)) != applied


@pytest.mark.parametrize(("parts", "error", "got"), [(0, ValueError, "0"), ("2", TypeError, "'2'")])
def test_buffers_of_parts_that_are_none(parts, error, got):
    startup = [op.replace(attrs={**op.attrs, "parts": parts}) if "parts" in op.attrs else op for op in HALF.startup]
    with pytest.raises(error, match=f"coalesce_tensor: parts: expected an integer.*, got {got}$"):
        HALF.replace(startup=startup).check()
    one = [op.replace(attrs={**op.attrs, "parts": 1}) if "parts" in op.attrs else op for op in HALF.startup]
    with pytest.raises(ValueError, match="expected a buffer of 2 parts"):
        HALF.replace(startup=one).check()


def test_what_reads_a_whole_gradient_keeps_it_whole():
    program = step_program(PARAMS, "adam", lr=0.1, world_size=2)
    look, updates = Op("look", {"x": ("a.b@GRAD",)}, {}, {}, "communicate"), len(PARAMS)
    looking = program.replace(main=[*program.main[:-updates], look, *program.main[-updates:]])
    result = passes.shard_elements(looking, 0, 2)
    assert not result.applied and "look of 'a.b@GRAD' needs 'a.b@GRAD' after its reduction" in " ".join(result.reasons)
    assert passes.shard_elements(looking, 0, 2, limit=1e-4).program.counts()["all_reduce"] == 1
    narrow = passes.narrow_sums(program).program  # sums have variables of their own
    assert "is narrowed; use amp_program(reduced='float16')" in passes.shard_elements(narrow, 0, 2).reasons[0]


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda p: passes.shard_elements(p, 2, 2), ValueError, "shard_elements: rank: expected an integer from 0 to 1"),
    (lambda p: passes.shard_elements(p, 0, 3), ValueError, "shard_elements: degree: expected 2, as all_reduce of "),
    (lambda p: passes.shard_elements(p, 0, 2, limit=-1), ValueError, "shard_elements: limit: expected "),
    (lambda p: passes.shard_elements(p, 0, 2, axis=3), TypeError, "shard_elements: axis")])
def test_refused(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call(step_program(PARAMS, "adam", lr=0.1, world_size=2))


# Ops.

HALF = parts(step_program(PARAMS, "adam", lr=0.1, world_size=2), 2)[0]


OF_LAMB = passes.shard_elements(step_program(PARAMS, "lamb", lr=0.1, world_size=2), 0, 2, limit=0.011).program


def with_op(kind, program=HALF, **changes):
    """The program with an op of a type that has other slots or attributes."""
    return program.replace(main=[op.replace(**{k: f(op) if callable(f) else f for k, f in changes.items()})
                                 if op.type == kind else op for op in program.main])


def other(**changes):
    return lambda op: {**op.attrs, **changes}


@pytest.mark.parametrize(("program", "error", "message"), [
    (partial(with_op, "reduce_scatter", inputs={"x": ("c@GRAD",)}), ValueError,
     "x: expected one buffer that startup makes, got c@GRAD"),
    (partial(with_op, "all_gather", outputs={"out": ()}), ValueError,
     "out: expected one buffer that startup makes, got none"),
    (partial(with_op, "reduce_scatter", attrs={"ranks": 3}), ValueError, "x: expected a buffer of 3 parts, got"),
    (partial(with_op, "reduce_scatter", attrs={}), TypeError, "ranks: expected an integer"),
    (partial(with_op, "reduce_scatter", outputs={"out": ("a.w",)}), ValueError, r"out\[0\]: expected what is in "),
    (partial(with_op, "all_gather", inputs={"x": ("a.w@GRAD",)}), ValueError, r"x\[0\]: expected what is in "),
    (partial(with_op, "norm_tiles", OF_LAMB, attrs=other(routine="adam")), ValueError,
     "routine: expected one of lars_momentum, novograd, lamb, got 'adam'"),
    (partial(with_op, "norm_tiles", OF_LAMB, attrs=other(positions=((0, 0), (4, 7)))), ValueError,
     r"positions\[0\]: expected places from 0 to 9, each once, got 0"),
    (partial(with_op, "norm_tiles", OF_LAMB, attrs=other(positions=((0, 2), (4, 9)))), ValueError,
     r"positions\[1\]: expected places from 0 to 8, each once, got 9"),
    (partial(with_op, "norm_tiles", OF_LAMB, attrs=other(positions=((0,), (6,)))), ValueError,
     r"positions\[0\]: expected a place for each of 2 norms, got \(0,\)"),
    (partial(with_op, "norm_tiles", OF_LAMB, attrs=other(positions=((0, 3),))), ValueError,
     "positions: expected places for each of 2 tensors, got "),
    (partial(with_op, "norm_tiles", OF_LAMB, outputs=lambda op: {"tiles": op.outputs["tiles"]}), ValueError,
     "outputs: expected tiles and the states, got tiles"),
    (partial(with_op, "norm_tiles", OF_LAMB, inputs=lambda op: {**op.inputs, "tiles": ("a.w@GRAD",)}), ValueError,
     "tiles: expected the same variable in inputs and outputs"),
    (partial(with_op, "join_tiles", OF_LAMB, attrs=other(positions=(0, 1, 2, 2))), ValueError,
     "positions: expected all from 0 to 3, as sums is no input"),
    (partial(with_op, "merged_lamb", OF_LAMB, attrs=other(positions=((0, 1), (2, 4)))), ValueError,
     r"positions\[1\]: expected places from 0 to 3, each once, got 4")])
def test_ops_that_are_none(program, error, message):
    with pytest.raises(error, match=f": {message}"):
        program().check()


def test_a_part_that_is_another_ranks():
    mine = with_op("all_gather", inputs={"x": ("a.w",)})

    def rank(world):
        arrays = {name: np.zeros(shape, np.float32) for name, shape in PARAMS}
        bind(mine, arrays, comm=world).startup()

    with pytest.raises(ValueError, match=r"all_gather: 'a.w': expected it among the \d+ elements of rank 0 in "):
        local.run(rank, 2)


def test_a_parameter_in_another_order_is_not_cut():
    """Its elements would be others than those of its gradient."""
    def rank(world):
        arrays = {name: np.zeros(shape, np.float32, order="F") for name, shape in PARAMS}
        mine = parts(step_program(PARAMS, "adam", lr=0.1, world_size=3), 3)[world.rank]
        mine = mine.replace(startup=[op for op in mine.startup if op.type != "broadcast"])
        bind(mine, arrays, comm=world).startup()

    with pytest.raises(ValueError, match=r"split_by_ref: 'a\.w': expected a C-contiguous array, got strides"):
        local.run(rank, 3)


def test_a_buffer_that_others_have_laid_out_otherwise():
    programs = [*parts(step_program(PARAMS, "adam", lr=0.1, world_size=2), 2)[:1],
                parts(step_program(PARAMS, "adam", lr=0.1, world_size=2), 2, limit=0.011)[1]]

    def rank(world):
        bind(programs[world.rank], {name: np.zeros(shape, np.float32) for name, shape in PARAMS}, comm=world)

    with pytest.raises(CommError, match=r"reduce_scatter of .* aligned to 4096"):
        local.run(rank, 2)


@pytest.mark.parametrize(("part", "shape", "error", "message"), [
    (("w", (3,), 0), (2,), TypeError, "expected a Part, got"),
    (Part("w", (3, 2), 5), (2,), ValueError, "expected some of the 6 elements of 'w', from 5, got shape"),
    (Part("w", (3, 2), 0), (2, 1), ValueError, "expected some of the 6 elements of 'w', from 0, got shape"),
    (Part("w", (3, -2), 0), (2,), ValueError, "shape: expected extents of at least 0"),
    (Part("w", (3, 2), -1), (2,), ValueError, "first: expected an integer of at least 0, got -1")])
def test_parts_that_are_none(part, shape, error, message):
    with pytest.raises(error, match=f"^Var: 'v': part: {message}"):
        Var("v", shape, "float32", True, False, 0.0, part)


def test_routines_are_left_out_by_kind():
    """Those that iterate matrices are not cut, and have owners."""
    for name, routine in ROUTINES.items():
        numbers = {h.name: 0.5 for h in routine.hypers if h.default is None and h.name != "lr"}
        program = replace(plain(optimizer=name, **numbers), params=[("w", (33, 64)), ("v", (64, 64))]).program(2)
        kinds = {op.type for op in parts(program, 2)[1].main} & {"all_gather", "broadcast"}
        assert kinds == {"broadcast" if routine.matrix_arguments else "all_gather"}, name


# Sums of tiles.


def norms(sizes, cut):
    """Checks gradients of some sizes, of which the last are pieces, and joins the sums of their tiles."""
    names = [f"g{k}" for k in range(len(sizes))]
    whole, pieces = names[: len(sizes) - cut], names[len(sizes) - cut :]
    counts = [-(-size // 1024) for size in sizes[len(whole) :]]
    starts = [sum(counts[:k]) for k in range(cut)]
    vars = [*(Var(name, (size,), "float32", True) for name, size in zip(names, sizes, strict=True)),
            Var("sums", (len(sizes),), "float32"), Var("odd", (1,), "int32"), Var("tiles", (sum(counts),), "float32")]
    attrs = {"positions": (*range(len(whole)), *starts), "pieces": cut}
    outputs = {"sums": ("sums",), "odd": ("odd",), "tiles": ("tiles",)}
    joined = {"counts": tuple(counts), "positions": tuple(range(len(whole), len(names)))}
    join = Op("join_tiles", {"tiles": ("tiles",), "sums": ("sums",)}, {"sums": ("sums",)}, joined, "optimize")
    return Program({var.name: var for var in vars}, (), [
        Op("check_gradients", {"x": (*whole, *pieces)}, outputs, attrs, "optimize"), join])


@pytest.mark.clause("N7")
@BACKENDS
@pytest.mark.parametrize(("sizes", "cut"), [([5, 3000, 1024, 1], 3), ([2049], 1), ([7, 4096], 1)])
def test_sums_of_tiles_are_joined_as_those_of_a_tensor_are(sizes, cut, backend):
    arrays = {f"g{k}": values("float32", (size,), k) for k, size in enumerate(sizes)}
    bound = started(norms(sizes, cut), put(backend, arrays), backend=backend)
    for _ in range(2):  # which leaves nothing of the first
        bound.step()
    assert bound.read("sums").tobytes() == np.array([sum_of_squares(x) for x in arrays.values()]).tobytes()
    assert bound.read("odd") == 0


@BACKENDS
def test_an_inf_in_a_piece_is_seen(backend):
    arrays = {"g0": np.ones(5, np.float32), "g1": np.ones(3000, np.float32)}
    arrays["g1"][2999] = np.inf
    bound = started(norms([5, 3000], 1), put(backend, arrays), backend=backend)
    bound.step()
    assert bound.read("odd") == 1


@pytest.mark.clause("N6")
@BACKENDS
@pytest.mark.parametrize("counts", [(1, 1023, 1025), (2300, 5), (1024,)])
def test_any_number_of_tiles_is_joined(counts, backend):
    """More than a block joins at once, too."""
    vars = [Var("tiles", (sum(counts),), "float32", True), Var("sums", (len(counts) + 1,), "float32", True)]
    joined = {"counts": counts, "positions": tuple(range(len(counts), 0, -1))}
    slots = {"tiles": ("tiles",), "sums": ("sums",)}, {"sums": ("sums",)}
    program = Program({var.name: var for var in vars}, (), [Op("join_tiles", *slots, joined, "optimize")])
    tiles = np.abs(values("float32", (sum(counts),), 3))
    arrays = put(backend, {"tiles": tiles, "sums": np.full(len(counts) + 1, 7, np.float32)})
    bound = started(program, arrays, backend=backend)
    bound.step()
    rows = np.split(tiles, np.cumsum(counts)[:-1])
    assert bound.read("sums").tolist() == [7, *(tree_sum(row) for row in reversed(rows))]


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"attrs": {"positions": (0, 0), "pieces": 3}}, ValueError, "pieces: expected an integer from 0 to 2, got 3"),
    ({"attrs": {"positions": (0, 1), "pieces": 1}}, ValueError, r"positions\[1\]: expected a place from 0 to 0, each"),
    ({"attrs": {"positions": (2, 0), "pieces": 1}}, ValueError, r"positions\[0\]: expected a place from 0 to 1, each"),
    ({"attrs": {"positions": (0, 0), "pieces": 2}}, ValueError, r"positions\[1\]: expected a place from 0 to 0, each"),
    ({"outputs": {"sums": ("sums",), "odd": ("odd",)}}, TypeError, "tiles: expected a variable, since some of x are"),
])
def test_checks_of_pieces_that_are_none(changes, error, message):
    program = norms([5, 3000], 1)
    with pytest.raises(error, match=f": {message}"):
        program.replace(main=[program.main[0].replace(**changes)]).check()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_pieces_have_tiles_of_their_own(place):
    program = norms([3000, 5], 2)
    program.check()
    attrs = {"positions": (0, place), "pieces": 2}
    with pytest.raises(ValueError, match=rf": positions\[1\]: expected a place from 0 to 3, each once, got {place}"):
        program.replace(main=[program.main[0].replace(attrs=attrs)]).check()


@pytest.mark.parametrize(("attrs", "error", "message"), [
    ({"counts": (2,), "positions": (1,)}, ValueError, "counts: expected 1 that add up to 3, got 1 that add up to 2"),
    ({"counts": (3, 0), "positions": (1, 0)}, ValueError, r"counts\[1\]: expected an integer from 1 to 3, got 0"),
    ({"counts": (3,), "positions": (2,)}, ValueError, r"positions\[0\]: expected an integer from 0 to 1, got 2"),
    ({"counts": (3,), "positions": (1, 0)}, ValueError, "counts: expected 2 that add up to 3, got 1 that add up to 3"),
    ({"positions": (1,)}, TypeError, "counts: expected a sequence of integers, got None")])
def test_joins_that_are_none(attrs, error, message):
    program = norms([5, 3000], 1)
    other = program.main[1].replace(outputs={"sums": ("tiles",)})
    with pytest.raises(ValueError, match="sums: expected the same variable in inputs and outputs, since some of it"):
        program.replace(main=[program.main[0], other]).check()
    with pytest.raises(error, match=f": {message}"):
        program.replace(main=[program.main[0], program.main[1].replace(attrs=attrs)]).check()
