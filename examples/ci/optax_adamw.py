"""AdamW as a transformation of optax's: the step that is checked."""

import optax


def adamw(learning_rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=1e-2):
    """The parts of AdamW, in a chain."""
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def clipped(learning_rate):
    """Adam of gradients that are clipped by the norm of all of them: in nobody's catalogue."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))
