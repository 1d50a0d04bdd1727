"""One row per routine: what it takes, in how many launches and over how many bytes it is done.

The checks, the plans, the command line, the laws and the tables of the documentation follow these rows.
"""

from collections.abc import Mapping
from typing import Any

from refopt.rows import Form, Hyper, Routine, Slot, Spec

__all__ = ["ROUTINES", "Form", "Hyper", "Routine", "Slot", "Spec"]


def _has_master(dtypes: tuple) -> bool:
    """Whether a parameter is only written, since its master is read; with a remainder, both are."""
    return dtypes[-1] not in (None, "uint16")


def _lars_traffic(form: Form, dtypes: tuple, norm_of: str = "param", **_: str) -> dict[str, int]:
    """Passes over each slot, reads and writes added up. The gradient is read for the norm and again."""
    written_only = _has_master(dtypes)
    passes = {"params": 1 if written_only else 2, "grads": 2, "velocities": 2, "master_params": 2}
    if form.norm_reads_param:
        of_exact = norm_of == "master"
        passes["params"] += not (of_exact and written_only)
        passes["master_params"] += of_exact
    return passes


LARS_MOMENTUM = Routine(
    name="lars_momentum",
    slots=(
        Slot("params", written=True),
        Slot("grads", written=False),
        Slot("velocities", written=True),
        Slot("master_params", written=True, optional=True),
    ),
    hypers=(
        Hyper("lr", None, per_tensor=True),
        Hyper("mu", None),
        Hyper("lars_coeff", 0.001),
        Hyper("lars_weight_decay", 0.0005, per_tensor=True),
        Hyper("epsilon", 0.0),
        Hyper("rescale_grad", 1.0, positive=True),
    ),
    choices={"adapt": ("norms", "decay", "decay_and_norms"), "norm_of": ("param", "master")},
    forms={
        "separate": Form(launches=1, merged=False),
        "cooperative": Form(launches=1),
        "two_launches": Form(launches=2),
        "carried_norm": Form(launches=2, norm_reads_param=False),
    },
    traffic=_lars_traffic,
    source="arXiv:1708.03888; Paddle PR 35476",
    remainders=True,
)

PARAMS, GRADS = Slot("params", written=True), Slot("grads", written=False)
MASTERS = Slot("master_params", written=True, optional=True)
LR, RESCALE_GRAD = Hyper("lr", None, per_tensor=True), Hyper("rescale_grad", 1.0, positive=True)
# Below 2**24, so that it is a number of every arithmetic type.
SEED = Hyper("seed", 0.0, per_tensor=True, below=2.0**24, whole=True)
ROUNDING = {"rounding": ("nearest", "stochastic")}
BETA1, BETA2 = Hyper("beta1", 0.9, below=1.0), Hyper("beta2", 0.999, below=1.0)


def _elementwise(
    name: str,
    states: tuple[Slot, ...],
    hypers: tuple[Hyper, ...],
    source: str,
    choices: Mapping[str, tuple] | None = None,
) -> Routine:
    """A routine that makes one pass over its tensors, each element for itself."""
    slots = (PARAMS, GRADS, *states, MASTERS)

    def traffic(form: Form, dtypes: tuple, **_: str) -> dict[str, int]:
        """Passes over each slot, reads and writes added up."""
        passes = {slot.name: 0 if slot.scalar else 2 for slot in slots}
        return passes | {"params": 1 if _has_master(dtypes) else 2, "grads": 1}

    forms = {"separate": Form(launches=1, merged=False), "merged": Form(launches=1)}
    return Routine(
        name, slots, (*hypers, RESCALE_GRAD, SEED), {**(choices or {}), **ROUNDING}, forms, traffic, source,
        elementwise=True, remainders=True,
    )  # fmt: skip


def _state(name: str, *, signed: bool = True, optional: bool = False) -> Slot:
    return Slot(name, written=True, optional=optional, signed=signed)


def _carried(**initial: float | str) -> tuple[Slot, ...]:
    """Scalars, and what they start from; all so far are powers, averages of squares or lengths, none below 0."""
    return tuple(Slot(name, written=True, scalar=True, signed=False, initial=x) for name, x in initial.items())


POWERS = _carried(beta1_pow="beta1", beta2_pow="beta2")


MOMENTS = _state("moment1"), _state("moment2", signed=False)

SGD = _elementwise(
    "sgd", (), (LR, Hyper("l2_decay", 0.0, per_tensor=True)), "Robbins and Monro 1951; Paddle's sgd operator"
)
MOMENTUM = _elementwise(
    "momentum",
    (_state("velocities"),),
    (LR, Hyper("mu", None), Hyper("l2_decay", 0.0, per_tensor=True)),
    "Polyak 1964; Sutskever et al. 2013; Paddle PR 36380",
    {"use_nesterov": (False, True)},
)
ADAM = _elementwise(
    "adam",
    (*MOMENTS, *POWERS, _state("moment2_max", signed=False, optional=True)),
    (LR, BETA1, BETA2, Hyper("epsilon", 1e-8)),
    "arXiv:1412.6980; AMSGrad: Reddi et al. 2018; Paddle PR 15497",
    {"epsilon_at": ("corrected", "uncorrected")},
)
ADAMW = _elementwise(
    "adamw",
    ADAM.slots[2:-1],
    (*ADAM.hypers[:4], Hyper("coeff", 0.01, per_tensor=True), Hyper("lr_ratio", 1.0, per_tensor=True)),
    "arXiv:1711.05101; Paddle's adamw operator",
    ADAM.choices,
)
ADAGRAD = _elementwise(
    "adagrad",
    (_state("moment", signed=False),),
    (LR, Hyper("epsilon", 1e-6)),
    "Duchi, Hazan and Singer 2011; Paddle's adagrad operator",
)
RMSPROP = _elementwise(
    "rmsprop",
    (_state("mean_square", signed=False), _state("velocity"), _state("mean_grad", optional=True)),
    (LR, Hyper("rho", 0.95, below=1.0), Hyper("mu", 0.0), Hyper("epsilon", 1e-6)),
    "Tieleman and Hinton 2012; centered: Graves, arXiv:1308.0850; Paddle's rmsprop operator",
    {"epsilon_at": ("inside", "outside")},
)
LION = _elementwise(
    "lion",
    (_state("moment"),),
    (LR, BETA1, Hyper("beta2", 0.99, below=1.0), Hyper("coeff", 0.0, per_tensor=True)),
    "arXiv:2302.06675",
)
ADADELTA = _elementwise(
    "adadelta",
    (_state("avg_squared_grad", signed=False), _state("avg_squared_update", signed=False)),
    (Hyper("lr", 1.0, per_tensor=True), Hyper("rho", 0.95, below=1.0), Hyper("epsilon", 1e-6)),
    "arXiv:1212.5701; Paddle's adadelta operator",
)
ADAMAX = _elementwise(
    "adamax",
    (_state("moment"), _state("inf_norm", signed=False), POWERS[0]),
    (LR, BETA1, BETA2, Hyper("epsilon", 1e-8)),
    "arXiv:1412.6980, Algorithm 2; Paddle's adamax operator",
)
NADAM = _elementwise(
    "nadam",
    (*MOMENTS, *_carried(momentum_decay_pow="decay_base", beta2_pow="beta2", mu_product=1.0)),
    (LR, BETA1, BETA2, Hyper("epsilon", 1e-8), Hyper("decay_base", 0.96**0.004)),
    "Dozat 2016; Paddle's nadam operator",
)
RADAM = _elementwise(
    "radam",
    (*MOMENTS, *POWERS, *_carried(rho=1.0)),
    (LR, BETA1, BETA2, Hyper("epsilon", 1e-8)),
    "arXiv:1908.03265; Paddle's radam operator",
)


def _lamb_traffic(form: Form, dtypes: tuple, **_: Any) -> dict[str, int]:
    """Passes over each slot: the moments are made in the first pass and read again in the second."""
    exact = {"params": 1, "master_params": 3} if _has_master(dtypes) else {"params": 3, "master_params": 3}
    return {"grads": 1, "moment1": 3, "moment2": 3} | exact


LAMB = Routine(
    name="lamb",
    slots=(PARAMS, GRADS, *MOMENTS, *POWERS, MASTERS),
    hypers=(LR, BETA1, BETA2, Hyper("epsilon", 1e-6), Hyper("weight_decay", 0.01, per_tensor=True), RESCALE_GRAD),
    choices={"always_adapt": (False, True)},
    forms={"separate": Form(launches=2, merged=False), "merged": Form(launches=2)},
    traffic=_lamb_traffic,
    source="arXiv:1904.00962; Paddle's lamb operator",
    remainders=True,
)


def _novograd_traffic(form: Form, dtypes: tuple, **_: Any) -> dict[str, int]:
    """Passes over each slot: the gradient is read for its norm and again; a parameter with a master is only written."""
    return {"params": 1 if _has_master(dtypes) else 2, "grads": 2, "moment": 2, "master_params": 2}


NOVOGRAD = Routine(
    name="novograd",
    slots=(PARAMS, GRADS, _state("moment"), *_carried(second_moment=0.0), MASTERS),
    hypers=(
        LR,
        Hyper("beta1", 0.95, below=1.0),
        Hyper("beta2", 0.98, below=1.0),
        Hyper("epsilon", 1e-8),
        Hyper("weight_decay", 0.0, per_tensor=True),
        RESCALE_GRAD,
    ),
    choices={"grad_averaging": (False, True)},
    forms={"separate": Form(launches=2, merged=False), "merged": Form(launches=2)},
    traffic=_novograd_traffic,
    source="arXiv:1905.11286; NVIDIA's Jasper",
    remainders=True,
)

ROUTINES = {
    routine.name: routine
    for routine in (
        LARS_MOMENTUM, SGD, MOMENTUM, ADAM, ADAMW, ADAGRAD, RMSPROP, LION, ADADELTA, ADAMAX, NADAM, RADAM, LAMB,
        NOVOGRAD,
    )
}  # fmt: skip
