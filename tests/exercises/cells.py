"""The code cells of an exercise, run one after the other in this process."""

from refopt_exercises import cells, generate


def run(name, folder, solved):
    """What the cells show: the value of each that ends in an expression."""
    texts = [body for kind, body in generate.cells(name, solved) if kind == "code"]
    return cells.run(texts, folder)[1]
