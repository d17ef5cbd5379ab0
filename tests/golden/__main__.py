"""Compare today's outputs with the stored sums, or store them: python -m tests.golden --write."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory

from .cases import CASES, TRACES, sums_of
from .stored import SUMS, differences, stored_sums


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="store the sums of today's outputs")
    parser.add_argument("case", nargs="*", help=f"of {', '.join(CASES)}; all without one")
    asked = parser.parse_args()
    if unknown := [name for name in asked.case if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if not TRACES.is_dir():
        parser.error(f"no real logs in {TRACES}: set SIA_TRACES")
    sums = stored_sums()
    changed: list[str] = []
    for case in asked.case or CASES:
        with TemporaryDirectory(prefix="golden-") as folder:
            found = sums_of(case, Path(folder))
        changed += differences(case, sums.get(case, {}), found)
        sums[case] = found
    for line in changed or ["All outputs equal the stored ones."]:
        sys.stdout.write(f"{line}\n")
    if asked.write:
        kept = {case: sums[case] for case in CASES if case in sums}
        SUMS.write_text(json.dumps(kept, indent=1) + "\n")
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
