"""What is wrong, or easily is, in momentum."""

from refopt.cpu.momentum import update as momentum_rule
from refopt.oracle.wrong.options import OF_MAXIMIZE, with_options
from refopt.oracle.wrong.rule import Wrong


def learning_rate_in_velocity(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    step = lr * (g + l2_decay * p)
    v = mu * v + (1 - dampening) * step
    return p - (step + mu * v if use_nesterov else v), v


def momentum_decay_decoupled(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    v = mu * v + (1 - dampening) * g
    return p * (1 - lr * l2_decay) - lr * (g + mu * v if use_nesterov else v), v


def dampened(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    numbers = dict(lr=lr, mu=mu, l2_decay=l2_decay, dampening=dampening, use_nesterov=use_nesterov)
    return momentum_rule(p, (1 - mu) * g, v, **numbers)


def dampened_with_decay(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    """As in PyTorch with dampening."""
    g = g + l2_decay * p
    v = mu * v + (1 - dampening) * ((1 - mu) * g)
    return p - lr * (g + mu * v if use_nesterov else v), v


def averaged(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    """An average of gradients, and Nesterov's step along an average."""
    g = g + l2_decay * p
    v = mu * v + (1 - dampening) * ((1 - mu) * g)
    return p - lr * ((1 - mu) * g + mu * v if use_nesterov else v), v


def learning_rate_twice(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    step = lr * (g + l2_decay * p)
    v = mu * v + (1 - dampening) * step
    return p - lr * (step + mu * v if use_nesterov else v), v


def moved_by_the_old_velocity(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    g = g + l2_decay * p
    new = mu * v + (1 - dampening) * g
    return p - lr * (g + mu * new if use_nesterov else v), new


def always_nesterov(p, g, v, *, use_nesterov, **numbers):
    return momentum_rule(p, g, v, use_nesterov=True, **numbers)


def momentum_of_everything(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    g = g + l2_decay * p
    v = mu * (v + (1 - dampening) * g)
    return p - lr * (g + mu * v if use_nesterov else v), v


def nesterov_ignored(p, g, v, *, use_nesterov, **numbers):
    return momentum_rule(p, g, v, use_nesterov=False, **numbers)


def nesterov_with_the_old_velocity(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    g = g + l2_decay * p
    new = mu * v + (1 - dampening) * g
    return p - lr * (g + mu * v if use_nesterov else new), new


def nesterov_without_decay(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    v = mu * v + (1 - dampening) * (g + l2_decay * p)
    return p - lr * (g + mu * v if use_nesterov else v), v


def decay_afterwards(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    v = mu * v + (1 - dampening) * g
    p = p - lr * (g + mu * v if use_nesterov else v)
    return p - lr * l2_decay * p, v


def dampening_ignored(p, g, v, *, dampening, **numbers):
    return momentum_rule(p, g, v, dampening=0, **numbers)


def dampening_of_everything(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    g = g + l2_decay * p
    v = (1 - dampening) * (mu * v + g)
    return p - lr * (g + mu * v if use_nesterov else v), v


def velocity_of_the_other_sign(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    g = g + l2_decay * p
    v = mu * v - (1 - dampening) * g
    return p + lr * (mu * v - g if use_nesterov else v), v


RULES = with_options(
    momentum_rule,
    {
        "LearningRateInVelocity": Wrong("learning rate inside the velocity", learning_rate_in_velocity),
        "DecayDecoupled": Wrong("decay on the parameter, not in the velocity", momentum_decay_decoupled),
        "Dampened": Wrong("gradient dampened by 1 - mu, the decay not", dampened),
        "DampenedWithDecay": Wrong("gradient dampened by 1 - mu", dampened_with_decay),
        "DecayAfterwards": Wrong("decay of the new parameter, after the step", decay_afterwards),
        "OtherSign": Wrong("velocity of the other sign", velocity_of_the_other_sign),
        "Averaged": Wrong("gradient dampened by 1 - mu: the velocity as an average", averaged),
        "LearningRateTwice": Wrong("learning rate inside the velocity, and again in the step", learning_rate_twice),
        "OldVelocity": Wrong("parameter moved by the old velocity", moved_by_the_old_velocity),
        "AlwaysNesterov": Wrong("always Nesterov's step", always_nesterov),
        "MomentumOfEverything": Wrong("mu on the new gradient as well", momentum_of_everything),
        "DampeningIgnored": Wrong(None, dampening_ignored),
        "DampeningOfEverything": Wrong("dampening of the whole velocity", dampening_of_everything),
        "NesterovIgnored": Wrong("use_nesterov ignored", nesterov_ignored),
        "NesterovWithTheOldVelocity": Wrong("Nesterov with the old velocity", nesterov_with_the_old_velocity),
        "NesterovWithoutDecay": Wrong("Nesterov's step without the decay", nesterov_without_decay),
    }, OF_MAXIMIZE,
)  # fmt: skip
