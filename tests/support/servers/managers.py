"""The example of an external cluster manager, in the process of the test."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager, suppress

from tests.support.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples" / "mqtt"


def example(name):
    """Import one of the examples as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def manager_on(folder, port, *, cluster="main", speed=1000.0, beat=0.2, kind=None):
    """Run a manager that keeps its memory file in the folder."""
    made = (kind or example("manager").Manager)(
        cluster, folder / f"{cluster}.jsonl", speed=speed, beat=beat
    )
    living = asyncio.create_task(made.live("127.0.0.1", port))
    try:
        yield made
    finally:
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living
        made.memory.keep = lambda *_, **__: None  # end the manager as if it were killed
        for task in [*made.running.values()]:
            task.cancel()
        await asyncio.gather(*made.running.values(), return_exceptions=True)
        made.memory.close()
