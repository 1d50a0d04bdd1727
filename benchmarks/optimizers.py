"""Every routine but LARS: what is measured. Sections return rows; a row that is wrong has ``ok`` False."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.measure import captured, device_ms, free, host_us, row_of
from benchmarks.peers import CLASSES, CUPY, IMPLEMENTATIONS, LR, clipped_torch_step, compiled, cupy_step, torch_step
from benchmarks.plans import OneByOne, capture_and_replay, joined, own_row
from benchmarks.tensors import Tensors, shapes_of, to_numpy
from refopt import cpu, gpu
from refopt.catalog import ADAM, ADAMW, ROUTINES, Routine

MEASURED = tuple(routine for name, routine in ROUTINES.items() if name != "lars_momentum")
LARGE = "gpt2-xl"  # only Adam and AdamW, in fp32, are measured on it
TENSORS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
ELEMENTS = (*(int(step * 10**exponent) for exponent in range(5, 9) for step in (1, 3.16)), 10**9)
MAX_NORM = 1.0
COMPILE_S = 120.0  # after which nothing more is compiled
AGREEING = (ROUTINES["sgd"], ROUTINES["momentum"], ADAM, ADAMW)  # with the same numbers, PyTorch's compute the same
PEER_TOLERANCE = 1e-5  # relative to each tensor's largest value, after one step


def sections(copy_gb_s: float, names: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The sections of the report, in order."""
    yield "graph", graph
    yield "agreement", agreement
    yield "steps", partial(steps, copy_gb_s, [*names, LARGE])
    yield "clipped", partial(clipped, copy_gb_s, names)
    yield "host", host
    yield "tensors", tensors
    yield "elements", partial(elements, copy_gb_s)
    yield "compiled", partial(compiled_steps, copy_gb_s, names)


def peers_of(values: Tensors, config: str, everything: bool) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """The peers of a routine over tensors: name, how it is enqueued, and what makes the step."""
    name = values.routine.name
    wanted = name in CLASSES and (config == "fp32" or name in ("adam", "adamw"))
    for implementation in IMPLEMENTATIONS if wanted else ():
        make = partial(torch_step, values, implementation)
        if implementation != "loop":
            yield f"torch {implementation}", "eager", make
            yield f"torch {implementation}", "graph", lambda make=make: captured(make())
        elif everything:
            yield "torch loop", "eager", make
    if name in CUPY and config == "fp32":
        yield "cupy", "eager", partial(cupy_step, values)


def row_of_peer(make: Callable[[], Any], moved: int, copy_gb_s: float) -> dict[str, Any]:
    """The same of a peer; a combination that PyTorch does not have says so."""
    try:
        return row_of(make(), moved, copy_gb_s, repeats=10)
    except (RuntimeError, ValueError, TypeError) as error:
        torch.cuda.synchronize()
        return {"skipped": f"{type(error).__name__}: {error}".splitlines()[0][:120]}


def steps(copy_gb_s: float, names: list[str]) -> list[dict]:
    """One step of every routine: planned, planned within a CUDA graph of the caller's, and the peers."""
    rows: list[dict[str, Any]] = []
    for name in names:
        for routine in MEASURED if name != LARGE else (ADAM, ADAMW):
            for config in ("fp32", "amp") if name != LARGE else ("fp32",):
                values = Tensors.make(routine, shapes_of(name), config)
                count = sum(param.numel() for param in values.slots["params"])
                about = {
                    "workload": name, "config": config, "routine": routine.name,
                    "tensors": len(values.slots["params"]), "elements": count,
                }
                plan = values.plan()
                moved = plan.bytes
                own = {"launches": plan.launches} | own_row(values, plan, moved, copy_gb_s)
                rows.append(about | {"implementation": "refopt", "how": "plan"} | own)
                for peer, how, make in peers_of(values, config, name == "resnet50"):
                    measured = row_of_peer(make, moved, copy_gb_s)
                    rows.append(about | {"implementation": peer, "how": how} | measured)
                del values, plan
                free()
    return rows


def clipped(copy_gb_s: float, names: list[str]) -> list[dict]:
    """A step clipped by the global norm: a read-only pass over the gradients, then the step."""
    rows: list[dict[str, Any]] = []
    for name in names:
        for config in ("fp32", "amp"):
            values = Tensors.make(ADAMW, shapes_of(name), config)
            check = gpu.gradient_check(values.slots["grads"], max_norm=MAX_NORM)
            plan = values.plan(grad_factor=check.grad_factor, found_inf=check.found_inf)

            def both(check: Any = check, plan: gpu.Plan = plan) -> None:
                check()
                plan()

            about = {"workload": name, "config": config, "routine": "adamw", "max_norm": MAX_NORM}
            moved = check.bytes + plan.bytes
            own = {"launches": check.launches + plan.launches} | row_of(both, moved, copy_gb_s)
            factor = check.grad_factor.copy_to_host()
            own = joined(own, values.differing_after(both, grad_factor=factor), differing_factor(values, factor))
            rows.append(about | {"implementation": "refopt", "how": "check and plan"} | own)
            rows.append(about | {"implementation": "refopt", "how": "check"} | row_of(check, check.bytes, copy_gb_s))
            if config == "fp32":
                step = clipped_torch_step(values, "fused", MAX_NORM)
                rows.append(about | {"implementation": "torch fused", "how": "eager"} | row_of(step, moved, copy_gb_s))
                row = row_of(captured(step), moved, copy_gb_s)
                rows.append(about | {"implementation": "torch fused", "how": "graph"} | row)
                del step
            del values, check, plan, both
            free()
    return rows


def differing_factor(values: Tensors, factor: Any, most: int = 1 << 25) -> dict[str, Any]:
    """Bytes in which the factor of a gradient check differs from NumPy's; of models of so many elements at most."""
    grads = values.slots["grads"]
    if sum(grad.numel() for grad in grads) > most:
        return {"differing_bytes": 0, "factor_compared": False, "ok": True}
    expected = cpu.check_gradients([to_numpy(grad) for grad in grads], max_norm=MAX_NORM).grad_factor
    same = expected.tobytes() == factor.tobytes()
    return {"differing_bytes": 0 if same else factor.nbytes, "factor_compared": True, "ok": same}


def first(routine: Routine, shapes: list[tuple[int, ...]]) -> Tensors:
    """The tensors of a first step, as PyTorch's optimizers begin."""
    values = Tensors.make(routine, shapes, "fp32")
    for state in (state for name in routine.states for state in values.slots.get(name, ())):
        state.zero_()
    for name, beta in zip(routine.scalars, (0.9, 0.999), strict=False):
        for value in values.slots[name]:
            value.fill_(beta)
    return values


def compiled_steps(copy_gb_s: float, names: list[str], seconds: float = COMPILE_S) -> Iterator[dict]:
    """PyTorch's optimizers through torch.compile, replayed as a CUDA graph: while there is time to compile more."""
    end = time.perf_counter() + seconds
    listed = [(name, ROUTINES[routine]) for name in names for routine in CLASSES]
    for name, routine in sorted(listed, key=lambda pair: pair[1] not in (ADAM, ADAMW)):
        about = {"workload": name, "config": "fp32", "routine": routine.name}
        about |= {"implementation": "torch.compile", "how": "graph"}
        if time.perf_counter() > end:
            yield about | {"skipped": f"no time left of {seconds:.0f} s"}
            continue
        start = time.perf_counter()
        values = first(routine, shapes_of(name))
        ours, moved = values.clone(), values.plan().bytes
        agreement: dict[str, Any] = {"ok": True}

        def make(values: Tensors = values, ours: Tensors = ours, agreement: dict = agreement) -> Callable[[], Any]:
            step = compiled(torch_step(values, "foreach"))
            step()
            if ours.routine in AGREEING:
                ours.plan()()
                torch.cuda.synchronize()
                worst = ours.largest_differences(values)["params"]
                agreement |= {"largest_difference": worst, "ok": worst <= PEER_TOLERANCE}
            return captured(step)

        row = row_of_peer(make, moved, copy_gb_s)
        row |= agreement | {"ok": row.get("ok", True) and agreement["ok"], "seconds": time.perf_counter() - start}
        yield about | row
        del values, ours, make
        free()


def agreement() -> list[dict]:
    """Whether PyTorch's fused optimizers compute what refopt does: the largest difference after a first step."""
    rows = []
    for routine in AGREEING:
        ours = first(routine, shapes_of("resnet50"))
        theirs = ours.clone()
        torch_step(theirs, "fused")()
        ours.plan()()
        torch.cuda.synchronize()
        worst = ours.largest_differences(theirs)["params"]
        rows.append({
            "routine": routine.name, "workload": "resnet50", "largest_difference": worst,
            "tolerance": PEER_TOLERANCE, "ok": worst <= PEER_TOLERANCE,
        })
        del ours, theirs
        free()
    return rows


def host() -> list[dict]:
    """Host time of enqueueing a step of AdamW, with and without new numbers, and of `rebind`."""
    rows: list[dict[str, Any]] = []
    lists: dict[str, list] = {"resnet50": shapes_of("resnet50"), "10,000 tensors of 1,000": [(1000,)] * 10_000}
    for name, shapes in lists.items():
        values = Tensors.make(ADAMW, shapes, "fp32")
        plan = values.plan()
        count = 0

        def changing(plan: gpu.Plan = plan) -> None:
            nonlocal count
            count += 1
            plan(lr=1e-3 + count * 1e-8)

        others = [torch.clone(grad) for grad in values.slots["grads"]]
        lists_of_grads = [values.slots["grads"], others]

        def rebinding(plan: gpu.Plan = plan, grads: list = lists_of_grads) -> None:
            nonlocal count
            count += 1
            plan.rebind(grads=grads[count % 2])

        rows.append({
            "list": name, "tensors": len(shapes), "implementation": "refopt",
            "no_arguments_us": host_us(plan), "unchanged_us": host_us(partial(plan, lr=LR)),
            "lr_changed_us": host_us(changing), "rebind_us": host_us(rebinding, calls=2, rounds=5, warmup=2),
        })
        plan.rebind(grads=values.slots["grads"])
        rows[-1] |= values.differing_after(partial(plan, lr=LR))
        for implementation in ("fused", "foreach"):
            step = torch_step(values, implementation)
            row = {"list": name, "tensors": len(shapes), "implementation": f"torch {implementation}, eager"}
            rows.append(row | {"no_arguments_us": host_us(step, calls=1, rounds=5, warmup=2)})
            del step
        del values, plan, others, lists_of_grads, changing, rebinding
        free()
    return rows


def graph() -> list[dict]:
    """A step captured in a CUDA graph and replayed with another lr each time, against NumPy bit for bit."""
    rates = (1e-3, 2e-3, 5e-4, 1e-4)
    rows = []
    for routine in (ADAMW, ROUTINES["lamb"], ROUTINES["momentum"]):
        values = Tensors.make(routine, shapes_of("resnet50"), "fp32")
        expected = values.numpy()
        for lr in rates:
            expected.step_in_numpy(lr=lr)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        plan = values.plan(stream=stream)
        capture_and_replay(plan, stream, rates)
        bad = values.differing_bytes(expected)
        rows.append({"routine": routine.name, "replays": len(rates) - 1, "differing_bytes": bad, "ok": bad == 0})
        del values, plan
        free()
    return rows


def tensors(size: int = 10_000) -> list[dict]:
    """Merged Adam against separate, by the number of tensors: a loop of launches, and one graph of them."""
    rows = []
    whole = Tensors.make(ADAM, [(size,)] * max(TENSORS), "fp32")
    for count in TENSORS:
        values = whole.only(count)
        row: dict[str, Any] = {"tensors": count, "elements_each": size}
        checks = []
        for form in ("merged", "separate"):
            plan = values.plan(form)
            row[f"{form}_ms"] = device_ms(plan)
            checks.append(values.differing_after(plan))
        row = joined(row, *checks)
        row["separate_loop_ms"] = device_ms(OneByOne(plan))  # which does not carry the powers of beta on
        step = torch_step(values, "fused")
        row["fused_ms"] = device_ms(step)
        row["fused_graph_ms"] = device_ms(captured(step))
        row["torch_loop_ms"] = device_ms(torch_step(values, "loop"), repeats=5)
        row["speed_up"] = row["separate_loop_ms"] / row["merged_ms"]
        row["speed_up_over_graph"] = row["separate_ms"] / row["merged_ms"]
        rows.append(row)
    return rows


def elements(copy_gb_s: float) -> list[dict]:
    """Adam on one tensor, by its size. Small ones stay in the L2 cache, since the same tensor is updated again."""
    rows = []
    for size in ELEMENTS:
        values = Tensors.make(ADAM, [(size,)], "fp32")
        plan = values.plan()
        held = sum(x.nbytes for column in values.slots.values() for x in column)
        measured = own_row(values, plan, plan.bytes, copy_gb_s, held=held)
        rows.append({"elements": size, "routine": "adam", "ps_per_element": measured["ms"] / size * 1e9} | measured)
        del values, plan
        free()
    return rows
