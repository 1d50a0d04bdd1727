"""Muon: the bits of `cpu.merged_muon`, steps beside PyTorch's class, states of both, blocks, and what is refused.

test_captured.py has steps in graphs.
"""

import copy
import io
import re

import numpy as np
import pytest

from pytorch.subjects import LR, MATRICES, all_bits, class_of, drawn, theirs, torch
from pytorch.trials import in_turn, new_gradients, parameters, steps, synchronise
from refopt import cpu
from refopt.cpu import Blocks
from refopt.cpu.muon import COEFFICIENTS
from refopt.torch.arrays import array_of
from refopt.torch.formulas import plain

SCHEDULE = (1.5, -0.5, 0.0), COEFFICIENTS
NAMES = {"lr": "lr", "weight_decay": "weight_decay", "mu": "momentum", "epsilon": "eps", "use_nesterov": "nesterov",
         "coefficients": "ns_coefficients", "iterations": "ns_steps", "restarts": "restarts", "compute": "compute"}


def made(params, kind=class_of, **options):
    return kind("Muon")(params, **{"lr": LR, "ns_steps": 1} | options)


def host(tensors):
    return [None if x is None else array_of(x).copy_to_host() for x in tensors]


def grouped(params):
    return [{"params": params[:1]}, {"params": params[1:], "lr": 0.25}]


def by_reference(params, optimizer, numbers):
    """Parameters and momenta after steps of `cpu.merged_muon`, group by group."""
    found = []
    for group in optimizer.param_groups:
        mine = host(group["params"])
        velocities = [np.zeros_like(x, order="K") for x in mine]
        given = {ours: plain(group[name]) for ours, name in NAMES.items()}
        given |= {"adjust_lr": group["adjust_lr_fn"] or "original", "blocks": Blocks(*group["blocks"])}
        found.append((group, mine, velocities, given))
    for step in numbers:
        new_gradients(params, step)
        for group, mine, velocities, given in found:
            cpu.merged_muon(mine, host([p.grad for p in group["params"]]), velocities, **given)
    return [x.tobytes() for _, *lists, _ in found for xs in lists for x in xs]


def bytes_of(optimizer):
    groups = [[p for p in group["params"]] for group in optimizer.param_groups]
    lists = [xs for params in groups for xs in (params, [optimizer.state[p]["momentum_buffer"] for p in params])]
    return [x.tobytes() for xs in lists for x in host(xs)]


@pytest.mark.parametrize("options", [
    {"nesterov": False, "momentum": 0.5}, {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
    {"adjust_lr_fn": "spectral_unclamped"}, {"adjust_lr_fn": "none"},
    {"ns_steps": 2, "ns_coefficients": SCHEDULE},
    {"ns_steps": 2, "ns_coefficients": [[*x] for x in SCHEDULE]}, {"compute": "float32"},
    {"ns_steps": 3, "ns_coefficients": "you", "restarts": [2], "compute": "float16"},
    {"eps": 1e3, "lr": torch.tensor(0.5)}], ids=str)
def test_the_bits_are_those_of_the_reference(options):
    """In groups with numbers of their own, after two steps."""
    params = parameters(MATRICES)
    optimizer = made(grouped(params), **options)
    expected = by_reference(params, optimizer, range(2))
    steps(optimizer, params, range(2))
    assert bytes_of(optimizer) == expected


each_of_pytorchs_ratios = pytest.mark.parametrize("ratio", [None, "match_rms_adamw", pytest.param(
    "spectral_unclamped", marks=pytest.mark.skipif("spectral_unclamped" not in str(theirs("Muon").__doc__),
                                                   reason="this PyTorch has no such ratio"))])


@each_of_pytorchs_ratios
@pytest.mark.parametrize("taken", [0, 2])
def test_states_are_exchanged(taken, ratio):
    """Layout and groups are PyTorch's; through PyTorch's class and back, no bit is lost; either goes on."""
    params, others, away, back = (parameters(MATRICES) for _ in range(4))
    ours, peer = (made(grouped(x), kind, adjust_lr_fn=ratio) for x, kind in ((params, class_of), (others, theirs)))
    in_turn(range(taken), (params, ours), (others, peer))
    for one, other in zip(ours.param_groups, peer.param_groups, strict=True):
        assert {name for name in one if name not in other} == {"blocks", "restarts", "compute", "use_muon", "beta2"}
    saved = (each.state_dict()["state"].items() for each in (ours, peer))
    kinds = [{i: {key: (x.shape, x.dtype) for key, x in state.items()} for i, state in each} for each in saved]
    assert kinds[0] == kinds[1]
    abroad, home = made(grouped(away), theirs), made(grouped(back))
    synchronise(abroad, away, ours, params)
    synchronise(home, back, abroad, away)
    in_turn([taken], (params, ours), (back, home), (away, abroad))
    assert all_bits(params, ours) == all_bits(back, home)
    for p, q in zip(params, away, strict=True):
        torch.testing.assert_close(p, q, atol=0.01, rtol=0)


CUT = [((6, 4), Blocks(rows=2)), ((4, 6), Blocks(columns=(2, 4))), ((2, 3, 4), Blocks(of="experts")),
       ((4, 3, 2, 2), Blocks(of="convolution")), ((6, 2, 2), Blocks(3, of="convolution"))]


def test_a_matrix_that_is_lazy():
    lazy = torch.nn.LazyLinear(3, bias=False)
    optimizer = made([lazy.weight])
    lazy(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert optimizer.state[lazy.weight]["momentum_buffer"].shape == (3, 4)


def test_blocks_and_more_axes():
    """Each group has its own; all are in one plan; a convolution may be in the order that cuDNN likes."""
    params = parameters([shape for shape, _ in CUT])
    params[3].data = params[3].data.contiguous(memory_format=torch.channels_last)
    optimizer = made([{"params": [p], "blocks": blocks} for p, (_, blocks) in zip(params, CUT, strict=True)])
    expected = by_reference(params, optimizer, range(2))
    steps(optimizer, params, range(2))
    assert bytes_of(optimizer) == expected and len(optimizer._buckets) == 1


def test_blocks_are_saved_as_plain_values():
    """They load where there is no refopt, and a state without them leaves those that there are."""
    params, others = parameters([(6, 4)]), parameters([(6, 4)])
    ours, same = made(params, blocks=Blocks(rows=2)), made(others, blocks=Blocks(rows=2))
    steps(ours, params, [0])
    stored = io.BytesIO()
    torch.save(ours.state_dict(), stored)
    saved = torch.load(io.BytesIO(stored.getvalue()), weights_only=True)
    assert saved["param_groups"][0].pop("blocks") == (2, 1, "matrix")
    with torch.no_grad():
        others[0].copy_(params[0])
    same.load_state_dict(saved)
    in_turn([1], (params, ours), (others, same))
    assert all_bits(params, ours) == all_bits(others, same)


@pytest.mark.parametrize("change", [
    {"ns_steps": 0}, {"blocks": Blocks(rows=3)}, {"lr": 0.5, "momentum": 0.5}, {"restarts": ()}], ids=str)
def test_options_may_change_between_steps(change):
    """Those of the plan, too: the step is that of an optimizer that was made with them."""
    params, others = parameters([(3, 4)]), parameters([(3, 4)])
    ours = made(params)
    steps(ours, params, [0])
    other = made(others, **change)
    synchronise(other, others, ours, params)
    for each in (ours, other):
        each.param_groups[0].update(change)
    in_turn([1], (params, ours), (others, other))
    assert all_bits(params) == all_bits(others)
    last = made(unchanged := parameters([(3, 4)]))
    steps(last, unchanged, [0, 1])
    assert all_bits(params) != all_bits(unchanged)


GROUP, ONE = "param_groups[0]", "param_groups[0]['params'][0]"
REFUSED = [
    ((4,), {}, ValueError, f"{ONE}: expected a matrix, got shape (4,), which a group with use_muon=False takes"),
    ((), {}, ValueError, f"{ONE}: expected a matrix, got shape (), which a group with use_muon=False takes"),
    ((2, 3, 4), {}, ValueError, f'{ONE}: expected a matrix, got shape (2, 3, 4); Blocks(of="experts") takes the last'),
    ((4, 6), {"blocks": Blocks(rows=3)}, ValueError, f"{GROUP}['blocks'].rows: expected a divisor of the 4 rows of"),
    ((4, 6), {"blocks": Blocks(of="heads")}, ValueError, f"{GROUP}['blocks'].of: expected one of matrix, experts"),
    ((4, 6), {"blocks": 3}, TypeError, "param_groups[0]['blocks']: expected Blocks, got 3"),
    ((4, 6), {"blocks": (2,)}, TypeError, "param_groups[0]['blocks']: expected Blocks, got (2,)"),
    ((4, 6), {"ns_steps": 100}, ValueError, "param_groups[0]['ns_steps']: expected an integer from 0 to 99, got 100"),
    ((4, 6), {"ns_steps": 2.5}, TypeError, "param_groups[0]['ns_steps']: expected an integer from 0 to 99, got 2.5"),
    ((4, 6), {"ns_coefficients": (1, 2)}, ValueError, f"{GROUP}['ns_coefficients']: expected three numbers, got 2"),
    ((4, 6), {"ns_coefficients": SCHEDULE}, ValueError, f"{GROUP}['ns_coefficients']: expected a triple for each of 1"),
    ((4, 6), {"ns_coefficients": "muon"}, ValueError, f"{GROUP}['ns_coefficients']: expected one of jordan, polar_"),
    ((4, 6), {"ns_steps": 5, "restarts": (2,)}, ValueError,
     f"{GROUP}['restarts']: expected one after at most 2 iterations in bfloat16, before R is indefinite"),
    ((4, 6), {"compute": "float64"}, ValueError, f"{GROUP}['compute']: expected one of bfloat16, float16, float32"),
    ((4, 6), {"adjust_lr_fn": "moonshot"}, ValueError, "Adjust learning rate function moonshot is not supported"),
    ((4, 6), {"momentum": -1.0}, ValueError, "momentum should be >= 0 but is: -1.0"),
    ((4, 6), {"eps": -1.0}, ValueError, "param_groups[0]['eps']: expected a finite number of at least 0, got -1.0"),
    ((4, 6), {"rounding": "stochastic"}, ValueError, "Muon: param_groups[0]: rounding: expected 'nearest'"),
    ((4, 6), {"beta2": 1.0}, ValueError, f"{GROUP}['beta2']: expected a number of at least 0 and below 1, got 1.0"),
    ((4, 6), {"foreach": True}, TypeError, "unexpected keyword argument 'foreach'")]


@pytest.mark.parametrize(("shape", "options", "kind", "said"), REFUSED, ids=lambda x: str(x)[:40])
def test_what_is_refused(shape, options, kind, said):
    """At construction, by the class, and in a group that comes later, which is not there then."""
    with pytest.raises(kind, match=re.escape(said)):
        made(parameters([shape]), **options)
    if said.startswith("param_groups"):
        optimizer = made(parameters([(4, 6)]))
        with pytest.raises(kind, match=re.escape(f"Muon: {said.replace('groups[0]', 'groups[1]')}")):
            optimizer.add_param_group({"params": parameters([shape]), **options})
        assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("options", [options for (_, options, _, said) in REFUSED if "['" in said and options], ids=str)
def test_what_is_refused_in_a_step(options):
    """What has been put into a group is looked at before anything is modified."""
    params = parameters([(4, 6)])
    optimizer = made(params)
    known, kept = all_bits(params), dict(optimizer.param_groups[0])
    optimizer.param_groups[0].update(options)
    new_gradients(params, 0)
    with pytest.raises((ValueError, TypeError), match=re.escape("Muon: param_groups[0]['")):
        optimizer.step()
    assert all_bits(params) == known and not optimizer.state
    optimizer.param_groups[0].update(kept | {"ns_steps": 0})
    optimizer.step()
    assert all_bits(params) != known


def test_options_stay_when_a_state_of_pytorchs_is_loaded():
    """Those that its class does not have; the others come with the state."""
    params, others = parameters([(4, 9)]), parameters([(4, 9)])
    ours = made(params, ns_steps=3, restarts=(2,), compute="float16", ns_coefficients="you")
    peer = made(others, theirs, ns_steps=2)
    steps(peer, others, [0])
    synchronise(ours, params, peer, others)
    group = ours.param_groups[0]
    assert (group["restarts"], group["compute"], group["use_muon"]) == ((2,), "float16", True)
    assert (group["ns_steps"], tuple(group["ns_coefficients"])) == (2, COEFFICIENTS)
    steps(ours, params, [1])


def test_groups_of_adamw_beside_matrices():
    """One optimizer and one dictionary of states; the bits of two optimizers, whatever the shapes of the second."""
    shapes = [(7,), (), (3, 5)]
    (together, apart), others = [parameters([*MATRICES, *shapes]) for _ in range(2)], len(shapes)
    own = {"betas": (0.8, 0.9), "weight_decay": 0.5}
    group = {"params": together[-others:], "use_muon": False, "lr": 0.25, **own}
    both = made([{"params": together[:-others]}, group])
    muon, adamw = made(apart[:-others]), class_of("AdamW")(apart[-others:], lr=0.25, **own)
    for step in range(2):
        for params in (together, apart):
            new_gradients(params, step)
        for each in (both, muon, adamw):
            each.step()
    assert all_bits(together) == all_bits(apart)
    saved, home = both.state_dict(), parameters([*MATRICES, *shapes])
    with torch.no_grad():
        for p, q in zip(home, together, strict=True):
            p.copy_(q)
    again = made([{"params": home[:-others]}, {"params": home[-others:], "use_muon": False}])
    again.load_state_dict(copy.deepcopy(saved))
    in_turn([2], (together, both), (home, again))
    assert all_bits(together, both) == all_bits(home, again)
    assert {*saved["state"][len(home) - 1]} == {"step", "exp_avg", "exp_avg_sq"}
    for wrong, said in (({"betas": (0.9, 1.0)}, "['betas'][1]: expected"), ({"use_muon": 0}, "['use_muon']: expected")):
        with pytest.raises((ValueError, TypeError), match=re.escape(f"Muon: param_groups[0]{said}")):
            made([{"params": parameters([(4,)]), "use_muon": False} | wrong])


def test_what_kernels_have_not_is_refused():
    with pytest.raises(TypeError, match=re.escape(f"Muon: {ONE}: expected float32, float16 or bfloat16, got float64")):
        made([torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))])
    last = drawn((4, 3, 2, 2), torch.Generator().manual_seed(0)).permute(1, 0, 2, 3)
    with pytest.raises(ValueError, match=re.escape(f"{ONE}: expected output channels outermost in memory, got axes (")):
        made([torch.nn.Parameter(last)], blocks=Blocks(of="convolution"))


def test_arguments_by_position():
    """As PyTorch's class takes them; the ratio of PyTorch 2.14 in a checkpoint, too, whichever is installed."""
    optimizer = class_of("Muon")(parameters([(2, 3)]), LR, 0.5, 0.25, False, (2.0, -1.5, 0.5), 1e-3, 2, "none")
    saved = optimizer.state_dict()
    assert [*saved["param_groups"][0].values()][:8] == [LR, 0.5, 0.25, False, (2.0, -1.5, 0.5), 1e-3, 2, "none"]
    saved["param_groups"][0]["adjust_lr_fn"] = "spectral_unclamped"
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["adjust_lr_fn"] == "spectral_unclamped"


def test_an_older_pytorch_is_told_which_is_needed(monkeypatch):
    """The other classes are there without PyTorch's Muon."""
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(RuntimeError, match=r"Muon: expected PyTorch 2\.9 or later, with torch\.optim\.Muon, got "):
        class_of("Muon")([torch.nn.Parameter(torch.ones(2, 3))])
