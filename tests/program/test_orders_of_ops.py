"""Which ops may change places, and which tasks wait for which, against a search through all orders."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from placement_cases import waits_of, without_wait
from program_cases import few

from refopt.program import Op, Program, Var
from refopt.program.passes import dependencies
from refopt.program.placement import schedule

CELLS = "a", "b", "c"
names = st.sets(st.sampled_from(CELLS), max_size=2).map(lambda chosen: tuple(sorted(chosen)))


@st.composite
def programs(draw, least=2, most=5):
    """Ops that read and write a few variables; what an op computes depends on all that it reads."""
    ops = [Op(f"op{k}", {"x": draw(names)}, {"out": draw(names)}) for k in range(draw(st.integers(least, most)))]
    return Program({name: Var(name, (1,), "float32", persistable=True) for name in CELLS}, (), ops)


def outcome(ops):
    """What each op has read, and what is left in each variable, in words: which op wrote it, from what."""
    state = {name: name for name in CELLS}
    for op in ops:
        brought = f"{op.type}({','.join(state[name] for name in op.reads)})"
        state.update(dict.fromkeys((*op.writes, op.type), brought))
    return state


@given(program=programs())
@few(200)
def test_ops_that_can_be_done_at_once(program):
    """`among` declines if and only if some order of the ops leaves something else."""
    ops = program.main
    same = all(outcome(order) == outcome(ops) for order in itertools.permutations(ops))
    assert (dependencies.among(program, ops) == "") == same


@given(program=programs(least=3), data=st.data())
@few(300)
def test_ops_that_can_be_put_off(program, data):
    """`between` allows only what changes nothing when the ops are moved to the place of the last of them."""
    ops = program.main
    stay = data.draw(st.sets(st.integers(1, len(ops) - 2), min_size=1))
    members = [i for i in range(data.draw(st.integers(2, len(ops)))) if i not in stay]
    last = members[-1]
    moved = [op for i, op in enumerate(ops) if i < last and i not in members]
    moved += [ops[i] for i in members] + list(ops[last + 1 :])
    allowed = dependencies.between(program, members) == ""
    assert outcome(moved) == outcome(ops) or not allowed
    conflicts = any(
        set(ops[i].writes) & {*ops[j].reads, *ops[j].writes} or set(ops[i].reads) & set(ops[j].writes)
        for i in members for j in range(i + 1, last) if j not in members
    )
    assert allowed == (not conflicts)


@st.composite
def schedules(draw):
    """Tasks on several streams that read and write a few variables: each has readers on several streams at times."""
    count = draw(st.integers(1, 8))
    vars = {name: Var(name, (1,), "float32", persistable=True) for name in CELLS}
    program = Program(vars, main=[Op("forward", {"x": CELLS[:1]}, {})] * count)
    builder = schedule._Builder(program, {})
    builder.add("begin", "compute", -1, (), (), ())
    for k in range(count):
        reads, writes = draw(names), draw(names)
        builder.add("run", draw(st.sampled_from(schedule.STREAMS)), k, (), reads, writes)
    builder.add("end", "compute", -1, (), (), ())
    return schedule.Schedule(program, tuple(builder.tasks))


@given(plan=schedules())
@few(300)
def test_tasks_wait_for_all_they_need_and_for_no_more(plan):
    """No two tasks whose order shows can meet; and they could, were any wait not there."""
    assert plan.races() == []
    for task, wait in waits_of(plan):
        assert plan.tasks[task].stream != plan.tasks[wait].stream
        assert without_wait(plan, task, wait).races(), f"{task} waits for {wait} in vain"
