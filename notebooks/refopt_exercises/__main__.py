"""Commands on exercises: ``python -m refopt_exercises --help``."""

import argparse
import os
import sys
from pathlib import Path

from . import generate, grade, report, solution


def parser() -> argparse.ArgumentParser:
    """What the command line may have."""
    result = argparse.ArgumentParser("python -m refopt_exercises", description="Commands on the exercises of refopt.")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "grade the notebooks of a class, and print a table"
    of_grade = commands.add_parser("grade", help=about, description=f"{about.capitalize()}.")
    of_grade.add_argument("folder", type=Path, metavar="FOLDER", help="with a folder of notebooks for each learner")
    of_grade.add_argument("--csv", type=Path, metavar="FILE", help="write the grades as CSV, with whole reasons")
    of_grade.add_argument("--json", type=Path, metavar="FILE", help="write the grades as JSON, with whole reasons")
    of_grade.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                          help="processes at a time (default: the number of cores, %(default)s)")
    of_grade.add_argument("--seconds", type=float, default=grade.SECONDS, metavar="S",
                          help="that a notebook may take, and its judge (default: %(default)s)")
    about = "write the notebooks, the page that lists them and the scores from the solutions, in a clone"
    commands.add_parser("write", help=about, description=f"{about.capitalize()}.")
    return result


def main(arguments: list[str]) -> int:
    """Run a command; the exit status."""
    options = parser().parse_args(arguments)
    try:
        if not solution.names():
            raise FileNotFoundError(f"{solution.FOLDER}: expected the solutions, got none: work in a clone")
        if options.command == "write":
            generate.write()
            return 0
        for path in filter(None, (options.csv, options.json)):  # before what takes long
            if path.is_dir() or not path.absolute().parent.is_dir():
                raise FileNotFoundError(f"{path}: expected a file in a folder that is there")
        learners = grade.learners(options.folder)
        grades = grade.grade(learners, options.seconds, options.jobs, sys.stderr)
        for path, written in ((options.csv, report.write_csv), (options.json, report.write_json)):
            if path:
                written(path, grades)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report.table(learners, grades))
    for line in grade.not_graded(options.folder, learners):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
