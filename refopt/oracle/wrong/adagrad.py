"""Likely mistakes in Adagrad."""

from refopt.oracle.wrong.rule import Wrong

SUM, ROOT = "s = s + g * g", "(np.sqrt(s) + epsilon)"
RULES = {
    "SumAssigned": Wrong("sum of squares assigned, not accumulated", {SUM: "s = 0 * s + g * g"}),
    "RootOfTheOldSum": Wrong("root of the old sum", {SUM: f"old = s; {SUM}", ROOT: "(np.sqrt(old) + epsilon)"}),
}
