"""LARS once more, and the ways in which implementations have been, or easily are, wrong.

`Lars` is right. Every class derived from it changes one thing, and is an implementation like any other: a check
that lets one of them pass checks nothing there.
"""

import numpy as np

from mutants import family
from refopt.catalog import LARS_MOMENTUM
from refopt.cpu.reduce import TILE, sum_of_squares
from refopt.oracle.exact.cases import Run


class Lars(family.Optimizer):
    """Correct. The methods are the places where a mutant differs."""

    def __init__(self):
        super().__init__(self.whole)

    def tensor(self, case, arrays, numbers):
        self.param, self.factor = arrays["params"], np.take(numbers.pop("grad_factor", 1), 0)
        if not self.found(np.take(numbers.pop("found_inf", 0), 0)):
            super().tensor(case, arrays, numbers)

    def found(self, flag):
        return flag != 0

    def rescaled(self, g, rescale):
        self.rescale = rescale * g.dtype.type(self.factor)
        return self.rescale * g

    def whole(self, x, g, v, *, lr, mu, lars_coeff, lars_weight_decay, epsilon, adapt, norm_of, stored):
        h = dict(lr=lr, mu=mu, coeff=lars_coeff, wd=lars_weight_decay, eps=epsilon)
        p_norm = self.param_norm(self.param.astype(x.dtype), x, norm_of)
        return self.update(x, g, v, self.rate(p_norm, self.grad_norm(g), adapt, x, **h), **h)

    def sum_of_squares(self, x):
        return sum_of_squares(x)

    def param_norm(self, stored, exact, norm_of):
        return np.sqrt(self.sum_of_squares(stored if norm_of == "param" else exact))

    def grad_norm(self, g):
        return np.sqrt(self.sum_of_squares(g))

    def adapts(self, p_norm, g_norm, wd, adapt):
        norms = p_norm > 0 and g_norm > 0
        return {"norms": norms, "decay": wd > 0, "decay_and_norms": wd > 0 and norms}[adapt]

    def rate(self, p_norm, g_norm, adapt, x, *, lr, coeff, wd, eps, **_):
        if not self.adapts(p_norm, g_norm, wd, adapt):
            return lr
        return lr * coeff * p_norm / (g_norm + wd * p_norm + eps)

    def update(self, x, g, v, rate, *, lr, mu, coeff, wd, eps):
        v = mu * v + rate * (g + wd * x)
        return x - v, v


class DecayElementwiseInDenominator(Lars):
    """wd * p in the denominator for wd * ||p||, as in the reference of Paddle's own test."""

    def rate(self, p_norm, g_norm, adapt, x, *, lr, coeff, wd, eps, **_):
        if not self.adapts(p_norm, g_norm, wd, adapt):
            return lr
        return lr * coeff * p_norm / (g_norm + wd * x + eps)


class RescaleForgottenInNorm(Lars):
    """The norm of the gradient as it came."""

    def grad_norm(self, g):
        return super().grad_norm(g / self.rescale)


class RescaleForgottenInUpdate(Lars):
    """The norm of the rescaled gradient, the update with the gradient as it came."""

    def update(self, x, g, v, rate, **h):
        return super().update(x, g / self.rescale, v, rate, **h)


class FirstWeightDecay(Lars):
    """The weight decay of the first tensor for all."""

    def of(self, name, value, i):
        return super().of(name, value, 0 if name == "lars_weight_decay" else i)


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


class NormOfNearestEven(Lars):
    """The norm of the exact parameters rounded to nearest even; with remainders, ties are stored away from zero."""

    def param_norm(self, stored, exact, norm_of):
        return super().param_norm(exact.astype(self.param.dtype).astype(exact.dtype), exact, norm_of)


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


class FactorForgottenInNorm(Lars):
    """The norm of the gradient that is not clipped."""

    def grad_norm(self, g):
        return super().grad_norm(g / g.dtype.type(self.factor))


class FactorAppliedFirst(Lars):
    """rescale * (factor * g): another rounding (N8)."""

    def rescaled(self, g, rescale):
        super().rescaled(g, rescale)
        return rescale * (g.dtype.type(self.factor) * g)


class FlagIsOne(Lars):
    """Skips where the flag is 1, and not where it is anything else but 0."""

    def found(self, flag):
        return flag == 1


MUTANTS: dict[str, Run] = {cls.__name__: cls() for cls in Lars.__subclasses__()}
MUTANTS |= family.mutants(LARS_MOMENTUM, Lars)
