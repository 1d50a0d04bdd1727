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
# The configuration of parameters, dtypes of states and of a remainder that completes parameters, and how states round.
OWN = {
    "refopt, fp32": ("fp32", torch.float32, None, "nearest"),
    "refopt, fp32, 8-bit states": ("fp32", torch.uint8, None, "nearest"),
    "refopt, fp32, 8-bit states, stochastic": ("fp32", torch.uint8, None, "stochastic"),
    "refopt, fp32, bf16 states": ("fp32", torch.bfloat16, None, "stochastic"),
    "refopt, bf16 and 16 bits": ("bf16", torch.float32, torch.uint16, "nearest"),
    "refopt, bf16 and 8 bits, 8-bit states": ("bf16", torch.uint8, torch.int8, "nearest"),
    "refopt, bf16 and 8 bits, 8-bit states, stochastic": ("bf16", torch.uint8, torch.int8, "stochastic"),
    "refopt, bf16, bf16 states, stochastic": ("bf16", torch.bfloat16, None, "stochastic"),
}
ALL = 1 << 26  # bytes of a tensor that are compared


def tensors(
    model: str, config: str, states: torch.dtype = torch.float32, remainder: torch.dtype | None = None
) -> Tensors:
    """The tensors of a step, states and remainders at 0."""
    values = Tensors.make(ADAMW, shapes_of(model), config)
    for name in ADAMW.states:
        if name in values.slots:
            sizes = [(coded_bytes(p.numel()),) if states is torch.uint8 else p.shape for p in values.slots["params"]]
            values.slots[name] = [torch.zeros(size, dtype=states, device="cuda") for size in sizes]
    if remainder:
        zeros = [torch.zeros(p.shape, dtype=remainder, device="cuda") for p in values.slots["params"]]
        values.slots["master_params"] = zeros
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
