"""Workloads have the published sizes, and scaling keeps what it promises."""

from math import prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refopt.catalog.workloads import WORKLOADS, Parameter, Workload, load

caps = st.integers(1, 10_000)
shapes = st.lists(st.integers(1, 5000), max_size=4).map(tuple)


@st.composite
def any_workload(draw):
    tensors = [Parameter(f"p{i}", shape) for i, shape in enumerate(draw(st.lists(shapes, max_size=8)))]
    return Workload("drawn", tuple(tensors), source="")


any_workload = st.one_of(any_workload(), st.sampled_from(list(WORKLOADS)).map(load))


SIZES = {"resnet50": (161, 25_557_032), "bert-large": (389, 334_092_288), "gpt2-xl": (580, 1_557_611_200),
         "llama-3-8b": (291, 8_030_261_248)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_published_sizes(name):
    workload = load(name)
    assert (workload.name, len(workload), workload.elements) == (name, *SIZES[name]) and workload.source
    assert len({tensor.name for tensor in workload.tensors}) == len(workload)


def test_shapes_that_a_total_does_not_tell():
    shapes = {tensor.name: tensor.shape for name in WORKLOADS for tensor in load(name).tensors}
    for name, shape in {
            "model.layers.31.self_attn.k_proj.weight": (1024, 4096),
            "model.layers.31.mlp.down_proj.weight": (4096, 14336),
            "transformer.h.47.mlp.c_fc.weight": (1600, 6400), "fc.weight": (1000, 2048),
            "encoder.layer.23.intermediate.dense.weight": (4096, 1024)}.items():
        assert shapes[name] == shape


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'resnet51'") as error:
        load("resnet51")
    assert all(name in str(error.value) for name in WORKLOADS)


@given(any_workload, caps)
def test_scaling(workload, cap):
    """It keeps names, order and ranks, meets the cap, empties nothing, and leaves small tensors whole."""
    scaled = workload.scaled(cap)
    for tensor, whole in zip(scaled.tensors, workload.tensors, strict=True):
        assert tensor.name == whole.name and 1 <= tensor.elements <= cap
        assert all(1 <= small <= large for small, large in zip(tensor.shape, whole.shape, strict=True))
        assert (tensor == whole) == (whole.elements <= cap)
    assert scaled.scaled(cap) == scaled


@given(shapes, caps)
@example((11,), 10)
@example((12, 3), 33)
def test_scaling_shrinks_no_further_than_needed(shape, cap):
    """One more step of the longest extent, with the others in proportion, would not fit."""
    (tensor,) = Workload("one", (Parameter("p", shape),), source="").scaled(cap).tensors
    if tensor.shape != shape:
        largest, n = max(shape), max(tensor.shape) + 1
        assert prod(max(1, extent * n // largest) for extent in shape) > cap


@pytest.mark.parametrize("cap", [0, -1])
def test_scaling_refuses_a_cap_below_one(cap):
    with pytest.raises(ValueError, match="at least 1"):
        load("resnet50").scaled(cap)


def test_zero_element_and_0d_tensors_stay():
    workload = Workload("odd", (Parameter("empty", (0, 7)), Parameter("scalar", ())), source="")
    assert workload.scaled(1) == workload
