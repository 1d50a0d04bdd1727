"""Coalescing: where tensors lie in the buffer, that views share its memory, and what padding holds."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu, gpu, simt
from refopt.checks import flat
from refopt.checks.dtypes import ITEM_SIZES, SIZES, numpy_dtype
from refopt.gpu import coalesce as gpu_coalesce
from refopt.oracle.exact.build import dense
from refopt.oracle.exact.placed import Placed

RECORDED = np.load(Path(__file__).parents[1] / "golden" / "coalesce_tensor.npz")
CASES = json.loads(str(RECORDED["meta"]))["cases"]
ATTRIBUTES = ("align_size", "use_align", "copy_data", "set_constant", "constant")

# The layout.


def recorded(case):
    tensors = range(CASES[case]["tensors"])
    return [[RECORDED[f"{case}/{side}/{i}"] for i in tensors] for side in ("in/input", "out/output")]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_views_are_those_of_paddle(machine, case):
    """What its operator put into each tensor."""
    inputs, outputs = recorded(case)
    attributes = {name: CASES[case][name] for name in ATTRIBUTES}
    here = cpu.coalesce_tensor(inputs, **attributes)
    there = gpu.coalesce_tensor([machine.to_device(x) for x in inputs], **attributes)
    machine.synchronize()
    for i, output in enumerate(outputs):
        assert here.views[i].tobytes() == output.tobytes()
        assert there.views[i].copy_to_host().tobytes() == output.tobytes()
    assert here.offsets.tolist() == there.offsets.tolist() == CASES[case]["offsets"]
    assert here.layout.total == there.layout.total == CASES[case]["total"]


@given(sizes=st.lists(st.one_of(st.integers(1, 300), st.sampled_from([64, 128, 256, 512])), max_size=8),
       itemsize=st.sampled_from([1, 2, 4, 8]), factor=st.integers(1, 70), unit=st.sampled_from(["bytes", "elements"]))
def test_layout_laws(sizes, itemsize, factor, unit):
    """Order kept, no overlap, every offset aligned, less than one alignment of padding."""
    made = cpu.layout(sizes, itemsize, factor * itemsize if unit == "bytes" else factor, unit)
    ends = made.offsets + made.lengths
    assert made.offsets.tolist() == [0, *ends.tolist()][: len(sizes)]
    assert made.total == (ends[-1] if sizes else 0) and all(offset % factor == 0 for offset in made.offsets)
    assert all(size <= length < size + factor for size, length in zip(sizes, made.lengths, strict=True))


@pytest.mark.parametrize(("error", "arguments", "message"), [
    (ValueError, ([3, 0], 4), "sizes[1]: expected an integer of at least 1, got 0"),
    (ValueError, ([3], 4, 6), "align: expected a multiple of the element's 4 bytes, got 6"),
    (ValueError, ([3], 4, 0), "align: expected a multiple of"),
    (ValueError, ([3], 0, 4), "itemsize: expected an integer of at least 1, got 0"),
    (ValueError, ([3], 4, 4, "bits"), "align_unit: expected one of bytes, elements, got 'bits'"),
    (ValueError, ([1, 2**63], 1), "sizes[1]: expected an end, padded, below 2**63 bytes, got 9223372036854775809"),
    (ValueError, ([2**62, 1, 2**62], 1), "sizes[2]: expected an end, padded, below"),
    (ValueError, ([1] * 4, 1, 2**62), "sizes[1]: expected an end, padded, below 2**63 bytes, got 9223372036854775808"),
    (TypeError, ([2.5], 4), "sizes[0]: expected an integer of at least 1, got 2.5"),
    (TypeError, ([3], 4.0), "itemsize: expected an integer of at least 1, got 4.0"),
    (TypeError, ([3], 4, 8.0), "align: expected an integer, got 8.0")])
def test_layout_refuses(error, arguments, message):
    with pytest.raises(error, match=f"^layout: {re.escape(message)}"):
        cpu.layout(*arguments)


def test_layout_takes_integers_of_any_kind():
    made = cpu.layout(np.array([3, 5], np.uint8), np.int64(4), np.int32(256))
    assert made.offsets.tolist() == [0, 64] and made.total == 128 and type(made.total) is int
    most = cpu.layout((n for n in (2**62, 2**62 - 1)), 1)
    assert most.offsets.tolist() == [0, 2**62] and most.total == 2**63 - 1


# The same on the CPU and on a device.


def on(machine, values):
    """Copies on the device, in the same axis orders."""
    if machine.name == "executor":
        return [x if x is None else Placed(machine, x).array for x in values]
    return [x if x is None else machine.to_device(x) for x in values]


def plus_one(arrays):
    return [np.asarray(x + x.dtype.type(1)) for x in arrays]


def both(machine, inputs, outputs=None, **attributes):
    """Coalesced here and there, by the device's alignment, which must agree in every bit."""
    lists = {} if outputs is None else {"outputs": outputs}
    unit = attributes.get("align_unit", "bytes")
    here = cpu.coalesce_tensor(inputs, **lists, **{"align_size": gpu_coalesce.CHUNK[unit]} | attributes)
    there_lists = {name: on(machine, values) for name, values in lists.items()}
    with gpu.use(machine.name):
        there = gpu.coalesce_tensor(on(machine, inputs), **there_lists, **attributes)
    machine.synchronize()
    assert_alike(here, there)
    return here, there


def assert_alike(here, there):
    assert there.buffer.dtype == here.buffer.dtype and there.buffer.copy_to_host().tobytes() == here.buffer.tobytes()
    assert there.offsets.tolist() == here.offsets.tolist()
    for x, y in zip(here.views, there.views, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and x.tobytes() == y.copy_to_host().tobytes()
        assert [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1] == [
            s for s, n in zip(y.strides, y.shape, strict=True) if n > 1]


def padding(made):
    """Where the buffer belongs to no view."""
    outside = np.ones(made.layout.total, bool)
    for offset, view in zip(made.offsets, made.views, strict=True):
        outside[offset : offset + view.size] = False
    return outside


@st.composite
def tensors(draw, dtypes=tuple(ITEM_SIZES), least=1):
    """Tensors of one dtype, of at least one element each, in any axis order, of any bits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(dtypes))
    made = []
    for _ in range(draw(st.integers(least, 5))):
        shape = draw(st.one_of(st.lists(st.integers(1, 9), max_size=4), st.sampled_from([[64], [128], [16, 8], [300]])))
        order = draw(st.permutations(range(len(shape))))
        values = np.frombuffer(rng.bytes(math.prod(shape) * ITEM_SIZES[dtype]), numpy_dtype(dtype))
        values = rng.integers(0, 2, values.size).astype(bool) if dtype == "bool" else values.copy()
        made.append(dense(values, tuple(shape), tuple(order)))
    return made


ALIGNMENTS = st.sampled_from([{}, {"use_align": False}, {"align_size": 8}, {"align_size": 64},
                              {"align_size": 3, "align_unit": "elements"}])


@given(inputs=tensors(), attributes=ALIGNMENTS)
def test_round_trip_is_the_identity(machine, inputs, attributes):
    """In and out again: every bit of every tensor, and padding of zeros, for any dtype, axis order and alignment."""
    for made, there in zip(both(machine, inputs, copy_data=True, **attributes), (False, True), strict=True):
        assert made.buffer.dtype == inputs[0].dtype
        buffer = made.buffer.copy_to_host() if there else made.buffer
        assert not buffer[padding(made)].view(np.uint8).any()
        back = [np.zeros_like(x) for x in inputs]
        targets = on(machine, back) if there else back
        made.scatter(targets)
        machine.synchronize()
        back = [x.copy_to_host() for x in targets] if there else back
        assert [x.tobytes() for x in back] == [x.tobytes() for x in inputs]


@given(inputs=tensors())
def test_views_are_the_buffer(machine, inputs):
    """What is written to a view is in the buffer at its offset, in the tensor's memory order, and the other way."""
    here, there = both(machine, inputs)
    assert not here.buffer.view(np.uint8).any()
    views, buffer = here
    assert views is here.views and buffer is here.buffer
    for i, (x, offset) in enumerate(zip(inputs, here.offsets, strict=True)):
        assert np.shares_memory(views[i], buffer)
        views[i][...] = x
        assert buffer[offset : offset + x.size].tobytes() == flat(x).tobytes()
        gpu.merged_cast(on(machine, [x]), [there.views[i]])
    assert_alike(here, there)
    buffer.view(np.uint8)[...] = np.arange(1, buffer.nbytes + 1, dtype=np.uint8) & 1
    gpu.merged_cast(on(machine, [buffer]), [there.buffer])
    assert_alike(here, there)


@given(inputs=tensors(tuple(SIZES)), attributes=ALIGNMENTS, scale=st.sampled_from([1.0, 0.37]))
def test_padding_reaches_nothing(machine, inputs, attributes, scale):
    """NaN in the padding: gathering does not remove it, and scattering brings none of it out."""
    with np.errstate(invalid="ignore"):
        inputs = [np.where(x == x, x, x.dtype.type(1)) for x in inputs]
    for made, there in zip(both(machine, inputs, **attributes), (False, True), strict=True):
        if there:
            gpu.merged_cast(on(machine, [np.full(made.layout.total, np.nan, made.buffer.dtype)]), [made.buffer])
        else:
            made.buffer[...] = np.nan
        targets = [np.zeros_like(x) for x in inputs]
        sources, targets = (on(machine, x) if there else x for x in (inputs, targets))
        made.gather(sources, scale=scale)
        made.scatter(targets)
        machine.synchronize()
        assert np.isnan(made.buffer.copy_to_host() if there else made.buffer).tolist() == padding(made).tolist()
        wanted = [np.zeros_like(x) for x in inputs]
        cpu.merged_cast(inputs, wanted, scale=scale)
        got = [x.copy_to_host() for x in targets] if there else targets
        assert [x.tobytes() for x in got] == [x.tobytes() for x in wanted]


# The attributes.

RNG = np.random.default_rng(0)
INPUTS = [RNG.normal(size=shape).astype(np.float32) for shape in ((20, 3), (20,), (1,), (64,), (128,), ())]


@pytest.mark.parametrize(("dtype", "constant"), [("int8", -128), ("int8", 127), ("uint8", 255), ("bool", True),
                                                 ("int64", 2**63 - 1), ("uint64", 2**64 - 1), ("int64", 2**53 + 1)])
def test_constants_at_the_ends_of_a_dtype(dtype, constant):
    made = cpu.coalesce_tensor([None], shapes=[(1,) * 64], dtype=dtype, set_constant=True, constant=constant)
    assert made.views[0].ndim == 64 and (made.buffer == constant).all()


@pytest.mark.parametrize("dtype", ITEM_SIZES)
@pytest.mark.parametrize("use_align", [True, False])
def test_constant_fills_the_padding_too(machine, dtype, use_align):
    inputs = [np.zeros(n, numpy_dtype(dtype)) for n in (3, 64, 5, 1)]
    constant = 1 if dtype == "bool" else 3.0 if dtype not in SIZES else 0.1
    here, _ = both(machine, inputs, set_constant=True, constant=constant, use_align=use_align)
    assert here.buffer.size == (73 if not use_align else 256 // ITEM_SIZES[dtype] * (4 + (ITEM_SIZES[dtype] == 8)))
    assert (here.buffer == numpy_dtype(dtype).type(constant)).all()


def test_constant_is_rounded_once(machine):
    """From fp64 to bfloat16 without fp32 in between."""
    inputs = [np.zeros(40001, numpy_dtype("bfloat16"))]  # several blocks, and bytes that make no whole word
    here, _ = both(machine, inputs, use_align=False, set_constant=True, constant=1 + 2**-8 + 2**-40)
    assert (here.buffer.astype(np.float32) == 1 + 2**-7).all()


def test_what_goes_in_first(machine):
    """copy_data before set_constant before persist_output; with none of them, zeros."""
    outputs = [None if i == 1 else x for i, x in enumerate(plus_one(INPUTS))]
    kept = [np.zeros_like(INPUTS[i]) if x is None else x for i, x in enumerate(outputs)]
    everything = dict(copy_data=True, set_constant=True, constant=0.5, persist_output=True)
    for leave_out, data, pad in (((), INPUTS, 0),
                                 (("copy_data",), [np.full_like(x, 0.5) for x in INPUTS], 0.5),
                                 (("copy_data", "set_constant"), kept, 0),
                                 (("copy_data", "set_constant", "persist_output"), [np.zeros_like(x) for x in INPUTS],
                                  0)):
        attributes = {name: value for name, value in everything.items() if name not in leave_out}
        here, _ = both(machine, INPUTS, outputs, **attributes)
        assert [x.tolist() for x in here.views] == [x.tolist() for x in data]
        assert (here.buffer[padding(here)] == pad).all()


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_cast_on_the_way(machine, dtype, scale):
    """The buffer's dtype and a scale, with the bits of a merged cast; the layout follows the buffer's dtype."""
    inputs = [x.astype(numpy_dtype(name)) for x, name in zip(INPUTS, [*SIZES, *SIZES], strict=False)]
    here, _ = both(machine, inputs, copy_data=True, dtype=dtype, scale=scale)
    wanted = [np.zeros(x.shape, numpy_dtype(dtype)) for x in inputs]
    cpu.merged_cast(inputs, wanted, scale=scale)
    assert [x.tobytes() for x in here.views] == [x.tobytes() for x in wanted]
    assert (here.offsets % (256 // SIZES[dtype]) == 0).all()


@pytest.mark.parametrize("module", [cpu, gpu])
def test_default_alignment(module):
    """The smallest piece of memory of a device, in bytes, or in elements as the first version had it."""
    with gpu.use("executor"):
        inputs = [np.ones(3, np.float32)] * 2 if module is cpu else [gpu.to_device(np.ones(3, np.float32))] * 2
    for unit, offset in zip(("bytes", "elements"), {cpu: (1024, 16384), gpu: (64, 256)}[module], strict=True):
        assert module.coalesce_tensor(inputs, align_unit=unit).offsets.tolist() == [0, offset]


def test_size_of_dtype_is_for_the_layout_alone(machine):
    """2 with fp32 data pads to 128 elements, as Paddle's own test has it."""
    here, _ = both(machine, INPUTS, copy_data=True, size_of_dtype=2)
    assert here.layout.lengths.tolist() == [128] * 6
    assert [x.tobytes() for x in here.views] == [x.tobytes() for x in INPUTS]
    with pytest.raises(ValueError, match=r"^coalesce_tensor: align_size: expected a multiple of the element's 3"):
        cpu.coalesce_tensor(INPUTS, size_of_dtype=3)


def test_shapes_of_what_is_not_there_yet(machine):
    shapes = [x.shape for x in INPUTS]
    absent = [None, *INPUTS[1:]]
    here, _ = both(machine, absent, copy_data=True, shapes=shapes)
    assert [x.shape for x in here.views] == shapes
    assert not here.views[0].any() and here.views[1].tolist() == INPUTS[1].tolist()
    both(machine, absent, shapes=[shapes[0]] + [None] * 5)
    here, there = both(machine, [None, None], shapes=[[2, 3], ()], dtype=np.float16)
    assert [x.shape for x in there.views] == [(2, 3), ()] and here.buffer.dtype == np.float16


# Ways in and out, again and again.


def test_gather_and_scatter(machine):
    """Any dtype of tensors, a new scale at each call, None left alone, other tensors later."""
    here, there = both(machine, INPUTS)
    some = [None if i == 2 else x.astype(np.float16 if i % 2 else np.float64) for i, x in enumerate(INPUTS)]
    placed = on(machine, some)
    here.gather(some, scale=3.0)
    there.gather(placed, scale=3.0)
    assert_alike(here, there)
    factor = np.full(1, 0.7)
    on_device = machine.to_device(factor)
    arrays = on(machine, INPUTS)
    for scale, its in ((factor, on_device), (factor, on_device), (2.0, 2.0), (factor, on_device)):
        here.gather(INPUTS, scale=scale)
        there.gather(arrays, scale=its)
        assert_alike(here, there)
    for scale in (1, 2.0):
        here.scatter(some, scale=scale)
        there.scatter(placed, scale=scale)
    got = [x if x is None else x.copy_to_host() for x in placed]
    assert [None if x is None else x.tobytes() for x in some] == [None if x is None else x.tobytes() for x in got]


def test_launches_and_bytes(executor):
    """One fill; then one launch for each pair of dtypes, planned once; no race and no byte beyond the tensors'."""
    inputs = on(executor, [x.astype(np.float16 if i % 2 else np.float32) for i, x in enumerate(INPUTS)])
    with simt.observe(watch=True) as log:
        made = gpu.coalesce_tensor(inputs, copy_data=True, dtype="float32", scale=0.5)
    assert [launch.kernel for launch in log.launches] == ["fill", "merged_cast", "merged_cast"]
    assert log.bytes_written(made.buffer) == made.buffer.nbytes + sum(4 * x.size for x in INPUTS)
    plans = []
    for scale in (1.0, 0.5, 1.0):
        with simt.observe(watch=True) as log:
            made.gather(inputs, scale=scale)
            made.scatter(inputs, scale=scale)
        assert len(log.launches) == 4
        assert log.bytes_written(made.buffer) == log.bytes_read(made.buffer) == sum(4 * x.size for x in INPUTS)
        plans.append([id(plan) for _, plan in made._plans.values()])
        assert all(made.plan(way) is made._plans[way][1] for way in ("gather", "scatter"))
    assert plans[0] == plans[1] == plans[2]


# Errors.

A, B, BYTES = np.ones(3, np.float32), np.ones((2, 2), np.float32), np.ones(3, np.int8)
REFUSED = {
    "inputs: expected a list of arrays, got int": (TypeError, 3, {}),
    "inputs: expected at least one tensor, got none": (ValueError, [], {}),
    "inputs[1]: expected at least one element, since a view of none has no place in the buffer, got shape (2, 0)":
        (ValueError, [A, np.ones((2, 0), np.float32)], {}),
    "inputs[1]: expected float32, as inputs[0] has, got float16": (TypeError, [A, A.astype(np.float16)], {}),
    "inputs[0]: expected one of float16, bfloat16, float32, float64 for a buffer of float32, got int32":
        (TypeError, [np.ones(3, np.int32)], dict(dtype="float32")),
    "inputs[0]: expected int32 for a buffer of int32, got float32": (TypeError, [A], dict(dtype="int32")),
    "inputs[0]: expected one of float16,": (TypeError, [np.ones(3, np.complex64)], {}),
    "outputs[0]: expected float32, as inputs[0] has, got float16": (TypeError, [A], dict(outputs=[A.astype("f2")])),
    "outputs: expected 1 entries, as inputs has, got 2": (ValueError, [A], dict(outputs=[A, A])),
    "outputs[0]: expected shape (3,), as inputs[0] has, got (2, 2)": (ValueError, [A], dict(outputs=[B])),
    "outputs: expected a list of arrays, whose contents are to persist": (TypeError, [A], dict(persist_output=True)),
    "shapes: expected 2 entries, as inputs has, got 1": (ValueError, [A, None], dict(shapes=[(3,)])),
    "shapes[1]: expected a shape, since inputs[1] is None, got None": (TypeError, [A, None], {}),
    "shapes[0]: expected (3,), as inputs[0] has, got (4,)": (ValueError, [A], dict(shapes=[(4,)])),
    "shapes[0][0]: expected an integer, got True": (TypeError, [None], dict(shapes=[(True, 3)], dtype="float32")),
    "inputs[1]: expected an end, padded, below": (ValueError, [np.ones(1, np.uint8)] * 4, dict(align_size=2**62)),
    "size_of_dtype: expected a buffer below 2**63 bytes, got 4611686018427387904 of float32":
        (ValueError, [A], dict(align_size=2**62, size_of_dtype=1)),
    "constant: expected a number of int8, got 128": (ValueError, [BYTES], dict(set_constant=True, constant=128)),
    "alignsize: expected one of scale, dtype, outputs, shapes, copy_data, set_constant, constant, persist_output, "
    "use_align, align_size, align_unit, size_of_dtype": (TypeError, [A], dict(alignsize=3)),
    "dtype: expected a dtype, since no input has one": (TypeError, [None], dict(shapes=[(3,)])),
    "dtype: expected one of float16,": (TypeError, [A], dict(dtype="complex64")),
    "align_size: expected -1 or an integer of at least 1, got 0": (ValueError, [A], dict(align_size=0)),
    "size_of_dtype: expected -1 or an integer of at least 1, got 2.0": (ValueError, [A], dict(size_of_dtype=2.0)),
    "constant: expected a number of int8, got 0.5": (ValueError, [BYTES], dict(set_constant=True, constant=0.5)),
    "scale: expected a finite float32, got inf": (ValueError, [A], dict(copy_data=True, scale=math.inf)),
    "inputs[0]: expected one of float16, bfloat16, float32, float64 to scale, got int8":
        (TypeError, [BYTES], dict(copy_data=True, scale=2.0))}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(machine, message):
    error, inputs, attributes = REFUSED[message]
    match = f"^coalesce_tensor: {re.escape(message)}"
    with pytest.raises(error, match=match):
        cpu.coalesce_tensor(inputs, **attributes)
    there = dict(attributes, outputs=on(machine, attributes["outputs"])) if "outputs" in attributes else attributes
    with gpu.use(machine.name), pytest.raises(error, match=match):
        gpu.coalesce_tensor(on(machine, inputs) if isinstance(inputs, list) else inputs, **there)


def test_refuses_what_is_not_dense():
    with pytest.raises(ValueError, match=r"^coalesce_tensor: inputs\[0\]: expected a dense array"):
        cpu.coalesce_tensor([np.ones(8, np.float32)[::2]])


@pytest.mark.parametrize("way", ["gather", "scatter"])
@pytest.mark.parametrize(("error", "given", "message"),
                         [(TypeError, 3, "tensors: expected a list of arrays, got int"),
                          (ValueError, [A], "tensors: expected 2 entries, as coalesced, got 1"),
                          (ValueError, [A, A], r"tensors\[1\]: expected shape \(2, 2\), as coalesced, got \(3,\)"),
                          (TypeError, [A, B.astype(np.int32)], r"(tensors|views)\[1\]: expected ")])
def test_ways_refuse(machine, way, error, given, message):
    for made, there in zip(both(machine, [A, B], copy_data=True), (False, True), strict=True):
        with pytest.raises(error, match=f"^{way}: {message}"):
            getattr(made, way)(on(machine, given) if there and isinstance(given, list) else given)
        buffer = made.buffer.copy_to_host() if there else made.buffer
        assert buffer.sum() == 7


def test_copies_run_on_the_stream_that_is_set(machine):
    """Those that are planned already, too."""
    inputs = [machine.to_device(np.arange(n, dtype=np.float32)) for n in (3, 300)]
    coalesced, stream = gpu.coalesce_tensor(inputs), machine.new_stream()
    coalesced.gather(inputs)
    coalesced.stream = stream
    coalesced.gather(inputs)
    assert coalesced.stream == coalesced.plan("gather").stream == machine.stream(stream)
    machine.synchronize()
    assert coalesced.views[1].copy_to_host()[-1] == 299


@pytest.mark.parametrize("way", ["gather", "scatter"])
def test_tensors_of_the_time_before_are_not_looked_at_again(monkeypatch, way):
    """Others are, at whatever place."""
    with gpu.use("executor"):
        tensors = [gpu.to_device(np.ones(3, np.float32)) for _ in range(4)]
        flat = gpu.coalesce_tensor(tensors[:3])
    move, describe, seen = getattr(flat, way), flat._describe, []
    move(tensors[:3])
    monkeypatch.setattr(flat, "_describe", lambda x, where: (seen.append(where), describe(x, where))[1])
    move(tensors[:3])
    assert not seen
    move([*tensors[:2], tensors[3]])
    assert len(seen) == 3
    tensors[3].copy_to_device(np.full(3, 7, np.float32))
    move([tensors[3], *tensors[1:3]])
    target, value = (flat.views[0], 7) if way == "gather" else (tensors[3], 0)  # of a buffer that nothing was put into
    assert target.copy_to_host()[0] == value
