"""The type of hypotheses, and the rule that they change."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refopt.checks.rows import Routine
from refopt.cpu.adam import descend, moments
from refopt.oracle.diagnosis.situation import Rule, Situation
from refopt.oracle.source import substituted


class Hypothesis(NamedTuple):
    """``change`` returns the changed situation, or ``None`` if the hypothesis does not apply.

    ``kind`` is what it changes: two with equal ``kind`` and ``about`` are not paired, nor is one that is not
    ``paired``. ``needs`` are numbers that the step must take.
    """

    name: str
    change: Callable[[Situation], Situation | None]
    kind: str
    about: str = ""
    paired: bool = True
    needs: tuple[str, ...] = ()


@functools.cache
def base_rule(row: Routine) -> Rule:
    """The rule as in papers, with all of its source available."""
    return substituted(row.rule, {descend: descend_as_in_the_paper, moments: moments_one_by_one})


def moments_one_by_one(g, m, u, *, beta1, beta2):
    """`refopt.cpu.adam.moments`, with names for the new ones."""
    m = beta1 * m + (1 - beta1) * g
    u = beta2 * u + (1 - beta2) * g * g
    return m, u


def descend_as_in_the_paper(p, m, u, beta1_pow, beta2_pow, *, lr, epsilon, epsilon_at):
    """Adam's step with corrected moments; `refopt.cpu.adam.descend` regroups it."""
    if epsilon_at == "uncorrected":
        return p - lr * np.sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (np.sqrt(u) + epsilon))
    m_hat = m / (1 - beta1_pow)
    d = m_hat / (np.sqrt(u / (1 - beta2_pow)) + epsilon)
    return p - lr * d
