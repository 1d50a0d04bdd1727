"""What is wrong, or easily is, in LARS."""

from functools import partial

import numpy as np

from refopt.cpu.lars_momentum import adapts, local_lr, update
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.variants.lars_momentum import lars_with, norm_of_the_decayed
from refopt.oracle.wrong.rule import Wrong


def not_adapted(param_norm, grad_norm, *, lr, **numbers):
    return lr


def rate_without_lr(param_norm, grad_norm, *, lr, **numbers):
    return local_lr(param_norm, grad_norm, lr=1, **numbers)


def decay_left_out_of_the_denominator(param_norm, grad_norm, *, lars_weight_decay, adapt, **numbers):
    return local_lr(param_norm, grad_norm, lars_weight_decay=0 * lars_weight_decay, adapt="norms", **numbers)


def norms_squared(param_norm, grad_norm, **numbers):
    return local_lr(param_norm * param_norm, grad_norm * grad_norm, **numbers)


def norms_exchanged(param_norm, grad_norm, **numbers):
    return local_lr(grad_norm, param_norm, **numbers)


def norm_of_the_decayed_gradient(p, g, v, *, stored, lr, mu, lars_coeff, lars_weight_decay, epsilon, adapt, norm_of):
    """||g + wd * p|| for ||g|| + wd * ||p||."""
    norms = np.sqrt(sum_of_squares(p if norm_of == "master" else stored("params", p))), np.sqrt(sum_of_squares(g))
    local = lr
    if adapts(*norms, lars_weight_decay, adapt):
        local = lr * lars_coeff * norms[0] / (np.sqrt(sum_of_squares(g + lars_weight_decay * p)) + epsilon)
    return update(p, g, v, local_lr=local, mu=mu, lars_weight_decay=lars_weight_decay)


def lr_outside_of_velocity(p, g, v, *, lr, **numbers):
    _, new = lars_with(p, g, lr * v, lr=lr, **numbers)
    return p - lr * (new / lr), new / lr


def decay_forgotten(p, g, v, *, local_lr, mu, lars_weight_decay):
    return update(p, g, v, local_lr=local_lr, mu=mu, lars_weight_decay=0)


def decay_decoupled(p, g, v, *, local_lr, mu, lars_weight_decay):
    v = mu * v + local_lr * g
    return p - v - local_lr * lars_weight_decay * p, v


def decay_decoupled_by_lr(p, g, v, *, lr, lars_weight_decay, **numbers):
    new, v = lars_with(p, g, v, lr=lr, lars_weight_decay=lars_weight_decay, step=decay_forgotten, **numbers)
    return new - lr * lars_weight_decay * p, v


def momentum_of_everything(p, g, v, *, local_lr, mu, lars_weight_decay):
    v = mu * (v + local_lr * (g + lars_weight_decay * p))
    return p - v, v


def rate_outside_of_velocity(p, g, v, *, local_lr, mu, lars_weight_decay):
    v = mu * v + (g + lars_weight_decay * p)
    return p - local_lr * v, v


def dampened(p, g, v, *, local_lr, mu, lars_weight_decay):
    v = mu * v + (1 - mu) * local_lr * (g + lars_weight_decay * p)
    return p - v, v


def nesterov(p, g, v, *, local_lr, mu, lars_weight_decay):
    step = local_lr * (g + lars_weight_decay * p)
    v = mu * v + step
    return p - (step + mu * v), v


def old_velocity(p, g, v, *, local_lr, mu, lars_weight_decay):
    return p - v, mu * v + local_lr * (g + lars_weight_decay * p)


def learning_rate_again(p, g, v, *, lr, **numbers):
    _, v = lars_with(p, g, v, lr=lr, **numbers)
    return p - lr * v, v


def epsilon_in_velocity(p, g, v, *, stored, epsilon, mu, lars_weight_decay, adapt, norm_of, lr, lars_coeff):
    """Epsilon where Paddle's docstring puts it: in the velocity, not in the denominator."""
    norms = np.sqrt(sum_of_squares(p if norm_of == "master" else stored("params", p))), np.sqrt(sum_of_squares(g))
    rate = local_lr(
        *norms, lr=lr, lars_coeff=lars_coeff, lars_weight_decay=lars_weight_decay, epsilon=0 * epsilon, adapt=adapt
    )
    return update(p, g + epsilon, v, local_lr=rate, mu=mu, lars_weight_decay=lars_weight_decay)


WITH_SQUARES = lars_with
IN_PAPERS = lars_with
RULES = {
    "NotAdapted": Wrong("no trust ratio: the learning rate as it is", partial(lars_with, rate=not_adapted)),
    "RateWithoutLr": Wrong("local learning rate without lr", partial(lars_with, rate=rate_without_lr)),
    "DecayNotInDenominator": Wrong(
        "weight decay left out of the denominator", partial(lars_with, rate=decay_left_out_of_the_denominator)
    ),
    "NormsSquared": Wrong("squared norms for norms: a root forgotten", partial(lars_with, rate=norms_squared)),
    "NormsExchanged": Wrong("norms of parameter and gradient exchanged", partial(lars_with, rate=norms_exchanged)),
    "NormOfTheDecayed": Wrong(None, norm_of_the_decayed),
    "NormOfTheDecayedGradient": Wrong(
        "norm of g + wd * p for the sum of their norms in the denominator", norm_of_the_decayed_gradient
    ),
    "LrOutsideOfVelocity": Wrong(
        "lr outside of the velocity, the rest of the local rate in it", lr_outside_of_velocity
    ),
    "DecayForgotten": Wrong("no weight decay in the update", partial(lars_with, step=decay_forgotten)),
    "DecayDecoupled": Wrong("decay on the parameter, not in the velocity", partial(lars_with, step=decay_decoupled)),
    "DecayDecoupledByLr": Wrong("decay on the parameter by lr, not in the velocity", decay_decoupled_by_lr),
    "MomentumOfEverything": Wrong("mu on the new gradient as well", partial(lars_with, step=momentum_of_everything)),
    "RateOutsideOfVelocity": Wrong(
        "learning rate outside of the velocity", partial(lars_with, step=rate_outside_of_velocity)
    ),
    "Dampened": Wrong("gradient dampened by 1 - mu", partial(lars_with, step=dampened)),
    "Nesterov": Wrong("Nesterov's momentum", partial(lars_with, step=nesterov)),
    "OldVelocity": Wrong("parameter moved by the old velocity", partial(lars_with, step=old_velocity)),
    "EpsilonInVelocity": Wrong("epsilon in the velocity, not in the denominator", epsilon_in_velocity),
    "LearningRateAgain": Wrong("learning rate applied to the velocity again", learning_rate_again),
}
