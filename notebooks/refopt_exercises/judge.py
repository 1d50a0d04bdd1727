"""Judges one answer: ``python -m refopt_exercises.judge NAME`` reads its text, and prints the verdict in JSON.

This is a process without any notebook: of what a learner wrote, `answer.load` runs the answer alone.
"""

import contextlib
import json
import sys

from . import answer, solution
from .verdict import Verdict, wrong


def judge(name: str, source: str) -> Verdict:
    """The verdict on an answer.

    Args:
        name: of the exercise's solution.
        source: the answer, as `answer.text` has it.
    """
    try:
        found = answer.load(name, source)
    except ValueError as error:
        return wrong(str(error))
    except Exception as error:
        return wrong(f"{type(error).__name__}: {error}")
    return solution.load(name).exercise.check(found)


def main(name: str) -> None:
    """Print a verdict, and nothing else: what the answer prints goes to the errors."""
    with contextlib.redirect_stdout(sys.stderr):
        verdict = judge(name, sys.stdin.read())
    print(json.dumps(verdict))


if __name__ == "__main__":
    main(sys.argv[1])
