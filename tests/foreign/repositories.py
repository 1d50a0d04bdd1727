"""The repositories whose kernels run on the executor: pinned commits, fetched by git, never copied in."""

import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "foreign"

COMMITS = {"numba/numba-examples": "c423f5419a459f5ab8874fda6d39bb5ea05d04b2",
           "NVIDIA/accelerated-computing-hub": "a776efdfc2fba159a0aecced3e7c0dfafaf81b8b",
           "NVIDIA/numba-cuda": "b18b944b2f88a4e840424e49a1b0d29488263b40",
           "stumpy-dev/stumpy": "60283ff60ecc0ed8ac0a98fab2aa4b06e3eb1987"}


def git(directory: Path, *args: str) -> bytes:
    """What a command of git prints; CalledProcessError if it fails."""
    return subprocess.run(["git", "--git-dir", str(directory), *args], capture_output=True, check=True).stdout


def repository(name: str) -> Path:
    """The git directory of a repository, in the folder REFOPT_MIRRORS as owner+name/repo, or fetched from GitHub."""
    mirrors = os.environ.get("REFOPT_MIRRORS")
    if mirrors:
        found = Path(mirrors) / name.replace("/", "+") / "repo"
        if not found.is_dir():
            raise FileNotFoundError(f"REFOPT_MIRRORS: no {found}")
        return found / ".git" if (found / ".git").is_dir() else found
    cloned = BUILD / "git" / name.replace("/", "+")
    if not (cloned / "HEAD").exists():
        cloned.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", "--bare", str(cloned)], check=True)
    try:
        git(cloned, "cat-file", "-e", f"{COMMITS[name]}^{{commit}}")
    except subprocess.CalledProcessError:
        git(cloned, "fetch", "-q", "--depth", "1", f"https://github.com/{name}", COMMITS[name])
    return cloned


def files(name: str, paths: Sequence[str]) -> Path:
    """A folder with some files and folders of a repository, as they are at its commit."""
    folder = BUILD / name.replace("/", "+")
    with tarfile.open(fileobj=io.BytesIO(git(repository(name), "archive", COMMITS[name], *paths))) as packed:
        packed.extractall(folder, filter="data")
    return folder


def text(name: str, path: str) -> str:
    """One file of a repository at its commit."""
    return git(repository(name), "show", f"{COMMITS[name]}:{path}").decode()
