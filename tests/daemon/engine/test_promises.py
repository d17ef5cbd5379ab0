"""What a deadline was promised is an event of the job, and so is a refusal."""

from msgspec.structs import replace

from daemon.engine.engine import Engine
from tests.support.daemons.daemons import setup, submit

DEADLINE = 2400.0


def promises(step):
    return [(n.kind, n.job, n.data) for n in step.notices if n.kind in ("promised", "rejected")]


def test_a_job_hears_at_once_whether_its_deadline_is_promised():
    engine = Engine.new(replace(setup(a=8), policy="chronus:profile=0"))
    asked = [
        submit(name, gpus=8, run_time=1000.0, deadline=DEADLINE) for name in ("j1", "j2", "j3")
    ]
    assert promises(engine.step(0.0, [*asked, submit("b1", run_time=1000.0)])) == [
        ("promised", "j1", {"deadline": DEADLINE, "planned": 1000.0}),
        ("promised", "j2", {"deadline": DEADLINE, "planned": 2200.0}),
        ("rejected", "j3", {"why": "no plan of leases has room for it before its last step"}),
    ]
