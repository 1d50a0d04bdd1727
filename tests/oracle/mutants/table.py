"""All mutants."""

from oracle.mutants import Mutant, blocks, calls, formulas, gates, historical, lists, states, storage

KINDS = {"lists of tensors": lists.MUTANTS, "blocks, tails and sums": blocks.MUTANTS,
         "states, scalars and masters": states.MUTANTS,
         "the gate and the factors": gates.MUTANTS, "storage, layouts, NaN": storage.MUTANTS, "calls": calls.MUTANTS,
         "formulas": formulas.MUTANTS, "historical": historical.MUTANTS}
MUTANTS: tuple[Mutant, ...] = tuple(mutant for mutants in KINDS.values() for mutant in mutants)
