"""Random steps and chains of passes on several ranks, and what each must leave: the bits of the plain step.

A `Composition` is a step and passes to apply in order; printed, it is the code that makes it. `violation` runs the step
as it is on every rank, and what the passes have made of it, and says where the two differ.
"""

from dataclasses import dataclass, field, replace
from pprint import pformat

import numpy as np
from hypothesis import strategies as st
from program_cases import numbers_of, stepped
from program_cases import on_ranks as run_on
from sharding_cases import bound_on, read

from refopt.catalog import ROUTINES
from refopt.checks import dtypes
from refopt.cpu.lazy import LAZY
from refopt.program import Config, Op, Var, amp_program, passes, step_program
from refopt.program.mixed_precision import copy_of

STEPS = 3  # of which the second has another learning rate
PLACED = "all_reduce_gradients", "reduce_to_owners", "send_to_owners"  # passes that begin with the step of one device
SHARDING = "shard", "shard_elements"  # which make the program of a rank
MIXED = "optimize_cast", "fold_casts"
FIRST = [*(("narrow_sums", dtype, average) for dtype in ("float16", "bfloat16") for average in ("before", "after")),
         *(("local_steps", every) for every in (1, 2, 3)), ("update_rows", "global"), ("update_rows", "row")]
REMAINDERS = [Config("bfloat16", "bfloat16", "float32", kind) for kind in dtypes.REMAINDERS]


@dataclass(frozen=True)
class Composition:
    """A step, and the passes to apply to it.

    Attributes:
        make: ``"step_program"`` or ``"amp_program"``.
        params, optimizer, options: its arguments.
        ranks: how many there are.
        tied: parameters that a second layer uses, whose two gradients are summed.
        frozen: parameters that the forward pass alone reads.
        first: name and arguments of a pass that changes bits, and so comes first; none if there is none.
        passes: names and arguments, in order.
    """

    make: str
    params: list
    optimizer: object
    options: dict
    ranks: int
    tied: tuple = ()
    frozen: tuple = ()
    first: tuple = ()
    passes: tuple = ()
    reasons: list = field(default_factory=list, compare=False)

    def __repr__(self):
        fields = ("make", "params", "optimizer", "options", "ranks", "tied", "frozen", "first", "passes")
        return "Composition(" + ",\n            ".join(f"{k}={pformat(getattr(self, k), width=110, sort_dicts=False)}"
                                                       for k in fields) + ")"

    def program(self, ranks):
        """The step of so many ranks."""
        make, options = {"step_program": step_program, "amp_program": amp_program}[self.make], self.options
        if self.placed and "reduced" in options:  # which the step of one device does not know of
            options = {**options, "reduced": "float32"}
        made = make(self.params, self.optimizer, world_size=ranks, **options)
        made = with_frozen(with_tied(made, self.tied), self.frozen)
        if not self.first or self.placed:
            return made
        return getattr(passes, self.first[0])(made, *self.first[1:]).program

    @property
    def placed(self):
        """Whether the passes begin with the step of one device."""
        return any(name in PLACED for name, _ in self.passes) or ("preset", {"name": "parameter_server"}) in self.passes

    def rewritten(self):
        """The program of each rank, after the passes, whose answers are then in ``reasons``."""
        programs = [self.program(1 if self.placed else self.ranks)] * self.ranks
        self.reasons.clear()
        for name, arguments in self.passes:
            programs, applied, why = applied_to(programs, name, arguments)
            self.reasons.append((name, applied, why))
        return on_ranks(programs)


def applied_to(programs, name, arguments):
    """The programs of all ranks after a pass, whether it changed any, and its reasons."""
    if name == "on_device":
        return on_ranks(programs), True, ()
    if name == "preset":
        made = [passes.pipeline(p, *passes.preset(rank=rank, ranks=len(programs), **arguments))
                for rank, p in enumerate(programs)]
        return [each.program for each in made], any(each.applied for each in made), made[0].reasons
    apply = getattr(passes, name)
    if name in SHARDING:
        results = [apply(p, rank, len(programs), **arguments) for rank, p in enumerate(programs)]
    else:
        ranks = {"devices": len(programs)} if name in PLACED else {}
        once = {id(p): apply(p, **ranks, **arguments) for p in programs}
        results = [once[id(p)] for p in programs]
    return [each.program for each in results], any(each.applied for each in results), results[0].reasons


def on_ranks(programs):
    """The program that each rank binds."""
    return [
        passes.on_device(p, rank) if any(op.device is not None for op in (*p.startup, *p.main)) else p
        for rank, p in enumerate(programs)
    ]


def with_tied(program, tied):
    """The program with a second use of some parameters, whose gradient is added to the first."""
    vars, main = [], []
    for op in program.main:
        main.append(op)
        if op.type == "backward" and op.inputs["params"][0].partition(".cast_fp16")[0] in tied:
            (grad,) = op.outputs["grads"]
            var = program.vars[grad]
            vars.append(Var(f"{grad}@TIED", var.shape, var.dtype))
            main.append(op.replace(outputs={"grads": (f"{grad}@TIED",)}))
            main.append(Op("sum", {"x": (f"{grad}@TIED",), "out": (grad,)}, {"out": (grad,)}, {}, "backward", op.layer))
    return program.with_vars(vars).replace(main=main)


def with_frozen(program, frozen):
    """The program without gradients and updates of some parameters."""
    def param_of(op):
        params = op.inputs.get("params", ()) if op.type == "backward" else op.outputs.get("params", ())
        return params[0].partition(".cast_fp16")[0] if params else ""

    gone, main = set(), []
    for op in program.main:
        if op.type == "check_gradients":
            kept = [(x, k) for x, k in zip(op.inputs["x"], op.attrs["positions"], strict=True) if x not in gone]
            op = op.replace(inputs={"x": [x for x, _ in kept]}, attrs={"positions": tuple(k for _, k in kept)})
        elif param_of(op) in frozen or not gone.isdisjoint(op.reads):
            gone.update(op.writes)
            continue
        main.append(op)
    used = {name for op in (*program.startup, *main) for name in (*op.reads, *op.writes)} | {*frozen}
    return program.replace(vars={k: v for k, v in program.vars.items() if k in used}, main=main)


def history(programs, backend="cpu", saved=None):
    """By rank: what is there after startup, and after each step, by name; and what is saved before the last step.

    Args:
        programs: of each rank.
        backend: of the arrays.
        saved: what each rank is to go on from, before the last step, after one step that has left something else.
    """
    def rank(world):
        bound = bound_on(programs[world.rank if world else 0], world, backend)
        if saved is not None:
            bound.step()
            bound.load(saved[world.rank if world else 0])
            return read(stepped(bound, 1))
        states = [read(bound)]
        for k in range(STEPS):
            checkpoint = bound.state_dict() if k == STEPS - 1 else None
            states.append(read(stepped(bound, 1, 1 - k, lr=0.25)))
        return states, checkpoint

    return run_on(len(programs), rank)


def flat(saved, prefix=""):
    """The entries of a checkpoint by their paths."""
    entries = enumerate(saved) if isinstance(saved, list) else saved.items()
    found = {}
    for key, value in entries:
        path = f"{prefix}/{key}"
        found |= flat(value, path) if isinstance(value, dict | list) else {path: value}
    return found


def differing(saved, other):
    """The first path at which two checkpoints differ; empty if there is none."""
    first, second = flat(saved), flat(other)
    for path in sorted({*first, *second}):
        a, b = first.get(path), second.get(path)
        arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
        if not (same(a, b) if arrays else type(a) is type(b) and a == b):
            return f"{path}: {a} in one checkpoint, {b} in the other"
    return ""


def same(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def violation(case, backend="cpu"):
    """Where what the passes have made differs from the plain step; empty if nowhere."""
    programs = case.rewritten()
    together = not case.placed or any(applied for name, applied, _ in case.reasons if name in (*PLACED, "preset"))
    plain = case.program(case.ranks if together else 1)
    expected, checkpoints = zip(*history([plain] * case.ranks), strict=True)
    got, saved = zip(*history(programs, backend), strict=True)
    resumed = history(programs, backend, [jumbled(each) for each in checkpoints])
    where = next((why for each, right in zip(saved, checkpoints, strict=True) if (why := differing(right, each))), "")
    if where:
        return where
    for step in range(STEPS + 1):
        if where := missed(plain, [states[step] for states in expected], [states[step] for states in got]):
            return f"{where} after step {step}"
    where = ""
    if together or case.ranks == 1:  # else each rank is a run apart
        where = missed(plain, [states[STEPS] for states in expected], resumed)
    return where and f"{where} after it has gone on from a checkpoint"


def jumbled(saved):
    """What a run goes on from. It has been elsewhere: every entry in another order."""
    return {key: dict(reversed(value.items())) if isinstance(value, dict) else value
            for key, value in reversed(saved.items())}


def missed(plain, expected, got):
    """Which variable differs from the plain step's, or is missing, on which rank; empty if all is right."""
    for rank, (right, state) in enumerate(zip(expected, got, strict=True)):
        for name, value in right.items():
            if name in state and not same(state[name], value):
                return f"{name!r} differs on rank {rank}"
        for name in trained(plain):
            copy = copy_of(name)
            if name not in state and not (copy in state and same(state[copy], right[name].astype(np.float16))):
                return f"rank {rank} has no {name!r}, and no right copy of it,"
    return ""


def trained(program):
    return [name for op in program.main if op.role == "optimize" for name in op.outputs.get("params", ())]


# What is drawn.

FEW = [(), (1,), (7,), (0, 3), (3, 2), (2, 3, 2), (63,), (64,), (65,), (5, 4), (1025,)]  # of elements
SHAPES = [*FEW[:-1], (16, 64), (33, 64), (2049,)]
NAMES = ["a.w", "a.b", "b.w", "b.v", "c", "d.e"]


@st.composite
def steps(draw, shapes=SHAPES):
    """A step without passes."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    params = [(name, draw(st.sampled_from(shapes))) for name in names]
    begun = draw(st.sampled_from([(), (), (), *FIRST]))
    by_rows = begun[:1] == ("update_rows",)
    routines = st.sampled_from(sorted(LAZY if by_rows else ROUTINES))
    first = draw(routines)
    second = draw(st.sampled_from([first, first, first, draw(routines)]))
    which = {name: draw(st.sampled_from([first, second])) for name in names}
    numbers = {key: number for one in {*which.values()} for key, number in numbers_of(one).items()}
    coded = st.sampled_from([None, "uint8"]) if all(ROUTINES[one].elementwise for one in which.values()) else st.none()
    optimizer = first if len({*which.values()}) == 1 and first == which[names[0]] else which
    some = st.lists(st.sampled_from(names), max_size=2, unique=True).map(sorted)
    rare = st.integers(0, 3).map(lambda k: k == 0)
    ranks = draw(st.integers(1, 4))
    tied = tuple(draw(some)) if draw(rare) else ()
    frozen = tuple(draw(some)) if draw(rare) else ()
    if not by_rows and draw(st.booleans()):
        options = dict(accumulate=draw(st.integers(1, 3)), recompute=draw(st.booleans()),
                       fp32=draw(some) if draw(st.booleans()) else [],
                       reduced=draw(st.sampled_from(["float32", "float16"])),
                       max_norm=draw(st.sampled_from([None, 0.5])), loss_scale=8.0, state_dtype=draw(coded))
        return Composition("amp_program", params, optimizer, {**options, **numbers}, ranks, tied, frozen, begun)
    config = draw(st.sampled_from(["fp32", "fp32", "amp", "bf16", *REMAINDERS]))
    sparse = [name for name, shape in params if shape[1:] and shape[0] and draw(st.booleans() if by_rows else rare)]
    tied = tuple(name for name in tied if name not in sparse)
    options = dict(config=config, state_dtype=draw(coded), sparse=sparse, **numbers)
    return Composition("step_program", params, optimizer, options, ranks, tied, frozen, begun)


PASSES = {
    "coalesce_gradients": st.fixed_dictionaries({"grouping": st.sampled_from(
        ["early", "later", "fuse_size", "by_count", "ddp"])}),
    "fuse_all_reduce": st.just({}),
    "fuse_optimizer": st.fixed_dictionaries({"form": st.sampled_from(["auto", "flat", "merged"]),
                                             "per_buffer": st.booleans()}),
    "fold_averages": st.just({}), "optimize_cast": st.just({}), "fold_casts": st.just({}),
    "offload": st.fixed_dictionaries({"ring": st.integers(1, 3), "nbytes": st.sampled_from([None, 512]),
                                      "masters": st.booleans()}),
    "shard": st.fixed_dictionaries({"rule": st.sampled_from(["paddle", "greedy"]),
                                    "order": st.sampled_from(["program", "reduced"])}),
    "shard_elements": st.fixed_dictionaries({"limit": st.sampled_from([1e-4, 4e-3, 32.0])}),
    "fuse_reduces": st.fixed_dictionaries({"limit": st.sampled_from([1e-4, 32.0])}),
    "fuse_broadcasts": st.fixed_dictionaries({"limit": st.sampled_from([1e-4, 32.0])}),
    "batch_owners": st.just({}), "on_device": st.just({}), "all_reduce_gradients": st.just({}),
    "reduce_to_owners": st.just({}),
    "send_to_owners": st.fixed_dictionaries({"strategy": st.sampled_from(["reduce", "all_reduce"]),
                                             "min_block_size": st.sampled_from([4, 8192]),
                                             "receiver": st.sampled_from(["gradient", "balanced"])})}


@st.composite
def compositions(draw, shapes=SHAPES, of=None):
    """A step, one of those given if there are any, and up to five passes in any order: most find something to do."""
    step, chain = draw(st.sampled_from(of) if of else steps(shapes)), []
    placed = draw(st.booleans())
    programs = [step.program(1 if placed else step.ranks)] * step.ranks
    length = draw(st.integers(1, 5))
    for _ in range(4 * length):
        if len(chain) == length:
            break
        first = placed and not chain and draw(st.booleans())
        name = draw(st.sampled_from(PLACED if first else sorted(PASSES) if placed else sorted({*PASSES} - {*PLACED})))
        arguments = draw(PASSES[name])
        after, applied, _ = applied_to(programs, name, arguments)
        if applied or draw(st.integers(0, 9)) == 0:
            programs, chain = after, [*chain, (name, arguments)]
    if placed and not any(name in PLACED for name, _ in chain):
        chain.append(("all_reduce_gradients", {}))
    return replace(step, passes=tuple(chain))
