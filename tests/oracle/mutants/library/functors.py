"""What is done to the elements of a block, in registers: from the parameter, gradient and states to the new ones.

``n`` has the numbers of the tensor in the arithmetic type, and bias corrections that the host has computed.
"""

import numpy as np


def sgd(n, p, g):
    g = g + n.l2_decay * p
    return p - n.lr * g, g


def momentum(n, p, g, v):
    d = g + n.l2_decay * p
    v = n.mu * v + d
    if n.use_nesterov:
        d = d + n.mu * v
    else:
        d = v
    return p - n.lr * d, g, v


def adam(n, p, g, m, v, v_max=None):
    m = n.beta1 * m + (1 - n.beta1) * g
    v = n.beta2 * v + (1 - n.beta2) * g * g
    if v_max is not None:
        v_max = np.maximum(v_max, v)
    denominator = np.sqrt(v if v_max is None else v_max) / n.root_correction2 + n.epsilon
    return p - n.lr / n.correction1 * (m / denominator), g, m, v, v_max


def adamw(n, p, g, m, v, v_max=None):
    p = p - n.lr * n.lr_ratio * n.coeff * p
    m = n.beta1 * m + (1 - n.beta1) * g
    v = n.beta2 * v + (1 - n.beta2) * g * g
    if v_max is not None:
        v_max = np.maximum(v_max, v)
    denominator = np.sqrt(v if v_max is None else v_max) / n.root_correction2 + n.epsilon
    return p - n.lr / n.correction1 * (m / denominator), g, m, v, v_max


def adagrad(n, p, g, s):
    s = s + g * g
    return p - n.lr * (g / (np.sqrt(s) + n.epsilon)), g, s


def rmsprop(n, p, g, s, v, mean=None):
    s = n.rho * s + (1 - n.rho) * g * g
    variance = s
    if mean is not None:
        mean = n.rho * mean + (1 - n.rho) * g
        variance = s - mean * mean
    v = n.mu * v + n.lr * g / np.sqrt(variance + n.epsilon)
    return p - v, g, s, v, mean


def lion(n, p, g, m):
    p = p * (1 - n.lr * n.coeff)
    update = np.sign(n.beta1 * m + (1 - n.beta1) * g)
    m = n.beta2 * m + (1 - n.beta2) * g
    return p - n.lr * update, g, m


def adadelta(n, p, g, s, x):
    s = n.rho * s + (1 - n.rho) * g * g
    d = np.sqrt(x + n.epsilon) / np.sqrt(s + n.epsilon) * g
    x = n.rho * x + (1 - n.rho) * d * d
    return p - n.lr * d, g, s, x


def adamax(n, p, g, m, norm):
    m = n.beta1 * m + (1 - n.beta1) * g
    norm = np.maximum(n.beta2 * norm + n.epsilon, abs(g))
    return p - n.lr / n.correction1 * (m / norm), g, m, norm


def nadam(n, p, g, m, v):
    m = n.beta1 * m + (1 - n.beta1) * g
    v = n.beta2 * v + (1 - n.beta2) * g * g
    denominator = np.sqrt(v / n.correction2) + n.epsilon
    of_gradient = (1 - n.mu_now) / (1 - n.product)
    of_moment = n.mu_next / (1 - n.product * n.mu_next)
    return p - n.lr * ((of_moment * m + of_gradient * g) / denominator), g, m, v


def radam(n, p, g, m, v):
    m = n.beta1 * m + (1 - n.beta1) * g
    v = n.beta2 * v + (1 - n.beta2) * g * g
    rate = n.lr / n.correction1
    if n.rectification > 0:
        return p - rate * n.rectification * n.root_correction2 * (m / (np.sqrt(v) + n.epsilon)), g, m, v
    return p - rate * m, g, m, v


def lamb_stage1(n, p, g, m, v, update):
    m = n.beta1 * m + (1 - n.beta1) * g
    v = n.beta2 * v + (1 - n.beta2) * g * g
    update = m / n.correction1 / (np.sqrt(v / n.correction2) + n.epsilon) + n.weight_decay * p
    return p, g, m, v, update


def lamb_stage2(n, p, update):
    return p - n.lr * n.ratio * update, update


def lars(n, p, g, v):
    v = n.mu * v + n.rate * (g + n.lars_weight_decay * p)
    return p - v, g, v


def novograd(n, p, g, m):
    d = g / (np.sqrt(n.second_moment) + n.epsilon) + n.weight_decay * p
    if n.grad_averaging:
        d = (1 - n.beta1) * d
    m = n.beta1 * m + d
    return p - n.lr * m, g, m
