"""The code cells of a notebook, run one after the other in this process."""

import ast

from exercise import generate


def run(name, folder, solved):
    """What the cells show: the value of each that ends in an expression."""
    namespace, values = {"__name__": "__main__"}, []
    for k, (kind, body) in enumerate(generate.cells(name, solved)):
        if kind == "code":
            path = folder / f"{k}.py"  # as in Jupyter, each cell is a file for those who look for its source
            path.write_text(body)
            tree = ast.parse(body)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, path, "exec"), namespace)
            if last is not None:
                values.append(eval(compile(ast.Expression(last.value), path, "eval"), namespace))
    return values
