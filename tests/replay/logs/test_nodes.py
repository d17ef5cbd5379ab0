"""The file of nodes: `node,gpus,attributes[,free]`."""

import pytest
from click.testing import CliRunner

from replay.cli.replay import replay
from replay.logs.nodes import on_nodes, read_nodes
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import GpuNode, Job


def nodes_file(tmp_path, text):
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    return path


def test_nodes_are_read_in_order_with_their_attributes(tmp_path):
    path = nodes_file(tmp_path, "node,gpus,attributes\nm2,2,\nm1,4,gpu rack:r1\n")
    m2, m1 = read_nodes(path)
    assert m2 == GpuNode("m2", 2, (), 2)
    assert m1 == GpuNode("m1", 4, ("gpu", "rack:r1"), 4)
    assert m1.value("rack") == "r1"
    assert m1.value("gpu") is m2.value("rack") is None


def test_a_node_may_be_in_use_in_part(tmp_path):
    path = nodes_file(tmp_path, "free,node,gpus,attributes\n0,m1,4,\n3,m2,4,\n,m3,4,\n")
    assert [node.free for node in read_nodes(path)] == [0, 3, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node\nm1\n", "column gpus is missing"),
        ("node,gpus,attributes\n", "the file has no nodes; write"),
        ("node,gpus\n", "the file has no nodes; write"),
        ("node,gpus,attributes\n,1,\n", "row 2, column node: empty; name the node"),
        ("node,gpus,attributes\nm1,0,\n", "row 2, column gpus: '0' is not allowed; write a whole"),
        ("node,gpus,attributes\nm1,nan,\n", "row 2, column gpus: 'nan' is not allowed"),
        ("node,gpus,attributes\nm1,1,\nm1,1,\n", "row 3, column node: duplicate 'm1'; write one"),
        ("node,gpus,attributes\nm1,1,rack:\n", "column attributes: 'rack:' is no attribute; write"),
        ("node,gpus,attributes\nm1,1,gpu gpu\n", "an attribute is repeated; remove one"),
        ("node,gpus,attributes,free\nm1,1,,2\n", "2 GPUs are free, but the node has 1; write"),
        ("node,gpus,attributes,free\nm1,1,,-1\n", "column free: '-1' is not allowed"),
    ],
)  # fmt: skip
def test_bad_rows_are_refused_with_the_mend(tmp_path, text, said):
    with pytest.raises(UserError) as refused:
        read_nodes(nodes_file(tmp_path, text))
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("label", ["chronus:profile=0", "edf"])
def test_a_job_of_some_nodes_only_is_refused_to_policies_that_take_any(label):
    nodes = [GpuNode("m1", 2, ("gpu",), 2), GpuNode("m2", 2, (), 2)]
    picky, easy = (Job("j", "p", 0.0, 1, prefers="gpu", slowdown=slow) for slow in (None, 2.0))
    with pytest.raises(UserError, match=rf"--policy {label}: job j has prefers gpu and no slow"):
        on_nodes(Trace([Arrival(picky, 5.0)]), nodes, [label])
    for job, policy in ((easy, label), (picky, "jvu")):
        assert on_nodes(Trace([Arrival(job, 5.0)]), nodes, ["fcfs", policy]).arrivals


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("(nck (m9) 1 0 20 5)", "give --nodes a file with the nodes and attributes that the log's"),
        ("(nkc all 1 0 20 5)", "Did you mean 'nck'? Or skip such rows with --skip-invalid"),
    ],
)
def test_a_log_of_which_no_job_can_run_is_refused_with_what_mends_it(tmp_path, asked, said):
    given = {
        "--trace": f"job_id,pool,submit,width,duration,strl\nj,p,0,1,20,{asked}\n",
        "--pools": "pool,quota\np,2\n",
        "--nodes": "node,gpus,attributes\nm1,1,gpu\nm2,1,\n",
    }
    options = ["--policy", "jvu", "--out", str(tmp_path / "out")]
    for option, text in given.items():
        path = tmp_path / f"{option.strip('-')}.csv"
        path.write_text(text)
        options += [option, str(path)]
    refused = CliRunner().invoke(replay, options)
    assert refused.exit_code == 2
    assert said in refused.output
