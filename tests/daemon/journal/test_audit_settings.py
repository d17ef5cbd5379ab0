"""What the audit says of a start with another configuration."""

import pytest
from msgspec.structs import replace

from daemon.journal.audit import record_of_configuration
from daemon.model.inputs import Configured
from daemon.model.job import PoolMode
from daemon.model.setup import Node, Setup
from sia.model import Options, Pool


@pytest.mark.parametrize(
    ("news", "said"),
    [
        ({"weight": 2.0}, {"pool vision weight": 2.0}),
        ({"lend_limit": 3}, {"pool vision lend_limit": 3}),
        ({"borrow_limit": 0}, {"pool vision borrow_limit": 0}),
        ({"group": "a100"}, {"pool vision group": "a100"}),
        ({"share": False}, {"pool vision share": False}),
    ],
)
def test_each_pool_setting_that_a_start_changes_is_in_the_audit_log(news, said):
    old = Setup((Pool("vision", 8), Pool("speech", 4)))
    new = Setup((replace(old.pools[0], **news), old.pools[1]))
    assert record_of_configuration(old, Configured(new)).after == said
    assert record_of_configuration(new, Configured(old)).before == said


def test_changed_nodes_policy_and_options_are_in_the_audit_log():
    old = Setup((Pool("a", 8),), nodes=(Node("n1", (0, 1)), Node("n2", (0,))))
    new = replace(
        old, policy="fifo", nodes=(Node("n1", (0,)), old.nodes[1]),
        options=Options(no_lending=frozenset((name, 5.0) for name in "cab")),
        modes={"a": PoolMode.HOLD}, areas={"a": ("n1",)},
    )  # fmt: skip
    record = record_of_configuration(old, Configured(new))
    assert record.after == {
        "policy": "fifo",
        "options no_lending": [("a", 5.0), ("b", 5.0), ("c", 5.0)],
        "modes a": "hold",
        "areas a": ("n1",),
        "node n1": (0,),
    }
    assert record.before["node n1"] == (0, 1)
