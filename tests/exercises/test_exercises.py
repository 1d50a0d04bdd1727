"""The exercises: solutions pass, stubs and wrong answers fail and say why, notebooks are those of the solutions."""

import re
from types import SimpleNamespace

import needs
import numpy as np
import pytest
from refopt_exercises import Exercise, Verdict, cells, generate, solution, witness
from refopt_exercises import exercise as exercise_module
from refopt_exercises.arguments import on_device

from refopt import gpu, simt
from refopt.gpu import cuda
from refopt.gpu.cuda import Launch

from . import wrong_merged, wrong_one_kernel, wrong_steps
from .answers import answer

NAMES = solution.names()
DEAR = ("05", "10", "12", "17", "19", "21")  # whose pictures or cases take long
ONCE = [pytest.param(x, marks=[pytest.mark.slow] * x.startswith((*DEAR, "11", "15"))) for x in NAMES]
WRONG = wrong_one_kernel.WRONG | wrong_merged.WRONG | wrong_steps.WRONG


@pytest.mark.filterwarnings("error:.*NumPy's rules")
@pytest.mark.parametrize("name", ONCE)
def test_a_solution_passes(name):
    values = cells.run(generate.code(name, solved=True))
    verdicts = [value for value in values if isinstance(value, Verdict)]
    assert verdicts and all(verdict.ok for verdict in verdicts), verdicts
    same = r"(?m)^yours +(\S.*)\nreference +\1$"  # if not, run make exercises
    assert any(re.search(same, verdict.text) for verdict in verdicts), verdicts
    pictures = [value for value in values if isinstance(value, simt.Picture)]
    assert pictures and all(picture.alt.startswith(("Which threads of", "What one warp of")) for picture in pictures)


@pytest.mark.parametrize("name", ONCE)
def test_a_stub_fails_with_a_word(name):
    values = cells.run(generate.code(name))
    assert any(isinstance(value, Verdict) and value.text.startswith("Not yet. ") for value in values), values
    text = generate.notebook(name)
    assert ("FILL ME IN, about" in text or "CHANGE ME" in text) and "<details>" in text


@pytest.mark.slow  # two launches of many threads
@pytest.mark.parametrize("seed", [15, 35])
def test_exercise_21_has_the_order_of_the_table(seed):
    """With these values the order of the list has other bits."""
    exercise, step, module = solution.load("21_norm_and_step_in_two_launches")
    cases = {f"seed {seed}": module.arguments(70, 1100, 3, seed=seed)}
    verdict = Exercise(exercise.name, exercise.spec, cases, exercise.launch).check(step)
    assert verdict.ok, verdict.text


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_up_to_date(name):
    """If this fails, run make exercises."""
    assert generate.path(name).read_text() == generate.notebook(name)
    assert (generate.FOLDER / generate.header(name).link).is_file()


def test_the_index_is_up_to_date():
    """If this fails, run make exercises."""
    assert generate.INDEX.read_text() == generate.index()
    assert len(NAMES) >= 16 and sorted(map(generate.path, NAMES)) == sorted(generate.FOLDER.glob("*.ipynb"))


LESSONS = {
    "a shuffle in a condition":
        ("09_a_sum_by_shuffles",
         ["for level in range(5):\n    if lane < 16:\n        value += cuda.shfl_xor_sync(0xFFFF, value, 1 << level)\n"
          "if lane == 0:\n    sums[row] = value"], "(rule shuffle-lanes)",
         "All lanes of the mask have to come to a shuffle"),
    "arguments": ("09_a_sum_by_shuffles", ["sums[row] = cuda.shfl_xor_sync(value, 1)"], "pass mask, value, lane_mask"),
    "elements for bytes": ("12_many_tensors_one_launch", ["store_float32(p + start + 1, lr)"], "MisalignedAddress",
                           "Addresses count bytes: fp32 element i is at `p + 4 * i`."),
    "a store by an address":
        ("12_many_tensors_one_launch", ["p[start] = lr"], "does not compile", "`store_float32(p + 4 * i, value)`"),
    "a double that changes bits":
        ("03_grid_stride", ["for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):\n    new = mu * v[i] + g[i]\n"
                            "    v[i] = new\n    p[i] = p[i] - 1.0 * lr * new"],
         "Only the last bits differ: the kernel computes in fp64", "1.0 * lr * new"),
    "one block": ("03_grid_stride", ["p[0] = cuda.threadIdx.x"], "DataRace", "or let a single thread write")}


TOLD = {**{(name, kind): answers for name in NAMES for kind, answers in WRONG[name].items()},
        **{("21_norm_and_step_in_two_launches", kind): answers for kind, answers in wrong_steps.ORDERS.items()},
        **{(name, case): answers for case, (name, *answers) in LESSONS.items()}}


@pytest.mark.parametrize(("name", "kind"), [
    pytest.param(name, kind, id=f"{name}-{kind}", marks=[pytest.mark.slow] * (
        kind in ("slow", "atomic") or (name.startswith(DEAR) and kind not in LESSONS))) for name, kind in TOLD])
def test_a_wrong_answer_is_told_why(name, kind, tmp_path):
    fills, *words = TOLD[name, kind]
    exercise, wrong = answer(name, tmp_path, fills)
    verdict = exercise.check(wrong)
    assert not verdict.ok and all(expected in verdict.text for expected in words), verdict.text


def test_numbers_alone_are_compared_of_what_runs(tmp_path):
    """An access out of bounds ends the kernel. It has no mark in a picture, which says so."""
    exercise, wrong = answer("01_guard_the_tail", tmp_path, ["out[i] = k * x[i]"])
    assert exercise.compare(lambda x, out, k: None).text.endswith("needs `@cuda.jit` above it.")
    for verdict in exercise.compare(wrong), exercise.differences(wrong):
        assert not verdict.ok and "Not yet. Case: 72 elements" in verdict.text
        assert "OutOfBounds: index 72 is out of bounds" in verdict.text and "A GPU says nothing" in verdict.text
    drawn, words = exercise.picture(wrong), "Then it ended: index 72 is out of bounds for x, shape (72,), float32"
    assert drawn.alt.endswith(f" {words}.") and drawn.figure.get_suptitle() == words
    exercise, stub = answer("08_an_unreached_barrier", tmp_path, [None])
    assert re.search(r"Then it ended: .* Threads wait: 36 at line \d+, first", exercise.picture(stub).alt)


def test_threads_that_come_to_barriers_for_ever_are_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(witness, "SECONDS", 0.5)
    exercise, wrong = answer("06_a_sum_in_a_block", tmp_path, ["cuda.syncthreads()\nhalf *= 2", None])
    words = r"Endless: the answer ran for 0.5 s\nin kernel add_up, line .*\n.*\nThe threads do not end"
    assert re.search(words, exercise.check(wrong).text)


def test_an_element_that_many_threads_store_is_named(tmp_path):
    loop = "for level in range(5):\n    value += cuda.shfl_xor_sync(WARP, value, 1 << level)\nsums[row] = value"
    exercise, wasteful = answer("09_a_sum_by_shuffles", tmp_path, [loop])
    assert "Element 0 of sums is stored by 32 threads; one is enough." in exercise.check(wasteful).text
    assert "is stored by" not in exercise.check(solution.load("09_a_sum_by_shuffles").answer).text


@pytest.mark.parametrize(("name", "array", "stub", "solved"), [
    ("05_columns_to_rows", "x", "load 0: 32 elements, 32 sectors", "load 0: 32 elements, 4 sectors"),
    ("10_the_crowded_bank", "shared", "load 6: 1 bank, 32 turns", "load 6: 32 banks, 1 turn;")])
def test_requests_of_a_warp_are_drawn(name, array, stub, solved, tmp_path):
    exercise, right, _ = solution.load(name)
    assert solved in exercise.requests(right, array).alt
    assert stub in exercise.requests(answer(name, tmp_path, [None])[1], array).alt
    assert "nothing to draw" in exercise.requests(right, "nobody").text


def test_lanes_that_load_one_word_share_a_turn():
    @cuda.jit
    def first(out):
        shared, t = cuda.shared.array(32, np.float32), cuda.threadIdx.x
        shared[t] = out[t]
        cuda.syncthreads()
        out[t] = shared[0]

    exercise = Exercise("", lambda out: None, {"32": (np.zeros(32, np.float32),)}, lambda kernel, x: kernel[1, 32](x))
    assert exercise.requests(first, "shared").alt.endswith("store 0: 32 banks, 1 turn; load 1: 1 bank, 1 turn.")


@pytest.fixture
def on_gpu(monkeypatch):
    """The executor stands for a GPU: for each use of a machine, whether it is of the GPU."""
    uses = []
    machine = SimpleNamespace(device=lambda: SimpleNamespace(name="gpu"),
                              use=lambda name: (uses.append(name == "gpu"), gpu.use("executor"))[1])
    monkeypatch.setattr(exercise_module, "gpu", machine)
    monkeypatch.setattr(witness, "gpu", machine)
    return uses


def test_a_gpu_is_asked_for_its_bits(on_gpu):
    """An answer that is right on the executor and not on a GPU."""
    exercise, right, _ = solution.load("01_guard_the_tail")

    def launch(kernel, *args):
        if not on_gpu[-1]:
            exercise.launch(kernel, *args)

    assert exercise.check(right).ok and any(on_gpu)
    other = Exercise(exercise.name, exercise.spec, exercise.cases, launch)
    assert "Case: 72 elements, 3 blocks, on the GPU." in other.check(right).text


@pytest.mark.usefixtures("on_gpu")
def test_an_answer_is_timed_on_a_gpu():
    """Beside a copy and the solution, on large arguments."""
    exercise, right, module = solution.load("01_guard_the_tail")
    asked = exercise.name, exercise.spec, exercise.cases, exercise.launch
    words = Exercise(*asked, large=lambda: module.arguments(7200)).check(right).text.splitlines()[-1]
    assert re.fullmatch(r"Your kernel: \d+\.\d{3} ms for 0\.1 MB, \d+% of the speed of a copy, \d+% of that of the "
                        r"reference solution\.", words), words
    assert "Your kernel" not in Exercise(*asked).check(right).text


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_has_its_bits_on_a_gpu(name):
    assert (verdict := solution.load(name).exercise.check(solution.load(name).answer)).ok, verdict.text


@pytest.mark.parametrize("name", [  # one of refopt's kernels; the others compile in make test-long
    pytest.param(x, marks=[pytest.mark.slow] * (x != "16_lion_as_a_rule")) for x in NAMES])
def test_a_solution_compiles_to_what_it_says(name, monkeypatch):
    """For a GPU, without one: each kernel of a solution compiles, and the compiler changes no bit."""
    needs.compiler()
    exercise, right, _ = solution.load(name)
    launches, call = [], Launch.__call__

    def noted(launch, stream=0):
        launches.append(launch)
        call(launch, stream)

    monkeypatch.setattr(Launch, "__call__", noted)
    with gpu.use("executor"):
        exercise.launch(right, *on_device(next(iter(exercise.cases.values()))))
    kernels = {launch.kernel: launch.args for launch in launches}
    assert kernels or name == "19_a_pass"  # which launches refopt's own kernels
    assert [kernel.inexact(*args) for kernel, args in kernels.items()] == [[]] * len(kernels)
