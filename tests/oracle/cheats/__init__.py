"""Steps that fool a checker, each with the law that finds it, and words of what is said of it.

All of them are momentum steps: what is wrong of a cheat is not its formula.
"""

CHEATS = []


def cheat(law, words, dtype="float32"):
    """Name the law that has to fail, and what the report has to say."""

    def decorate(step):
        CHEATS.append((law, words, dtype, step))
        return step

    return decorate


def right(params, grads, velocities, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        v[...] = real(mu) * v + (g + real(l2_decay) * p)
        p -= real(lr) * v


from oracle.cheats import borrowed, elsewhere, kept, late, partial  # noqa: E402, F401
