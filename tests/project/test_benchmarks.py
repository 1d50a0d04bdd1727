"""Times that cannot be are refused, and what was timed is compared again."""

import math

import pytest

from benchmarks.floor import judged
from benchmarks.sharded_programs import hidden
from refopt.program.placement import Span, Task

GB_S, L2 = 1000.0, 50_000_000
MOVED = 1_000_000_000  # bytes: 1 ms


@pytest.mark.parametrize(("ms", "held", "ok"), [
    (1.0, None, True), (2.0, None, True), (0.975, None, True), (0.965, None, False), (0.0, None, False),
    (0.965, MOVED, True),  # 100 MB less, at most
    (0.880, MOVED, True), (0.870, MOVED, False), (0.965, 1000, False), (0.975, 1000, True)])
def test_a_time_below_the_floor_is_refused(ms, held, ok):
    row = judged(ms, MOVED, GB_S, held, L2)
    assert row["ok"] == ok and ("refused" in row) != ok
    assert row["floor_ms"] == 1 and row["ratio_to_floor"] == ms
    assert row.get("cached") == (None if held is None else {"bytes": min(held, L2), "l2_bytes": L2})


def test_what_a_cache_holds_may_take_no_time():
    assert judged(0.001, 16_000_000, GB_S, 16_000_000, L2)["ok"]
    assert not judged(0.001, 16_000_000, GB_S)["ok"]


def test_nothing_to_move():
    assert judged(0.001, 0, GB_S)["ratio_to_floor"] == math.inf


# Compared after timing, in PyTorch on the CPU.


@pytest.fixture
def tensors():
    """A routine's tensors on the CPU."""
    torch = pytest.importorskip("torch")
    from benchmarks.tensors import Tensors
    from refopt.catalog import ROUTINES

    def made(name, sizes=(1, 7, 300, 5000, 20_000)):
        random = torch.Generator().manual_seed(0)
        slots = {
            slot.name: [
                torch.full((1,), 0.9) if slot.scalar else torch.randn(size, generator=random).abs() for size in sizes]
            for slot in ROUTINES[name].slots if not slot.optional}
        return Tensors(ROUTINES[name], slots)

    return made


def stepper(values):
    """A step as right as the reference, on the tensors themselves."""

    def step(**hyper):
        from benchmarks.tensors import Tensors

        shared = Tensors(values.routine, {n: [x.numpy() for x in column] for n, column in values.slots.items()})
        shared.step_in_numpy(**hyper)

    return step


@pytest.mark.parametrize("name", ["adam", "lamb", "novograd", "momentum", "lars_momentum"])
def test_a_right_step_passes(tensors, name):
    values = tensors(name)
    found = values.differing_after(stepper(values))
    assert found["ok"] and found["differing_bytes"] == 0 and found["tensors_compared"] == 4


def test_a_wrong_step_is_found(tensors):
    """One that does nothing, one of other numbers, one that leaves the end of the largest tensor out."""
    for wrong in ("nothing", "numbers", "end"):
        values = tensors("adam")
        right = stepper(values)

        def step(wrong=wrong, values=values, right=right):
            last = values.slots["params"][-1][-1].clone()
            if wrong != "nothing":
                right(**({"lr": 2e-3} if wrong == "numbers" else {}))
            if wrong == "end":
                values.slots["params"][-1][-1] = last

        found = values.differing_after(step, most=1000)
        assert not found["ok"] and found["differing_bytes"], wrong


def test_a_step_of_nan_proves_nothing(tensors):
    values = tensors("adam")
    values.slots["grads"][0].fill_(math.nan)
    found = values.differing_after(stepper(values))
    assert found["differing_bytes"] == 0 and not found["ok"]


def test_large_tensors_are_compared_in_part(tensors):
    values = tensors("adam")
    assert values.differing_after(stepper(values), most=100)["elements_compared"] == 1 + 7 + 100 + 100
    assert tensors("lamb").sample(most=100).slots["params"][-1].numel() == 7
    with pytest.raises(ValueError, match="sample: expected a tensor of at most 100 elements, got none"):
        tensors("lamb", sizes=(200,)).sample(most=100)


def test_a_row_fails_with_what_was_compared():
    pytest.importorskip("torch")
    from benchmarks.plans import joined

    good, bad = {"differing_bytes": 0, "ok": True}, {"differing_bytes": 3, "ok": False}
    assert joined({"ok": True}, good)["ok"] and not joined({"ok": False}, good)["ok"]
    assert joined({"ok": True}, bad, good) == {"ok": False, "differing_bytes": 3}


def test_sections_that_fail_keep_their_rows(tmp_path, monkeypatch):
    """Rows that come one by one are saved one by one; a wrong one, or an error, fails the report."""
    pytest.importorskip("torch")
    from benchmarks import run

    def rows():
        yield {"ms": 1.0}
        yield {"ms": 2.0, "ok": False}
        raise RuntimeError("no more")

    sections = {"what": lambda copy, names: [("one", lambda: [{"ok": False}]), ("two", rows)]}
    monkeypatch.setattr(run, "SECTIONS", sections)
    monkeypatch.setattr(run, "copy_gb_s", lambda: 1000.0)
    monkeypatch.setattr(run, "begin", lambda *args: {})
    report = run.measured("what", [], tmp_path / "x.json")
    assert report["two"] == [{"ms": 1.0}, {"ms": 2.0, "ok": False}]
    assert "1 of 1 rows are wrong" in report["failures"]["one"] and "no more" in report["failures"]["two"]
    assert '"ms": 2.0' in (tmp_path / "x.json").read_text()


def test_hidden_time():
    """Compute from 0 to 4 and 6 to 8; copies from 1 to 3, 2 to 5 and 7 to 9: 1 to 4 and 7 to 8 are beside compute."""
    times = {"compute": [(0, 4), (6, 8), (9, 9)], "copy_in": [(1, 3), (7, 9)], "copy_out": [(2, 5)]}
    spans = [Span(Task(0, "run", stream, -1, (), frozenset(), frozenset()), *pair)
             for stream, pairs in times.items() for pair in pairs]
    assert hidden(spans) == 4
