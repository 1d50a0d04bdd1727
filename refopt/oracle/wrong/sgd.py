"""What is wrong, or easily is, in gradient descent."""

from refopt.cpu.sgd import update as sgd_rule
from refopt.oracle.wrong.options import OF_MAXIMIZE, with_options
from refopt.oracle.wrong.rule import Wrong


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


RULES = with_options(
    sgd_rule,
    {
        "DecayForgotten": Wrong("no L2 decay", sgd_decay_forgotten),
        "DecayDecoupled": Wrong(None, sgd_decay_decoupled),
        "Distributed": Wrong(None, sgd_distributed),
        "Uphill": Wrong("uphill: the step added", sgd_uphill),
        "DecayOfTheStep": Wrong("decay of the new parameter", sgd_decay_of_the_step),
    }, OF_MAXIMIZE,
)  # fmt: skip
