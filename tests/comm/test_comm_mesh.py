"""Meshes: which ranks each communicator has, in order."""

import numpy as np
import pytest

from refopt.comm import CommError, Mesh, local


def members(axes, model=()):
    def rank(world):
        mesh = Mesh(world, axes, model)
        return dict(mesh.coordinates), {axis: group.members for axis, group in mesh.axes.items()}, mesh.data.members

    return local.run(rank, int(np.prod([*axes.values()])))


def test_the_last_axis_counts_fastest():
    found = members({"a": 2, "b": 3})
    assert [tuple(at.values()) for at, _, _ in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert found[4][1] == {"a": (1, 4), "b": (3, 4, 5)}
    assert found[4][2] == (0, 1, 2, 3, 4, 5)


def test_model_axes_keep_ranks_apart():
    found = members({"mp": 2, "dp": 2, "pp": 2}, model=["mp", "pp"])
    assert [data for _, _, data in found] == [(0, 2), (1, 3), (0, 2), (1, 3), (4, 6), (5, 7), (4, 6), (5, 7)]


def test_sums_go_along_an_axis():
    def rank(world):
        mesh, x = Mesh(world, {"a": 2, "b": 2}), np.full(1, 10.0**world.rank)
        mesh.axes["a"].all_reduce(x)
        return x[0]

    assert local.run(rank, 4) == [101, 1010, 101, 1010]


@pytest.mark.parametrize(("axes", "model", "error", "message"), [
    ({"a": 3}, (), ValueError, "Mesh: axes: expected sizes whose product is 2, got 3 = 3"),
    ({}, (), TypeError, "Mesh: axes: expected sizes by name, got {}"),
    ({"a": 2, "b": 0}, (), ValueError, "Mesh: axes: 'b': expected an integer of at least 1, got 0"),
    ({3: 2}, (), TypeError, "Mesh: axes"),
    ({"a": 2}, "a", TypeError, "Mesh: model: expected a sequence of names, got 'a'"),
    ({"a": 2}, ["b"], ValueError, r"Mesh: model\[0\]: expected one of a, got 'b'")])
def test_refused(axes, model, error, message):
    with pytest.raises(error, match=f"^{message}"):
        local.run(lambda world: Mesh(world, axes, model), 2)


def test_no_communicator():
    with pytest.raises(TypeError, match=r"^Mesh: world: expected a communicator of refopt\.comm, got None"):
        Mesh(None, {"a": 1})


@pytest.mark.parametrize(("first", "others", "message"), [
    (({"b": 2, "a": 2},), ({"a": 2, "b": 2},),
     "call 0: rank 0 has axes b: 2, a: 2, ranks 1, 2 and 3 have axes a: 2, b: 2"),
    (({"a": 4}, ["a"]), ({"a": 4},), r"call 1: rank 0 has model axes \('a',\), ranks 1, 2 and 3 have model axes \(\)"),
])
def test_ranks_have_the_same_axes_in_the_same_order(first, others, message):
    with pytest.raises(CommError, match=message):
        local.run(lambda world: Mesh(world, *(others if world.rank else first)), 4)
