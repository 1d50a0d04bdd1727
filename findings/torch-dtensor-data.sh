#!/usr/bin/env bash
# torch 2.13.0, DTensor: "parameter.data = other" changes the shape that a parameter reports, and none of its values.
#
# After the assignment, the local tensor and the placements are those of before. A later step of an optimizer starts
# from the old values. With another size, the parameter says that it has 8 elements, and its local tensor has 4.
#
# Expected: the new values, as with a plain parameter, where ".data =" is how EMA weights, master weights and loaded
# weights are swapped in; or an error.
#
#> plain: [1.0, 1.0, 1.0, 1.0], after a step of 0.5: [0.5, 0.5, 0.5, 0.5]
#> DTensor: [0.0, 0.0, 0.0, 0.0], after a step of 0.5: [-0.5, -0.5, -0.5, -0.5]
#> DTensor, replicated instead of sharded: (Shard(dim=0),)
#> DTensor of 8 elements instead of 4: shape 8, local 4
. "$(dirname "$0")/common.sh"
finding torch==2.13.0 numpy==2.4.6 <<'PY'
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))


def sharded(x, placement=None):
    return distribute_tensor(x, mesh, [placement or Shard(0)])


for name, make, read in ("plain", lambda x: x, lambda p: p), ("DTensor", sharded, lambda p: p.full_tensor()):
    p = torch.nn.Parameter(make(torch.zeros(4)))
    p.data = make(torch.ones(4))
    before = read(p).tolist()
    p.grad = make(torch.ones(4))
    torch.optim.SGD([p], lr=0.5).step()
    print(f"{name}: {before}, after a step of 0.5: {read(p).tolist()}")
p = torch.nn.Parameter(sharded(torch.zeros(4)))
p.data = sharded(torch.ones(4), Replicate())
print("DTensor, replicated instead of sharded:", p.placements)
p.data = sharded(torch.ones(8))
print(f"DTensor of 8 elements instead of 4: shape {p.numel()}, local {p.to_local().numel()}")
dist.destroy_process_group()
PY
