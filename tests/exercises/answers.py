"""Answers to an exercise, as a learner would type them into the stub."""

import importlib.util
import textwrap

from refopt_exercises import generate, solution


def halves(name):
    """What a stub asks for: the markers of each place, with the solution's half and the stub's."""
    return list(generate.HALVES.finditer(solution.text(name)))


def answer(name, folder, fills):
    """The exercise, and the answer with these lines in the places that are to be filled in; None is the stub's half."""
    places = halves(name)
    assert len(places) == len(fills), f"{name} has {len(places)} places, not {len(fills)}"
    pairs = iter(list(zip(places, fills, strict=True)))

    def filled(match):
        _, lines = next(pairs)
        return generate.bare(match[3]) if lines is None else textwrap.indent(lines.strip("\n") + "\n", match[1])

    path = folder / f"{name}.py"
    path.write_text(generate.HALVES.sub(filled, solution.text(name)))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.exercise, getattr(module, solution.answer_name(name))
