"""What each routine computes, as its paper or its origin has it: one step of one tensor, over `Bounded` numbers.

A formula is named like its routine, and takes what it needs by name:

    t             the number of the step, from 1
    x             the parameter to compute with: the master or the exact parameter where there is one
    param         the parameter as it is stored
    g             the gradient, rescaled
    moment1, ...  a state as it was stored by the step before; None if the tensor has none
    new_moment1   a state as it is stored by this step
    lr, ...       the numbers and choices of the routine

It returns the new value of every slot, by name, before it is rounded to what the slot holds. Powers and the like are
those of the catalogue: what the next step needs.

No formula here comes from refopt; the numbers that carry bounds do.
"""

from refopt.oracle.bound.bounded import maximum, norm, sign, sqrt, total


def uphill(g, maximize):
    """The gradient of what is minimized."""
    return -g if maximize else g


def decayed(x, g, lr, weight_decay, decay, maximize):
    """Loshchilov and Hutter 2019, section 2: a penalty's gradient, or the parameter's decay by the rate."""
    g = uphill(g, maximize)
    if decay == "l2" and weight_decay > 0:
        g = weight_decay * x + g
    if decay == "decoupled" and weight_decay > 0:
        x = x - x * (weight_decay * lr)
    return x, g


def sgd(x, g, lr, l2_decay, maximize):
    """Robbins and Monro 1951, for a loss with the penalty l2_decay / 2 * ||x||**2."""
    gradient = l2_decay * x + uphill(g, maximize)
    return dict(params=x - gradient * lr)


def momentum(x, g, velocities, lr, mu, l2_decay, dampening, use_nesterov, maximize):
    """Polyak 1964; Nesterov's as in Sutskever et al. 2013, section 2; lr as in Paddle, dampening as in PyTorch."""
    gradient = l2_decay * x + uphill(g, maximize)
    velocity = velocities * mu + gradient * (1 - dampening)
    ahead = velocity * mu + gradient if use_nesterov else velocity
    return dict(params=x - ahead * lr, velocities=velocity)


def lars_momentum(x, param, g, velocities, lr, mu, lars_coeff, lars_weight_decay, epsilon, adapt, norm_of):
    """You, Gitman and Ginsburg 2017, Algorithm 1; conditions for adapting, epsilon, norms as in Paddle's operator."""
    weights, gradients = norm(x if norm_of == "master" else param), norm(g)
    adapts = {"norms": weights > 0 and gradients > 0, "decay": lars_weight_decay > 0,
              "decay_and_norms": lars_weight_decay > 0 and weights > 0 and gradients > 0}
    rate = lr
    if adapts[adapt]:
        rate = lr * (lars_coeff * (weights / (lars_weight_decay * weights + gradients + epsilon)))
    velocity = velocities * mu + (lars_weight_decay * x + g) * rate
    return dict(params=x - velocity, velocities=velocity)


def average(old, new, decay):
    """An exponential moving average."""
    return decay * old + new * (1 - decay)


def adam(t, x, g, moment1, moment2, moment2_max, lr, beta1, beta2, epsilon, epsilon_at, weight_decay, decay, maximize):
    """Kingma and Ba 2015, Algorithm 1, and the form at the end of its section 2; AMSGrad: Reddi et al. 2018."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    m, v = average(moment1, g, beta1), average(moment2, g * g, beta2)
    largest = v if moment2_max is None else maximum(v, moment2_max)
    if epsilon_at == "corrected":
        m_hat, v_hat = m / (1 - beta1**t), largest / (1 - beta2**t)
        step = lr * m_hat / (sqrt(v_hat) + epsilon)
    else:
        lr_t = lr * sqrt(1 - beta2**t) / (1 - beta1**t)
        step = lr_t * m / (sqrt(largest) + epsilon)
    slots = dict(params=x - step, moment1=m, moment2=v, beta1_pow=beta1 ** (t + 1), beta2_pow=beta2 ** (t + 1))
    return slots if moment2_max is None else slots | dict(moment2_max=largest)


def adamw(t, x, g, moment1, moment2, moment2_max, lr, beta1, beta2, epsilon, epsilon_at, coeff, lr_ratio, maximize):
    """Loshchilov and Hutter 2019, Algorithm 2: decay by the rate, which is lr * lr_ratio in Paddle's operator."""
    numbers = lr, beta1, beta2, epsilon, epsilon_at, 0, "l2", maximize
    slots = adam(t, x, g, moment1, moment2, moment2_max, *numbers)
    return slots | dict(params=slots["params"] - coeff * (lr_ratio * lr) * x)


def adagrad(x, g, moment, lr, epsilon, weight_decay, decay, maximize):
    """Duchi, Hazan and Singer 2011, section 1, with diagonal matrices."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    squares = g * g + moment
    return dict(params=x - lr * (g / (epsilon + sqrt(squares))), moment=squares)


def rmsprop(x, g, mean_square, velocity, mean_grad, lr, rho, mu, epsilon, epsilon_at, lr_at, weight_decay, decay,
            maximize):
    """Tieleman and Hinton 2012; the centered form, with momentum: Graves 2013, equations 38 to 41."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    square = average(mean_square, g * g, rho)
    mean = None if mean_grad is None else average(mean_grad, g, rho)
    variance = square if mean is None else square - mean * mean
    size = sqrt(epsilon + variance) if epsilon_at == "inside" else epsilon + sqrt(variance)
    inside = lr if lr_at == "velocity" else 1
    step = velocity * mu + g * inside / size
    slots = dict(params=x - (step if lr_at == "velocity" else step * lr), mean_square=square, velocity=step)
    return slots if mean is None else slots | dict(mean_grad=mean)


def lion(x, g, moment, lr, beta1, beta2, coeff):
    """Chen et al. 2023, Algorithm 2."""
    update = lr * sign(average(moment, g, beta1))
    return dict(params=x - coeff * lr * x - update, moment=average(moment, g, beta2))


def adadelta(x, g, avg_squared_grad, avg_squared_update, lr, rho, epsilon, weight_decay, decay, maximize):
    """Zeiler 2012, Algorithm 1: one root mean square over another; lr is Paddle's and PyTorch's, 1 in the paper."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    squares = average(avg_squared_grad, g * g, rho)
    update = sqrt(avg_squared_update + epsilon) / sqrt(squares + epsilon) * g
    return dict(params=x - lr * update, avg_squared_grad=squares,
                avg_squared_update=average(avg_squared_update, update * update, rho))


def adamax(t, x, g, moment, inf_norm, lr, beta1, beta2, epsilon, epsilon_at, weight_decay, decay, maximize):
    """Kingma and Ba 2015, Algorithm 2, with Paddle's epsilon or PyTorch's."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    faded, size = inf_norm * beta2, abs(g)
    largest = maximum(faded, size + epsilon) if epsilon_at == "gradient" else maximum(faded + epsilon, size)
    m = average(moment, g, beta1)
    return dict(params=x - lr * m / ((1 - beta1**t) * largest), moment=m, inf_norm=largest, beta1_pow=beta1 ** (t + 1))


def nadam(t, x, g, moment1, moment2, lr, beta1, beta2, epsilon, decay_base, weight_decay, decay, maximize):
    """Dozat 2016, with the schedule of momentum proposed there: decay_base is 0.96**(momentum decay)."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    mu = [beta1 - beta1 * decay_base**k / 2 for k in range(1, t + 2)]
    product = x.lift(1)
    for factor in mu[:t]:
        product = product * factor
    m, v = average(moment1, g, beta1), average(moment2, g * g, beta2)
    m_hat = m * mu[t] / (1 - product * mu[t]) + g * (1 - mu[t - 1]) / (1 - product)
    step = lr * m_hat / (sqrt(v / (1 - beta2**t)) + epsilon)
    powers = dict(momentum_decay_pow=decay_base ** (t + 1), beta2_pow=beta2 ** (t + 1), mu_product=product)
    return dict(params=x - step, moment1=m, moment2=v, **powers)


def radam(t, x, g, moment1, moment2, lr, beta1, beta2, epsilon, weight_decay, decay, maximize):
    """Liu et al. 2020, Algorithm 2, with PyTorch's epsilon and threshold (5; the paper has 4)."""
    x, g = decayed(x, g, lr, weight_decay, decay, maximize)
    longest = 2 / (1 - beta2) - 1

    def length(t):
        return longest - 2 * t * beta2**t / (1 - beta2**t)

    rho = length(t)
    m, v = average(moment1, g, beta1), average(moment2, g * g, beta2)
    step = lr * (m / (1 - beta1**t))
    if rho > 5:
        variance = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
        step = step * sqrt(variance) * (sqrt(1 - beta2**t) / (sqrt(v) + epsilon))
    powers = dict(beta1_pow=beta1 ** (t + 1), beta2_pow=beta2 ** (t + 1), rho=length(t + 1))
    return dict(params=x - step, moment1=m, moment2=v, **powers)


def lamb(t, x, g, moment1, moment2, new_moment1, new_moment2, lr, beta1, beta2, epsilon, weight_decay, always_adapt):
    """You et al. 2020, Algorithm 2, of the moments as stored; the conditions for adapting as in Paddle's operator."""
    m_hat, v_hat = new_moment1 / (1 - beta1**t), new_moment2 / (1 - beta2**t)
    direction = weight_decay * x + m_hat / (epsilon + sqrt(v_hat))
    weights, length = norm(x), norm(direction)
    step = lr * direction
    if (always_adapt or weight_decay > 0) and weights > 0 and length > 0:
        step = step * (weights / length)
    return dict(params=x - step, moment1=average(moment1, g, beta1), moment2=average(moment2, g * g, beta2),
                beta1_pow=beta1 ** (t + 1), beta2_pow=beta2 ** (t + 1))


def novograd(x, g, moment, second_moment, lr, beta1, beta2, epsilon, weight_decay, grad_averaging):
    """Ginsburg et al. 2019, Algorithm 1; the first nonzero gradient and averaging as in NVIDIA's Jasper."""
    squared = total(g * g)
    v = average(second_moment, squared, beta2) if second_moment > 0 else squared
    direction = weight_decay * x + g / (epsilon + sqrt(v))
    m = average(moment, direction, beta1) if grad_averaging else beta1 * moment + direction
    return dict(params=x - lr * m, moment=m, second_moment=v)
