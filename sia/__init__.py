"""The decision core: events in, decisions out.

Pure: no clock, file, socket or randomness. Time, forecasts and run-time estimates arrive in events,
so the same events always give the same decisions.
"""

from sia.core.core import Core
from sia.model import Job, Options, Pool, Stream

__version__ = "0.1.0"

__all__ = ["Core", "Job", "Options", "Pool", "Stream", "__version__"]
