"""`check(None, step)` beside PyTorch and optax: theirs hold, but for what is known; planted defects show."""

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

from peers.trials import check  # noqa: E402
from refopt import oracle  # noqa: E402

SHORT = {"dtypes": ["float32"]}
# Kernels on the CPU take a tensor's numbers from its first address on, one after the other, whatever its strides are.
FUSED = dict.fromkeys(("L4", "L4"), "fused kernels on the CPU read no strides")
CLASSES = [name for name, x in vars(torch.optim).items()
           if isinstance(x, type) and name not in ("Optimizer", "SparseAdam", "LBFGS")]
FUSED_TOO = [name for name in CLASSES if "fused" in inspect.signature(getattr(torch.optim, name)).parameters]
RUNS = [*((name, "") for name in CLASSES), *((name, "fused") for name in FUSED_TOO), ("Adam", "foreach")]


# Elements that are compared, of parameters and states.
COMPARED = {("Adam", ""): 1803173, ("Adam", "foreach"): 1803173, ("ASGD", ""): 1207992, ("Adafactor", ""): 1168573,
            ("Rprop", ""): 1803173}
slow = pytest.mark.slow


@pytest.mark.parametrize(("name", "how"), [
    pytest.param(*run, marks=[slow] if run not in COMPARED else []) for run in RUNS])
def test_classes_of_pytorch(name, how):
    expected, options = FUSED if how == "fused" else {}, {how: True} if how else {}
    report = check(None, getattr(torch.optim, name), **options, **SHORT, expected_failures=expected)
    shares = [] if name == "SGD" else ["L28"]  # which has no states by default
    assert report.ok and report.failed_laws == [*expected, *shares], str(report)
    assert {item.law for item in report.of("passed")} >= {"L2", "L3", "L15", "L4", "L17", "L16"}
    assert ("(expected: load_state_dict of torch.optim.Optimizer" in str(report)) == bool(shares)
    assert report.compared == COMPARED.get((name, how), report.compared)


@pytest.mark.parametrize("named", [{"laws": ["L16"], "dtypes": ["bfloat16"]},
                                   pytest.param({"laws": ["L2", "L2", "L15", "L4", "L4", "L17"]}, marks=slow)])
def test_muon(named):
    report = check(None, torch.optim.Muon, **named)
    assert report.ok and not report.failed_laws, str(report)


def test_what_needs_other_gradients_is_not_compared():
    report = check(None, torch.optim.SparseAdam, **SHORT)
    assert not report.ok and not report.wrong and "does not support dense gradients" in str(report)


def test_three_betas():
    class Three(Momentum):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.9, 0.9)):
            super().__init__(params, lr)
            self.param_groups[0]["betas"] = betas

    assert check(None, Three, laws=["L2"], **SHORT).ok
    assert oracle.identify(Three).routine is None


def test_a_learning_rate_is_of_python():
    kinds = set()

    class Sees(Momentum):
        def __init__(self, params, lr=1e-3):
            super().__init__(params, lr)
            kinds.add(type(lr))

    assert check(None, Sees, laws=["L2"], process=False, **SHORT).ok and kinds == {float}


def test_findings():
    """What holds for some options, dtypes and layouts alone."""
    fused = check(None, torch.optim.SGD, fused=True, momentum=0.9, expected_failures=FUSED, **SHORT)
    assert fused.wrong == ["L8"] and {"in the first step"} <= {x.label for x in fused.of("failed") if x.law == "L8"}
    for kind in (torch.optim.NAdam, torch.optim.ASGD):
        resumed = check(None, kind, dtypes=["float64"])
        # L24 also loads a state: parameters that are changed between two steps are compared with a new run.
        assert "L16" in resumed.wrong and {*resumed.wrong} <= {"L16", "L24"}, str(resumed)


def test_all_at_once_and_one_numbers_of_all():
    """An optimizer whose result depends on all tensors is not merged, and says so."""
    assert "L2" in check(None, torch.optim.LBFGS, laws=["L2", "L17"], **SHORT).wrong


class Momentum(torch.optim.Optimizer):
    """Right: with a gate, a number of steps and a momentum."""

    _step_supports_amp_scaling = True

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    def load_state_dict(self, state_dict):
        super().load_state_dict(copy.deepcopy(state_dict))

    def skips(self):
        return bool(getattr(self, "found_inf", 0))

    @torch.no_grad()
    def step(self, closure=None):
        loss = torch.enable_grad()(closure)() if closure else None
        if self.skips():
            return loss
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if p.grad is not None:
                    self.one(i, p, self.state[p], group["lr"])
        return loss

    def one(self, i, p, state, lr):
        state["count"] = state.get("count", 0) + 1
        buffer = state.setdefault("buffer", torch.zeros_like(p))
        buffer.mul_(0.9).add_(p.grad)
        p.sub_(lr / (1 - 0.9 ** state["count"]) * buffer)


class CountsSkipped(Momentum):
    def skips(self):
        skipped = super().skips()
        if skipped:
            for state in self.state.values():
                state["count"] += 1
        return skipped


class CountsInAnAttribute(Momentum):
    def one(self, i, p, state, lr):
        if i == 0:
            self.count = getattr(self, "count", 0) + 1
        state["count"] = self.count - 1
        super().one(i, p, state, lr)


class KeepsABufferApart(Momentum):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr)
        self.buffers = {}

    def one(self, i, p, state, lr):
        state["buffer"] = self.buffers.setdefault(p, torch.zeros_like(p))
        super().one(i, p, state, lr)
        del state["buffer"]


class SharesWhatItLoads(Momentum):
    def load_state_dict(self, state_dict):
        torch.optim.Optimizer.load_state_dict(self, state_dict)


class SharesItsCount(Momentum):
    def one(self, i, p, state, lr):
        steps = state.setdefault("steps", torch.zeros(()))
        state["count"] = int(steps)
        steps += 1
        super().one(i, p, state, lr)

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for i, p in enumerate(p for group in self.param_groups for p in group["params"]):
            if i in state_dict["state"]:
                self.state[p]["steps"] = state_dict["state"][i]["steps"]


class KeepsItsOwnNumbers(Momentum):
    def load_state_dict(self, state_dict):
        lr = self.param_groups[0]["lr"]
        super().load_state_dict(state_dict)
        self.param_groups[0]["lr"] = lr


class Flat(Momentum):
    def one(self, i, p, state, lr):
        p.detach().reshape(-1).sub_(lr * p.grad.reshape(-1))


class OneBuffer(Momentum):
    """By shape, not by parameter."""

    def one(self, i, p, state, lr):
        self.of_shape = getattr(self, "of_shape", {})
        state["buffer"] = self.of_shape.setdefault(tuple(p.shape), torch.zeros_like(p))
        super().one(i, p, state, lr)


class Ignores(Momentum):
    def skips(self):
        return False


class FirstRate(Momentum):
    """All groups have the rate of the first."""

    def one(self, i, p, state, lr):
        super().one(i, p, state, self.param_groups[0]["lr"])


def looked(optimizer):
    return bool(getattr(optimizer, "found_" + "inf", 0))


class LooksElsewhere(Momentum):
    """By a function of the module, but not in time."""

    _step_supports_amp_scaling = False

    def skips(self):
        return False

    def one(self, i, p, state, lr):
        if looked(self):
            state["count"] = state.get("count", 0) + 1
        else:
            super().one(i, p, state, lr)


class Clipped(Momentum):
    """By the norm of all gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        assert grads
        super().step()


@pytest.mark.parametrize(("kind", "law"), [(CountsSkipped, "L8"), (Ignores, "L8"), (LooksElsewhere, "L8"),
                                           (FirstRate, "L2"), (CountsInAnAttribute, "L16"), (KeepsABufferApart, "L16"),
                                           (KeepsItsOwnNumbers, "L16"), (Flat, "L4"),
                                           (OneBuffer, "L3"), (Clipped, "L2"), (Clipped, "L4"),
                                           (SharesWhatItLoads, "L28"), (SharesItsCount, "L28")])
def test_planted_defects(kind, law):
    report = check(None, kind, **SHORT)
    assert law in report.wrong, str(report)


def test_an_item_that_is_excused_is_an_expected_failure():
    (item,) = oracle.parametrize("adamw", torch.optim.AdamW, laws=["L28"], dtypes=["float32"], process=False).args[1]
    with pytest.raises(pytest.xfail.Exception, match="which it inherits, shares tensors"):
        item.values[0]()


def test_what_is_resumed_has_the_same_bits():
    """Of an optimizer whose first step is a rounding off."""

    class Rounding(Momentum):
        def one(self, i, p, state, lr):
            first = i not in self.__dict__.setdefault("known", set())
            self.known.add(i)
            state["step"] = 1
            p.copy_(p - lr * (p.grad.double() if first else p.grad))

    report = check(None, Rounding, laws=["L16"], process=False, **SHORT)
    assert {item.label for item in report.of("failed")} == {f"saved and loaded after {when}" for when in (
        "3 of 6 steps", "the learning rate was halved", "the first", "each")}


def test_a_right_one_has_no_false_alarm():
    """As a class, an instance, and a function of parameters."""
    of = Momentum([torch.nn.Parameter(torch.ones(2))], lr=0.0625)
    for subject in (Momentum, of, lambda params: Momentum(params, lr=0.0625)):
        report = check(None, subject, symmetries=("sign", "elements", "zero"), **SHORT)
        assert report.ok and not report.failed_laws, str(report)
        assert "L8" in {item.law for item in report.of("passed")}


class Codes(torch.optim.Optimizer):
    """Adam whose moments are codes of 8 bits, with a scale for each block of 64."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @staticmethod
    def coded(x):
        padded = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % 64)).reshape(-1, 64)
        scale = padded.abs().amax(1, keepdim=True) if padded.numel() else padded.new_zeros(0, 1)
        return (padded / scale.clamp_min(1e-30) * 127).round().to(torch.int8), scale

    @torch.no_grad()
    def step(self, closure=None):
        loss = torch.enable_grad()(closure)() if closure else None
        for p, lr in ((p, group["lr"]) for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p]
            state["count"] = state.get("count", 0) + 1
            zeros, moments = self.coded(torch.zeros(p.shape)), []
            for name, x, fade in (("first", p.grad.float(), 0.875), ("second", p.grad.float() ** 2, 0.9375)):
                code, scale = state.get(name, zeros[0]), state.get(f"{name}_scale", zeros[1])
                held = (code.float() / 127 * scale.float()).reshape(-1)[: p.numel()].reshape(p.shape)
                moment = fade * held + (1 - fade) * x
                state[name], state[f"{name}_scale"] = self.coded(moment)
                moments.append(moment / (1 - fade ** state["count"]))
            p.sub_((lr * moments[0] / (moments[1].sqrt() + 1e-6)).to(p.dtype))
        return loss


class KeptCodes(Codes):
    """With a checkpoint that keeps the dtypes of states, which PyTorch's casts to that of the parameter."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for i, p in enumerate(p for group in self.param_groups for p in group["params"]):
            held = state_dict["state"].get(i, {})
            self.state[p] = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in held.items()}


def test_states_of_8_bits():
    kept = check(None, KeptCodes, dtypes=["float32", "bfloat16"])
    assert kept.ok and not kept.failed_laws, str(kept)
    cast = check(None, Codes, dtypes=["float32", "bfloat16"], laws=["L16"])
    assert cast.wrong == ["L16"] and {item.dtype for item in cast.of("failed")} == {"bfloat16"}, str(cast)
    cast = check("adam", Codes, states="8bit", dtypes=["bfloat16"], laws=["L16"])
    assert "cause: states are cast on load: first[0]: expected int8, as saved, got bfloat16" in str(cast)


@pytest.mark.parametrize("make", [optax.adamw, optax.sgd(0.0625, momentum=0.875)])
def test_optax(make):
    report = check(None, make, laws=["L2", "L4", "L16"], **SHORT)
    assert report.ok and not report.failed_laws, str(report)


@pytest.mark.parametrize(("library", "law"), [("bitsandbytes.optim", "L30"), ("torchao.optim", "L31")])
def test_what_states_in_few_bits_lose(library, law):
    with torch.compiler.set_stance("force_eager"):
        kind = pytest.importorskip(library).AdamW8bit
        report = check("adamw", kind, states="8bit", laws=["L1", "L16", "L29", law, "L32"], dtypes=["bfloat16"])
    assert report.wrong == [law] and "states in groups" in str(report), str(report)


def test_two_libraries_are_compared_in_the_dtypes_of_both():
    named = dict(options_a={"lr": 0.5}, parts=["C6"], within=1e-4, process=False)
    report = oracle.compare(torch.optim.SGD, optax.sgd(0.5), **named)
    assert report.ok and list(report.dtypes) == ["float32", "float64"]
