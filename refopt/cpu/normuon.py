"""NorMuon: one tensor, and any number of them merged.

Muon (`refopt.cpu.muon`) whose rows, the neurons, all move about as far: each row of x is divided by the root of a
running average of its squares, and then the whole matrix gets the norm that it had (Li et al., arXiv:2510.05491)::

    n_i  = sum of x_ij * x_ij over j              of row i of a matrix, after the iterations, in the arithmetic type
    w_i  = beta2 * w_i + (1 - beta2) * (n_i / columns)
    d_i  = sqrt(w_i) + row_epsilon
    f_i  = (sqrt(sum of n_i) / sqrt(sum of n_i / d_i / d_i)) / d_i        but 0 where n_i is 0
    x_ij = f_i * x_ij

Momentum, iterations, ratio and decay are Muon's. A row is an index of the axis before the last, in tall matrices as in
wide ones, and all of an output channel in convolutions, as in microsoft/dion, whose norm is restored as well; the paper
gives each update an RMS of 0.2 instead, about that of ``adjust_lr="match_rms_adamw"``. A row of zeros does not move,
apart from its decay, and neither does a matrix of zeros.
"""

import numpy as np

from refopt.checks.rows import Form, Slot
from refopt.cpu.merged import step
from refopt.cpu.muon import COEFFICIENTS, OF_MATRICES, WHOLE, momentum, updates
from refopt.cpu.reduce import sum_of_squares, tile_sums, tree_sum
from refopt.cpu.routine import routine, single


def factors(x, w, *, beta2, row_epsilon):
    """The new averages of a matrix's rows, and the factor of each row."""
    n = sum_of_squares(x)
    w = beta2 * w + (1 - beta2) * (n / x.dtype.type(x.shape[1]))
    d = np.sqrt(w) + row_epsilon
    before, after = (np.sqrt(tree_sum(tile_sums(squares))) for squares in (n, np.where(n == 0, n, n / d / d)))
    return w, np.where(n == 0, n, before / after / d)


def row_updates(u, w, *, cut, beta2, row_epsilon, factors=factors, **numbers):
    """Muon's `updates` with normalized rows, and the new averages."""
    w = w.copy()

    def by_rows(averages):
        def normalized(x):
            averages[...], factor = factors(x, averages, beta2=beta2, row_epsilon=row_epsilon)
            return factor[:, None] * x

        return normalized

    return updates(u, cut=cut, rows=map(by_rows, cut.by_row(w)), **numbers), w


def rule(
    p, g, v, w, *, stored, cut, coefficients, restarts, iterations, lr, mu, weight_decay, epsilon, use_nesterov,
    average, adjust_lr, compute, beta2, row_epsilon,
):
    """The new parameter, velocity and averages of rows."""
    v, u = momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    update, w = row_updates(u, w, beta2=beta2, row_epsilon=row_epsilon, cut=cut, triples=coefficients, lr=lr,
                            epsilon=epsilon, adjust_lr=adjust_lr, compute=compute, restarts=restarts)
    return p * (1 - lr * weight_decay) - update, v, w


def merged_normuon(
    params, grads, velocities, row_moment, *, lr, mu=0.95, weight_decay=0.1, epsilon=1e-7, iterations=5,
    coefficients=COEFFICIENTS, restarts=None, blocks=WHOLE, rescale_grad=1.0, beta2=0.95, row_epsilon=1e-8,
    use_nesterov=True, average=True, adjust_lr="original", compute="bfloat16", master_params=None, grad_factor=None,
    found_inf=None,
):
    """Update every matrix of a list by NorMuon, in place.

    Args:
        params, velocities, epsilon, iterations, coefficients, restarts, blocks: as in `merged_muon`.
        use_nesterov, average, adjust_lr, compute: as in `merged_muon`.
        row_moment: P C-contiguous arrays of the arithmetic type, 0 at first: the running average of the squares of
            each row, shape (rows, 1), or with ``blocks`` (..., rows, parts of the columns): a number for each row of
            each matrix; for convolutions (output channels, parts of the columns).
        beta2: the weight of the previous average, at least 0 and below 1.
        row_epsilon: added to the root of the average, at least 0.
    """
    step(NORMUON, locals())


NORMUON = routine(
    merged_normuon, rule, source="Li et al. 2025, arXiv:2510.05491; microsoft/dion",
    states=[Slot("velocities"), Slot("row_moment", signed=False, by_row=True)],
    forms={"merged": Form(5, iterated=3)}, **OF_MATRICES,
)
normuon = single(merged_normuon)
