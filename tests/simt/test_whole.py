"""What NumPy does with an array it does with an observed one, with the same answer; all that it takes is reported."""

from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

READS = {
    "sum of a row": lambda x: x[1].sum(), "least": lambda x: x.min(), "mean of columns": lambda x: x.mean(axis=0),
    "sine": lambda x: np.sin(x), "operator": lambda x: 2 * x[0] - x[1], "comparison": lambda x: (x > 2).any(),
    "dot": lambda x: np.dot(x, x.T), "matrix product": lambda x: x @ x.T, "loop": lambda x: [v + 1 for v in x[0]],
    "contains": lambda x: 3 in x, "list": lambda x: x.tolist(), "type": lambda x: x.astype(np.int64),
    "where": lambda x: np.where(x > 1, x, 0), "concatenation": lambda x: np.concatenate([x[0], x[1]]),
    "asarray": lambda x: np.asarray(x, np.float64), "mask": lambda x: x[x > 2], "list of indices": lambda x: x[[1, 0]],
    "reduction": lambda x: np.add.reduce(x, axis=1), "flat": lambda x: list(x.flat), "transposed": lambda x: x.T.sum(0),
    "unpacking": lambda x: [a + b for a, b, _ in x], "float": lambda x: float(x[0, 1:2].sum()),
    "maximum": lambda x: np.maximum(x[0], x[1]), "power": lambda x: x**2, "absolute": lambda x: abs(-x),
    "sorted": lambda x: np.sort(x, axis=None), "swapped": lambda x: x.swapaxes(0, 1)[1].copy(),
    "column": lambda x: x[:, 1].copy(), "new axis": lambda x: x[None, 0].shape, "ravelled": lambda x: x.T.ravel()[1],
    "reshaped": lambda x: x.T.reshape(-1)[1],
    "ravelled by columns": lambda x: x.ravel("F"), "reshaped by columns": lambda x: x.reshape(3, 2, order="F"),
    "attributes": lambda x: (len(x), x.size, x.ndim, *x.strides, *x.shape, x.nbytes, x.itemsize),
    "NumPy's integer": lambda x: x[np.int32(1)][np.uint8(2)], "in a slice": lambda x: x[np.int64(1) :, 0].copy(),
    "axes": lambda x: x.transpose(1, 0)[2, 1], "element": lambda x: x[1, 2], "diagonal": lambda x: x.diagonal(1),
    "squeezed": lambda x: x[:1].squeeze(0), "from the end": lambda x: x[-1, -2],
    "truth": lambda x: (bool(x[:1, :1]), bool(x[1:, 1:2])), "integer": lambda x: int(x[1, 2:].reshape(())),
    "number": lambda x: float(x[1, 2:].reshape(())), "index": lambda x: "abcdef"[x[0, :1].view(np.int32).reshape(())]}


def assign(x, value):
    x[0] = value


WRITES = {
    "out": lambda x, y: np.sin(x, y), "out by name": lambda x, y: np.add(x, 1, out=y),
    "row": lambda x, y: assign(y, x[1]), "in place": lambda x, y: y.__iadd__(x),
    "copyto": lambda x, y: np.copyto(y, x), "fill": lambda x, y: y.fill(3),
    "sort": lambda x, y: y.sort(), "slice": lambda x, y: y.__setitem__((slice(None), 1), x[:, 0]),
    "mask": lambda x, y: y.__setitem__(np.asarray(x) > 2, 9), "function": lambda x, y: np.cumsum(x, axis=1, out=y),
    "where": lambda x, y: np.sqrt(x, out=y, where=np.asarray(x) > 1)}


def run(body, *arrays, threads=1, **options):
    with simt.observe(**options) if options else nullcontext() as log:
        cuda.jit(body)[1, threads](*arrays)
    return log


def case(n=6):
    return np.arange(n, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", READS)
def test_reading_as_a_whole(name, order):
    answers = []
    read = simt.ptx_twin()(lambda x: answers.append(np.array(READS[name](x))))

    def body(x):
        read(x)

    for options in ({}, {"count": True}, {"watch": True}):
        run(body, np.array(case(), order=order), **options)
    assert all(answer.dtype == answers[0].dtype and np.array_equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", WRITES)
def test_writing_as_a_whole(name, order):
    answers = []
    write = simt.ptx_twin()(WRITES[name])

    def both(x, y):
        write(x, y)

    for options in ({}, {"count": True}, {"watch": True}):
        y = cuda.to_device(np.array(1 - case(), order=order))
        run(both, case(), y, **options)
        answers.append(y.copy_to_host().tolist())
    assert answers[0] == answers[1] == answers[2] != (1 - case()).tolist()


WATCHED = {f"{name}, written": (WRITES[name], lambda x, y: y.sum()) for name in WRITES if name != "sort"} | {
    f"{name}, read": (lambda x, y, name=name: READS[name](y), lambda x, y: y.__setitem__((1, 2), 7))
    for name in ("sum of a row", "sine", "operator", "where", "matrix product", "mask")}


@pytest.mark.parametrize(("one", "other"), WATCHED.values(), ids=WATCHED)
def test_what_is_taken_as_a_whole_is_watched(one, other):
    """One thread reads what another writes, one of them as a whole."""
    one, other = simt.ptx_twin()(one), simt.ptx_twin()(other)

    def body(x, y):
        if cuda.threadIdx.x:
            one(x, y)
        else:
            other(x, y)

    with pytest.raises(simt.DataRace):
        run(body, case(), case(), threads=2, watch=True)


def test_bytes_of_whole_arrays():
    """Those of what is taken, and no others."""
    x, y = cuda.to_device(case()), cuda.to_device(case())

    add = simt.ptx_twin()(lambda x, y: np.add(x[0], x[:, 1].sum(), y[1]))

    def body(x, y):
        add(x, y)

    log = run(body, x, y, watch=True)
    assert (log.bytes_read(x), log.bytes_written(x)) == (12 + 8, 0)
    assert (log.bytes_read(y), log.bytes_written(y), log.bytes_written(y[0])) == (0, 12, 0)


def test_reading_a_record_as_a_whole():
    answers = []
    read = simt.ptx_twin()(lambda r: answers.append(np.asarray(r).tolist()))

    def body(x):
        x[1]["b"] = 4
        read(x[1])

    for options in ({}, {"watch": True}):
        run(body, np.ones(2, [("a", np.int8), ("b", np.float32, (2,))]), **options)
    assert str(answers[0]) == str(answers[1])


def test_what_an_array_has_not():
    @simt.ptx_twin()
    def ask(x):
        with pytest.raises(AttributeError, match="no attribute speed"):
            x.speed  # noqa: B018
        with pytest.raises(TypeError, match="atomics"):
            np.add.at(x, 0, 1)

    run(lambda x: ask(x), case(), watch=True)


@pytest.mark.parametrize("dtype", [np.complex64, np.float32])
def test_parts_of_complex_numbers_are_views(dtype):
    @cuda.jit
    def kernel(x, part):
        i = cuda.threadIdx.x
        cuda.atomic.add(x.real, 0, 1)
        x.real[1 + i] = 2
        if part:
            imaginary(x)

    imaginary = simt.ptx_twin()(lambda x: cuda.atomic.add(x.imag, 0, 3))
    is_complex = dtype is np.complex64
    for watch in (False, True):
        x = np.zeros(3, dtype)
        with simt.observe(watch=watch):
            kernel[1, 2](x, is_complex)
        assert x.tolist() == [2 + 6j * is_complex, 2, 2]
        if watch:
            assert np.imag(x).tolist() == [6 * is_complex, 0, 0]
