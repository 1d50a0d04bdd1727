"""Shards and casts that are wrong in one thing each, as they easily are: some law notices every one of them."""

import math

import pytest
from program_cases import idempotent
from sharding_cases import bits, history, owners_of, ranks_of, same_bits, shards, skipped, step, updates

from refopt.comm import CommError
from refopt.program import Op, counts, passes
from refopt.program.mixed_precision import copy_of
from refopt.program.passes import Result, cast, sharding, shares

ALIKE = [("a", (4, 2)), ("b", (8,)), ("c", (2, 4)), ("d", (8, 1)), ("e", (8,))]  # where a mix-up shows in values alone
FULL = dict(accumulate=2, recompute=True, fp32=["d"])
KILLED = AssertionError, ValueError, TypeError, KeyError, CommError
EXAMPLES = {
    "clip": lambda: step(ALIKE, world_size=3, max_norm=0.5, **FULL),
    "no clip": lambda: step(ALIKE, world_size=2, **FULL),
    "empty": lambda: step([("a", (8,)), ("b", (1,)), ("c", (1,))], world_size=4, max_norm=0.5),
    "many": lambda: step([(f"p{k}", (8,)) for k in range(12)], "sgd", world_size=3, max_norm=0.5),
    "plain": lambda: step(ALIKE, "sgd", world_size=3),
}


def laws(edit=lambda program, made, rank, owners: made, rule="paddle"):
    """Every law on every example, for programs of ranks that are edited."""
    for name, example in EXAMPLES.items():
        try:
            program = example()
            owners = owners_of(program, rule)
            made = [edit(program, one, rank, owners) for rank, one in enumerate(shards(program, rule))]
            same_bits(program, made, rule, 2)
            same_bits(program, made, rule, 2, odd={(0, len(made) - 1)})
            skipped(made, 1, odd={(1, 0)})
            copies_everywhere(made, owners)
            figures(program, made, owners)
        except KILLED as error:
            raise AssertionError(f"{name}: {error}") from None


def copies_everywhere(made, owners):
    """At the end of every step, what each rank has is the owner's parameter, rounded."""
    states = history(made, 2)
    for k in range(3):
        for param, owner in owners.items():
            copy = copy_of(param)
            for rank, state in enumerate(states):
                if copy in state[k]:
                    expected = states[owner][k][param].astype("float16")
                    assert state[k][copy].tobytes() == expected.tobytes(), f"{copy} of rank {rank} after step {k}"


def figures(program, made, owners):
    """Casts and memory of each rank, by formula."""
    good = [copy_of(name) in program.vars for name in owners]
    sizes = [math.prod(program.vars[name].shape) for name in owners]
    routine = updates(program)[0].type
    for rank, one in enumerate(made):
        own = sum(g and owner == rank for g, owner in zip(good, owners.values(), strict=True))
        assert counts.param_casts(one) == counts.casts(sum(good), owned=own)["sharded"], "casts"
        expected = counts.memory(sizes, good, routine, owners=[*owners.values()], rank=rank, optimize_cast=True)
        assert counts.kept(one) == counts.total(expected), "memory"


@pytest.mark.parametrize("rule", ["paddle", "greedy"])
def test_right_shards_keep_the_laws(rule):
    laws(rule=rule)


# Of what is done to programs.


def main_of(made, change):
    """The program with each op replaced by what ``change`` makes of it: a list."""
    return made.replace(main=[op for old in made.main for op in change(old)])


def parameter_dropped(program, made, rank, owners):
    """Nobody updates the last one."""
    last = [*owners][-1]
    return main_of(made, lambda op: [] if last in op.outputs.get("params", ()) else [op])


def cast_before_update(program, made, rank, owners):
    main = list(made.main)
    for i in range(1, len(main)):
        if main[i].type == "cast" and main[i].role == "optimize":
            main[i - 1], main[i] = main[i], main[i - 1]
    return made.replace(main=main)


def found_inf_not_shared(program, made, rank, owners):
    """Each looks at its own."""
    return main_of(made, lambda op: [] if op.type == "all_reduce" and op.inputs["x"] == ("odd",) else [op])


def found_inf_not_of_the_empty(program, made, rank, owners):
    """Ranks with nothing do not take part."""
    return made if rank in owners.values() else found_inf_not_shared(program, made, rank, owners)


def empty_ranks_find_nothing(program, made, rank, owners):
    """Ranks with nothing do not hear of it: they add up what they have found with nobody, and go on."""
    if rank in owners.values():
        return made
    main = list(made.main)
    place = next(i for i, op in enumerate(main) if op.type == "finish_check")
    check = next(op for op in main if op.type == "check_gradients")
    return made.replace(main=[*main[:place], check, *main[place:]])


def all_from_rank_0(program, made, rank, owners):
    def change(op):
        return [op.replace(attrs={**op.attrs, "root": 0}) if op.type == "broadcast" else op]

    return main_of(made, change)


def all_to_rank_0(program, made, rank, owners):
    def change(op):
        return [op.replace(attrs={**op.attrs, "root": 0}) if op.type == "reduce" else op]

    return main_of(made, change)


def local_norm(program, made, rank, owners):
    """Clips by the norm of what it owns."""
    return main_of(made, lambda op: [] if op.type == "all_reduce" and op.inputs["x"] == ("sums",) else [op])


def norm_by_owner(program, made, rank, owners):
    """Joins what belongs to an owner first, the last owner before the others: another tree than that of the whole."""
    order = sorted(range(len(owners)), key=lambda k: -[*owners.values()][k])

    def change(op):
        if op.type != "check_gradients":
            return [op]
        return [op.replace(attrs={"positions": tuple(order.index(k) for k in op.attrs["positions"])})]

    return main_of(made, change)


def sums_counted_twice(program, made, rank, owners):
    """Checks the gradients before those of others are left out."""
    whole = next(op for op in program.main if op.type == "check_gradients")
    return main_of(made, lambda op: [whole] if op.type == "check_gradients" else [op])


def loss_scale_before_sharing(program, made, rank, owners):
    """Finishes the gradient check before the flags are added up."""
    main = list(made.main)
    finish = next(op for op in main if op.type == "finish_check")
    main.remove(finish)
    place = next(i for i, op in enumerate(main) if op.type == "all_reduce")
    return made.replace(main=[*main[:place], finish, *main[place:]])


def no_average(program, made, rank, owners):
    return main_of(made, lambda op: [] if op.type == "scale" and op.role == "communicate" else [op])


def average_twice(program, made, rank, owners):
    return main_of(made, lambda op: [op, op] if op.type == "scale" and op.role == "communicate" else [op])


def nothing_sent_at_startup(program, made, rank, owners):
    return made.replace(startup=[op for op in made.startup if op.type != "broadcast"])


def cast_before_startup_broadcast(program, made, rank, owners):
    order = "initialize", "cast", "broadcast", "delete"
    return made.replace(startup=sorted(made.startup, key=lambda op: order.index(op.type)))


def never_cast_at_startup(program, made, rank, owners):
    return made.replace(startup=[op for op in made.startup if op.type != "cast"])


def masters_kept(program, made, rank, owners):
    """Everybody keeps the parameters of all."""
    vars = {name: program.vars[name] if name in owners else var for name, var in made.vars.items()}
    return made.replace(vars=vars, startup=[op for op in made.startup if op.type not in ("initialize", "delete")])


def state_kept(program, made, rank, owners):
    return made.replace(vars={**program.vars, **made.vars})


def fp32_parameters_not_sent(program, made, rank, owners):
    """Only copies are."""
    return main_of(made, lambda op: [] if op.type == "broadcast" and op.inputs["x"][0] in owners else [op])


def first_cast_only(program, made, rank, owners):
    """The micro-steps after the first still cast."""
    old = [op for op in program.main if op.type == "cast" and op.role == "forward"]
    mine = [op for op in old[len(old) // 2 :] if owners[op.inputs["x"][0]] == rank]
    return made.replace(main=[*mine, *made.main])


EDITS = [
    parameter_dropped, cast_before_update, found_inf_not_shared, found_inf_not_of_the_empty, empty_ranks_find_nothing,
    all_from_rank_0, all_to_rank_0, local_norm, norm_by_owner, sums_counted_twice, loss_scale_before_sharing,
    no_average, average_twice, nothing_sent_at_startup, cast_before_startup_broadcast, never_cast_at_startup,
    masters_kept, state_kept, fp32_parameters_not_sent, first_cast_only,
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_laws_kill_wrong_programs(edit):
    with pytest.raises(AssertionError):
        laws(edit)


# Of what passes look at.


def renamed_without_recomputed(op, found):
    return cast_renamed(op, found._replace(recomputed={}))


def renamed_without_broadcasts(op, found):
    return op if op.type == "broadcast" else cast_renamed(op, found)


cast_renamed = cast._renamed


def over_the_edge(sizes, ranks):
    """The rule, with a test that is not strict."""
    owners, rank, given = [], 0, 0
    for size in sizes:
        rank += given * ranks >= sum(sizes) * (rank + 1)
        owners.append(rank)
        given += size
    return owners


LOOKS = {
    "recomputed copies not renamed": (cast, "_renamed", renamed_without_recomputed),
    "broadcasts not renamed": (cast, "_renamed", renamed_without_broadcasts),
    "masters not let go": (cast, "without_masters", lambda program, names: program),
    "an empty list left to itself": (sharding, "_gradient_check", lambda op, foreign, norms, degree: [op]),
}


@pytest.mark.parametrize("mutant", LOOKS)
def test_laws_kill_what_passes_do_not_look_at(monkeypatch, mutant):
    where, name, wrong = LOOKS[mutant]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        laws()


def test_the_rows_kill_a_rule_that_is_not_strict(monkeypatch):
    monkeypatch.setitem(shares.RULES, "paddle", over_the_edge)
    assert passes.partition([1, 1, 1, 1], 2) != [0, 0, 0, 1]
    laws()  # which hold for any partition


def test_bits_of_the_examples_differ():
    """What the mutants mix up would show: no two parameters, or ranks, have the same bits."""
    for example in EXAMPLES.values():
        program = example()
        state = bits(history([program] * ranks_of(program), 1)[0][1])
        copies = [state[name] for name in owners_of(program)]
        assert len(set(copies)) == len(copies)


def test_a_cast_that_is_made_again_is_noticed():
    """A pass that does not see that it has been there."""

    def blind(program):
        made = passes.optimize_cast(program).program
        more = Op("cast", {"x": ["a"]}, {"out": ["a.cast_fp16"]}, {}, "optimize")
        return Result(made.replace(main=[*made.main, more]), True)

    with pytest.raises(AssertionError, match="not idempotent"):
        idempotent(blind, EXAMPLES["plain"]())
