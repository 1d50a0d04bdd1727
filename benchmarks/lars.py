"""LARS: what is measured. Every section returns rows for the report; a row that is wrong has ``ok`` False."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import captured, device_ms, free, host_us, row_of
from benchmarks.peers import compiled
from benchmarks.peers_lars import PEERS, foreach_addcmul
from benchmarks.plans import OneByOne, capture_and_replay, joined
from benchmarks.tensors import CONFIGS, Tensors, shapes_of
from benchmarks.timeline import record, warm_up
from refopt import gpu
from refopt.catalog import LARS_MOMENTUM
from refopt.cpu.lars_momentum import local_lr, update

FORMS = tuple(LARS_MOMENTUM.forms)
MERGED = tuple(name for name, form in LARS_MOMENTUM.forms.items() if form.merged)
HYPER = {"lr": 0.1, "mu": 0.9, "lars_coeff": 0.001, "lars_weight_decay": 0.0005, "epsilon": 1e-9}
# At this lr the local learning rates matter: a wrong norm shows in a comparison.
CHECKED = HYPER | {"lr": 10.0}
# Relative to each tensor's largest value: PyTorch sums in another order, and contracts; fp16 is one unit off.
PEER_TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3}
TENSORS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
DRAWN = (*FORMS, "foreach_addcmul")
ELEMENTS = (10**5, 10**6, 10**7, 10**8, 10**9, 2**31 + 12345)


def sections(copy_gb_s: float, names: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The sections of the report, in order."""
    yield "bits", bits
    yield "agreement", partial(agreement, names)
    yield "graph", graph
    yield "steps", partial(steps, copy_gb_s, names)
    yield "host", host
    yield "tensors", tensors
    yield "elements", partial(elements, copy_gb_s)
    yield "timeline", partial(timeline, names)
    yield "compiled", partial(compiled_steps, copy_gb_s)


make = partial(Tensors.make, LARS_MOMENTUM)


def plan_of(state: Tensors, form: str, **options: Any) -> gpu.Plan:
    """A plan over the tensors, by default with the numbers that are timed."""
    return state.plan(form, **(HYPER | options))


def variants(state: Tensors) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Every way to do a step of a state: its name, how it is enqueued, the call."""
    for form in FORMS:
        yield form, "plan", plan_of(state, form)
    yield "separate", "loop", OneByOne(plan_of(state, "separate"))
    for name, peer in PEERS.items():
        step = peer(state, **HYPER)
        yield name, "eager", step
        yield name, "graph", captured(step)


def steps(copy_gb_s: float, names: list[str]) -> list[dict]:
    """Time of one step, against the bytes it has to move at the bandwidth of a copy.

    Peers have their bytes counted as those of the two-launch form: what the formula needs in two passes.
    """
    rows = []
    for name in names:
        for config in ("fp32", "amp"):
            state = make(shapes_of(name), config)
            two_passes = plan_of(state, "two_launches").bytes
            for implementation, how, step in variants(state):
                moved = getattr(step, "bytes", two_passes)
                row = row_of(step, moved, copy_gb_s)
                if how in ("plan", "loop"):
                    row = joined(row, state.differing_after(step, **HYPER))
                rows.append({
                    "workload": name, "config": config, "implementation": implementation, "how": how,
                    "tensors": len(state.slots["params"]), "elements": sum(p.numel() for p in state.slots["params"]),
                } | row)
            del state, step
            free()
    return rows


def compiled_steps(copy_gb_s: float, name: str = "resnet50") -> Iterator[dict]:
    """The peer of the fewest passes through torch.compile, replayed as a CUDA graph; and whether it agrees."""
    for config in ("fp32", "amp"):
        state = make(shapes_of(name), config)
        ours = state.clone()
        moved = plan_of(ours, "two_launches", **CHECKED).bytes
        start = time.perf_counter()
        about = {"workload": name, "config": config, "implementation": "torch.compile", "how": "graph"}
        try:
            step = compiled(foreach_addcmul(state, **CHECKED))
            step()
            plan_of(ours, "two_launches", **CHECKED)()
            torch.cuda.synchronize()
            worst = state.largest_differences(ours)
            allowed = {slot: PEER_TOLERANCES[state.slots[slot][0].dtype] for slot in worst}
            row = row_of(captured(step), moved, copy_gb_s)
            row |= {"largest_differences": worst, "tolerances": allowed}
            row["ok"] = row["ok"] and all(worst[slot] <= allowed[slot] for slot in worst)
        except (RuntimeError, ValueError, TypeError) as error:
            row = {"skipped": f"{type(error).__name__}: {error}".splitlines()[0][:120]}
        yield about | row | {"seconds": time.perf_counter() - start}
        del state, ours
        free()


def agreement(names: list[str]) -> list[dict]:
    """Whether the peers compute what refopt does: the largest difference after one step."""
    rows = []
    for name in names:
        for config in ("fp32", "amp"):
            start = make(shapes_of(name), config)
            ours = start.clone()
            plan_of(ours, "two_launches", **CHECKED)()
            for peer, step_of in PEERS.items():
                theirs = start.clone()
                step_of(theirs, **CHECKED)()
                worst = theirs.largest_differences(ours)
                allowed = {slot: PEER_TOLERANCES[theirs.slots[slot][0].dtype] for slot in worst}
                rows.append({
                    "workload": name, "config": config, "peer": peer, "largest_differences": worst,
                    "tolerances": allowed, "ok": all(worst[slot] <= allowed[slot] for slot in worst),
                })
                del theirs
            del start, ours
            free()
    return rows


def host() -> list[dict]:
    """Host time of enqueueing one step: hyperparameters unchanged, and another lr every step."""
    rows: list[dict[str, Any]] = []
    lists: dict[str, list] = {"resnet50": shapes_of("resnet50")}
    lists["10,000 tensors of 1,000"] = [(1000,)] * 10_000
    for name, shapes in lists.items():
        state = make(shapes, "fp32")
        for form in MERGED:
            plan = plan_of(state, form)
            count = 0

            def changing(plan: gpu.Plan = plan) -> None:
                nonlocal count
                count += 1
                plan(lr=0.1 + count * 1e-6, mu=0.9)

            rows.append({
                "list": name, "tensors": len(shapes), "implementation": form,
                "no_arguments_us": host_us(plan),
                "unchanged_us": host_us(partial(plan, lr=0.1, mu=0.9)),
                "lr_changed_us": host_us(changing),
                **state.differing_after(partial(plan, lr=0.1, mu=0.9), **HYPER),
            })
        if name == "resnet50":
            others = {  # few calls at a time, so that the launch queue does not fill
                "separate, loop": host_us(OneByOne(plan_of(state, "separate")), calls=3),
                "foreach_addcmul, eager": host_us(foreach_addcmul(state, **HYPER), calls=3),
                "foreach_addcmul, graph": host_us(captured(foreach_addcmul(state, **HYPER))),
            }
            for other, us in others.items():
                row = {"list": name, "tensors": len(shapes), "implementation": other, "no_arguments_us": us}
                rows.append(row)
        del state, plan
        free()
    return rows


def graph() -> list[dict]:
    """A step captured in a CUDA graph and replayed with another lr each time, against NumPy bit for bit."""
    rates = (10.0, 5.0, 2.5, 1.25)
    shapes = shapes_of("resnet50")
    start = make(shapes, "fp32")
    expected = start.numpy()
    for lr in rates:
        expected.step_in_numpy(**(HYPER | {"lr": lr}))
    rows = []
    for form in FORMS:
        state = start.clone()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        plan = plan_of(state, form, stream=stream)
        capture_and_replay(plan, stream, rates)
        bad = state.differing_bytes(expected)
        rows.append({"form": form, "replays": len(rates) - 1, "differing_bytes": bad, "ok": bad == 0})
        del state, plan
        free()
    return rows


def tensors(size: int = 10_000) -> list[dict]:
    """Merged against separate, by the number of tensors."""
    rows = []
    whole = make([(size,)] * max(TENSORS), "fp32")
    for count in TENSORS:
        state = whole.only(count)
        row: dict[str, Any] = {"tensors": count, "elements_each": size}
        checks = []
        for name in (*FORMS, "separate_loop"):
            step = plan_of(state, name) if name in FORMS else OneByOne(plan_of(state, "separate"))
            row[f"{name}_ms"] = device_ms(step)
            checks.append(state.differing_after(step, **HYPER))
        row = joined(row, *checks)
        step = foreach_addcmul(state, **HYPER)
        row["foreach_ms"] = device_ms(step)
        row["foreach_graph_ms"] = device_ms(captured(step))
        row["speed_up"] = row["separate_loop_ms"] / row["two_launches_ms"]
        row["speed_up_over_graph"] = row["separate_ms"] / row["two_launches_ms"]
        rows.append(row)
    return rows


def elements(copy_gb_s: float) -> list[dict]:
    """One tensor, by its size. Small ones stay in the L2 cache, since the same tensor is updated again."""
    rows = []
    for size in ELEMENTS:
        need = 12 * size + (2 << 30)
        room = torch.cuda.mem_get_info()[0]
        if need > room:
            rows.append({"elements": size, "skipped": f"needs {need >> 30} GiB, {room >> 30} GiB are free"})
            continue
        state = make([(size,)], "fp32")
        for form in ("two_launches", "carried_norm"):
            plan = plan_of(state, form)
            row = row_of(plan, plan.bytes, copy_gb_s, held=12 * size)
            error = max(sampled_error(state, form), sampled_error(state, form))  # of two steps after those timed
            rows.append({
                "elements": size, "form": form, "ps_per_element": row["ms"] / size * 1e9, **row,
                "sampled_error": error, "tolerance": 1e-6, "ok": row["ok"] and error <= 1e-6,
            })
            del plan
            free()
        del state
        free()
    return rows


def sampled_error(state: Tensors, form: str, samples: int = 4096) -> float:
    """One step against the rule in float64 at some elements: the largest error over |p| + |v| + |g|."""
    p, g, v = (state.slots[name][0] for name in ("params", "grads", "velocities"))
    hyper = HYPER | {"lr": 100.0}  # so that the rate is about 0.1, as p and g are of one size here
    size = p.numel()
    marks = [0, 1, size - 2, size - 1, size // 2, *(x for x in (2**20, 2**30, 2**31 - 1, 2**31) if x < size)]
    drawn = np.random.default_rng(0).integers(0, size, samples)
    at = torch.tensor(np.unique(np.concatenate([marks, drawn])), device="cuda")
    before = [x[at].cpu().numpy().astype(np.float64) for x in (p, g, v)]
    norms = [np.float64(norm_in_float64(x)) for x in (p, g)]
    plan_of(state, form, **hyper)()
    torch.cuda.synchronize()
    after = [x[at].cpu().numpy().astype(np.float64) for x in (p, v)]
    mu = hyper.pop("mu")
    rate = local_lr(*norms, adapt="norms", **hyper)
    decay = hyper["lars_weight_decay"]
    expected = update(*before, local_lr=rate, mu=mu, lars_weight_decay=decay)
    scale = sum(np.abs(x) for x in before)
    return max(float((np.abs(a - e) / scale).max()) for a, e in zip(after, expected, strict=True))


def norm_in_float64(x: torch.Tensor) -> float:
    """The norm, a part at a time: a float64 copy of the whole would be twice its size."""
    return sum(part.double().square().sum().item() for part in x.split(1 << 26)) ** 0.5


def bits(count: int = 2) -> list[dict]:
    """Differing bytes between device and NumPy on ResNet-50 after some steps, of every form and dtype."""
    rows: list[dict[str, Any]] = []
    for config in CONFIGS:
        if config == "bf16" and not _has_ml_dtypes():
            rows.append({"config": config, "skipped": "ml_dtypes is not installed"})
            continue
        start = make(shapes_of("resnet50"), config)
        expected = start.numpy()
        for _ in range(count):
            expected.step_in_numpy(**CHECKED)
        for form in FORMS:
            state = start.clone()
            plan = plan_of(state, form, **CHECKED)
            for _ in range(count):
                plan()
            torch.cuda.synchronize()
            bad = state.differing_bytes(expected)
            row = {"config": config, "form": form, "steps": count, "differing_bytes": bad, "ok": bad == 0}
            rows.append(row)
            del state, plan
        del start
        free()
    return rows


def _has_ml_dtypes() -> bool:
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def timeline(names: list[str]) -> list[dict]:
    """When each kernel of a step ran, by the profiler.

    Counts are kept for all, the kernels themselves for those in `DRAWN`, on ResNet-50 in fp32. Last of the
    sections, because the profiler slows down what is enqueued after it has been used.
    """
    warm_up()
    rows = []
    for name in names:
        for config in ("fp32", "amp"):
            state = make(shapes_of(name), config)
            for implementation, how, step in variants(state):
                step()
                kernels = record(step)
                row: dict[str, Any] = {
                    "workload": name, "config": config, "implementation": implementation, "how": how,
                    "launches": len(kernels), "planned": getattr(step, "launches", None),
                }
                row["ok"] = row["planned"] in (None, row["launches"])
                if (name, config) == ("resnet50", "fp32") and implementation in DRAWN:
                    row["kernels"] = kernels
                rows.append(row)
            del state, step
            free()
    return rows
