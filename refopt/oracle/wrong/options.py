"""Likely mistakes before a rule: in the gradient's sign, and in weight decay."""

from refopt.oracle.wrong.rule import Wrong

UPDATE = "update(p, g, *states, lr=lr, **numbers)"
DECAYS = 'decay == "decoupled" and weight_decay != 0'
# For routines whose rule itself negates the gradient, and for those where `refopt.cpu.weight_decay` does.
OF_MAXIMIZE = {"MaximizeIgnored": Wrong(None, {"-g if maximize else g": "g"})}
OF_DECAY = {
    "MaximizeIgnored": Wrong(None, {"if maximize:": "if False:"}),
    "WeightDecayIgnored": Wrong(None, {"weight_decay == 0": "True"}),
    "WeightDecayExchanged": Wrong(None, {'decay == "decoupled"': 'decay == "l2"'}),
    "WeightDecayWithoutLr": Wrong("weight decay without the learning rate", {
        "1 - lr * weight_decay": "1 - weight_decay",
    }),
    "WeightDecayAfterwards": Wrong("weight decay of the new parameter, after the step", {
        "return p * (1 - lr * weight_decay), g": "return p, g",
        f"return {UPDATE}": f"new, *rest = {UPDATE}; return new * (1 - lr * weight_decay) if {DECAYS} else new, *rest",
    }),
    "TurnedAfterDecay": Wrong("gradient negated after weight decay was added to it", {
        "return p, g + weight_decay * p": "return p, g - weight_decay * p if maximize else g + weight_decay * p",
    }),
}
