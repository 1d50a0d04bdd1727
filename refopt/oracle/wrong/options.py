"""Likely mistakes in weight decay before a rule."""

from refopt.oracle.wrong.rule import Wrong

UPDATE = "update(p, g, *states, lr=lr, **numbers)"
DECAYS = 'decay == "decoupled" and weight_decay != 0'
# For routines with a choice of decay: `refopt.cpu.weight_decay` prepares their gradient.
OF_DECAY = {
    "WeightDecayAfterwards": Wrong("weight decay of the new parameter, after the step", {
        "return p * (1 - lr * weight_decay), g": "return p, g",
        f"return {UPDATE}": f"new, *rest = {UPDATE}; return new * (1 - lr * weight_decay) if {DECAYS} else new, *rest",
    }),
    "TurnedAfterDecay": Wrong("gradient negated after weight decay was added to it", {
        "return p, g + weight_decay * p": "return p, g - weight_decay * p if maximize else g + weight_decay * p",
    }),
}
