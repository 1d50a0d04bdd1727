"""Real models trained by `refopt.torch` and by PyTorch's own optimizers, in mixed precision.

    python -m benchmarks.torch_training [--device cpu] [--steps 50] [--out FILE]

timm's ResNet-50 and a transformer of BERT-large's size on random data, with a GradScaler, a cosine schedule and
clipping. In each step of PyTorch's fused optimizer, one of refopt.torch is taken from the same parameters, states and
gradients, and both are held to the oracle's bound. The losses stand beside each other; a run that is saved and loaded
goes on with the same bits; samples per second and memory are measured. With ``--device cpu`` small models are trained
on the executor, and nothing is timed. The exit status is 1 if a section failed or a row is wrong.
"""

import argparse
import copy
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import RESULTS, ROOT, begin, by_sections, ended, short_name
from benchmarks.torch_models import CASES, KINDS, MAX_NORM, Case, Run, differing
from benchmarks.torch_step import release
from benchmarks.torch_work import OURS
from refopt import torch as merged
from refopt.oracle.bound.bounded import Arithmetic
from refopt.oracle.bound.expected import Expected, expected_of
from refopt.oracle.cases import scalar_after, true_scalars
from refopt.oracle.variants import ROUTINES

STEPS = 50
ELEMENTS = 1000  # of a tensor that are held to the bound in a step, others in each
TIMED, WARMUP = 20, 5
HALF = 6  # steps before a run is saved, and as many after


class Shadow:
    """An optimizer of `refopt.torch` that takes each step of another one from where that one stands.

    Attributes:
        rows: of each step that was taken: the largest error over its bound, of refopt's and of PyTorch's parameters and
            states, and how far they are from each other, in bounds.
    """

    def __init__(self, case: Case) -> None:
        self._case, self.rows = case, list[dict[str, Any]]()
        self._params: list[torch.Tensor] = []
        self._expected: dict[str, Expected] | None = None

    def look(self, run: Run) -> None:
        """Take the step that the run is about to take; its gradients are unscaled and clipped."""
        if not self._params:
            self._params = [torch.nn.Parameter(param.detach().clone()) for param in run.params]
            self._optimizer = getattr(merged, self._case.kind)(self._params, **self._case.options)
        self._expected = None
        if not all(bool(param.grad.isfinite().all()) for param in run.params if param.grad is not None):
            return  # which the scaler has found, too
        with torch.no_grad():
            for own, param in zip(self._params, run.params, strict=True):
                own.copy_(param)
                own.grad = param.grad
        self._optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        self._places = self._chosen(run.params, len(run.losses))
        group = run.optimizer.param_groups[0]
        self._formula = type(self._optimizer).formula(group)
        self._expected = self._expect(run)
        self._optimizer.step()

    def compare(self, run: Run) -> None:
        """Compare with what the run has come to."""
        if self._expected is None:
            self.rows.append({"skipped": "not finite"})
            return
        worst = {"refopt": 0.0, "fused": 0.0, "apart": 0.0}
        ours = self._read(self._params, self._optimizer.state, "params")
        theirs = self._read(run.params, run.optimizer.state, "params")
        for name in ours:
            expected = self._expected[name]
            for who, values in (("refopt", ours[name]), ("fused", theirs[name])):
                worst[who] = max(worst[who], float(np.nanmax(expected.ratio(values), initial=0.0)))
            apart = abs(ours[name].astype(np.float64) - theirs[name])
            with np.errstate(all="ignore"):
                bounds = np.where(apart == 0, 0.0, apart / expected.error)
            worst["apart"] = max(worst["apart"], float(np.nanmax(bounds, initial=0.0)))
        moved = bool((self._before != ours["params"]).any())
        self.rows.append({"elements": ours["params"].size, **worst, "moved": moved})

    def _chosen(self, params: list, seed: int) -> list[torch.Tensor]:
        """Places in each tensor, others in each step."""
        random = torch.Generator().manual_seed(seed)
        return [torch.randint(p.numel(), (min(ELEMENTS, p.numel()),), generator=random).to(p.device) for p in params]

    def _read(self, params: Any, states: Any, *more: str) -> dict[str, np.ndarray]:
        """The chosen elements of all tensors in one array, by slot."""
        lists: dict[str, list] = {name: [getattr(p, "grad", None) if name == "grads" else p for p in params]
                                  for name in more}
        for slot, key in self._formula.states.items():
            lists[slot] = [states[p].get(key) if p in states else None for p in params]
        found = {}
        for name, tensors in lists.items():
            tensors = [torch.zeros_like(p) if x is None else x for p, x in zip(params, tensors, strict=True)]
            parts = [x.detach().reshape(-1)[at] for x, at in zip(tensors, self._places, strict=True)]
            found[name] = torch.cat(parts).cpu().numpy()
        return found

    def _expect(self, run: Run) -> dict[str, Expected]:
        """What the step has to come to, from true powers of the betas, within what running products may be off."""
        formula, row = self._formula, ROUTINES[self._formula.routine]
        count = 1 + sum("skipped" not in each for each in self.rows)
        numbers = {hyper.name: formula.numbers.get(hyper.name, hyper.default) for hyper in row.hypers}
        choices = {name: formula.choices.get(name, values[0]) for name, values in row.choices.items()}
        arrays: dict[str, Any] = dict.fromkeys(row.slot_names)
        arrays |= self._read(run.params, run.optimizer.state, "params", "grads")
        self._before = arrays["params"]
        arrays |= {slot: scalar_after(slot, numbers, count - 1, np.float32) for slot in row.scalars}
        known = true_scalars(row, arrays, numbers, choices, count, Arithmetic(np.float32, inputs=True))
        return expected_of(row, arrays, numbers, choices, scalars=known)


def bounds(case: Case, device: str, steps: int) -> tuple[list[float], list[dict[str, Any]]]:
    """The losses of PyTorch's fused optimizer, and a row for each step of how near refopt's is."""
    run, shadow = Run(case, "fused", device, steps), Shadow(case)
    for _ in range(steps):
        run.step(shadow.look)
        shadow.compare(run)
    return run.losses, shadow.rows


def curves(case: Case, device: str, steps: int) -> dict[str, Any]:
    """The losses of each optimizer; not right if a step was beyond the bound, or none was taken."""
    losses, rows = {}, list[dict[str, Any]]()
    for name in KINDS:
        if name == "fused":
            losses[name], rows = bounds(case, device, steps)
        else:
            run = Run(case, name, device, steps)
            run.steps(steps)
            losses[name] = run.losses
            del run
        release()
    taken = [row for row in rows if "skipped" not in row]
    worst = {f"largest_{who}": max((row[who] for row in taken), default=0.0) for who in ("refopt", "fused", "apart")}
    return {
        "model": case.model, "optimizer": case.kind, "steps": steps, "max_norm": MAX_NORM, "losses": losses,
        "skipped": len(rows) - len(taken), "elements": sum(row["elements"] for row in taken), **worst,
        "ratios": [row.get("refopt") for row in rows],
        "ok": bool(taken) and worst["largest_refopt"] <= 1 and all(row["moved"] for row in taken),
    }


def resumed(case: Case, device: str, half: int = HALF) -> dict[str, Any]:
    """Whether a training by refopt that is saved and loaded goes on with the bits of one that is not."""
    whole = Run(case, OURS, device, 2 * half)
    whole.steps(half)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    whole.steps(half)
    file.seek(0)
    parts = Run(case, OURS, device, 2 * half, seed=1)  # other parameters, and other data
    parts.load(torch.load(file, weights_only=False))
    parts._batches = whole._batches
    parts.steps(half)
    again = Run(case, OURS, device, 2 * half)  # which differs where the model's own kernels are not deterministic
    again.steps(2 * half)
    bad, chance = (differing(*([x.detach() for x in run.params] for run in (whole, other))) for other in (parts, again))
    return {
        "model": case.model, "optimizer": case.kind, "steps": 2 * half, "saved_after": half,
        "differing_elements": bad, "differing_without_stop": chance,
        "ok": bad == 0 and whole.losses == parts.losses,
    }


def speeds(case: Case) -> Iterator[dict[str, Any]]:
    """Samples per second, and memory at its peak, with each optimizer."""
    for name in KINDS:
        release()
        torch.cuda.reset_peak_memory_stats()
        run = Run(case, name, "cuda", WARMUP + TIMED)
        run.steps(WARMUP)
        torch.cuda.synchronize()
        start = time.perf_counter()
        run.steps(TIMED)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / TIMED
        left, total = torch.cuda.mem_get_info()
        yield {
            "model": case.model, "optimizer": case.kind, "implementation": name, "samples": case.samples,
            "ms": seconds * 1e3, "samples_per_second": case.samples / seconds,
            "peak_bytes": torch.cuda.max_memory_allocated(), "device_bytes": total - left,
        }
        del run
    release()


def of_each(cases: tuple[Case, ...], section: Callable[[Case], Any]) -> Iterator[dict[str, Any]]:
    """The rows of a section for each case; where a model cannot be had, one that says why."""
    for case in cases:
        try:
            rows = section(case)
            yield from [rows] if isinstance(rows, dict) else rows
        except ImportError as error:
            yield {"model": case.model, "optimizer": case.kind, "skipped": str(error)}
        release()


def deterministic(section: Callable[..., Any], *given: Any) -> Any:
    """A section by algorithms that give the same bits every time."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return section(*given)
    finally:
        torch.use_deterministic_algorithms(before)


def measured(device: str, steps: int, half: int, out: Path) -> dict[str, Any]:
    """The whole report, saved after every row."""
    own = sorted((ROOT / "refopt" / "torch").glob("*.py"))
    report: dict[str, Any] = begin("benchmarks.torch_training", also=own) | {"what": "torch-training", "on": device}
    cases = CASES[device]
    sections: dict[str, Callable[[Case], Any]] = {
        "curves": lambda case: deterministic(curves, case, device, steps),
        "resumed": lambda case: deterministic(resumed, case, device, half),
    }
    if device == "cuda":
        sections = {"speeds": speeds, **sections}
    by_sections(report, ((name, partial(of_each, cases, section)) for name, section in sections.items()), out)
    return report


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=list(CASES))
    parser.add_argument("--steps", type=int, default=STEPS, help="of each training")
    parser.add_argument("--half", type=int, default=HALF, metavar="STEPS", help="before a run is saved, and after")
    parser.add_argument("--out", "--to", type=Path, help="default: benchmarks/results/torch-training-DEVICE.json")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS is not deterministic
    name = short_name(torch.cuda.get_device_properties(0).name) if options.device == "cuda" else "cpu"
    out = options.out or RESULTS / f"torch-training-{name}.json"
    report = measured(options.device, options.steps, options.half, out)
    for section in ("speeds", "curves", "resumed"):
        for row in report.get(section, ()):
            print(section, *(f"{key}={value}" for key, value in row.items() if not isinstance(value, list | dict)))
    print(f"written to {out}")
    return ended(report)


if __name__ == "__main__":
    sys.exit(main())
