"""Golden outputs: SHA-256 sums of what fixed commands wrote, stored in sums.json.

`python -m tests.golden` compares; with `--write` it stores the sums of today's outputs.
"""
