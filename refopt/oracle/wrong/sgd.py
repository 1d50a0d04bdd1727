"""Likely mistakes in gradient descent."""

from refopt.oracle.wrong.rule import Wrong

DECAY = "g = g + l2_decay * p"
RULES = {
    "DecayForgotten": Wrong("no L2 decay", {DECAY: "pass"}),
    "Uphill": Wrong("uphill: the step is added", {"p - lr * g": "p + lr * g"}),
    "DecayOfTheStep": Wrong("decay of the new parameter", {
        "p - lr * g": "p - lr * l2_decay * p", DECAY: "p = p - lr * g",
    }),
}
