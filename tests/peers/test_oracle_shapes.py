"""Optimizers of PyTorch and optax as users give them: what can be held is, and the report says what cannot."""


import pytest

from peers.trials import check

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")
jax = pytest.importorskip("jax")
optim = torch.optim


def step_law(routine, subject, **options):
    return check(routine, subject, **{"dtypes": ["float32"], "laws": ["L1"], "examples": 0} | options)


class OwnStep:
    """A step of Adam or AdamW, counted in one of several ways, with states made when they are needed."""

    first = None  # the count before the first step, of a parameter
    where = "state"
    t = 0

    def make(self, p):
        self.state[p].update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        if self.where == "state":
            self.state[p]["step"] = 0 if self.first is None else self.first.clone()

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        for group in self.param_groups:
            (beta1, beta2), t = group["betas"], self.t
            if self.where == "group":
                t = group["step"] = group.get("step", 0) + 1
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if "exp_avg" not in state:
                    self.make(p)
                if self.where == "state":
                    state["step"] += 1
                    t = float(state["step"])
                p.mul_(1 - group["lr"] * group.get("weight_decay", 0.0))
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.lerp_(p.grad, 1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                size = (v / (1 - beta2**t)).sqrt() + group["eps"]
                p.addcdiv_(m / (1 - beta1**t), size, value=-group["lr"])


class OwnAdam(OwnStep, optim.Optimizer):
    """With states made at once, if it is told so."""

    at_once = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for p in (p for group in self.param_groups for p in group["params"] if self.at_once):
            self.make(p)


def own(**attributes):
    return type("Own", (OwnAdam,), attributes)


class NeedsClosure(optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        super().step()


class NumbersOfItsOwn(optim.Optimizer):
    """Whose groups have none."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, {})
        self.lr, self.momentum = lr, momentum

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                p.add_(v.mul_(self.momentum).add_(p.grad), alpha=-self.lr)


class NoRate(optim.Optimizer):
    def step(self, closure=None):
        pass


class WideStates(optim.Optimizer):
    """fp32 momentum of any parameter."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("momentum_buffer", torch.zeros(p.shape))
                v.mul_(group["momentum"]).add_(p.grad.float())
                p.copy_(p.float() - group["lr"] * v)


def in_two_groups(params, lr, betas, eps):
    params = list(params)
    return optim.Adam([{"params": params[:2]}, {"params": params[2:]}], lr=lr, betas=betas, eps=eps)


def of_optax(around=lambda inner: inner, rate=lambda x: x):
    def make(learning_rate, b1, b2, eps):
        return around(optax.adam(rate(learning_rate), b1, b2, eps))

    return make


def chained(learning_rate):
    return optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.1), optax.scale(-learning_rate))


def momentum_of(pack, unpack):
    """A transformation of one's own, whose state is what ``pack`` makes of a list."""

    def make(learning_rate, momentum):
        def update(grads, state, params=None):
            trace = [momentum * v + g for v, g in zip(unpack(state), grads, strict=True)]
            return [-learning_rate * v for v in trace], pack(trace)

        return optax.GradientTransformation(lambda params: pack([jax.numpy.zeros_like(p) for p in params]), update)

    return make


RIGHT = {"a rate that is a tensor": ("adam", optim.Adam, {"lr": torch.tensor(0.125)}),
         "decoupled_weight_decay": ("adamw", optim.Adam, {"decoupled_weight_decay": True}),
         "an instance with groups": ("adam", optim.Adam([{"params": [torch.ones(2)], "lr": 0.5}, {"params": []}]), {}),
         "a function that makes groups": ("adam", in_two_groups, {"laws": ["L1", "L2", "L15"]}),
         "a function that names the rate otherwise":
             ("adam", lambda p, learning_rate: optim.Adam(p, lr=learning_rate), {"names": {"lr": "learning_rate"}}),
         "a step that needs a closure": ("sgd", NeedsClosure, {}),
         "steps counted by int": ("adam", own(), {"laws": ["L1", "L15", "L16"]}),
         "steps counted by a tensor": ("adam", own(first=torch.tensor(0.0)), {"laws": ["L1", "L16"]}),
         "steps counted by group": ("adam", own(where="group"), {"laws": ["L1", "L16"]}),
         "steps counted by the optimizer": ("adam", own(where="self"), {"laws": ["L1"], "names": {"step": "t"}}),
         "states made at once": ("adam", own(at_once=True), {"laws": ["L1", "L16"]}),
         "numbers outside of groups": ("momentum", NumbersOfItsOwn, {"laws": ["L1", "L16"]}),
         "states wider than parameters":
             ("momentum", WideStates, {"dtypes": ["bfloat16", "float32"], "laws": ["L1", "L3", "L10"]}),
         "a chain": ("adamw", chained, {"set": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "coeff": 0.1}}),
         "inject_hyperparams inside": ("adam", lambda learning_rate, b1, b2, eps: optax.inject_hyperparams(optax.adam)(
             learning_rate=learning_rate, b1=b1, b2=b2, eps=eps), {"laws": ["L1", "L16"]}),
         "masked": ("adam", of_optax(lambda inner: optax.masked(inner, lambda p: [True] * len(p))), {}),
         "MultiSteps of one": ("adam", of_optax(lambda inner: optax.MultiSteps(inner, 1)), {}),
         "a schedule": ("adam", of_optax(rate=optax.constant_schedule), {"laws": ["L1", "L16"]}),
         "a mask of the decay": ("adamw", optax.adamw, {"mask": lambda p: [True] * len(p)}),
         "no momentum": ("rmsprop", optax.rmsprop, {"momentum": None}),
         "only a learning rate": ("sgd", lambda learning_rate: optax.sgd(learning_rate), {}),
         "a state in a dictionary": ("momentum", momentum_of(lambda v: {"trace": v}, lambda s: s["trace"]), {}),
         "a state of another name":
             ("momentum", momentum_of(lambda v: ({"v": v},), lambda s: s[0]["v"]), {"names": {"velocities": "v"}})}
NOT_COMPARED = {
    "capturable on the CPU": ("adamw", optim.AdamW, {"capturable": True}, "needs tensors on a GPU: device='cuda'"),
    "states of other names": ("adam", NumbersOfItsOwn, {}, "expected exp_avg for moment1, or names={'moment1': ...}"),
    "states in one flat array": ("adam", of_optax(optax.flatten), {}, "mu: expected a list of arrays like the param"),
    "narrower states": ("adam", optax.adam, {"mu_dtype": "bfloat16"}, "mu in float32, which optax keeps in bfloat16"),
    "states without names": (
        "momentum", momentum_of(tuple, list), {}, "no trace for velocities in its state, which has none")}
OTHERS = {"a rate that falls": ("adam", of_optax(rate=lambda x: optax.linear_schedule(x, 0.0, 10)), {}, "step 2"),
          "no decay by a mask": ("adamw", optax.adamw, {"mask": lambda p: [False] * len(p)}, "params"),
          "gradients that are clipped": ("adam", of_optax(lambda x: optax.chain(optax.clip(0.5), x)), {}, "moment1")}
REFUSED = {
    "both": ("adam", optim.Adam, {"fused": True, "foreach": True}, "foreach=True: expected an optimizer, got Run"),
    "a function of a model": ("adam", lambda model: optim.Adam(model.parameters()), {}, "expected an optimizer, got A"),
    "a function of something else": ("sgd", lambda params, lr: [1], {}, "expected an optimizer of PyTorch, got list"),
    "an option that there is not": ("adamw", optim.AdamW, {"fuse": True}, "torch.optim.AdamW, fuse=True: .*fuse"),
    "a name of no state":
        ("adamw", optim.AdamW, {"names": {"moment3": "x"}}, "names: expected no more than .*moment1.*, got 'moment3'"),
    "an option of a function":
        ("sgd", lambda params, grads, lr: None, {"dtype": ["float32"]}, r"dtype: expected none.*, got \['float32'\]"),
    "a number that is a pair": ("adam", optim.Adafactor, {}, "check: torch.optim.Adafactor: expected an optimizer"),
    "no rate": ("sgd", lambda params: NoRate(params, {}), {}, r"takes lr, or set=\{'lr': ...\}, got neither"),
    "a transformation": ("adam", optax.adam(0.1), {}, "expected a function of learning_rate that makes one"),
    "a schedule for a number": ("adam", optax.adam, {"learning_rate": lambda count: 0.1}, "expected a number"),
    "no transformation": ("adam", lambda learning_rate: None, {}, "expected a GradientTransformation, got NoneType"),
    "what raises": ("adam", lambda learning_rate: 1 / 0, {}, "expected a GradientTransformation, got ZeroDiv")}


def rows(table):
    return pytest.mark.parametrize("row", table.values(), ids=table)


@rows(RIGHT)
def test_right_ones_pass(row):
    routine, subject, options = row
    report = step_law(routine, subject, **options)
    report.raise_if_failed()
    assert {"step 7"} <= {item.label for item in report.of("passed")}
    assert not any("optimizer.state" in item.text or "in its state" in item.text for item in report.items)


@rows(NOT_COMPARED)
def test_what_cannot_be_held_is_no_failure(row):
    routine, subject, options, text = row
    report = step_law(routine, subject, **options)
    assert not report.wrong and not report.step_compared
    assert text in report.details()


@rows(OTHERS)
def test_other_rules_fail(row):
    routine, subject, options, text = row
    report = step_law(routine, subject, diagnose=False, **options)
    assert report.wrong == ["L1"] and text in report.details()


@rows(REFUSED)
def test_refused(row):
    routine, subject, options, text = row
    with pytest.raises((TypeError, ValueError), match=text):
        step_law(routine, subject, **options)


@pytest.mark.parametrize(("subject", "status"), [(NumbersOfItsOwn, "skipped"), (optim.SGD, "passed")])
def test_numbers_outside_of_groups_are_those_of_the_first_step(subject, status):
    """What is in no group cannot be another in a later step; steps of the same are compared."""
    report = step_law("momentum", subject, laws=["L16"])
    found = {item.label: item for item in report.items}
    assert (found["3 steps"].status, found["3 steps of other numbers"].status) == ("passed", status)
    assert ("is in no group" in found["3 steps of other numbers"].text) == (status == "skipped")


def test_a_count_that_is_nowhere_leaves_the_first_step():
    report = step_law("adam", own(where="self"))
    first = {"step 1", "everything zero", "small gradients", "small gradients and parameters"}
    assert not report.ok and not report.wrong and {item.label for item in report.of("passed")} == first
    assert "NOT ALL COMPARED: skipped 8" in str(report).splitlines()[0] and "names={'step': ...}" in report.details()
    assert "(allow_skips=['L1'], or --allow-skips L1, accepts this)" in str(report).splitlines()[0]


def test_a_count_that_no_checkpoint_has_is_lost():
    """Whether it can be put into a case or not."""
    for names in ({"step": "t"}, None):
        assert check("adam", own(where="self"), dtypes=["float32"], laws=["L16"], names=names).wrong == ["L16"]


def test_states_are_an_optimizers_own():
    """One for all tensors of a shape, which states that are put into it do not show."""

    class Shared(optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            first = {}
            for p, state in self.state.items():
                state["exp_avg"] = first.setdefault(p.shape, state["exp_avg"])

    report = check("adam", Shared, dtypes=["float32"], laws=["L1", "L24"], diagnose=False)
    assert report.wrong == ["L24"] and "3 steps of tensors of one shape" in {x.label for x in report.of("failed")}


def test_a_group_that_comes_later_has_its_own_numbers():
    class OfTheFirstGroup(optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["lr"] = self.param_groups[0]["lr"]
            super().step(closure)

    report = check("sgd", OfTheFirstGroup, dtypes=["float32"], laws=["L24"], diagnose=False)
    assert {x.label for x in report.of("failed")} == {"3 steps of groups of other lr", "a group that is added later"}
    check(None, optim.SGD, dtypes=["float32"], laws=["L24"]).raise_if_failed()


def test_a_state_that_is_lost_is_wrong():
    class Loses(optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            for state in self.state.values():
                if state["step"] > 2:
                    del state["exp_avg_sq"]

    report = step_law("adam", Loses)
    assert report.wrong == ["L1"] and "optimizer.state: expected exp_avg_sq for moment2" in report.details()


class Momentum(optim.Optimizer):
    """Right, or wrong in one ``way``."""

    way = ""

    def __init__(self, params, lr=1e-3, momentum=0.0, weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, maximize=maximize))
        self.copies = {}

    def step(self, closure=None):
        with torch.set_grad_enabled(self.way != "closure without gradients"):
            loss = closure() if closure and self.way != "no closure" else None
        with torch.no_grad():
            for group in self.param_groups:
                for p in [p for p in group["params"] if p.grad is not None]:
                    self.moved(p, p.grad, group)
        return loss

    def moved(self, p, g, group):
        state = self.state[p]
        if group["maximize"]:
            g = g.mul_(-1) if self.way == "gradient negated" else -g
        g = g.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else g
        if "momentum_buffer" in state:
            state["momentum_buffer"].mul_(group["momentum"]).add_(g)
        else:
            state["momentum_buffer"] = g if self.way == "gradient kept" else g.clone()
        own = self.copies.setdefault(p, p.detach().clone()) if self.way == "a copy" else p
        own.add_(state["momentum_buffer"], alpha=-group["lr"])
        p.copy_(own)


@pytest.mark.parametrize(("way", "law", "label"), [
    ("", None, ""), ("no closure", "L24", "gradients that a closure computes"),
    ("closure without gradients", "L24", "gradients that a closure computes"),
    ("a copy", "L24", "parameters that are changed between two steps"),
    ("gradient kept", "L16", "3 steps without decay"),
    ("gradient negated", "L4", "gradients untouched, maximize=True")])
def test_a_class_that_keeps_or_leaves_what_is_its_callers(way, law, label):
    report = check("momentum", type("Mine", (Momentum,), {"way": way}), dtypes=["float32"], laws=["L4", "L16", "L24"],
                   diagnose=False, process=False)
    failed = {x.label for x in report.of("failed")}
    assert report.wrong == [law] * bool(law) and (not law or label in failed), str(report)
