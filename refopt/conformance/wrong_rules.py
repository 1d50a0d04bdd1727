"""Rules that are wrong in one place, for each elementwise routine: what has been, or easily is, written."""

from functools import partial
from typing import Any

import numpy as np

from refopt.cpu.adadelta import rule as adadelta_rule
from refopt.cpu.adagrad import rule as adagrad_rule
from refopt.cpu.adam import descend, larger, moments
from refopt.cpu.adam import rule as adam_rule
from refopt.cpu.adamax import rule as adamax_rule
from refopt.cpu.lamb import direction, trust_ratio
from refopt.cpu.lion import rule as lion_rule
from refopt.cpu.lion import sign
from refopt.cpu.momentum import rule as momentum_rule
from refopt.cpu.nadam import rule as nadam_rule
from refopt.cpu.novograd import average
from refopt.cpu.novograd import direction as novograd_direction
from refopt.cpu.radam import next_rho, rectification
from refopt.cpu.radam import rule as radam_rule
from refopt.cpu.reduce import sum_of_squares
from refopt.cpu.rmsprop import root
from refopt.cpu.rmsprop import rule as rmsprop_rule

# Gradient descent.


def sgd_decay_forgotten(p, g, *, lr, l2_decay):
    return (p - lr * g,)


def sgd_decay_decoupled(p, g, *, lr, l2_decay):
    return (p * (1 - lr * l2_decay) - lr * g,)


def sgd_distributed(p, g, *, lr, l2_decay):
    return (p - (lr * g + lr * l2_decay * p),)


def sgd_uphill(p, g, *, lr, l2_decay):
    return (p + lr * (g + l2_decay * p),)


def sgd_decay_of_the_step(p, g, *, lr, l2_decay):
    p = p - lr * g
    return (p - lr * l2_decay * p,)


# Momentum.


def learning_rate_in_velocity(p, g, v, *, lr, mu, l2_decay, use_nesterov):
    step = lr * (g + l2_decay * p)
    v = mu * v + step
    return p - (step + mu * v if use_nesterov else v), v


def momentum_decay_decoupled(p, g, v, *, lr, mu, l2_decay, use_nesterov):
    v = mu * v + g
    return p * (1 - lr * l2_decay) - lr * (g + mu * v if use_nesterov else v), v


def dampened(p, g, v, *, lr, mu, l2_decay, use_nesterov):
    return momentum_rule(p, (1 - mu) * g, v, lr=lr, mu=mu, l2_decay=l2_decay, use_nesterov=use_nesterov)


def nesterov_ignored(p, g, v, *, use_nesterov, **numbers):
    return momentum_rule(p, g, v, use_nesterov=False, **numbers)


def nesterov_with_the_old_velocity(p, g, v, *, lr, mu, l2_decay, use_nesterov):
    g = g + l2_decay * p
    new = mu * v + g
    return p - lr * (g + mu * v if use_nesterov else new), new


def nesterov_without_decay(p, g, v, *, lr, mu, l2_decay, use_nesterov):
    v = mu * v + (g + l2_decay * p)
    return p - lr * (g + mu * v if use_nesterov else v), v


# Adam and AdamW.


def no_bias_correction(p, g, m, u, b1, b2, u_max, **numbers):
    zero = b1 * 0
    p, m, u, _, _, u_max = adam_rule(p, g, m, u, zero, zero, u_max, **numbers)
    return p, m, u, b1 * numbers["beta1"], b2 * numbers["beta2"], u_max


def epsilon_uncorrected(*arrays, epsilon_at, **numbers):
    other = {"corrected": "uncorrected", "uncorrected": "corrected"}[epsilon_at]
    return adam_rule(*arrays, epsilon_at=other, **numbers)


def powers_before_use(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    b1, b2 = b1 * beta1, b2 * beta2
    p, m, u, _, _, u_max = adam_rule(p, g, m, u, b1, b2, u_max, beta1=beta1, beta2=beta2, **numbers)
    return p, m, u, b1, b2, u_max


def square_first(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    """(1 - beta2) * (g * g): another rounding, and another underflow."""
    m, u = beta1 * m + (1 - beta1) * g, beta2 * u + (1 - beta2) * (g * g)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    p = descend(p, m, u if u_max is None else u_max, b1, b2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def step_regrouped(p, g, m, u, b1, b2, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    """lr * ((m / (1 - beta1_pow)) / ...): the order of operations is part of the rule."""
    one = adam_rule(p, g, m, u, b1, b2, u_max, lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, epsilon_at=epsilon_at)
    d = one[2] if u_max is None else one[5]
    if epsilon_at == "corrected":
        new = p - lr * (one[1] / (1 - b1) / (np.sqrt(d) / np.sqrt(1 - b2) + epsilon))
    else:
        new = p - lr * (np.sqrt(1 - b2) / (1 - b1)) * (one[1] / (np.sqrt(d) + epsilon))
    return new, *one[1:]


def epsilon_in_the_root(p, g, m, u, b1, b2, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    d = u if u_max is None else u_max
    return p - lr / (1 - b1) * (m / np.sqrt(d / (1 - b2) + epsilon)), m, u, b1 * beta1, b2 * beta2, u_max


def maximum_forgotten(p, g, m, u, b1, b2, u_max, **numbers):
    p, m, u, b1, b2, _ = adam_rule(p, g, m, u, b1, b2, None, **numbers)
    return p, m, u, b1, b2, u_max if u_max is None else np.where(u_max > u, u_max, u)


def maximum_of_the_old(p, g, m, u, b1, b2, u_max, **numbers):
    p, m, new, *powers, _ = adam_rule(p, g, m, u, b1, b2, u_max, **numbers)
    return p, m, new, *powers, u_max if u_max is None else np.where(u_max > u, u_max, u)


def decayed(p, *arrays, lr, lr_ratio, coeff, wrong=adam_rule, **numbers):
    return wrong(p * (1 - lr * lr_ratio * coeff), *arrays, lr=lr, **numbers)


def decay_in_gradient(p, g, *arrays, lr_ratio, coeff, **numbers):
    return adam_rule(p, g + lr_ratio * coeff * p, *arrays, **numbers)


def ratio_on_everything(p, *arrays, lr, lr_ratio, coeff, **numbers):
    return adam_rule(p * (1 - lr * lr_ratio * coeff), *arrays, lr=lr * lr_ratio, **numbers)


def decay_afterwards(p, *arrays, lr, lr_ratio, coeff, **numbers):
    new, *rest = adam_rule(p, *arrays, lr=lr, **numbers)
    return new * (1 - lr * lr_ratio * coeff), *rest


def decay_without_lr(p, *arrays, lr, lr_ratio, coeff, **numbers):
    return adam_rule(p * (1 - lr_ratio * coeff), *arrays, lr=lr, **numbers)


def decay_subtracted(p, g, *arrays, lr, lr_ratio, coeff, **numbers):
    """p - lr * lr_ratio * coeff * p: equal in exact arithmetic alone."""
    return adam_rule(p - lr * lr_ratio * coeff * p, g, *arrays, lr=lr, **numbers)


# Adagrad.


def adagrad_epsilon_in_the_root(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * g / np.sqrt(s + epsilon), s


def sum_assigned(p, g, s, **numbers):
    return adagrad_rule(p, g, np.zeros_like(s), **numbers)


def root_of_the_old_sum(p, g, s, *, lr, epsilon):
    return p - lr * g / (np.sqrt(s) + epsilon), s + g * g


def adagrad_step_regrouped(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * (g / (np.sqrt(s) + epsilon)), s


def learning_rate_in_the_square(p, g, s, *, lr, epsilon):
    return adagrad_rule(p, lr * g, s, lr=1, epsilon=epsilon)


def times_the_reciprocal(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * g * (1 / (np.sqrt(s) + epsilon)), s


# RMSProp.


def epsilon_at_the_other_place(*arrays, epsilon_at, **numbers):
    return rmsprop_rule(*arrays, epsilon_at={"inside": "outside", "outside": "inside"}[epsilon_at], **numbers)


def centering_ignored(p, g, s, v, a, **numbers):
    new = rmsprop_rule(p, g, s, v, a, **numbers)[-1]
    return (*rmsprop_rule(p, g, s, v, None, **numbers)[:3], new)


def learning_rate_outside_of_velocity(p, g, s, v, a, *, lr, **numbers):
    _, s, v, a = rmsprop_rule(p, g, s, v, a, lr=1, **numbers)
    return p - lr * v, s, v, a


def rmsprop_from(p, g, s, v, a, d, *, lr, mu, epsilon, epsilon_at):
    """The step with d under the root."""
    v = mu * v + lr * g / root(d, epsilon, epsilon_at)
    return p - v, s, v, a


def rmsprop_square_first(p, g, s, v, a, *, rho, **numbers):
    s = rho * s + (1 - rho) * (g * g)
    a = a if a is None else rho * a + (1 - rho) * g
    return rmsprop_from(p, g, s, v, a, s if a is None else s - a * a, **numbers)


def old_mean_grad(p, g, s, v, a, *, rho, **numbers):
    s = rho * s + (1 - rho) * g * g
    new = a if a is None else rho * a + (1 - rho) * g
    return rmsprop_from(p, g, s, v, new, s if a is None else s - a * a, **numbers)


def variance_clamped(p, g, s, v, a, *, rho, **numbers):
    """No root of a negative number, where the specification has NaN."""
    s = rho * s + (1 - rho) * g * g
    a = a if a is None else rho * a + (1 - rho) * g
    return rmsprop_from(p, g, s, v, a, s if a is None else np.maximum(s - a * a, 0), **numbers)


def rmsprop_step_regrouped(p, g, s, v, a, *, lr, mu, **numbers):
    _, s, step, a = rmsprop_rule(p, g, s, np.zeros_like(v), a, lr=1, mu=0, **numbers)
    v = mu * v + lr * step
    return p - v, s, v, a


# Lion.


def sign_of_the_new_momentum(p, g, m, *, lr, beta1, beta2, coeff):
    m = beta2 * m + (1 - beta2) * g
    return p * (1 - lr * coeff) - lr * sign(m), m


def lion_decay_in_gradient(p, g, m, *, coeff, **numbers):
    return lion_rule(p, g + coeff * p, m, coeff=0, **numbers)


def nan_taken_for_zero(p, g, m, *, lr, beta1, beta2, coeff):
    c = beta1 * m + (1 - beta1) * g
    return p * (1 - lr * coeff) - lr * np.nan_to_num(sign(c)), beta2 * m + (1 - beta2) * g


def betas_swapped(*arrays, beta1, beta2, **numbers):
    return lion_rule(*arrays, beta1=beta2, beta2=beta1, **numbers)


def lion_with(sign_of, p, g, m, *, lr, beta1, beta2, coeff):
    c = beta1 * m + (1 - beta1) * g
    return p * (1 - lr * coeff) - lr * sign_of(c), beta2 * m + (1 - beta2) * g


def sign_of_zero_is_one(*arrays, **numbers):
    return lion_with(lambda c: sign(c) + (c == 0), *arrays, **numbers)


def sign_of_zero_is_plus_zero(*arrays, **numbers):
    return lion_with(lambda c: np.where(c == 0, abs(c), sign(c)), *arrays, **numbers)


def lion_decay_afterwards(*arrays, lr, coeff, **numbers):
    p, m = lion_rule(*arrays, lr=lr, coeff=0, **numbers)
    return p * (1 - lr * coeff), m


def lion_decay_subtracted(p, *arrays, lr, coeff, **numbers):
    return lion_rule(p - lr * coeff * p, *arrays, lr=lr, coeff=0, **numbers)


# Adadelta.


def adadelta_from(p, g, s, x, r, *, lr, rho):
    """The step with the quotient r of the roots."""
    d = r * g
    return p - lr * d, s, rho * x + (1 - rho) * d * d


def roots_divided(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, s, x, np.sqrt(x + epsilon) / np.sqrt(s + epsilon), lr=lr, rho=rho)


def epsilon_outside_the_roots(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, s, x, (np.sqrt(x) + epsilon) / (np.sqrt(s) + epsilon), lr=lr, rho=rho)


def adadelta_square_first(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * (g * g)
    return adadelta_from(p, g, s, x, np.sqrt((x + epsilon) / (s + epsilon)), lr=lr, rho=rho)


def old_average_of_squares(p, g, s, x, *, lr, rho, epsilon):
    new = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, new, x, np.sqrt((x + epsilon) / (s + epsilon)), lr=lr, rho=rho)


def learning_rate_in_the_average(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, s, x, lr * np.sqrt((x + epsilon) / (s + epsilon)), lr=1, rho=rho)


def average_of_updates_before_use(p, g, s, x, *, lr, rho, epsilon):
    _, s, x = adadelta_rule(p, g, s, x, lr=lr, rho=rho, epsilon=epsilon)
    return p - lr * (np.sqrt((x + epsilon) / (s + epsilon)) * g), s, x


def adadelta_step_regrouped(p, g, s, x, *, lr, rho, epsilon):
    _, s, new = adadelta_rule(p, g, s, x, lr=lr, rho=rho, epsilon=epsilon)
    return p - lr * np.sqrt((x + epsilon) / (s + epsilon)) * g, s, new


# Adamax.


def adamax_from(p, g, m, n, b1, *, lr, beta1):
    """The step with the norm n."""
    m = beta1 * m + (1 - beta1) * g
    return p - lr / (1 - b1) * (m / n), m, n, b1 * beta1


def epsilon_on_the_gradient(p, g, m, n, b1, *, beta2, epsilon, **numbers):
    """PyTorch's rule."""
    return adamax_from(p, g, m, larger(abs(g) + epsilon, beta2 * n), b1, **numbers)


def absolute_forgotten(p, g, m, n, b1, *, beta2, epsilon, **numbers):
    return adamax_from(p, g, m, larger(g, beta2 * n + epsilon), b1, **numbers)


def norm_takes_nan(p, g, m, n, b1, *, beta2, epsilon, **numbers):
    """A NaN in the gradient stays in the norm, as np.maximum has it."""
    return adamax_from(p, g, m, np.maximum(abs(g), beta2 * n + epsilon), b1, **numbers)


def norm_loses_nan(p, g, m, n, b1, *, beta2, epsilon, **numbers):
    """A NaN in the norm goes with the next gradient, as fmaxf has it."""
    return adamax_from(p, g, m, np.fmax(abs(g), beta2 * n + epsilon), b1, **numbers)


def epsilon_in_the_denominator(p, g, m, n, b1, *, beta2, epsilon, **numbers):
    n = larger(abs(g), beta2 * n)
    p, m, _, b1 = adamax_from(p, g, m, n + epsilon, b1, **numbers)
    return p, m, n, b1


def adamax_no_bias_correction(p, g, m, n, b1, *, beta1, **numbers):
    return (*adamax_rule(p, g, m, n, b1 * 0, beta1=beta1, **numbers)[:3], b1 * beta1)


def power_before_use(p, g, m, n, b1, *, beta1, **numbers):
    return (*adamax_rule(p, g, m, n, b1 * beta1, beta1=beta1, **numbers)[:3], b1 * beta1)


# NAdam. The scalars are momentum_decay_pow, beta2_pow and mu_product.


def no_schedule(p, g, m, u, decay, b2, product, *, decay_base, **numbers):
    """beta1 for every mu."""
    p, m, u, _, b2, product = nadam_rule(p, g, m, u, decay * 0, b2, product, decay_base=decay_base, **numbers)
    return p, m, u, decay * decay_base, b2, product


def next_momentum_forgotten(p, g, m, u, decay, b2, product, *, decay_base, **numbers):
    """mu for mu_next."""
    p, m, u, _, b2, product = nadam_rule(p, g, m, u, decay, b2, product, decay_base=1, **numbers)
    return p, m, u, decay * decay_base, b2, product


def product_not_carried(p, g, m, u, decay, b2, product, **numbers):
    return nadam_rule(p, g, m, u, decay, b2, product * 0 + 1, **numbers)


def decay_pow_before_use(p, g, m, u, decay, b2, product, *, decay_base, **numbers):
    p, m, u, _, b2, product = nadam_rule(p, g, m, u, decay * decay_base, b2, product, decay_base=decay_base, **numbers)
    return p, m, u, decay * decay_base, b2, product


def beta2_pow_before_use(p, g, m, u, decay, b2, product, *, beta2, **numbers):
    p, m, u, decay, _, product = nadam_rule(p, g, m, u, decay, b2 * beta2, product, beta2=beta2, **numbers)
    return p, m, u, decay, b2 * beta2, product


def nadam_epsilon_uncorrected(p, g, m, u, decay, b2, product, *, epsilon, **numbers):
    return nadam_rule(p, g, m, u, decay, b2, product, epsilon=epsilon / np.sqrt(1 - b2), **numbers)


def one_product_for_both(p, g, m, u, decay, b2, product, *, lr, beta1, beta2, epsilon, decay_base):
    """The moment, too, corrected without mu_next."""
    mu, following = beta1 * (1 - 0.5 * decay), beta1 * (1 - 0.5 * (decay * decay_base))
    product = product * mu
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    c = following / (1 - product) * m + (1 - mu) / (1 - product) * g
    return p - lr * (c / (np.sqrt(u / (1 - b2)) + epsilon)), m, u, decay * decay_base, b2 * beta2, product


# RAdam.


def radam_with(p, g, m, u, b1, b2, rho, *, lr, beta1, beta2, epsilon, threshold=5, factor=rectification):
    """The rule with another threshold or rectification."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if rho > threshold:
        p = p - lr / (1 - b1) * factor(rho, beta2) * np.sqrt(1 - b2) * (m / (np.sqrt(u) + epsilon))
    else:
        p = p - lr / (1 - b1) * m
    return p, m, u, b1 * beta1, b2 * beta2, next_rho(rho, beta2, b2 * beta2)


def without_the_one_less(rho, beta2):
    """rho_inf = 2 / (1 - beta2)."""
    rho_inf = 2 / (1 - beta2)
    return np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


def rectification_squared(rho, beta2):
    rho_inf = 2 / (1 - beta2) - 1
    return (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)


def rho_not_advanced(*arrays, **numbers):
    return (*radam_rule(*arrays, **numbers)[:5], arrays[-1])


def rho_before_use(p, g, m, u, b1, b2, rho, *, beta2, **numbers):
    rho = next_rho(rho, beta2, b2 * beta2)
    return (*radam_rule(p, g, m, u, b1, b2, rho, beta2=beta2, **numbers)[:5], rho)


def rho_from_the_old_power(p, g, m, u, b1, b2, rho, *, beta2, **numbers):
    return (*radam_rule(p, g, m, u, b1, b2, rho, beta2=beta2, **numbers)[:5], next_rho(rho, beta2, b2))


def radam_no_bias_correction(p, g, m, u, b1, b2, rho, *, beta1, beta2, **numbers):
    p, m, u, *_ = radam_rule(p, g, m, u, b1 * 0, b2 * 0, rho, beta1=beta1, beta2=beta2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, next_rho(rho, beta2, b2 * beta2)


def unrectified_uncorrected(p, g, m, u, b1, b2, rho, *, beta1, **numbers):
    """No bias correction in the steps without rectification."""
    p, m, u, _, b2, rho = radam_rule(p, g, m, u, b1 if rho > 5 else b1 * 0, b2, rho, beta1=beta1, **numbers)
    return p, m, u, b1 * beta1, b2, rho


def radam_epsilon_corrected(p, g, m, u, b1, b2, rho, *, epsilon, **numbers):
    return radam_rule(p, g, m, u, b1, b2, rho, epsilon=epsilon * np.sqrt(1 - b2), **numbers)


# LAMB.


def lamb_with(
    p, g, m, u, b1, b2, *, stored, lr, beta1, beta2, epsilon, weight_decay, always_adapt,
    towards=direction, ratio=trust_ratio, squares=sum_of_squares, step=lambda p, lr, ratio, r: p - lr * ratio * r,
):  # fmt: skip
    """The rule, with places to change."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    of_moments = stored("moment1", m), stored("moment2", u)
    r = towards(p, *of_moments, b1, b2, epsilon=epsilon, weight_decay=weight_decay)
    norms = np.sqrt(squares(p)), np.sqrt(squares(r))
    p = step(p, lr, ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt), r)
    return p, m, u, b1 * beta1, b2 * beta2


def decay_after_the_norm(p, g, m, u, b1, b2, *, weight_decay, **numbers):
    def towards(*arrays, epsilon, weight_decay):
        return direction(*arrays, epsilon=epsilon, weight_decay=0 * weight_decay)

    new, *rest = lamb_with(p, g, m, u, b1, b2, weight_decay=weight_decay, towards=towards, **numbers)
    return new - numbers["lr"] * weight_decay * p, *rest


def lamb_uncorrected(p, m, u, b1, b2, **numbers):
    return direction(p, m, u, 0 * b1, 0 * b2, **numbers)


def lamb_roots_divided(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / (1 - b1) / (np.sqrt(u) / np.sqrt(1 - b2) + epsilon) + weight_decay * p


def lamb_step_prepared(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / ((1 - b1) * (np.sqrt(u / (1 - b2)) + epsilon)) + weight_decay * p


def ratio_by_norms_alone(p_norm, r_norm, *, weight_decay, always_adapt):
    return trust_ratio(p_norm, r_norm, weight_decay=weight_decay, always_adapt=True)


def ratio_by_decay_alone(p_norm, r_norm, *, weight_decay, always_adapt):
    return p_norm / r_norm if weight_decay > 0 or always_adapt else type(p_norm)(1)


def ratio_clipped(p_norm, r_norm, **numbers):
    return min(trust_ratio(p_norm, r_norm, **numbers), type(p_norm)(1))


# NovoGrad.


def novograd_with(
    p, g, m, v, *, stored, lr, beta1, beta2, epsilon, weight_decay, grad_averaging,
    squares=sum_of_squares, advance=average, towards=novograd_direction, rest=lambda beta1: 1 - beta1,
):  # fmt: skip
    """The rule, with places to change."""
    v = advance(v, squares(g), beta2=beta2)
    d = towards(p, g, v, epsilon=epsilon, weight_decay=weight_decay)
    m = beta1 * m + (rest(beta1) * d if grad_averaging else d)
    return p - lr * m, m, v


def first_norm_averaged(v, n, *, beta2):
    return beta2 * v + (1 - beta2) * n


def average_of_norms(v, n, *, beta2):
    """The square of an average of norms for an average of their squares."""
    norm = beta2 * np.sqrt(v) + (1 - beta2) * np.sqrt(n)
    return n if v == 0 else norm * norm


def novograd_epsilon_in_the_root(p, g, v, *, epsilon, weight_decay):
    return g / np.sqrt(v + epsilon) + weight_decay * p


def novograd_decay_normalized(p, g, v, *, epsilon, weight_decay):
    return (g + weight_decay * p) / (np.sqrt(v) + epsilon)


def novograd_times_the_reciprocal(p, g, v, *, epsilon, weight_decay):
    return g * (1 / (np.sqrt(v) + epsilon)) + weight_decay * p


def novograd_decay_decoupled(p, g, m, v, *, lr, weight_decay, **numbers):
    new, m, v = novograd_with(p, g, m, v, lr=lr, weight_decay=0 * weight_decay, **numbers)
    return new - lr * weight_decay * p, m, v


def divided_by_the_old_norm(p, g, m, v, *, beta2, **numbers):
    _, _, new = novograd_with(p, g, m, v, beta2=beta2, **numbers)
    return (*novograd_with(p, g, m, v, beta2=beta2, advance=lambda v, n, **_: n if v == 0 else v, **numbers)[:2], new)


def averaging_without_decay(p, g, m, v, *, beta1, weight_decay, grad_averaging, **numbers):
    rest = 1 - beta1 if grad_averaging else 1
    decay = weight_decay / rest
    return novograd_with(p, g, m, v, beta1=beta1, weight_decay=decay, grad_averaging=grad_averaging, **numbers)


def learning_rate_in_the_moment(p, g, m, v, *, lr, **numbers):
    _, new, v = novograd_with(p, g, 0 * m, v, lr=lr, **numbers)
    m = numbers["beta1"] * m + lr * new
    return p - m, m, v


def elementwise_second_moment(p, g, m, v, **numbers):
    """Each element divided by its own size, and the norm carried."""
    new = novograd_with(p, g, m, v, **numbers)[2]
    return (*novograd_with(p, g, m, v, squares=lambda g: g * g, advance=lambda v, n, **_: n, **numbers)[:2], new)


RULES: dict[str, dict[str, Any]] = {
    "sgd": {
        "DecayForgotten": sgd_decay_forgotten, "DecayDecoupled": sgd_decay_decoupled, "Distributed": sgd_distributed,
        "Uphill": sgd_uphill, "DecayOfTheStep": sgd_decay_of_the_step,
    },
    "momentum": {
        "LearningRateInVelocity": learning_rate_in_velocity, "DecayDecoupled": momentum_decay_decoupled,
        "Dampened": dampened, "NesterovIgnored": nesterov_ignored,
        "NesterovWithTheOldVelocity": nesterov_with_the_old_velocity, "NesterovWithoutDecay": nesterov_without_decay,
    },
    "adam": {
        "NoBiasCorrection": no_bias_correction, "EpsilonUncorrected": epsilon_uncorrected,
        "PowersBeforeUse": powers_before_use, "SquareFirst": square_first, "StepRegrouped": step_regrouped,
        "EpsilonInTheRoot": epsilon_in_the_root, "MaximumForgotten": maximum_forgotten,
        "MaximumOfTheOld": maximum_of_the_old,
    },
    "adamw": {
        "DecayInGradient": decay_in_gradient, "RatioOnEverything": ratio_on_everything,
        "DecayAfterwards": decay_afterwards, "DecayWithoutLr": decay_without_lr, "DecaySubtracted": decay_subtracted,
    },
    "adagrad": {
        "EpsilonInTheRoot": adagrad_epsilon_in_the_root, "SumAssigned": sum_assigned,
        "RootOfTheOldSum": root_of_the_old_sum, "StepRegrouped": adagrad_step_regrouped,
        "LearningRateInTheSquare": learning_rate_in_the_square, "TimesTheReciprocal": times_the_reciprocal,
    },
    "rmsprop": {
        "EpsilonAtTheOtherPlace": epsilon_at_the_other_place, "CenteringIgnored": centering_ignored,
        "LearningRateOutsideOfVelocity": learning_rate_outside_of_velocity, "SquareFirst": rmsprop_square_first,
        "OldMeanGrad": old_mean_grad, "VarianceClamped": variance_clamped, "StepRegrouped": rmsprop_step_regrouped,
    },
    "lion": {
        "SignOfZeroIsOne": sign_of_zero_is_one, "SignOfZeroIsPlusZero": sign_of_zero_is_plus_zero,
        "SignOfTheNewMomentum": sign_of_the_new_momentum, "DecayInGradient": lion_decay_in_gradient,
        "NanTakenForZero": nan_taken_for_zero, "BetasSwapped": betas_swapped,
        "DecayAfterwards": lion_decay_afterwards, "DecaySubtracted": lion_decay_subtracted,
    },
    "adadelta": {
        "RootsDivided": roots_divided, "EpsilonOutsideTheRoots": epsilon_outside_the_roots,
        "SquareFirst": adadelta_square_first, "OldAverageOfSquares": old_average_of_squares,
        "LearningRateInTheAverage": learning_rate_in_the_average,
        "AverageOfUpdatesBeforeUse": average_of_updates_before_use, "StepRegrouped": adadelta_step_regrouped,
    },
    "adamax": {
        "EpsilonOnTheGradient": epsilon_on_the_gradient, "AbsoluteForgotten": absolute_forgotten,
        "NormTakesNan": norm_takes_nan, "NormLosesNan": norm_loses_nan,
        "EpsilonInTheDenominator": epsilon_in_the_denominator, "NoBiasCorrection": adamax_no_bias_correction,
        "PowerBeforeUse": power_before_use,
    },
    "nadam": {
        "NoSchedule": no_schedule, "NextMomentumForgotten": next_momentum_forgotten,
        "ProductNotCarried": product_not_carried, "DecayPowBeforeUse": decay_pow_before_use,
        "Beta2PowBeforeUse": beta2_pow_before_use, "EpsilonUncorrected": nadam_epsilon_uncorrected,
        "OneProductForBoth": one_product_for_both,
    },
    "radam": {
        "AlwaysRectified": partial(radam_with, threshold=-np.inf),
        "NeverRectified": partial(radam_with, threshold=np.inf),
        "ThresholdReached": partial(radam_with, threshold=np.nextafter(5, 0)),
        "ThresholdOfFour": partial(radam_with, threshold=4), "ThresholdOfSix": partial(radam_with, threshold=6),
        "RhoInfOneMore": partial(radam_with, factor=without_the_one_less),
        "RectificationSquared": partial(radam_with, factor=rectification_squared),
        "RhoNotAdvanced": rho_not_advanced, "RhoBeforeUse": rho_before_use,
        "RhoFromTheOldPower": rho_from_the_old_power, "NoBiasCorrection": radam_no_bias_correction,
        "UnrectifiedUncorrected": unrectified_uncorrected, "EpsilonCorrected": radam_epsilon_corrected,
    },
    "lamb": {
        "DecayAfterTheNorm": decay_after_the_norm,
        "Uncorrected": partial(lamb_with, towards=lamb_uncorrected),
        "RootsDivided": partial(lamb_with, towards=lamb_roots_divided),
        "StepPrepared": partial(lamb_with, towards=lamb_step_prepared),
        "RatioByNormsAlone": partial(lamb_with, ratio=ratio_by_norms_alone),
        "RatioByDecayAlone": partial(lamb_with, ratio=ratio_by_decay_alone),
        "RatioForgotten": partial(lamb_with, ratio=lambda p_norm, *_, **__: type(p_norm)(1)),
        "RatioClipped": partial(lamb_with, ratio=ratio_clipped),
        "SumByNumPy": partial(lamb_with, squares=lambda x: np.sum(x * x)),
        "SumInIndexOrder": partial(lamb_with, squares=lambda x: np.add.accumulate(x * x)[-1] if x.size else x.sum()),
        "StepRegrouped": partial(lamb_with, step=lambda p, lr, ratio, r: p - lr * (ratio * r)),
    },
    "novograd": {
        "FirstNormAveraged": partial(novograd_with, advance=first_norm_averaged),
        "AverageOfNorms": partial(novograd_with, advance=average_of_norms),
        "DividedByTheOldNorm": divided_by_the_old_norm,
        "DividedElementByElement": elementwise_second_moment,
        "MeanOfSquares": partial(novograd_with, squares=lambda g: sum_of_squares(g) / g.dtype.type(max(g.size, 1))),
        "EpsilonInTheRoot": partial(novograd_with, towards=novograd_epsilon_in_the_root),
        "DecayNormalized": partial(novograd_with, towards=novograd_decay_normalized),
        "DecayDecoupled": novograd_decay_decoupled, "AveragingWithoutDecay": averaging_without_decay,
        "AveragingIgnored": partial(novograd_with, rest=lambda beta1: 1),
        "LearningRateInTheMoment": learning_rate_in_the_moment,
        "TimesTheReciprocal": partial(novograd_with, towards=novograd_times_the_reciprocal),
        "SumByNumPy": partial(novograd_with, squares=lambda g: np.sum(g * g)),
        "SumInIndexOrder": partial(
            novograd_with, squares=lambda g: np.add.accumulate(g * g)[-1] if g.size else g.sum()
        ),
    },
}  # fmt: skip
