"""The optimizers: the gate, groups of tensors of the same dtypes, numbers for each tensor, and what is stored how."""

from functools import wraps
from types import SimpleNamespace

import numpy as np

from oracle.mutants.library import functors
from oracle.mutants.library.launcher import l2norms, multi_tensor_apply


def dense(x):
    """The elements of an array without gaps, in memory order."""
    return x.transpose(sorted(range(x.ndim), key=lambda k: -x.strides[k])).reshape(-1)


def skipped(found_inf):
    return found_inf is not None and found_inf[0] != 0


def factor_of(rescale_grad, grad_factor):
    return rescale_grad if grad_factor is None else rescale_grad * grad_factor[0]


def groups(params, grads, lists):
    """Indices of the tensors that have a gradient, by the dtypes of their arrays."""
    found = {}
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):  # noqa: B007
        if g is None:
            continue
        kinds = tuple(values[i].dtype for values in (params, grads, *lists))
        found.setdefault(kinds, []).append(i)
    return found


def numbers_of(numbers, i, real):
    """Those of one tensor, in the arithmetic type."""
    one = {name: x[i] if isinstance(x, list) else x for name, x in numbers.items()}
    return SimpleNamespace(**{name: x if isinstance(x, bool) else real(x) for name, x in one.items()})


def real_of(dtype):
    return np.float64 if dtype == np.float64 else np.float32


def update(functor, params, grads, states, masters, numbers, scale=1):
    """One pass over all tensors."""
    states = [values for values in states if values is not None]
    lists = states if masters is None else [*states, masters]
    if masters is not None and any(x.dtype == np.uint16 for x in masters):
        raise NotImplementedError("no remainders")
    for kinds, indices in groups(params, grads, lists).items():
        real = real_of(kinds[0])

        def kernel(t, chunk, arrays, indices=indices, real=real):
            p, g, *held = arrays
            master = None if masters is None else held.pop()
            x = (p if master is None else master).astype(real)
            n = numbers_of(numbers, indices[t], real)
            new, _, *values = functor(n, x, g.astype(real) * real(scale), *(s.astype(real) for s in held))
            for array, value in zip(held, values, strict=False):
                array[...] = value
            if master is not None:
                master[...] = new
            p[...] = new

        flat = [[dense(values[i]) for i in indices] for values in (params, grads, *lists)]
        multi_tensor_apply(kernel, flat)


def corrections(beta1, beta2, step):
    return {"correction1": 1 - beta1**step, "correction2": 1 - beta2**step,
            "root_correction2": (1 - beta2**step) ** 0.5}


def sgd(params, grads, *, lr, l2_decay=0.0, master_params=None, rescale_grad=1.0, grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "l2_decay": l2_decay}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.sgd, params, grads, [], master_params, numbers, scale)


def momentum(params, grads, velocities, *, lr, mu, l2_decay=0.0, use_nesterov=False, master_params=None,
             rescale_grad=1.0, grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "mu": mu, "l2_decay": l2_decay, "use_nesterov": use_nesterov}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.momentum, params, grads, [velocities], master_params, numbers, scale)


def adam(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, step, moment2_max=None, master_params=None,
         rescale_grad=1.0, grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, **corrections(beta1, beta2, step)}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.adam, params, grads, [moment1, moment2, moment2_max], master_params, numbers, scale)


def adamw(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step, lr_ratio=1.0, moment2_max=None,
          master_params=None, rescale_grad=1.0, grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "coeff": coeff, "lr_ratio": lr_ratio}
    numbers |= corrections(beta1, beta2, step)
    if isinstance(lr_ratio, list) or lr_ratio != 1:  # a ratio of the rate of each tensor
        many = range(len(params))
        ratios = [lr_ratio[i] if isinstance(lr_ratio, list) else lr_ratio for i in many]
        numbers["lr_ratio"] = ratios
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.adamw, params, grads, [moment1, moment2, moment2_max], master_params, numbers, scale)


def adagrad(params, grads, moment, *, lr, epsilon, master_params=None, rescale_grad=1.0, grad_factor=None,
            found_inf=None):
    if skipped(found_inf):
        return
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.adagrad, params, grads, [moment], master_params, {"lr": lr, "epsilon": epsilon}, scale)


def rmsprop(params, grads, mean_square, velocity, *, lr, rho, mu, epsilon, mean_grad=None, master_params=None,
            rescale_grad=1.0, grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "rho": rho, "mu": mu, "epsilon": epsilon}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.rmsprop, params, grads, [mean_square, velocity, mean_grad], master_params, numbers, scale)


def lion(params, grads, moment, *, lr, beta1, beta2, coeff=0.0, master_params=None, rescale_grad=1.0, grad_factor=None,
         found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "coeff": coeff}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.lion, params, grads, [moment], master_params, numbers, scale)


def adadelta(params, grads, avg_squared_grad, avg_squared_update, *, lr, rho, epsilon, master_params=None,
             rescale_grad=1.0, grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    states, numbers = [avg_squared_grad, avg_squared_update], {"lr": lr, "rho": rho, "epsilon": epsilon}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.adadelta, params, grads, states, master_params, numbers, scale)


def adamax(params, grads, moment, inf_norm, *, lr, beta1, beta2, epsilon, step, master_params=None, rescale_grad=1.0,
           grad_factor=None, found_inf=None):
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, **corrections(beta1, beta2, step)}
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.adamax, params, grads, [moment, inf_norm], master_params, numbers, scale)


def nadam(params, grads, moment1, moment2, momentum_decay_pow, beta2_pow, mu_product, *, lr, beta1, beta2, epsilon,
          decay_base, master_params=None, rescale_grad=1.0, grad_factor=None, found_inf=None):
    """With its powers and product as arrays of one element a tensor."""
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    added = {name: [0.0] * len(params) for name in ("mu_now", "mu_next", "product", "correction2")}
    for i, g in enumerate(grads):
        if g is None:
            continue
        real = momentum_decay_pow[i].dtype.type
        now = real(beta1) * (1 - real(0.5) * momentum_decay_pow[i])
        momentum_decay_pow[i] *= real(decay_base)
        after = real(beta1) * (1 - real(0.5) * momentum_decay_pow[i])
        mu_product[i] *= now
        added["correction2"][i] = 1 - beta2_pow[i].flat[0]
        beta2_pow[i] *= real(beta2)
        added["mu_now"][i], added["mu_next"][i] = now.flat[0], after.flat[0]
        added["product"][i] = mu_product[i].flat[0].copy()
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.nadam, params, grads, [moment1, moment2], master_params, numbers | added, scale)


def radam(params, grads, moment1, moment2, beta1_pow, beta2_pow, rho, *, lr, beta1, beta2, epsilon, master_params=None,
          rescale_grad=1.0, grad_factor=None, found_inf=None):
    """With its powers and rho as arrays of one element a tensor."""
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    added = {name: [0.0] * len(params) for name in ("correction1", "root_correction2", "rectification")}
    for i, g in enumerate(grads):
        if g is None:
            continue
        real, length = rho[i].dtype.type, rho[i].flat[0]
        infinite = 2 / (1 - real(beta2)) - 1
        if length > 5:
            squared = (length - 4) * (length - 2) * infinite / ((infinite - 4) * (infinite - 2) * length)
            added["rectification"][i] = np.sqrt(squared)
        added["correction1"][i] = 1 - beta1_pow[i].flat[0]
        added["root_correction2"][i] = np.sqrt(1 - beta2_pow[i].flat[0])
        beta1_pow[i] *= real(beta1)
        beta2_pow[i] *= real(beta2)
        rho[i][...] = 1 + (length + 1) * ((real(beta2) - beta2_pow[i]) / (1 - beta2_pow[i]))
    scale = factor_of(rescale_grad, grad_factor)
    update(functors.radam, params, grads, [moment1, moment2], master_params, numbers | added, scale)


def lamb(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, weight_decay, step, always_adapt=False,
         master_params=None, rescale_grad=1.0, grad_factor=None, found_inf=None):
    """In two passes: the update, and its share of the learning rate."""
    if skipped(found_inf):
        return
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
    numbers |= corrections(beta1, beta2, step)
    scale = factor_of(rescale_grad, grad_factor)
    exact = params if master_params is None else master_params
    scratch = [np.zeros(dense(x).shape, real_of(x.dtype)) for x in params]
    params_before = [dense(x).astype(real_of(x.dtype)) for x in exact]
    update(functors.lamb_stage1, params, grads, [moment1, moment2, scratch], master_params, numbers, scale)
    active = [i for i, g in enumerate(grads) if g is not None]
    ratios = [1.0] * len(params)
    for kind in (np.float32, np.float64):
        of_kind = [i for i in active if scratch[i].dtype == kind]
        weights = l2norms([params_before[i] for i in of_kind])
        lengths = l2norms([scratch[i] for i in of_kind])
        for i, weight, length in zip(of_kind, weights, lengths, strict=True):
            decay = weight_decay[i] if isinstance(weight_decay, list) else weight_decay
            if weight > 0 and length > 0 and (decay > 0 or always_adapt):
                ratios[i] = weight / length
    numbers = {"lr": lr, "ratio": ratios}
    update(functors.lamb_stage2, params, [None if g is None else scratch[i] for i, g in enumerate(grads)], [],
           master_params, numbers)


def lars(params, grads, velocities, *, lr, mu, lars_coeff, lars_weight_decay, epsilon, master_params=None,
         rescale_grad=1.0, grad_factor=None, found_inf=None):
    """The norms, then the update."""
    if skipped(found_inf):
        return
    scale = factor_of(rescale_grad, grad_factor)
    rates = list(lr) if isinstance(lr, list) else [lr] * len(params)
    decays = lars_weight_decay if isinstance(lars_weight_decay, list) else [lars_weight_decay] * len(params)
    active = [i for i, g in enumerate(grads) if g is not None]
    for kind in (np.float32, np.float64):
        of_kind = [i for i in active if real_of(params[i].dtype) == kind]
        weights = l2norms([dense(params[i]).astype(kind) for i in of_kind])
        lengths = l2norms([dense(grads[i]).astype(kind) for i in of_kind], scale)
        for i, weight, length in zip(of_kind, weights, lengths, strict=True):
            decay = kind(decays[i])
            if weight > 0 and length > 0:
                rates[i] = kind(rates[i]) * kind(lars_coeff) * weight / (length + decay * weight + kind(epsilon))
    numbers = {"rate": rates, "mu": mu, "lars_weight_decay": lars_weight_decay}
    update(functors.lars, params, grads, [velocities], master_params, numbers, scale)


def novograd(params, grads, moment, second_moment, *, lr, beta1, beta2, epsilon, weight_decay=0.0, grad_averaging=False,
             master_params=None, rescale_grad=1.0, grad_factor=None, found_inf=None):
    """The norms, then the update. The second moment is an array of one element a tensor."""
    if skipped(found_inf):
        return
    scale = factor_of(rescale_grad, grad_factor)
    active = [i for i, g in enumerate(grads) if g is not None]
    for kind in (np.float32, np.float64):
        of_kind = [i for i in active if real_of(params[i].dtype) == kind]
        lengths = l2norms([dense(grads[i]).astype(kind) for i in of_kind], scale)
        for i, length in zip(of_kind, lengths, strict=True):
            squared, held = length * length, second_moment[i]
            held[...] = squared if held.flat[0] == 0 else kind(beta2) * held + (1 - kind(beta2)) * squared
    numbers = {"lr": lr, "beta1": beta1, "epsilon": epsilon, "weight_decay": weight_decay,
               "grad_averaging": grad_averaging, "second_moment": [x.flat[0] for x in second_moment]}
    update(functors.novograd, params, grads, [moment], master_params, numbers, scale)


def checked(step):
    """Refuse arrays with gaps, and arrays of a tensor whose axes lie in several orders."""

    @wraps(step)
    def refusing(params, grads, *states, **named):
        for values in (params, grads, *states, *named.values()):
            for p, x in zip(params, values if isinstance(values, list) else (), strict=False):
                if isinstance(x, np.ndarray) and x.shape == p.shape and x.size and (
                        has_gaps(x) or places(x) != places(p)):
                    raise ValueError("expected dense arrays with the axes of their parameter")
        return step(params, grads, *states, **named)

    return refusing


def has_gaps(x):
    return 1 + sum(k * (n - 1) for k, n in zip(x.strides, x.shape, strict=True)) // x.itemsize != x.size


def places(x):
    return [stride // x.itemsize for stride, length in zip(x.strides, x.shape, strict=True) if length > 1]



STEPS = {name: checked(step) for name, step in {
    "sgd": sgd, "momentum": momentum, "adam": adam, "adamw": adamw, "adagrad": adagrad, "rmsprop": rmsprop,
    "lion": lion, "adadelta": adadelta, "adamax": adamax, "nadam": nadam, "radam": radam, "lamb": lamb,
    "lars_momentum": lars, "novograd": novograd}.items()}
