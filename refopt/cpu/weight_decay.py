"""What several optimizers do before their own rule: flip the gradient's sign, and apply weight decay."""

DECAY = {"decay": ("l2", "decoupled")}


def prepared(p, g, *, lr, weight_decay, decay, maximize):
    """The parameter and the gradient that a rule starts from; a weight_decay of 0 means no decay.

    ::

        g' = -g                               with maximize
        g' = g' + weight_decay * p            decay="l2"
        p  = p * (1 - lr * weight_decay)      decay="decoupled"
    """
    if maximize:
        g = -g
    if weight_decay == 0:
        return p, g
    if decay == "decoupled":
        return p * (1 - lr * weight_decay), g
    return p, g + weight_decay * p
