"""LARS once more, and the ways in which implementations have been, or easily are, wrong.

`Lars` is right. Every class derived from it changes one thing, and is a merged step like any other: a check
that lets one of them pass checks nothing there.
"""

import numpy as np

from refopt.cpu.reduce import LANES, TILE, sum_of_squares, tile_sums, tree_sum
from refopt.dtypes import arithmetic


class Lars:
    """Correct. The methods are the places where a mutant differs."""

    def __call__(
        self, params, grads, velocities, *, lr, mu, lars_coeff=0.001, lars_weight_decay=0.0005, epsilon=0.0,
        rescale_grad=1.0, master_params=None, adapt="norms", norm_of="param",
    ):  # fmt: skip
        for i, (p, g, v) in enumerate(zip(params, grads, velocities, strict=True)):
            if self.skips(g):
                continue
            master = master_params[i] if master_params is not None else None
            real = arithmetic(p.dtype.name)
            with np.errstate(all="ignore"):
                h = dict(lr=self.of(lr, i), mu=mu, coeff=lars_coeff, wd=self.of(lars_weight_decay, i), eps=epsilon)
                h = {name: real(value) for name, value in h.items()}
                self.tensor(p, g, v, master, real, h, real(rescale_grad), adapt, norm_of)

    def skips(self, g):
        return g is None

    def of(self, value, i):
        return value[i] if isinstance(value, list) else value

    def tensor(self, param, grad, velocity, master, real, h, rescale, adapt, norm_of):
        x = (param if master is None else master).astype(real)
        g = rescale * grad.astype(real)
        p_norm = self.param_norm(param.astype(real), x, norm_of)
        rate = self.rate(p_norm, self.grad_norm(g, rescale), adapt, x, **h)
        x, v = self.rule(x, g, velocity.astype(real), rate, rescale=rescale, **h)
        self.store(param, velocity, master, x, v)

    def sum_of_squares(self, x):
        return sum_of_squares(x.reshape(-1))

    def param_norm(self, stored, exact, norm_of):
        return np.sqrt(self.sum_of_squares(stored if norm_of == "param" else exact))

    def grad_norm(self, g, rescale):
        return np.sqrt(self.sum_of_squares(g))

    def adapts(self, p_norm, g_norm, wd, adapt):
        norms = p_norm > 0 and g_norm > 0
        return {"norms": norms, "decay": wd > 0, "decay_and_norms": wd > 0 and norms}[adapt]

    def rate(self, p_norm, g_norm, adapt, x, *, lr, coeff, wd, eps, **_):
        if not self.adapts(p_norm, g_norm, wd, adapt):
            return lr
        return lr * coeff * p_norm / (g_norm + wd * p_norm + eps)

    def rule(self, x, g, v, rate, *, lr, mu, coeff, wd, eps, rescale):
        v = mu * v + rate * (g + wd * x)
        return x - v, v

    def store(self, param, velocity, master, x, v):
        velocity[...] = v.astype(velocity.dtype)
        param[...] = x.astype(param.dtype)
        if master is not None:
            master[...] = x


class EpsilonInVelocity(Lars):
    """Epsilon where Paddle's docstring puts it: in the velocity, not in the denominator."""

    def rate(self, *args, eps, **h):
        return super().rate(*args, eps=eps * 0, **h)

    def rule(self, x, g, v, rate, *, mu, wd, eps, **_):
        v = mu * v + rate * (g + wd * x + eps)
        return x - v, v


class DecayElementwiseInDenominator(Lars):
    """wd * p in the denominator for wd * ||p||, as in the reference of Paddle's own test."""

    def rate(self, p_norm, g_norm, adapt, x, *, lr, coeff, wd, eps, **_):
        if not self.adapts(p_norm, g_norm, wd, adapt):
            return lr
        return lr * coeff * p_norm / (g_norm + wd * x + eps)


class RescaleForgottenInNorm(Lars):
    """The norm of the gradient as it came."""

    def grad_norm(self, g, rescale):
        return super().grad_norm(g / rescale, rescale)


class RescaleForgottenInUpdate(Lars):
    """The norm of the rescaled gradient, the update with the gradient as it came."""

    def rule(self, x, g, v, rate, *, rescale, **h):
        return super().rule(x, g / rescale, v, rate, rescale=rescale, **h)


class ScaleAfterRoot(Lars):
    """rescale * ||g|| for ||rescale * g||: equal in exact arithmetic alone."""

    def grad_norm(self, g, rescale):
        return rescale * super().grad_norm(g / rescale, rescale)


class FirstLearningRate(Lars):
    """The learning rate of the first tensor for all."""

    def __call__(self, *args, lr, **rest):
        super().__call__(*args, lr=lr[0] if isinstance(lr, list) and lr else lr, **rest)


class FirstWeightDecay(Lars):
    """The weight decay of the first tensor for all."""

    def __call__(self, *args, lars_weight_decay=0.0005, **rest):
        wd = lars_weight_decay
        super().__call__(*args, lars_weight_decay=wd[0] if isinstance(wd, list) and wd else wd, **rest)


class StopsAtEmptyTensor(Lars):
    """A tensor of no elements ends the list."""

    def __call__(self, params, grads, velocities, *, master_params=None, **rest):
        end = next((i for i, p in enumerate(params) if p.size == 0), len(params))
        masters = master_params and master_params[:end]
        hyper = {name: value[:end] if isinstance(value, list) else value for name, value in rest.items()}
        super().__call__(params[:end], grads[:end], velocities[:end], master_params=masters, **hyper)


class LastEmptyTensorTakesLastChunk(Lars):
    """When the list ends in an empty tensor, the one before it is never launched (PyTorch's sizes=[1, 0])."""

    def __call__(self, params, grads, velocities, *, master_params=None, **rest):
        grads = list(grads)
        if len(params) > 1 and params[-1].size == 0:
            grads[-2] = None
        super().__call__(params, grads, velocities, master_params=master_params, **rest)


class TailDropped(Lars):
    """Vectors of four, and no loop for what is left."""

    def store(self, param, velocity, master, x, v):
        end = param.size // 4 * 4
        velocity[:end] = v[:end].astype(velocity.dtype)
        param[:end] = x[:end].astype(param.dtype)
        if master is not None:
            master[:end] = x[:end]


class TailLeftOutOfNorm(Lars):
    """The last, incomplete tile is not in the sum."""

    def sum_of_squares(self, x):
        return super().sum_of_squares(x[: x.size // TILE * TILE] if x.size > TILE else x)


class NormOfMaster(Lars):
    """The norm of the master where that of the stored parameter was asked for."""

    def param_norm(self, stored, exact, norm_of):
        return super().param_norm(exact, exact, norm_of)


class NormOfParam(Lars):
    """The norm of the stored parameter where that of the master was asked for."""

    def param_norm(self, stored, exact, norm_of):
        return super().param_norm(stored, stored, norm_of)


class MomentumOfEverything(Lars):
    """v' = mu * (v + rate * ...)."""

    def rule(self, x, g, v, rate, *, mu, wd, **_):
        v = mu * (v + rate * (g + wd * x))
        return x - v, v


class LearningRateAgain(Lars):
    """p -= lr * v, as in plain momentum; here lr is in v already."""

    def rule(self, x, g, v, rate, *, lr, **h):
        _, v = super().rule(x, g, v, rate, lr=lr, **h)
        return x - lr * v, v


class DecayDecoupled(Lars):
    """Weight decay on p directly, not through the velocity."""

    def rule(self, x, g, v, rate, *, mu, wd, **_):
        v = mu * v + rate * g
        return x - v - rate * wd * x, v


class AdaptsByDecayAlone(Lars):
    """Paddle's GPU kernel of 2021: the condition looks at the weight decay whatever is asked for."""

    def adapts(self, p_norm, g_norm, wd, adapt):
        return wd > 0


class GradNormNotTested(Lars):
    """The condition on the norms without ||g|| > 0."""

    def adapts(self, p_norm, g_norm, wd, adapt):
        return super().adapts(p_norm, max(p_norm, g_norm), wd, adapt)


class ParamNormNotTested(Lars):
    """The condition on the norms without ||p|| > 0: parameters that are zero stay zero."""

    def adapts(self, p_norm, g_norm, wd, adapt):
        return super().adapts(max(p_norm, g_norm), g_norm, wd, adapt)


class NanNormAdapts(Lars):
    """The condition negated, so that a NaN norm falls on the other side: not (norm <= 0)."""

    def adapts(self, p_norm, g_norm, wd, adapt):
        norms = not (p_norm <= 0) and not (g_norm <= 0)
        return {"norms": norms, "decay": wd > 0, "decay_and_norms": wd > 0 and norms}[adapt]


class SumInIndexOrder(Lars):
    """The squares added one after another."""

    def sum_of_squares(self, x):
        squares = x * x
        return np.add.accumulate(squares)[-1] if x.size else x.dtype.type(0)


class SumByNumPy(Lars):
    """np.sum, whose order is NumPy's own affair."""

    def sum_of_squares(self, x):
        return np.sum(x * x)


class SquaresContracted(Lars):
    """Each square added to its lane in one rounding, as a compiler left to itself makes it."""

    def sum_of_squares(self, x):
        rows = np.zeros((-(-x.size // TILE), TILE // LANES, LANES), x.dtype)
        rows.reshape(-1)[: x.size] = x.reshape(-1)
        wide = np.longdouble if x.dtype == np.float64 else np.float64
        lanes = rows[:, 0] * rows[:, 0]
        for k in range(1, TILE // LANES):
            lanes = (lanes + rows[:, k].astype(wide) ** 2).astype(x.dtype)
        return tree_sum(tree_sum(lanes))


class SumInDouble(Lars):
    """A better sum, and another one."""

    def sum_of_squares(self, x):
        return x.dtype.type(sum_of_squares(x.reshape(-1).astype(np.float64)))


class Contracted(Lars):
    """g + wd * p in one rounding, as a compiler left to itself makes it."""

    def rule(self, x, g, v, rate, *, mu, wd, **_):
        wide = np.longdouble if x.dtype == np.float64 else np.float64
        v = mu * v + rate * (wide(wd) * x.astype(wide) + g).astype(x.dtype)
        return x - v, v


class MomentumContracted(Lars):
    """mu * v + ... in one rounding."""

    def rule(self, x, g, v, rate, *, mu, wd, **_):
        wide = np.longdouble if x.dtype == np.float64 else np.float64
        v = (wide(mu) * v.astype(wide) + rate * (g + wd * x)).astype(x.dtype)
        return x - v, v


class RateRegrouped(Lars):
    """lr * (coeff * ||p|| / ...) for lr * coeff * ||p|| / ...: the order of operations is part of the rule."""

    def rate(self, p_norm, g_norm, adapt, x, *, lr, coeff, wd, eps, **_):
        if not self.adapts(p_norm, g_norm, wd, adapt):
            return lr
        return lr * (coeff * p_norm / (g_norm + wd * p_norm + eps))


class HyperparametersInDouble(Lars):
    """The rate is worked out in double and rounded at the end (N2 rounds the numbers first)."""

    def rate(self, p_norm, g_norm, adapt, x, **h):
        wide = {name: np.float64(value) for name, value in h.items()}
        return x.dtype.type(super().rate(np.float64(p_norm), np.float64(g_norm), adapt, x, **wide))


class SubnormalsFlushed(Lars):
    """Results below the smallest normal number become zero."""

    def rule(self, x, g, v, rate, **h):
        x, v = super().rule(x, g, v, rate, **h)
        tiny = np.finfo(x.dtype).tiny
        return np.where(abs(x) < tiny, x.dtype.type(0), x), np.where(abs(v) < tiny, x.dtype.type(0), v)


class VelocityThroughHalf(Lars):
    """The velocity rounded to fp16 on its way to memory."""

    def store(self, param, velocity, master, x, v):
        super().store(param, velocity, master, x, v.astype(np.float16))


class MasterFromParam(Lars):
    """The master takes the rounded parameter, and with it loses what it is there for."""

    def store(self, param, velocity, master, x, v):
        super().store(param, velocity, master, x, v)
        if master is not None:
            master[...] = param.astype(master.dtype)


class SquaresInStorageType(Lars):
    """Squares taken in fp16, where those of 256 and more are inf."""

    def param_norm(self, stored, exact, norm_of):
        x = stored if norm_of == "param" else exact
        return np.sqrt(tree_sum(tile_sums((x * x).astype(np.float16).astype(x.dtype).reshape(-1))))


class NoneIsZero(Lars):
    """A gradient of None taken as zeros: momentum and weight decay go on."""

    def skips(self, g):
        return False

    def tensor(self, param, grad, *rest):
        super().tensor(param, np.zeros_like(param) if grad is None else grad, *rest)


class OneElementHasNoNorm(Lars):
    """A reduction over pairs that never looks at the only element."""

    def sum_of_squares(self, x):
        return x.dtype.type(0) if x.size == 1 else super().sum_of_squares(x)


MUTANTS: tuple[type[Lars], ...] = tuple(Lars.__subclasses__())
