"""Steps that somebody may write: right ones in other orders of operations than refopt's, and what makes them wrong."""

import numpy as np


def only(*kinds):
    """A decorator that makes a step refuse other dtypes of parameters."""

    def decorate(step):
        def checked(params, grads, *lists, **numbers):
            for x in (*params, *grads):
                if x is not None and (x.dtype.name not in kinds or x.dtype != params[0].dtype):
                    raise NotImplementedError(f"only {', '.join(kinds)} throughout")
            return step(params, grads, *lists, **numbers)

        checked.__wrapped__ = step
        checked.__qualname__ = step.__qualname__
        return checked

    return decorate


PLAIN = only("float32", "float64")


@PLAIN
def adamw_in_pytorchs_order(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
    """Numbers in double, moments by lerp and addcmul, epsilon beside the corrected root."""
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        real = p.dtype.type
        p *= real(1 - lr * coeff)
        m += real(1 - beta1) * (g - m)
        v *= real(beta2)
        v += real(1 - beta2) * g * g
        root = np.sqrt(v) / real((1 - beta2**step) ** 0.5) + real(epsilon)
        p += real(-lr / (1 - beta1**step)) * (m / root)


@PLAIN
def adamw_in_apexs_order(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
    """Both moments corrected, the decay beside the quotient."""
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        real = p.dtype.type
        m[...] = real(beta1) * m + real(1 - beta1) * g
        v[...] = real(beta2) * v + real(1 - beta2) * (g * g)
        first, second = m / real(1 - beta1**step), v / real(1 - beta2**step)
        p[...] = p - real(lr) * (first / (np.sqrt(second) + real(epsilon)) + real(coeff) * p)


@PLAIN
def adamw_by_reciprocals(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
    """New lists, reciprocals in place of quotients, powers of the working precision."""
    after = [], [], []
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        real = p.dtype.type
        one, b1, b2 = real(1), real(beta1), real(beta2)
        m = g + b1 * (m - g)
        v = g * g + b2 * (v - g * g)
        c1, c2 = one / (one - b1 ** real(step)), one / np.sqrt(one - b2 ** real(step))
        inverse = one / (np.sqrt(v) * c2 + real(epsilon))
        x = p - p * (real(lr) * real(coeff)) - real(lr) * m * inverse * c1
        for values, x_ in zip(after, (x, m, v), strict=True):
            values.append(x_)
    return after


@PLAIN
def lamb(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, weight_decay, step):
    """Norms by a dot product, in whatever order it has."""
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        real = p.dtype.type
        m += real(1 - beta1) * (g - m)
        v += real(1 - beta2) * (g * g - v)
        root = np.sqrt(v) / real((1 - beta2**step) ** 0.5) + real(epsilon)
        r = m / root / real(1 - beta1**step) + real(weight_decay) * p
        weights, length = (np.sqrt(np.dot(x.ravel(), x.ravel())) for x in (p, r))
        ratio = weights / length if weight_decay > 0 and weights > 0 and length > 0 else real(1)
        p -= real(lr) * ratio * r


@PLAIN
def lars(params, grads, velocities, *, lr, mu, lars_coeff, lars_weight_decay, epsilon):
    """Norms by sums one after the other."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        weights, length = (np.sqrt(np.add.accumulate((x * x).ravel())[-1:].sum()) for x in (p, g))
        rate = real(lr)
        if weights > 0 and length > 0:
            rate = real(lr * lars_coeff) * (weights / (length + real(lars_weight_decay) * weights + real(epsilon)))
        v[...] = real(mu) * v + (g + real(lars_weight_decay) * p) * rate
        p -= v


@PLAIN
def novograd(params, grads, moment, second_moment, *, lr, beta1, beta2, epsilon, weight_decay):
    for p, g, m, v in zip(params, grads, moment, second_moment, strict=True):
        real = p.dtype.type
        n = np.linalg.norm(g.ravel()) ** 2
        v[...] = n if v[0] == 0 else v + real(1 - beta2) * (n - v)
        m[...] = real(beta1) * m + (g / (np.sqrt(v) + real(epsilon)) + real(weight_decay) * p)
        p -= real(lr) * m


@PLAIN
def momentum(params, grads, velocities, *, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        v *= p.dtype.type(mu)
        v += g + p * p.dtype.type(l2_decay)
        p -= v * p.dtype.type(lr)


RIGHT = {
    "adamw": [adamw_in_pytorchs_order, adamw_in_apexs_order, adamw_by_reciprocals],
    "lamb": [lamb], "lars_momentum": [lars], "novograd": [novograd], "momentum": [momentum],
}  # fmt: skip
