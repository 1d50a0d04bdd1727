"""What the oracle says of released optimizers: every one of a library that is installed, found, judged and explained.

    python -m benchmarks.findings [--only TEXT ...] [--jobs N] [--device D] [--out FILE]

`subjects` finds the optimizers, `judge` holds one to the laws, `sweep` all of them, each in a process of its own;
`known` has what explains the differences, and `page` makes docs/findings.md of the records.
"""
