"""What is wrong, or easily is, in what comes before a rule: the gradient's sign, and weight decay."""

from collections.abc import Callable, Mapping
from functools import partial

from refopt.cpu.weight_decay import prepared
from refopt.oracle.wrong.rule import Wrong


def prepares(p, g, *states, rule, lr, maximize, weight_decay=0, decay="l2", **numbers):
    """A rule after all that comes before it."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return rule(p, g, *states, lr=lr, **numbers)


def maximize_ignored(p, g, *states, rule, maximize, **numbers):
    return rule(p, g, *states, maximize=False, **numbers)


def decay_ignored(p, g, *states, rule, weight_decay, **numbers):
    return rule(p, g, *states, weight_decay=0 * weight_decay, **numbers)


def decay_exchanged(p, g, *states, rule, decay, **numbers):
    return rule(p, g, *states, decay={"l2": "decoupled", "decoupled": "l2"}[decay], **numbers)


def decay_without_lr(p, g, *states, rule, decay, weight_decay, **numbers):
    if decay == "decoupled" and weight_decay != 0:
        p, weight_decay = p * (1 - weight_decay), 0 * weight_decay
    return rule(p, g, *states, decay=decay, weight_decay=weight_decay, **numbers)


def decay_afterwards(p, g, *states, rule, lr, decay, weight_decay, **numbers):
    if decay != "decoupled" or weight_decay == 0:
        return rule(p, g, *states, lr=lr, decay=decay, weight_decay=weight_decay, **numbers)
    new, *rest = rule(p, g, *states, lr=lr, decay=decay, weight_decay=0 * weight_decay, **numbers)
    return new * (1 - lr * weight_decay), *rest


def turned_after_decay(p, g, *states, rule, decay, weight_decay, maximize, **numbers):
    if decay == "l2" and maximize and weight_decay != 0:
        g, weight_decay = g + weight_decay * p, 0 * weight_decay
    return rule(p, g, *states, decay=decay, weight_decay=weight_decay, maximize=maximize, **numbers)


OF_MAXIMIZE = {"MaximizeIgnored": Wrong(None, maximize_ignored)}
OF_DECAY = OF_MAXIMIZE | {
    "WeightDecayIgnored": Wrong(None, decay_ignored),
    "WeightDecayExchanged": Wrong(None, decay_exchanged),
    "WeightDecayWithoutLr": Wrong("weight decay without the learning rate", decay_without_lr),
    "WeightDecayAfterwards": Wrong("weight decay of the new parameter, after the step", decay_afterwards),
    "TurnedAfterDecay": Wrong("gradient turned after weight decay was added to it", turned_after_decay),
}


def with_options(
    right: Callable[..., tuple], wrong: Mapping[str, Wrong], options: Mapping[str, Wrong] = OF_DECAY
) -> dict[str, Wrong]:
    """Wrong rules of what comes after options, as whole rules, and the right one after wrong options.

    Args:
        right: the routine's rule without its options.
        wrong: by name, rules that are wrong, of the same form.
        options: what is wrong in options, as functions of a whole rule.
    """
    rules = {name: Wrong(x.name, partial(prepares, rule=x.rule), x.rule) for name, x in wrong.items()}
    whole = partial(prepares, rule=right)
    return rules | {name: Wrong(x.name, partial(x.rule, rule=whole)) for name, x in options.items()}
