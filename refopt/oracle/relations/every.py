"""The relations by their ids."""

from refopt.oracle.relations import again, layouts, symmetries, together
from refopt.oracle.relations.relation import Relation

EVERY = *together.LAWS, *layouts.LAWS, *again.LAWS, *symmetries.LAWS
RELATIONS: dict[str, Relation] = {law.id: law for law in EVERY}
SYMMETRIES = tuple(law.declared for law in EVERY if law.declared)
