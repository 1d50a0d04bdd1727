"""Run other people's kernels on the executor: ``python -m foreign [part of a repository's name ...]``.

With REFOPT_MIRRORS, a folder of git directories (owner+name/repo), nothing is fetched from GitHub.
"""

import sys

from foreign import computing_hub, numba_examples, suites  # noqa: F401
from foreign.cases import CASES, outcome


def main(asked: list[str]) -> int:
    """Run the cases asked for, or all; 1 if one is not as expected."""
    chosen = [each for each in CASES if not asked or any(part in each.repository for part in asked)]
    wrong = 0
    for each in chosen:
        right, said = outcome(each)
        wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {each.repository}: {each.name}: {said}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} as expected")
    return int(wrong > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
