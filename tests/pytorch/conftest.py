"""Without PyTorch, what needs a GPU as well is not collected: no run without a GPU could make up for it."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_captured.py"]
