"""What the oracle says of every optimizer that it has been tried on: one row each, right, or wrong and how.

`docs/findings.md` says it in words.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, Any] = MappingProxyType({})
SINGLE = "float32", "float64"
HALF = "float16", "bfloat16"


class Row(NamedTuple):
    """An optimizer as a routine: the library's name of it, options, and what is compared.

    ``fails`` has what the report says of a law that does not hold.
    """

    routine: str
    name: str
    options: Mapping[str, Any] = NOTHING
    dtypes: tuple[str, ...] = SINGLE
    laws: tuple[str, ...] = ("L1",)
    fails: Mapping[str, str] = NOTHING

    def __str__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        return "-".join(filter(None, (self.routine, self.name, options, ",".join(self.fails))))


def wrong(routine: str, name: str, dtypes: tuple[str, ...], fails: Mapping[str, str], **options: Any) -> Row:
    """A row of what is wrong."""
    return Row(routine, name, options, dtypes, tuple(fails), fails)


def loops(routine: str, name: str, **options: Any) -> list[Row]:
    """One tensor after the other, and by lists."""
    return [Row(routine, name, {"foreach": foreach} | options) for foreach in (False, True)]


def fused(routine: str, name: str, dtypes: tuple[str, ...] = SINGLE + HALF, **options: Any) -> Row:
    return Row(routine, name, {"fused": True} | options, dtypes)


ALL = tuple(f"L{k}" for k in range(1, 18))
TORCH = [*loops("sgd", "SGD"), *loops("sgd", "SGD", maximize=True), *loops("momentum", "SGD"),
         *loops("momentum", "SGD", nesterov=True), *loops("momentum", "SGD", dampening=0.5, nesterov=False),
         *loops("adam", "Adam"), *loops("adam", "Adam", amsgrad=True),
         *loops("adam", "Adam", decoupled_weight_decay=True, maximize=True), *loops("adamw", "AdamW"),
         *loops("adamw", "AdamW", amsgrad=True), *loops("adagrad", "Adagrad"),
         *loops("adagrad", "Adagrad", initial_accumulator_value=0.25), *loops("rmsprop", "RMSprop"),
         *loops("rmsprop", "RMSprop", centered=True), *loops("adadelta", "Adadelta"), *loops("adamax", "Adamax"),
         *loops("radam", "RAdam"), *loops("radam", "RAdam", decoupled_weight_decay=True),
         *[row._replace(dtypes=("float32",)) for row in loops("nadam", "NAdam")],
         *[row._replace(dtypes=("float32",)) for row in loops("nadam", "NAdam", decoupled_weight_decay=True)],
         fused("adam", "Adam"), fused("adam", "Adam", amsgrad=True), fused("adamw", "AdamW"),
         fused("adagrad", "Adagrad", lr=0.125, eps=0.125, weight_decay=0.125, lr_decay=0.0),
         fused("adagrad", "Adagrad", SINGLE), fused("sgd", "SGD", SINGLE), fused("momentum", "SGD", SINGLE),
         Row("momentum", "SGD", laws=ALL), Row("adamax", "Adamax", laws=ALL),
         *(wrong(routine, name, (dtype,), fails, fused=True) for dtype in HALF for routine, name, fails in (
           ("sgd", "SGD", {"L1": "elements are not written", "L5": "unchanged"}),
           ("adagrad", "Adagrad", {"L1": "params: "}))),
         wrong("nadam", "NAdam", ("float64",), {"L1": "mu_product[0]"})]
OPTAX = [Row("sgd", "sgd"), Row("momentum", "sgd"), Row("momentum", "sgd", {"nesterov": True}), Row("adam", "adam"),
         Row("adam", "adam", {"eps_root": 0.25}), Row("adam", "amsgrad"), Row("adamw", "adamw"), Row("lion", "lion"),
         Row("rmsprop", "rmsprop"), Row("rmsprop", "rmsprop", {"eps_in_sqrt": False}),
         Row("rmsprop", "rmsprop", {"centered": True}), Row("adadelta", "adadelta"), Row("lamb", "lamb"),
         Row("novograd", "novograd"), Row("lars_momentum", "lars"), Row("adagrad", "adagrad"), Row("adamax", "adamax"),
         Row("adamax", "adamaxw"), Row("nadam", "nadam"), Row("nadam", "nadamw"),
         Row("nadam", "adam", {"nesterov": True}), Row("radam", "radam", dtypes=("float64",)),
         Row("radam", "radam", {"threshold": 4.0}, ("float64",)), Row("sgd", "sgd", dtypes=("float32",), laws=ALL),
         wrong("adam", "amsgrad", ("float32",), {"L1": "no bias correction of the second moment (100"},
               bias_correction_nu=False),
         wrong("rmsprop", "rmsprop", ("float32",), {"L1": "cause: mean_square starts from 1"}, initial_scale=1.0),
         wrong("radam", "radam", ("float32",), {"L1": "fails: step 7"}),
         wrong("radam", "radam", ("float32",), {"L1": "nesterov=True: the rule of radam needs False"}, nesterov=True),
         wrong("adam", "adam", ("bfloat16",), {"L1": "16-bit dtypes on request"})]
TIMM = [
    *loops("lamb", "lamb.Lamb", max_grad_norm=None), *loops("lamb", "lamb.Lamb", max_grad_norm=None, always_adapt=True),
    *loops("lars_momentum", "lars.Lars"), *loops("lars_momentum", "lars.Lars", always_adapt=True),
    *loops("lion", "lion.Lion"), *loops("adamw", "adamw.AdamWLegacy"), *loops("adam", "adamw.AdamWLegacy"),
    *loops("momentum", "sgdw.SGDW"), Row("novograd", "nvnovograd.NvNovoGrad", dtypes=("float32",)),
    Row("radam", "radam.RAdamLegacy", dtypes=("float32",)), Row("lars_momentum", "lars.Lars", laws=ALL),
    wrong("novograd", "nvnovograd.NvNovoGrad", ("float64",), {"L1": "second_moment"}),
    wrong("radam", "radam.RAdamLegacy", ("float64",), {"L1": "expected an array of float64 of shape (300,), got one"}),
    wrong("lamb", "lamb.Lamb", ("float32",), {"L1": "gradients clipped, to a norm of 1 of all tensors (100"}),
    wrong("lamb", "lamb.Lamb", ("float32",), {"L15": "beta1_pow"}, max_grad_norm=None),
    wrong("lamb", "lamb.Lamb", ("float32",), {"L1": "trust ratio clipped at 1 (100"},
          max_grad_norm=None, trust_clip=True),
    wrong("lion", "lion.Lion", ("float32",), {"L6": "nan in grads; 1 of 6 cases"}),
    *(wrong("rmsprop", "rmsprop_tf.RMSpropTF", ("float32",), {"L1": "cause: mean_square starts from 1"}, **options)
      for options in ({}, {"decoupled_decay": True})),
    wrong("nadam", "nadamw.NAdamW", ("float32",), {"L1": "first moment corrected without the next momentum"}),
    wrong("adamw", "adamw.AdamWLegacy", ("float32",), {"L1": "caution=True: the rule of adamw needs False"},
          caution=True)]
