"""Likely mistakes in gradient descent."""

from refopt.oracle.wrong.options import OF_MAXIMIZE
from refopt.oracle.wrong.rule import Wrong

DECAY = "g = g + l2_decay * p"
RULES = {
    "DecayForgotten": Wrong("no L2 decay", {DECAY: "pass"}),
    "DecayDecoupled": Wrong(None, {DECAY: "p = p * (1 - lr * l2_decay)"}),
    "Distributed": Wrong(None, {DECAY: "pass", "p - lr * g": "p - (lr * g + lr * l2_decay * p)"}),
    "Uphill": Wrong("uphill: the step is added", {"p - lr * g": "p + lr * g"}),
    "DecayOfTheStep": Wrong("decay of the new parameter", {
        "p - lr * g": "p - lr * l2_decay * p", DECAY: "p = p - lr * g",
    }),
} | OF_MAXIMIZE
