"""Grades the notebooks of a class.

Each folder in FOLDER is a learner, and its notebooks are the answers, those in its folders as well; if FOLDER has
none, it is itself a learner. They may have any name: a notebook says itself which `Exercise` it is of. A notebook runs
in a process of its own, in a copy of refopt and the exercises without the solutions, which only shows whether it runs.
Its answer is taken from its file as text (`answer.text`) before any notebook runs, and judged in another process
(`judge`), by the cases of the solution.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TextIO

import refopt
from refopt.cli.progress import Progress

from . import answer, cells, generate, solution

SECONDS = 300  # that a notebook may take, and its judge
SAID = re.compile(r"""\bExercise\(\\?["'](\w+)""")  # in a notebook's text, where JSON escapes quotes


class Grade(NamedTuple):
    """What became of an exercise.

    Attributes:
        learner: the name of the folder.
        exercise: the name of its solution.
        mark: "right"; "wrong"; "broken": the notebook cannot be read or run, or has no answer; "twice": there are two;
            "none": there is none, though others have handed one in.
        reason: why it is not right; the score if it is.
        same_as: the learners whose answers are the same but for spaces and comments.
    """

    learner: str
    exercise: str
    mark: str
    reason: str
    same_as: tuple[str, ...] = ()


class Paper(NamedTuple):
    """A notebook that has been handed in.

    Attributes:
        learner: as of `Grade`.
        exercise: as of `Grade`.
        texts: its code cells.
        source: the answer in them.
        key: what two answers have in common if they differ in spaces and comments alone; empty without an answer.
        fault: what is wrong with the notebook, if anything.
    """

    learner: str
    exercise: str
    texts: list[str]
    source: str
    key: str
    fault: Grade | None = None


class Ended(NamedTuple):
    """How a process has ended: its status, None if it was stopped for taking too long; what it printed."""

    status: int | None
    out: str
    err: str


def process(module: str, *arguments: str, text: str, folder: str, path: list[str], seconds: float) -> Ended:
    """Run a module of this package in a process of its own, and end whatever it has started.

    Args:
        module: its name.
        arguments: of its command line.
        text: what it reads.
        folder: where it runs; its home as well.
        path: where it looks for modules.
        seconds: that it may take.
    """
    settings = {"PYTHONPATH": os.pathsep.join(path), "HOME": folder, "IPYTHONDIR": folder, "MPLBACKEND": "agg"}
    command = [sys.executable, "-P", "-m", f"{__package__}.{module}", *arguments]
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(text)
        given.seek(0)
        own = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, cwd=folder, env=os.environ | settings,
                               start_new_session=True)
        try:
            status = own.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(own.pid, signal.SIGKILL)
        own.wait()
        printed = []
        for file in (out, err):
            file.seek(max(0, file.seek(0, os.SEEK_END) - 100_000))
            printed.append(file.read().decode(errors="replace"))
    return Ended(status, *printed)


def copy_packages(site: str) -> None:
    """Copy refopt and the exercises to a folder, without the solutions: notebooks run with them."""
    for package in (Path(refopt.__file__).parent, Path(__file__).parent):
        shutil.copytree(package, Path(site, package.name), ignore=shutil.ignore_patterns(solution.FOLDER.name))


def ran(texts: list[str], site: str, seconds: float) -> str:
    """Why the cells of a notebook do not run; empty if they do.

    Args:
        texts: the cells.
        site: a folder that `copy_packages` has filled.
        seconds: that they may take.
    """
    path = [site, *cells.without_solutions(sys.path)]
    with tempfile.TemporaryDirectory() as folder:
        ended = process("cells", text=json.dumps(texts), folder=folder, path=path, seconds=seconds)
    if ended.status is None:
        return f"the notebook took more than {seconds:g} seconds"
    if ended.status == 1 and ended.err.strip():
        return ended.err.strip().splitlines()[-1]
    return f"the notebook's process ended with status {ended.status}" if ended.status else ""


def judged(paper: Paper, seconds: float) -> Grade:
    """The verdict on the answer of a notebook."""
    with tempfile.TemporaryDirectory() as folder:
        ended = process("judge", paper.exercise, text=paper.source, folder=folder, path=sys.path, seconds=seconds)
    if ended.status is None:
        return Grade(*paper[:2], "wrong", f"The answer took more than {seconds:g} seconds.")
    if ended.status or not ended.out:
        last = "".join(ended.err.strip().splitlines()[-1:])
        return Grade(*paper[:2], "wrong", f"The answer ended its process with status {ended.status}. {last}".strip())
    ok, words = json.loads(ended.out)
    return Grade(*paper[:2], "right" if ok else "wrong", words.removeprefix("Not yet. ").removeprefix("Right.\n"))


def exercise_of(path: Path) -> str | None:
    """The exercise that a notebook is of, by its solution's name; None if it is of none.

    It is what the notebook says, or the number that the file's name begins with.
    """
    said = None
    with contextlib.suppress(OSError):
        said = SAID.search(path.read_text(errors="replace") if path.is_file() else "")
    if said and said[1] in solution.names():
        return said[1]
    return next((name for name in solution.names() if re.match(rf"{name[:2]}\D", path.name)), None)


def paper(learner: str, name: str, paths: list[Path]) -> Paper:
    """What a learner has handed in for an exercise."""
    if len(paths) > 1:
        first = os.path.commonpath([path.parent for path in paths])
        words = f"there are {len(paths)} notebooks: {', '.join(str(path.relative_to(first)) for path in paths)}"
        return Paper(learner, name, [], "", "", Grade(learner, name, "twice", words))
    try:
        texts = cells.of(paths[0])
        source = answer.text(name, texts)
        return Paper(learner, name, texts, source, _key(source))
    except Exception as error:  # whatever is in a file, others are graded
        return Paper(learner, name, [], "", "", Grade(learner, name, "broken", str(error)))


def _key(source: str) -> str:
    return ast.dump(ast.parse(source))


def learners(folder: Path) -> dict[str, list[Path]]:
    """The learners, with their notebooks.

    Raises:
        FileNotFoundError: there is no notebook of an exercise in the folder, nor in folders of it.
    """
    folders = sorted(x for x in folder.iterdir() if x.is_dir() and not x.name.startswith("."))
    found = {x.name: notebooks(x) for x in folders}
    if not any(found.values()):
        found = {folder.resolve().name: notebooks(folder)}
    if not any(exercise_of(path) for paths in found.values() for path in paths):
        raise FileNotFoundError(f"{folder}: expected notebooks such as ada/01-guard-the-tail.ipynb, got none")
    return found


def notebooks(folder: Path) -> list[Path]:
    """The notebooks in a folder and in folders of it, but not in hidden ones, such as Jupyter's checkpoints."""
    found = sorted(folder.rglob("*.ipynb"))
    return [path for path in found if not any(x.startswith(".") for x in path.relative_to(folder).parts)]


def not_graded(folder: Path, found: dict[str, list[Path]]) -> list[str]:
    """What is left out, and why, a line for each notebook, and for each learner without any."""
    graded = {path for paths in found.values() for path in paths}
    lines = []
    for who in (who for who, paths in found.items() if not paths):
        files = sorted(path.name for path in Path(folder, who).rglob("*") if path.is_file())
        lines += [f"{who}: no notebook, but {', '.join(files[:3])}"] if files else []
    lines += [f"{path.name}: not graded, since it is in no learner's folder"
             for path in notebooks(folder) if path not in graded]
    return lines + [f"{path.relative_to(folder)}: not graded, since it is of no exercise"
                    for paths in found.values() for path in paths if exercise_of(path) is None]


def papers(found: dict[str, list[Path]]) -> Iterator[Paper]:
    """What each learner has handed in, exercise by exercise."""
    for learner, paths in found.items():
        of = {path: exercise_of(path) for path in paths}
        for name in sorted({name for name in of.values() if name}):
            yield paper(learner, name, [path for path in paths if of[path] == name])


def grade(
    found: dict[str, list[Path]], seconds: float = SECONDS, jobs: int | None = None, terminal: TextIO | None = None
) -> list[Grade]:
    """The grades of a class: of each learner, in each exercise that anyone has handed in.

    Args:
        found: the learners with their notebooks, as `learners` has them.
        seconds: that a notebook may take, and its judge.
        jobs: how many processes run at a time; as many as there are cores by default.
        terminal: where a bar is shown.
    """
    every = list(papers(found))
    with tempfile.TemporaryDirectory() as site, Progress(terminal, len(every)) as bar:
        copy_packages(site)
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            running = {pool.submit(_graded, paper, site, seconds): k for k, paper in enumerate(every)}
            grades: list[Grade] = [None] * len(every)  # type: ignore
            bar.show("")
            for future in as_completed(running):
                grades[running[future]] = future.result()
                bar.done += 1
                bar.show(grades[running[future]].learner)
    of = {grade[:2]: grade for grade in _with_copies(every, grades)}
    names = sorted({paper.exercise for paper in every})
    none = "there is no notebook"
    return [of.get((who, name), Grade(who, name, "none", none)) for who in found for name in names]


def _graded(paper: Paper, site: str, seconds: float) -> Grade:
    if paper.fault:
        return paper.fault
    if words := ran(paper.texts, site, seconds):
        return Grade(*paper[:2], "broken", words)
    return judged(paper, seconds)


def _with_copies(every: list[Paper], grades: list[Grade]) -> list[Grade]:
    """Grades that name those with the same answer, unless it is the stub's."""
    stubs = {name: _key(answer.text(name, generate.code(name))) for name in {paper.exercise for paper in every}}
    who: dict[tuple[str, str], list[str]] = {}
    for paper in every:
        if paper.key and paper.key != stubs[paper.exercise]:
            who.setdefault((paper.exercise, paper.key), []).append(paper.learner)
    return [grade._replace(same_as=tuple(x for x in who.get((paper.exercise, paper.key), ()) if x != paper.learner))
            for paper, grade in zip(every, grades, strict=True)]
