"""Muon: one tensor, and any number of them merged.

Momentum, each matrix of which is made nearly orthogonal before it is applied (Jordan et al. 2024), as in PyTorch::

    g' = rescale_grad * g
    v  = mu * v + (1 - mu) * g'                  the average of PyTorch, or, with average=False, mu * v + g'
    u  = mu * v + (1 - mu) * g'                  with Nesterov's momentum, or mu * v + g'; without, v
    x  = u / max(||u||, epsilon)                 of each matrix, in the compute dtype from here on
    A  = x x^T
    B  = b * A + c * (A A)
    x  = a * x + B x                             A, B and x `iterations` times: Newton-Schulz
    p  = p * (1 - lr * weight_decay) - lr * ratio * x

An iteration maps each singular value s of x to a s + b s^3 + c s^5, and five of them bring those that are not tiny to
about 1. If a matrix has more rows than columns, its transpose is iterated instead, a smaller problem with the same
result. The ratio makes updates of matrices of different shapes similar in size::

    adjust_lr="original"            sqrt(max(1, rows / columns))         Jordan's
    adjust_lr="match_rms_adamw"     0.2 * sqrt(max(rows, columns))       Moonshot's, for the learning rates of AdamW
    adjust_lr="spectral_unclamped"  sqrt(rows / columns)                 Bernstein's, https://jeremybernste.in/writing/deriving-muon
    adjust_lr="none"                1

`refopt.cpu.matmul` computes the products. An iteration rounds A, B and x to the compute dtype, each once, after the
term with b or a has been added in fp32 (numerics, N18).
"""

import numpy as np

from refopt.checks.arguments import listed, number
from refopt.checks.arrays import host_array
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.checks.rows import Form, Limit, Slot
from refopt.cpu.blocks import Blocks, cuts
from refopt.cpu.cast import rounded
from refopt.cpu.matmul import matmul
from refopt.cpu.merged import step
from refopt.cpu.reduce import sum_of_squares
from refopt.cpu.routine import routine, single

COEFFICIENTS = 3.4445, -4.7750, 2.0315
WHOLE = Blocks()


def momentum(g, v, *, mu, use_nesterov, average):
    """The new velocity, and the matrix to orthogonalize."""
    g = (1 - mu) * g if average else g
    v = mu * v + g
    return v, mu * v + g if use_nesterov else v


def norm_of(u, epsilon):
    """The Frobenius norm of a matrix, summed in memory order, but at least epsilon."""
    return np.maximum(np.sqrt(sum_of_squares(u.ravel(order="K"))), epsilon)


def normalized(u, *, epsilon, compute, norm=norm_of):
    """A matrix divided by its norm, rounded once to the compute dtype."""
    return rounded(u / norm(u, epsilon), numpy_dtype(compute))


def orthogonalized(x, triples):
    """The matrix after an iteration for each triple of coefficients, in its dtype."""
    if x.shape[0] > x.shape[1]:
        return orthogonalized(x.T, triples).T
    real = arithmetic(x.dtype.name)
    for a, b, c in np.asarray(triples, real):
        square = matmul(x, x.T).astype(x.dtype)
        polynomial = (b * square.astype(real) + c * matmul(square, square)).astype(x.dtype)
        x = (a * x.astype(real) + matmul(polynomial, x)).astype(x.dtype)
    return x


def ratio(rows, columns, adjust_lr, real):
    """The factor of a matrix's learning rate."""
    if adjust_lr == "match_rms_adamw":
        return real(0.2) * np.sqrt(real(max(rows, columns)))
    least = {"original": 1, "spectral_unclamped": 0}
    return np.sqrt(real(max(least[adjust_lr], rows / columns))) if adjust_lr in least else real(1)


def updates(u, *, cut, triples, lr, epsilon, adjust_lr, compute, norm=norm_of, scale=ratio):
    """What is subtracted from the parameter: for each matrix, x times the learning rate and the ratio."""
    update, real = np.empty_like(u), u.dtype.type
    for matrix, updated in zip(cut.matrices(u), cut.matrices(update), strict=True):
        rows, columns = matrix.shape
        if matrix.size:
            x = orthogonalized(normalized(matrix, epsilon=epsilon, compute=compute, norm=norm), triples)
            updated[...] = lr * scale(rows, columns, adjust_lr, real) * x.astype(real)
    return update


def rule(
    p, g, v, *, stored, cut, coefficients, iterations, lr, mu, weight_decay, epsilon, use_nesterov, average, adjust_lr,
    compute,
):
    """The new parameter and velocity. ``cut`` has the matrices; there is one triple, or one for each iteration."""
    v, u = momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    triples = coefficients if len(coefficients) > 1 else coefficients * int(iterations)
    update = updates(u, cut=cut, triples=triples, lr=lr, epsilon=epsilon, adjust_lr=adjust_lr, compute=compute)
    return p * (1 - lr * weight_decay) - update, v


def merged_muon(
    params, grads, velocities, *, lr, mu=0.95, weight_decay=0.1, epsilon=1e-7, iterations=5, coefficients=COEFFICIENTS,
    blocks=WHOLE, rescale_grad=1.0, use_nesterov=True, average=True, adjust_lr="original", compute="bfloat16",
    master_params=None, grad_factor=None, found_inf=None,
):
    """Update every matrix of a list by Muon, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, each dense in memory, of two axes, or of more if ``blocks``
            defines their matrices. Use another optimizer, such as `merged_adamw`, for vectors, and for embeddings and
            output layers.
        velocities: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the momentum, 0 at
            first.
        epsilon: the smallest norm to divide by, at least 0.
        iterations: a whole number below 100.
        coefficients: a, b and c, or a list of such triples, one for each iteration.
        blocks: how parameters are cut into matrices, one `Blocks` or one per tensor; each matrix has its own norm,
            iterations and ratio.
        use_nesterov: whether to look ahead (Nesterov's momentum).
        average: whether a gradient is multiplied by 1 - mu before it enters the velocity, as in PyTorch.
        adjust_lr: ``"original"``, ``"match_rms_adamw"``, ``"spectral_unclamped"`` or ``"none"``: the ratio above.
        compute: the dtype of the iterations: ``"bfloat16"`` or ``"float16"``, with products of tensor cores, or
            ``"float32"`` or ``"float64"``.
    """
    step(MUON, locals())


def matrix_arguments(params, numbers, *, coefficients=COEFFICIENTS, blocks=WHOLE):
    """The rule's extra arguments for each parameter: its matrices and the coefficients; raises if it has no matrix."""
    name = MUON.merged_name
    triples = schedule(f"{name}: coefficients", coefficients, int(numbers.get("iterations", 0)))
    arrays = [host_array(x, f"{name}: params[{i}]") if isinstance(x, np.ndarray) else x for i, x in enumerate(params)]
    return [{"cut": cut, "coefficients": triples} for cut in cuts(name, arrays, blocks)]


def schedule(where, coefficients, iterations):
    """A list of one triple, or of one for each iteration; for anything else it raises, naming ``where``."""
    plain = coefficients.tolist() if isinstance(coefficients, np.ndarray) else coefficients
    entries = listed(where, plain, "numbers or of triples")
    several = any(isinstance(entry, list | tuple) for entry in entries)
    triples = [listed(f"{where}[{k}]", entry, "numbers") for k, entry in enumerate(entries)] if several else [entries]
    if several and len(triples) != iterations:
        raise ValueError(f"{where}: expected a triple for each of {iterations} iterations, got {len(triples)}")
    for k, triple in enumerate(triples):
        place = f"{where}[{k}]" if several else where
        if len(triple) != 3:
            raise ValueError(f"{place}: expected three numbers, got {len(triple)}")
        for j, x in enumerate(triple):
            number(f"{place}[{j}]", x, -3e38, 3e38)
    return triples


MUON = routine(
    merged_muon, rule, source="Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; arXiv:2502.16982",
    states=[Slot("velocities")],
    limits={"iterations": Limit(per_tensor=False, below=100.0, whole=True)},
    choices={
        "adjust_lr": ("original", "match_rms_adamw", "spectral_unclamped", "none"),
        "compute": ("bfloat16", "float16", "float32", "float64"),
    },
    forms={"merged": Form(3, iterated=3)},
    trial={"iterations": 2},  # each takes the executor as long as everything else
    matrix_arguments=matrix_arguments,
)
muon = single(merged_muon)
