"""The wheel in a bare environment of each Python at hand, with the newest NumPy: the README's lines run there.

    python tests/wheels.py [PYTHON ...]

Without arguments, every Python from 3.11 on that pyenv has, or else the one that runs this.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEAST = 3, 11
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
COMMANDS = (
    ["--version"], ["--help"], ["show", "adamw", "--dtype", "fp32"], ["check", "--list-laws"],
    ["verify", "--device", "executor", "--routine", "lars_momentum", "--dtype", "fp32", "--max-elements", "300"])


def pythons(named: Sequence[str]) -> list[str]:
    """The interpreters to be tried."""
    ours = Path.home().glob(".pyenv/versions/*/bin/python")
    at_hand = {tuple(map(int, found.groups())): str(x) for x in ours if (found := VERSION.fullmatch(x.parts[-3]))}
    new = [at_hand[version] for version in sorted(at_hand) if version >= LEAST]
    return list(named) or new or [sys.executable]


def build(folder: Path) -> Path:
    """The wheel."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def tried(python: str, wheel: Path, folder: Path) -> str:
    """What was installed, once the README's examples and the commands have run in a new environment.

    Raises:
        subprocess.CalledProcessError: one of them failed.
    """
    subprocess.run([python, "-m", "venv", folder], check=True)
    own, command = folder / "bin" / "python", folder / "bin" / "refopt"
    subprocess.run([own, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel], check=True)
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        subprocess.run([own, "-W", "error", "-c", example], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    for arguments in COMMANDS:
        subprocess.run([command, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    about = "import sys, numpy, refopt; print(f'Python {sys.version.split()[0]}, NumPy {numpy.__version__}')"
    return subprocess.run([own, "-c", about], check=True, cwd=folder, capture_output=True, text=True).stdout.strip()


def main(named: Sequence[str]) -> None:
    """Say which environments it runs in."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        print(f"{wheel.name}, {wheel.stat().st_size:,} bytes")
        for number, python in enumerate(pythons(named)):
            print(tried(python, wheel, Path(folder) / str(number)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
