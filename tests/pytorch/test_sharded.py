"""DTensor parameters on two and three processes: ``fully_shard``, tensor parallelism, and checkpoints of both.

Beside PyTorch's class, whose steps are those of this one to rounding; states go on elsewhere bit for bit.
"""

import copy

import pytest

from pytorch.groups import distributed, process_group, with_gloo
from pytorch.subjects import BUSY, LR, class_of, drawn, ours, theirs, torch
from refopt.cpu import Blocks

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = [with_gloo, pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="PyTorch has no fully_shard here")]
STEPS = 3
SAVED = "AdamW", "SGD", "NAdam"
KEPT = "fp32", "remainder", "8bit"
CLOSE = {"rtol": 2e-5, "atol": 1e-6}


def model_of(dtype=None):
    """Of layers that no number of ranks divides: some ranks have no elements of some."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).to(dtype)


def sharded(model, names=("shards",)):
    """Along the last axis of a mesh of CPUs, even where GPUs are."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (1, distributed.get_world_size())[-len(names):]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fsdp.fully_shard(layer, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def replicated(model):
    """Whole on each place along one axis of a mesh, of which there is one; sharded along the other."""
    return sharded(model, ("copies", "shards"))


def parallel(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def backward(model, step, rank=None):
    """Gradients of other data on each rank; of the same, as tensor parallelism has it, without one."""
    seed = 10 * step + (distributed.get_rank() if rank is None else rank)
    dtype = next(model.parameters()).dtype
    model.zero_grad()
    (model(drawn((4, 32), torch.Generator().manual_seed(seed), dtype)) ** 2).mean().backward()


def train(model, optimizer, steps, rank=None, clip=None):
    norms = []
    for step in steps:
        backward(model, step, rank)
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), *clip)
            norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        optimizer.step()
        norms += [optimizer.grad_norm] if getattr(optimizer, "max_norm", None) else []
    return norms


def whole(tensors):
    return [x.full_tensor() if hasattr(x, "full_tensor") else x.detach().clone() for x in tensors]


def weights(model):
    return whole(model.parameters())


def every_class_is_pytorchs(rank, folder):
    for name in ("SGD", "AdamW", "NAdam", "Adagrad"):
        models = [sharded(model_of()) for _ in range(2)]
        optimizers = [kind(name)(model.parameters(), lr=LR, **BUSY[name])
                      for kind, model in zip((class_of, theirs), models, strict=True)]
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, range(STEPS))
        torch.testing.assert_close(*map(weights, models), **CLOSE)
        for p, q in zip(*(model.parameters() for model in models), strict=True):
            mine, peers = (optimizer.state[x] for optimizer, x in zip(optimizers, (p, q), strict=True))
            assert mine.keys() == peers.keys()
            for key, x in mine.items():
                assert getattr(x, "placements", None) == getattr(peers[key], "placements", None), (name, key)


def norms_are_those_of_all_ranks(rank, folder):
    """Of gradients that ranks have parts of, some of them none; ranks of tensor parallelism have whole ones as well."""
    for make, of in ((sharded, None), (replicated, None), (parallel, 0)):
        for norm_type in (2.0, float("inf"), 1.0):
            models = [make(wide() if make is parallel else model_of()) for _ in range(2)]
            mine = class_of("AdamW")(models[0].parameters(), lr=LR, max_norm=0.05, norm_type=norm_type)
            peer = theirs("AdamW")(models[1].parameters(), lr=LR)
            found = train(models[0], mine, range(STEPS), of)
            whole_norms = []
            for step in range(STEPS):
                backward(models[1], step, of)
                norm = torch.nn.utils.get_total_norm(whole(p.grad for p in models[1].parameters()), norm_type)
                for p in models[1].parameters():
                    p.grad.mul_(min(1.0, 0.05 / (norm.item() + 1e-6)))
                whole_norms.append(norm)
                peer.step()
            torch.testing.assert_close(found, whole_norms, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(*map(weights, models), **CLOSE)


def a_norm_of_whole_and_sharded_gradients(rank, folder):
    model, plain = sharded(model_of()), torch.nn.Parameter(torch.ones(3))
    params = [*model.parameters(), plain]
    backward(model, 0, 0)
    plain.grad = torch.full((3,), 2.0)
    for norm_type in (2.0, float("inf")):
        found = ours.clip_grad_norm_([class_of("SGD")(params, lr=LR)], 1.0, norm_type)
        expected = torch.nn.utils.get_total_norm(whole(p.grad for p in params), norm_type)
        torch.testing.assert_close(found, expected)


def wide():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def gradients_of_other_placements(rank, folder):
    """Are placed as their parameter is, as in PyTorch's step."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, init_device_mesh

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    found = []
    for kind in (class_of, theirs):
        p = torch.nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Replicate()]))
        optimizer = kind("SGD")([p], lr=LR, momentum=0.875)
        for step in range(2):
            p.grad = DTensor.from_local(torch.full((4,), float(rank + step)), mesh, [Partial()])
            optimizer.step()
        found.append(p.full_tensor())
    torch.testing.assert_close(*found)


def masters_follow(rank, folder):
    for masters in ("fp32", "remainder"):
        model = sharded(model_of(torch.bfloat16))
        optimizer = class_of("AdamW")(model.parameters(), lr=LR, masters=masters)
        train(model, optimizer, range(2))
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.75)
        optimizer.param_groups[0]["lr"] = 0.0
        train(model, optimizer, [2])
        assert all((x == 0.75).all() for x in weights(model))


def norms_of_shards_are_refused(rank, folder):
    for name in ("LARS", "LAMB", "NovoGrad", "Muon"):
        params = list(sharded(model_of()).named_parameters())
        said = rf"{name}: param_groups\[0\]\['params'\]\[0\] \(0.weight\): expected a whole parameter, .* got a shard"
        with pytest.raises(TypeError, match=said):
            class_of(name)(params, lr=LR)
        if name != "Muon":
            replicas = parallel(wide())[2].bias  # a DTensor that every rank has whole
            class_of(name)([replicas], lr=LR)


def both(shape, placement, name, **options):
    """A DTensor and a plain tensor after a step from the same numbers, and their states."""
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    mesh, found = init_device_mesh("cpu", (distributed.get_world_size(),)), []
    for place in (lambda x: distribute_tensor(x, mesh, [placement]), torch.clone):
        values, grad = (place(drawn(shape, torch.Generator().manual_seed(seed))) for seed in (0, 1))
        p = torch.nn.Parameter(values)
        p.grad, optimizer = grad, class_of(name)([p], lr=LR, **options)
        optimizer.step()
        found.append((p, optimizer.state[p]))
    return zip(*found, strict=True)


def matrices_are_whole_on_their_ranks(rank, folder):
    """Replicas, and experts along their own axis, have the bits of one process; a cut matrix is refused."""
    from torch.distributed.tensor import Replicate, Shard

    experts = Blocks(of="experts")
    for placement, blocks, shape in ((Replicate(), Blocks(), (3, 5)), (Shard(0), experts, (3, 4, 5)),
                                     (Shard(1), experts, (1, 2, 3, 4))):
        params, _ = both(shape, placement, "Muon", blocks=blocks, ns_steps=1)
        assert torch.equal(*whole(params)), placement
    for axis in (1, 2):
        with pytest.raises(TypeError, match="expected a whole parameter, since Muon needs its norms, got a shard"):
            both((2, 4, 4), Shard(axis), "Muon", blocks=experts)


def codes_are_those_of_one_process(rank, folder):
    """At whole groups along any axis, or on one rank; others are refused."""
    from torch.distributed.tensor import Shard

    for shape, axis in (((127,), 0), ((5, 32), 0), ((8, 48), 0), ((4, 64), 1), ((1, 7), 0)):
        params, states = both(shape, Shard(axis), "AdamW", states="8bit")
        codes = whole(state["exp_avg_sq"] for state in states)
        assert torch.equal(*whole(params)) and torch.equal(*(x.flatten() for x in codes)), shape
    for shape, axis in (((96,), 0), ((5, 48), 0), ((4, 40), 1)):
        with pytest.raises(TypeError, match=r"shards of whole groups of 32 elements, or .*None.* over 2 ranks"):
            both(shape, Shard(axis), "SGD", states="8bit")


def states_of_a_whole_model_are_refused(rank, folder):
    alone = model_of()
    peer = theirs("AdamW")(alone.parameters(), lr=LR)
    train(alone, peer, [0])
    model = sharded(model_of())
    optimizer = class_of("AdamW")(model.parameters(), lr=LR)
    optimizer.load_state_dict(copy.deepcopy(peer.state_dict()))
    backward(model, 1)
    known = weights(model)
    with pytest.raises(ValueError, match=r"\['params'\]\[0\]: state\['exp_avg'\]: expected placement .*Shard"):
        optimizer.step()
    torch.testing.assert_close(known, weights(model), rtol=0, atol=0)


def saves(rank, folder):
    """A run on two ranks, whose checkpoint others go on with; and how it goes on itself, from the same gradients."""
    checkpoint, _ = checkpoints()
    for name in SAVED:
        model = sharded(model_of())
        optimizer = class_of(name)(model.parameters(), lr=LR, **BUSY[name])
        train(model, optimizer, range(2), 0)
        checkpoint.save(state_of(model, optimizer), checkpoint_id=f"{folder}/{name}")
        train(model, optimizer, range(2, 4), 0)
        found = weights(model)
        if rank == 0:
            torch.save(found, f"{folder}/{name}.pt")


def loads(rank, folder):
    """On three ranks: by this class, and by PyTorch's."""
    checkpoint, states = checkpoints()
    for name in SAVED:
        expected = torch.load(f"{folder}/{name}.pt")
        for kind, close in ((class_of, {"rtol": 1e-6, "atol": 1e-7}), (theirs, CLOSE)):
            model = sharded(model_of())
            optimizer = kind(name)(model.parameters(), lr=1.0, **BUSY[name])
            saved = state_of(model, optimizer)
            checkpoint.load(saved, checkpoint_id=f"{folder}/{name}")
            model.load_state_dict(saved["model"])
            states.set_optimizer_state_dict(model, optimizer, saved["optim"])
            train(model, optimizer, range(2, 4), 0)
            torch.testing.assert_close(weights(model), expected, **close)


def state_of(model, optimizer):
    states = checkpoints()[1]
    return {"model": states.get_model_state_dict(model), "optim": states.get_optimizer_state_dict(model, optimizer)}


def keeping(kind):
    """A model and its optimizer, with masters or with states in 8 bits of the weights, whose rows are whole groups."""
    model = sharded(model_of(torch.bfloat16))
    of_kind = {"states": kind} if kind == "8bit" else {"masters": kind}
    biases = {"states": None, "params": [p for p in model.parameters() if p.ndim == 1]}
    optimizer = class_of("AdamW")([{"params": [p for p in model.parameters() if p.ndim > 1]}, biases], lr=LR, **of_kind)
    train(model, optimizer, range(2), 0)
    return model, optimizer


def words_of(model, optimizer, kind):
    """By parameter, whole, the words of its master or state: gloo gathers none of 16 bits."""
    from torch.distributed.tensor import DTensor

    found = []
    for x in (optimizer.state[p]["exp_avg" if kind == "8bit" else "master_param"] for p in model.parameters()):
        part = x.to_local()
        words = part.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[part.element_size()]).to(torch.int32)
        found.append(DTensor.from_local(words, x.device_mesh, x.placements, run_check=False, shape=x.shape,
                                        stride=x.stride()).full_tensor())
    return found


def saves_words(rank, folder):
    for kind in KEPT:
        model, optimizer = keeping(kind)
        train(model, optimizer, range(2, 4), 0)
        checkpoints()[0].save(state_of(model, optimizer), checkpoint_id=f"{folder}/{kind}")
        found = words_of(model, optimizer, kind)
        if rank == 0:
            torch.save(found, f"{folder}/{kind}.pt")


def loads_words(rank, folder):
    """Which are those that were saved, though the parameters are written in place, too."""
    checkpoint, states = checkpoints()
    for kind in KEPT:
        model, optimizer = keeping(kind)
        saved = state_of(model, optimizer)
        checkpoint.load(saved, checkpoint_id=f"{folder}/{kind}")
        model.load_state_dict(saved["model"])
        states.set_optimizer_state_dict(model, optimizer, saved["optim"])
        found = words_of(model, optimizer, kind)
        assert all(map(torch.equal, found, torch.load(f"{folder}/{kind}.pt"))), kind


def checkpoints():
    import torch.distributed.checkpoint as checkpoint
    import torch.distributed.checkpoint.state_dict as states

    return checkpoint, states


ON_TWO = (every_class_is_pytorchs, norms_are_those_of_all_ranks, a_norm_of_whole_and_sharded_gradients,
          gradients_of_other_placements, masters_follow, norms_of_shards_are_refused,
          matrices_are_whole_on_their_ranks, codes_are_those_of_one_process, states_of_a_whole_model_are_refused,
          saves, saves_words)
ON_THREE = (norms_are_those_of_all_ranks, masters_follow, loads, loads_words)


def rank_of(rank, ranks, folder, parts):
    """One of the processes."""
    with process_group(folder, rank, ranks):
        for part in parts:
            try:
                part(rank, folder)
            except BaseException as error:
                error.add_note(f"{part.__name__}, rank {rank} of {ranks}")
                raise


def test_two_and_three_processes(tmp_path):
    """Each in one process for all that it does; what two have saved three load."""
    for ranks, parts in ((2, ON_TWO), (3, ON_THREE)):
        torch.multiprocessing.spawn(rank_of, (ranks, str(tmp_path), parts), ranks)


def test_a_shard_of_the_only_rank_is_whole(tmp_path):
    """Norms are of all of it: the bits of a plain parameter."""
    with process_group(tmp_path, 0, 1):
        from torch.distributed.tensor import Shard

        params, (state, _) = both((3, 4), Shard(0), "LARS")
        x, p = state["momentum_buffer"], params[0]
        assert (type(x), x.shape, x.stride()) == (type(p.data), p.shape, p.stride())
        assert torch.equal(*whole(params))
