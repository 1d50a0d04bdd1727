"""The checks that every routine makes before it modifies anything.

An error names the routine, the argument, the index, what was expected and what was passed. In addition to the names
here, `refopt.checks.arguments` has the checks of single arguments, `refopt.checks.arrays` those of arrays,
`refopt.checks.dtypes` the dtypes, `refopt.checks.optional` optional libraries, `refopt.checks.rows` the parts of a row
of the catalogue, and `refopt.checks.files` writes files whole or not at all.
"""

from refopt.checks.arrays import (
    Array,
    alike,
    c_strides,
    check_native,
    check_plain,
    dense,
    flat,
    host_array,
    require_subnormals,
)
from refopt.checks.call import Call, check
from refopt.checks.cast import Cast, Names, cast_type, check_cast, check_scale
from refopt.checks.gradients import check_gradient_list, check_loss_scaling, norm_type
from refopt.checks.numbers import check_hyper, check_hypers
from refopt.checks.rebound import Bound

__all__ = [
    "Array", "Bound", "Call", "Cast", "Names", "alike", "c_strides", "cast_type", "check", "check_cast",
    "check_gradient_list", "check_hyper", "check_hypers", "check_loss_scaling", "check_native", "check_plain",
    "check_scale", "dense", "flat", "host_array", "norm_type", "require_subnormals",
]
