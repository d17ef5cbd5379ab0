"""AccaSim's side of peer.py: its own FIFO on an SWF log. Runs in AccaSim's environment.

usage: accasim_fifo.py WORKLOAD.swf SYSTEM.json RESULTS_FOLDER
"""

import collections
import collections.abc
import sys

# AccaSim 1.1.3 was written before Python 3.10 took this name away.
collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.scheduler_class import FirstInFirstOut  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402

if __name__ == "__main__":
    workload, system, results = sys.argv[1:]
    simulator = Simulator(
        workload,
        system,
        FirstInFirstOut(FirstFit()),
        RESULTS_FOLDER_PATH=results,
        statistics_output=False,
        show_statistics=False,
    )
    simulator.start_simulation()
