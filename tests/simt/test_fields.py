"""Fields of records, and what is no access: watched, a kernel computes the same, and its defects are reported."""

from contextlib import nullcontext

import numpy as np
import pytest
from texts import executed

from refopt import simt
from refopt.simt import cuda

N = 8
POINT = np.dtype([("x", np.float32), ("y", np.int32), ("size", np.int64), ("item", np.int8), ("_p", np.uint16),
                  ("v", np.float32, (3,)), ("at", [("a", np.int16), ("T", np.float64)]),
                  ("many", [("b", np.int8)], (2,)), ("data", np.float64), ("base", np.int32),
                  ("put", np.int16)], align=True)
PLACES = [  # of element k, in every notation that Numba has
    "r.x[k]", "r['x'][k]", "r[k].x", "r[k]['x']", "r[k].size", "r['size'][k]", "r[k].item", "r._p[k]", "r[:].x[k]",
    "r.x[:][k]", "r['y'][k:][0]", "r[k:][0].y", "r.x[::-1][k]", "r.T.y[k]", "r[k].v[1]", "r[k]['v'][1]", "r.v[k, 1]",
    "r.v[k][1]", "r.v[k, 1:][0]", "r['v'][:, 1][k]", "r.at.a[k]", "r.at['a'][k]", "r['at'][k].a", "r[k].at.T",
    "r.at[k].T", "r[k]['at']['a']", "r[k].many[1].b", "r.many[k, 1].b", "r.x.view(np.int32)[k]",
    "r.reshape(2, 4)[k // 4, k % 4].x", "r.data[k]", "r[k].data", "r.base[k]", "r.put[k]"]
MEMORY = {"an argument": "given", "shared": "cuda.shared.array(8, POINT)", "local": "cuda.local.array(8, POINT)"}
CONSTANT = {"constant": "cuda.const.array_like(TABLE)", "captured": "TABLE"}
NO_ACCESS = [
    "r.shape[0] + r.x.size + r.size + len(r) + len(r.y) + r.x.strides[0] + r.x.itemsize + r.nbytes + r.v.ndim",
    "np.shape(r)[0] + np.size(r.x) + np.iscomplexobj(r.x) + np.isrealobj(r.y)",
    "r.y.ctypes.data - r.x.ctypes.data + r[1:].ctypes.data - r.ctypes.data", "r.x.dtype.type(1.5) + r.itemsize"]


def records():
    return np.arange(N * POINT.itemsize, dtype=np.uint8).view(POINT)


def kernel(*lines, of="given"):
    body = "".join(f"    {line}\n" for line in (f"r = {of}", "k = cuda.grid(1)", *lines))
    scope = {"cuda": cuda, "np": np, "POINT": POINT, "TABLE": records()}
    return cuda.jit(executed(f"def kernel(given, out):\n{body}", **scope)["kernel"])[1, N]


def same(run, make=records):
    """What a kernel leaves in out, which is the same, as is its other argument, unobserved, observed and watched."""
    left = []
    for options in (None, {}, {"watch": True}):
        given, out = make(), np.zeros(N)
        with nullcontext() if options is None else simt.observe(**options):
            run(given, out)
        left.append((given.tobytes() if isinstance(given, np.ndarray) else b"", out.tolist()))
    assert left[0] == left[1] == left[2]
    return left[0][1]


def unwritten():
    return cuda.device_array(N, POINT)


@pytest.mark.parametrize("of", MEMORY)
@pytest.mark.parametrize("place", PLACES)
def test_a_field_is_written_and_read(place, of):
    assert same(kernel(f"{place} = 3 * k", f"{place} += 1", f"out[k] = {place}", of=MEMORY[of])) == [*range(1, 25, 3)]


@pytest.mark.parametrize("of", CONSTANT)
def test_a_field_of_a_constant(of):
    line = "out[k] = r.y[k] + r[k].item + r[k].at.a + r[k].many[1].b + r['v'][k, 1]"
    assert same(kernel(line, of=CONSTANT[of])) == same(kernel(line))


@pytest.mark.parametrize("place", PLACES)
def test_a_defect_at_a_field(place):
    """A race, an element out of bounds, and one that nobody has written."""
    for error, lines, make in ((simt.DataRace, ["k = 1 + k % 1", f"{place} = cuda.grid(1)"], records),
                               (simt.OutOfBounds, ["k += 1", f"out[k - 1] = {place}"], records),
                               (simt.UninitializedRead, [f"out[k] = {place}"], unwritten)):
        with pytest.raises(error) as caught, simt.observe(watch=True):
            kernel(*lines)(make(), np.zeros(N))
        assert caught.value.array == "given"


@pytest.mark.parametrize("text", NO_ACCESS)
def test_addresses_and_metadata_are_no_reads(text):
    """Another thread writes the elements, and nobody has before."""
    same(kernel("if k == 0:", "    r.x[0], r.y[1] = 1, 1", "else:", f"    out[k] = {text}"), unwritten)
