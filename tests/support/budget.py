"""How often a repeated check runs: `make test` runs a part, `make soak` (SIA_SOAK=1) all of it."""

import os

SOAK = os.environ.get("SIA_SOAK") == "1"


def budget(*, ci, soak):
    """Return `ci` in `make test` and `soak` in `make soak`: a number of cases, seconds, a list.

    The cases are drawn from a seed, so each run of `make test` checks the same ones:

        @pytest.mark.parametrize("seed", range(budget(ci=20, soak=2000)))
    """
    return soak if SOAK else ci
