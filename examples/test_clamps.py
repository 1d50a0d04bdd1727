"""A law of the pass in docs/adding-an-op.md: fusing clamps changes no bit of random programs."""

from hypothesis import given
from hypothesis import strategies as st
from program_cases import few, idempotent, programs, same_bits, untouched
from refopt.program.passes.clamps import fuse_clamps

from refopt.program import Op


def with_clamps(program, limits):
    """The program with the gradients of the backward ops clamped, to these limits in turn."""
    backward = [op for op in program.main if op.type == "backward"]
    grads = {name: program.vars[name] for op in backward for name in op.outputs["grads"]}
    dense = [name for name, var in grads.items() if not var.sparse and var.dtype == "float32"]
    attributes = [{"limit": limits[k % len(limits)]} for k in range(len(dense))]
    clamps = [Op("clamp", {"x": [g]}, {"out": [g]}, each, "communicate")
              for g, each in zip(dense, attributes, strict=True)]
    last = max(program.main.index(op) for op in backward) + 1
    return program.replace(main=[*program.main[:last], *clamps, *program.main[last:]])


@given(programs(), st.lists(st.sampled_from([0.25, 0.5]), min_size=1, max_size=3))
@few(25)
def test_fusing_clamps_changes_no_bit(program, limits):
    clamped = with_clamps(program, limits)
    for law in (untouched, same_bits, idempotent):
        law(fuse_clamps, clamped)
    by_limit = {op.attrs["limit"] for op in clamped.main if op.type == "clamp"}
    assert fuse_clamps(clamped).program.counts().get("clamp", 0) == len(by_limit)
