"""Times AdamW with states in 8 bits on a GPU, beside wider ones, PyTorch's and flashoptim's, and compares its bits.

    python -m benchmarks.coded [--out FILE]

``steps`` has milliseconds of the device for all tensors of two models, bytes of the states, and where the step is
refopt's, the bytes in which four tensors differ from NumPy's (of ResNet-50). Peers are replayed as CUDA graphs;
flashoptim's is measured where it is installed.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.measure import captured, device_ms, free
from benchmarks.peers import Step, parameters, torch_step
from benchmarks.record import by_parts
from benchmarks.tensors import Tensors, shapes_of
from refopt.catalog import ADAMW
from refopt.checks.dtypes import coded_bytes

MODELS = "resnet50", "bert-large"
# dtypes of parameters and of states, whether a remainder of 16 bits completes the parameters, and how states round
OWN = {
    "refopt, fp32": ("fp32", torch.float32, False, "nearest"),
    "refopt, fp32, 8-bit states": ("fp32", torch.uint8, False, "nearest"),
    "refopt, fp32, 8-bit states, stochastic": ("fp32", torch.uint8, False, "stochastic"),
    "refopt, bf16 and remainder": ("bf16", torch.float32, True, "nearest"),
    "refopt, bf16 and remainder, 8-bit states": ("bf16", torch.uint8, True, "nearest"),
    "refopt, bf16 and remainder, 8-bit states, stochastic": ("bf16", torch.uint8, True, "stochastic"),
    "refopt, bf16, bf16 states, stochastic": ("bf16", torch.bfloat16, False, "stochastic"),
}
ALL = 1 << 26  # bytes of a tensor that are compared


def tensors(model: str, config: str, states: torch.dtype = torch.float32, remainder: bool = False) -> Tensors:
    """The tensors of a step, states at 0."""
    values = Tensors.make(ADAMW, shapes_of(model), config)
    for name in ADAMW.states:
        if name in values.slots:
            sizes = [(coded_bytes(p.numel()),) if states is torch.uint8 else p.shape for p in values.slots["params"]]
            values.slots[name] = [torch.zeros(size, dtype=states, device="cuda") for size in sizes]
    if remainder:
        values.slots["master_params"] = [p.view(torch.uint16) * 0 for p in values.slots["params"]]
    return values


def steps() -> Iterator[dict[str, Any]]:
    for model in MODELS:
        for name, (config, states, remainder, rounding) in OWN.items():
            values = tensors(model, config, states, remainder)
            plan = values.plan(rounding=rounding)
            row = {"model": model, "step": name, "ms": round(device_ms(plan), 4), "launches": plan.launches}
            held = sum(x.nbytes for slot in ADAMW.states for x in values.slots.get(slot, ()))
            row |= {"state_bytes": held, "bytes": plan.bytes}
            yield row | (values.differing_after(plan, ALL, rounding=rounding) if model == MODELS[0] else {})
            del values, plan
            free()
        peers = {
            "torch fused, fp32, graph": partial(_torch, "fp32"), "torch fused, bf16, graph": partial(_torch, "bf16"),
            "flashoptim, bf16 and 8 bits, 8-bit states, graph": _flashoptim,
        }
        for name, make in peers.items():
            row = {"model": model, "step": name}
            try:
                yield row | {"ms": round(device_ms(captured(make(model))), 4)}
            except (ImportError, RuntimeError) as error:
                yield row | {"error": str(error)[:200]}
            free()


def _torch(config: str, model: str) -> Step:
    return torch_step(tensors(model, config), "fused")


def _flashoptim(model: str) -> Step:
    from flashoptim import FlashAdamW

    values = tensors(model, "bf16")
    return FlashAdamW(parameters(values.slots["params"], values.slots["grads"]), lr=1e-3).step


if __name__ == "__main__":
    by_parts(__doc__, "coded", {"steps": steps})
