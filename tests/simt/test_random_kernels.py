"""Random kernels: by lanes, by threads and watched, the executor leaves the bits that an H200 has left.

`random_kernels/h200.npz` has what numba-cuda's kernels left on an H200, and which it refused to compile.
"""

import pytest
from texts import executed

from refopt import simt
from refopt.simt import cuda
from simt.random_kernels import record
from simt.random_kernels.inputs import COUNT
from simt.random_kernels.kernels import make

OFTEN = 60  # seeds that `make test` runs; `make test-long` runs all
H200 = record.load()
LENIENT = "float-range", "int32-overflow", "zero-division"  # rules that the kernels break on purpose

# Seeds for which the executor leaves other bits, by the reason.
DIFFERENT = {"undefined: a float beyond the range of the integer that it is converted to": [215, 364, 381],
             "undefined: signed overflow, of a sum that is compared": [60, 198],
             "undefined: signed overflow, of abs(int16 -32768)": [23, 383]}
EXPECTED = {seed: "differs" for seeds in DIFFERENT.values() for seed in seeds}


def outcome(seed):
    """What the executor makes of a kernel, beside the record, and the details."""
    with simt.replace_numba():
        case = make(seed)
        left = []
        try:
            kernel = executed(case.source)["kernel"]
            for options in (None, {"count": False}, {"watch": True, "lenient": LENIENT}):
                arrays = case.on_device(cuda)
                if options is None:
                    kernel[case.launch](*arrays, COUNT)
                else:
                    with simt.observe(**options):
                        kernel[case.launch](*arrays, COUNT)
                left.append(case.outputs(arrays))
        except Exception as error:
            return ("refused" if seed in H200.refused else "fails"), repr(error)
    if seed in H200.refused:
        return "accepted", H200.refused[seed]
    wrong = [text for got in left if (text := record.differing(got, H200.left[seed]))]
    return ("differs", wrong[0]) if wrong else ("equal", "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=() if seed < OFTEN else pytest.mark.slow) for seed in sorted(H200.left | H200.refused)])
def test_a_random_kernel(seed):
    found, details = outcome(seed)
    expected = EXPECTED.get(seed, "refused" if seed in H200.refused else "equal")
    assert found == expected, details or f"seed {seed} agrees with the record: remove it from DIFFERENT"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_a_gpu_leaves_the_record():
    """A few seeds; all are compared by `make random-kernels`, which writes the record again."""
    seeds = sorted(H200.left)[:12]
    assert record.measured(seeds) == {seed: H200.left[seed] for seed in seeds}
