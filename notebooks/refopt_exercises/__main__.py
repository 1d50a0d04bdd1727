"""Commands on exercises.

    python -m refopt_exercises               writes the stub notebooks and the index again, in a clone
    python -m refopt_exercises grade FOLDER  grades the notebooks of a class, and prints a table
"""

import json
import sys
from pathlib import Path

from . import generate, grade

USAGE = __doc__


def main(arguments: list[str]) -> int:
    """Run a command; the exit status."""
    match arguments:
        case [] if generate.INDEX.exists():
            generate.write()
        case ["grade", folder]:
            try:
                print(grade.table(grade.grade(Path(folder))))
            except (OSError, ValueError) as error:
                print(error, file=sys.stderr)
                return 2
            for path in grade.others(Path(folder)):
                print(f"{path}: not graded, since it is of no exercise")
        case ["judge", name, path, out]:  # for `grade.apart`
            Path(out).write_text(json.dumps(grade.judge(name, Path(path))))
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
