"""The figures in README.md are those of the reports, and its example runs."""

import re

from benchmarks.readme import README, with_tables
from refopt import gpu


def test_tables_are_those_of_the_reports():
    """If this fails, run python -m benchmarks.readme."""
    text = README.read_text()
    assert re.search(r"\| \*\*\d\.\d{3}\*\* \|", text)
    assert with_tables(text) == text


def test_the_examples_run(machine, capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 3
    with gpu.use(machine.name):
        for example in examples:
            exec(example, {})
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120
