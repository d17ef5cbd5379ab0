"""`sia cells show`: the picture, who owns and who is where, and what cannot be shown."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from random import Random

import click
import pytest
from click.testing import CliRunner

from cells.layout.shape import Shape
from cells.layout.spec import CellType, NodeSpec, Pinned, QuotaSpec, Spec, Top
from replay.cli.cells import cells
from replay.cluster.at_time import ClusterAt, Running, running_at
from replay.cluster.cells_file import read_spec
from replay.cluster.cells_write import write_cells
from replay.cluster.gpu_names import CellGpus
from replay.cluster.shortages import shortages
from replay.cluster.show import show
from replay.cluster.text_map import BAD, DEDICATED, FEW, FREE, PINNED, SPARE, ChainPicture, gaps
from replay.cluster.view import ClusterView
from tests.support.clusters.cells import TYPES, pinned_node, spec
from tests.support.files import refusal, written
from tests.support.paths import DOCS
from tests.support.shell import sia

PAGE = DOCS / "understand/cells.md"

FILE = """
types = [
    { name = "gpu" },
    { name = "pair", child = "gpu", count = 2 },
    { name = "quad", child = "pair", count = 2 },
    { name = "node", child = "quad", count = 2, node = true },
    { name = "rack", child = "node", count = 2 },
]
cells = [
    { type = "rack", nodes = ["n0", "n1"] },
    { type = "rack", nodes = [
        { name = "n2", gpus = [4, 5, 6, 7, 0, 1, 2, 3] },
        { name = "n3", bad = true },
    ] },
]
pinned = [{ name = "vip", pool = "speech", type = "quad", nodes = ["n2"], gpus = [4, 5, 6, 7] }]
quota.vision.rack = { rack = 1 }
quota.speech.rack = { quad = 1, pair = 1 }
"""

SHORT = "pool speech owns 1 pair, 1 of these is missing: n3 is bad"

HEADER = "job_id,pool,submit,width,start,end,stream,nodes"

JOBS = f"""{HEADER}
a,vision,0,8,0,1000,dedicated,n0:0-7
b,vision,0,2,10,5000,spare,"n1:0,2"
c,speech,0,2,10,5000,dedicated,n2:4-5
e,vision,0,9,6000,400000,spare,n3:7;n1:0-7
late,speech,0,2,900000,900001,dedicated,
"""


@pytest.fixture
def file(tmp_path):
    return written(tmp_path, FILE, "cells.toml")


@pytest.fixture
def jobs(tmp_path):
    return written(tmp_path, JOBS, "jobs.csv")


def shown(*arguments, **options):
    """What the command prints; click takes colours away unless it is told to keep them."""
    done = CliRunner().invoke(cells, ["show", *map(str, arguments)], **options)
    assert done.exit_code == 0, done.output
    return done.output


def table(output, title):
    """The rows of a table, its header first."""
    lines = output[output.index(f"\n{title}") :].splitlines()[3:]
    rows = lines[: lines.index("")] if "" in lines else lines
    return [re.split(r"  +", row.strip()) for row in rows if "─" not in row]


# The picture


def test_an_idle_cluster_is_drawn(file):
    out = shown(file)
    assert out.startswith(
        "\n2 rack of 2 node of 2 quad of 2 pair of 2 gpu\n"
        "4 nodes, 1 of them bad; 32 GPUs: 4 pinned, 20 free, 8 bad\n"
        "\n"
        "rack 0  n0  [.. ..  .. ..]  n1  [.. ..  .. ..]\n"
        "rack 1  n2  [oo oo  .. ..]  n3! [xx xx  xx xx]\n"
        "\n"
        "[ ] a node   # dedicated   + spare   o pinned   . free   x bad   ! a bad node\n"
    )
    assert table(out, "Pools") == [
        ["pool", "quota", "pinned", "GPUs", "dedicated", "spare"],
        ["vision", "1 rack", "–", "16", "0", "0"],
        ["speech", "1 quad, 1 pair", "vip", "10", "0", "0"],
    ]


def test_the_example_of_the_docs(tmp_path):
    text = PAGE.read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    rows = [
        "a,vision,0,8,0,1000,dedicated,n0:0-7",
        "b,speech,0,2,0,1000,spare,n1:0-1",
        "c,speech,0,2,0,1000,dedicated,n2:4-5",
    ]
    jobs = written(tmp_path, "\n".join([HEADER, *rows]), "jobs.csv")
    out = shown(written(tmp_path, example, "cells.toml"), "--jobs", jobs, "--at", "15m")
    (picture,) = re.findall(r"```\nsia cells show .*?\n(\n.*?)```", text, re.DOTALL)
    assert out.startswith(picture)


def test_the_location_of_jobs_at_a_second(file, jobs):
    out = shown(file, "--jobs", jobs, "--at", "15m")
    assert "rack 0  n0  [## ##  ## ##]  n1  [+. +.  .. ..]\n" in out
    assert "rack 1  n2  [## oo  .. ..]  n3! [xx xx  xx xx]\n" in out
    assert table(out, "Pools")[1:] == [
        ["vision", "1 rack", "–", "16", "8", "2"],
        ["speech", "1 quad, 1 pair", "vip", "10", "2", "0"],
    ]
    assert table(out, "Running at 15m") == [
        ["job", "pool", "stream", "GPUs", "for", "ends in", "where"],
        ["a", "vision", "dedicated", "8", "15 m", "1 m 40 s", "n0:0-7"],
        ["b", "vision", "spare", "2", "14 m 50 s", "1 h 8 m", "n1:0,2"],
        ["c", "speech", "dedicated", "2", "14 m 50 s", "1 h 8 m", "n2:4-5"],
    ]


def test_labels_are_on_the_left_and_the_widest_jobs_first(file, tmp_path):
    rows = [
        f"j{i},vision,0,{w},0,99,spare,n0:{i * 2}-{i * 2 + w - 1}" for i, w in enumerate((1, 2))
    ]
    out = shown(
        file, "--jobs", written(tmp_path, "\n".join([HEADER, *rows]), "j.csv"), "--at", "9s"
    )
    header, _, *lines = out[out.index("\nPools") :].splitlines()[3:7]
    assert header == "pool    quota           pinned  GPUs  dedicated  spare"
    assert lines == [
        "vision  1 rack          –         16          0      3",
        "speech  1 quad, 1 pair  vip       10          0      0",
    ]
    assert [row[0] for row in table(out, "Running at 9s")] == ["job", "j1", "j0"]
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_job_on_a_bad_node_runs_on(file, jobs):
    out = shown(file, "--jobs", jobs, "--at", "3d12h30m")
    assert "n1  [++ ++  ++ ++]\nrack 1  n2  [oo oo  .. ..]  n3! [xx xx  xx x+]\n" in out
    assert "9 spare, 4 pinned, 12 free, 7 bad" in out
    assert "Running at 5070m" in out


def test_an_end_is_no_time_of_the_job(file, jobs):
    assert "rack 0  n0  [.." in shown(file, "--jobs", jobs, "--at", "1000s")
    assert "rack 0  n0  [##" in shown(file, "--jobs", jobs, "--at", "999.999s")
    assert "rack 0  n0  [##" in shown(file, "--jobs", jobs, "--at", "0")


def test_a_second_without_jobs_is_a_note(file, jobs):
    out = shown(file, "--jobs", jobs, "--at", "5500s")
    assert "note: no job runs at 5500s; jobs run from 0 s to 900,001 s\n" in out
    written(jobs.parent, HEADER + "\n", "jobs.csv")
    assert "note: no job runs at 5500s; there are none" in shown(
        file, "--jobs", jobs, "--at", "5500s"
    )


def test_colours_on_a_terminal_alone(file, jobs):
    asked = (file, "--jobs", jobs, "--at", "15m")
    plain, coloured = shown(*asked), shown(*asked, color=True)
    assert "\x1b" not in plain
    assert "\x1b[34m##\x1b[0m" in coloured
    assert click.unstyle(coloured) == plain


def test_many_equal_nodes_share_one_line(tmp_path):
    nodes = ", ".join(f'"n{i}"' for i in range(250))
    racks = "\n".join(
        f'[[cells]]\ntype = "rack"\nnodes = [{nodes}]'.replace('"n', f'"r{rack}-n')
        for rack in range(50)
    )
    types = FILE[: FILE.index("cells =")].replace('"node", count = 2', '"node", count = 250')
    written(tmp_path, types + racks + "\n[quota.a.rack]\nrack = 50\n", "cells.toml")
    rows = [
        "a,x,0,8,0,1000,dedicated,r7-n101:0-7",
        "b,x,0,6,0,1000,spare,r7-n100:0-5",
        "c,x,0,1,0,1000,dedicated,r9-n0:0",
    ]
    busy = written(tmp_path, "\n".join([HEADER, *rows]), "jobs.csv")
    out = shown(tmp_path / "cells.toml", "--jobs", busy, "--at", "100s", env={"COLUMNS": "80"})
    assert out[: out.index("[ ]")].splitlines()[4:] == [
        "rack 0   r0-n0 to r0-n249  250 × [.. ..  .. ..]",
        "… 6 more like it, to rack 6",
        "rack 7   r7-n0 to r7-n99  100 × [.. ..  .. ..]",
        "         r7-n100  [++ ++  ++ ..]  r7-n101  [## ##  ## ##]",
        "         r7-n102 to r7-n249  148 × [.. ..  .. ..]",
        "rack 8   r8-n0 to r8-n249  250 × [.. ..  .. ..]",
        "rack 9   r9-n0    [#. ..  .. ..]",
        "         r9-n1 to r9-n249  249 × [.. ..  .. ..]",
        "rack 10  r10-n0 to r10-n249  250 × [.. ..  .. ..]",
        "… 39 more like it, to rack 49",
        "",
    ]


def test_few_equal_nodes_are_drawn_one_by_one():
    shape = Shape(["gpu", "node"], (1, 2), 1)

    def lines(count, *, bad=-1):
        nodes = [NodeSpec(f"n{i}", bad=i == bad) for i in range(count)]
        return [*ChainPicture(shape, nodes, [DEDICATED * 2] * count, 80).lines()]

    one_by_one = "  ".join(f"n{i} [##]" for i in range(FEW))
    assert [click.unstyle(line) for line in lines(FEW)] == [one_by_one]
    (folded,) = lines(FEW + 1)
    assert click.unstyle(folded) == f"n0 to n{FEW}  {FEW + 1} × [##]"
    assert "n2!" in lines(FEW + 1, bad=2)[0]  # as full as its neighbours, and not like them


def test_gaps_show_cells_of_each_level():
    def spaced(counts, node):
        shape = Shape([f"t{i}" for i in range(len(counts))], counts, node)
        return "".join(" " * gap + "." for gap in gaps(shape))

    assert spaced((1, 4), 1) == "...."
    assert spaced((1, 2, 2, 2), 3) == ".. ..  .. .."
    assert spaced((1, 1, 3, 2), 3) == "... ..."  # a type of one child makes no gap of its own
    assert spaced((1, 2, 2, 2, 2), 4) == ".. ..  .. ..   .. ..  .. .."
    assert spaced((1, 2), 0) == "."


def unfolded(lines, names):
    """The GPUs of each node as a reader has them from the lines."""
    found = []
    for line in lines:
        if more := re.match(r" *… (\d+) more like it", line):
            found += found[-len(names) // TOPS :] * int(more[1])
            continue
        for count, marks in re.findall(r"(?:(\d+) × )?\[([^\]]*)\]", line):
            found += [marks.replace(" ", "")] * int(count or 1)
    return found


TOPS = 30


@pytest.mark.parametrize("seed", range(20))
def test_all_gpus_can_be_read_off_again(seed):
    """Whatever the states and the width of the terminal."""
    rng = Random(seed)
    per = rng.choice([1, 3, 7])
    shape = Shape(["gpu", "pair", "node", "rack"], (1, 2, 2, per), 2)
    marks = []
    while len(marks) < TOPS * per:
        row = "".join(rng.choices(DEDICATED + SPARE + PINNED + FREE + BAD, k=4))
        marks += [row] * rng.choice([1, 1, 2, 5, 20])
    marks = marks[: TOPS * per]
    nodes = [NodeSpec(f"n{i}", bad=rng.random() < 0.01) for i in range(len(marks))]
    width = rng.choice([10, 80, 200])
    lines = [click.unstyle(line) for line in ChainPicture(shape, nodes, marks, width).lines()]
    assert unfolded(lines, nodes) == marks
    for line in lines:
        assert len(line) <= width or line.count("[") < 2


def test_flat_chains_and_deep_ones(tmp_path):
    types = (*TYPES, CellType("rack", "node", 2), CellType("row", "rack", 2))
    tops = [Top("node", (NodeSpec(f"a{i}"),)) for i in range(3)]
    tops.append(Top("row", tuple(NodeSpec(f"b{i}") for i in range(4))))
    view = ClusterView(Spec(types, tuple(tops), ()), CellGpus(Spec(types, tuple(tops), ())))
    flat, deep = (
        [*ChainPicture(chain.shape, chain.nodes, view.rows(chain), 40).lines()]
        for chain in view.gpus.chains
    )
    assert flat == ["a0 [.. ..  .. ..]  a1 [.. ..  .. ..]", "a2 [.. ..  .. ..]"]
    assert deep == [
        "row 0",
        "  rack 0  b0 [.. ..  .. ..]",
        "          b1 [.. ..  .. ..]",
        "  rack 1  b2 [.. ..  .. ..]",
        "          b3 [.. ..  .. ..]",
    ]


def test_hostile_names_do_not_steer_the_terminal(tmp_path):
    text = FILE.replace('"n0"', '"n0\\u001b[31m"').replace("vision", '"vi\\u0007"')
    out = shown(written(tmp_path, text, "cells.toml"), color=True)
    assert "\x07" not in out
    assert "\x1b[31m" not in out.replace("\x1b[31mx", "")
    assert "n0\\x1b[31m" in out


# Who owns what


def test_pools_own_quota_and_pinned_cells_of_all_chains():
    here = spec(
        quotas={"a": {"node": 1, "pair": 3}, "b": {"rack": 1}},
        pinned=[Pinned("p", "c", "quad", ("n3",), (4, 5, 6, 7)), Pinned("q", "a", "node", ("n2",))],
    )
    mig = (CellType("slice"), CellType("box", "slice", 7, node=True))
    both = Spec(
        (*here.types, *mig),
        (*here.tops, Top("box", (NodeSpec("m"),))),
        (*here.quotas, QuotaSpec("a", "box", "slice", 5)),
        here.pinned,
    )
    guest = Running("j", "guest", spare=True, start=0.0, end=9.0, nodes="m:3", places=(38,))
    found = ClusterView(both, CellGpus(both), ClusterAt(1.0, [guest], 0.0, 9.0)).holdings()
    assert [*found] == ["a", "b", "c", "guest"]
    assert {name: holding.owned for name, holding in found.items()} == {
        "a": 8 + 3 * 2 + 5 + 8, "b": 16, "c": 4, "guest": 0,
    }  # fmt: skip
    assert found["a"].quota == {"rack": {"node": 1, "pair": 3}, "box": {"slice": 5}}
    assert found["a"].pinned == ["q"]
    assert (found["guest"].dedicated, found["guest"].spare) == (0, 1)


def test_shortages_of_pools_are_listed(tmp_path, file):
    assert f"\nnote: {SHORT}\n" in shown(file)
    pins = [pinned_node("p", "c", "n0"), pinned_node("q", "c", "n2"), pinned_node("r", "d", "n1")]
    quotas = {"a": {"node": 2}, "b": {"node": 3}}
    here = spec(racks=4, quotas=quotas, pinned=pins, bad=["n0", "n2", "n3", "n4"])
    assert shortages(here) == [
        "pools a, b together own 5 node, 2 of these are missing: n0, n2, n3, n4 are bad",
        "pool c has no whole p, q (pinned): n0, n2 are bad",
    ]
    assert not shortages(spec(racks=4, quotas=quotas, pinned=pins))
    write_cells(tmp_path / "well.toml", spec(quotas=quotas | {"b": {"node": 2}}))
    assert "note:" not in shown(tmp_path / "well.toml")
    write_cells(tmp_path / "free.toml", spec())
    assert shown(tmp_path / "free.toml").endswith("note: no quota; a replay makes it from the "
                                                  "pools file\n")  # fmt: skip


def test_json_says_the_same(file, jobs):
    said = json.loads(shown(file, "--jobs", jobs, "--at", "15m", "--json"))
    nodes = {node["name"]: node for node in said["nodes"]}
    assert nodes["n2"]["gpus"] == {
        "4": "dedicated", "5": "dedicated", "6": "pinned", "7": "pinned",
        "0": "free", "1": "free", "2": "free", "3": "free",
    }  # fmt: skip
    assert next(iter(nodes["n2"]["gpus"])) == "4"
    assert nodes["n3"]["bad"]
    assert nodes["n3"]["in"] == {"rack": 1}
    assert said["pools"]["speech"] == {
        "quota": {"rack": {"quad": 1, "pair": 1}}, "pinned": ["vip"],
        "owned": 10, "dedicated": 2, "spare": 0,
    }  # fmt: skip
    assert [job["job_id"] for job in said["jobs"]] == ["a", "b", "c"]
    assert said["jobs"][1] == {
        "job_id": "b", "pool": "vision", "stream": "spare", "start": 10.0, "end": 5000.0,
        "gpus": 2, "nodes": "n1:0,2",
    }  # fmt: skip
    assert said["chains"]["rack"][1] == {"type": "node", "children": 2, "gpus": 8, "node": True}
    assert said["notes"] == [SHORT]
    idle = json.loads(shown(file, "--jobs", jobs, "--at", "5500s", "--json"))
    assert idle["notes"] == [SHORT, "no job runs at 5500s; jobs run from 0 s to 900,001 s"]
    assert idle["jobs"] == []


def test_types_alone_are_drawn_alone(tmp_path):
    text = FILE[: FILE.index("cells =")]
    alone = written(tmp_path, text, "types.toml")
    assert shown(alone) == (
        "rack of 2 node of 2 quad of 2 pair of 2 gpu: 16 GPUs, 8 a node\n"
        "note: types only, no cells and no quota\n"
    )
    said = json.loads(shown(alone, "--json"))
    assert [level["type"] for level in said["chains"]["rack"]] == [
        "rack", "node", "quad", "pair", "gpu",
    ]  # fmt: skip
    jobs = written(tmp_path, JOBS, "jobs.csv")
    assert "name its cells" in refusal(show, alone, jobs, 5.0, as_json=False)
    two = written(tmp_path, text.replace('"rack", child = "node"', '"rack", child = "quad"'), "2")
    assert "several top types (node, rack)" in refusal(show, two, None, None, as_json=False)


# A replay's files


def test_segments_count_for_jobs_that_have_some(file, tmp_path):
    path = written(tmp_path, JOBS, "jobs.csv")
    written(
        tmp_path,
        "job_id,start,end,width,nodes\na,0,100,4,n0:4-7\na,500,1000,8,n1:0-7\nb,10,5000,1,n0:0\n",
        "segments.csv",
    )
    gpus = CellGpus(read_spec(file))

    def at(second):
        return {
            job.job_id: (job.nodes, job.start) for job in running_at(path, second, gpus).running
        }

    assert at(50) == {"a": ("n0:4-7", 0.0), "b": ("n0:0", 10.0), "c": ("n2:4-5", 10.0)}
    assert at(200) == {"b": ("n0:0", 10.0), "c": ("n2:4-5", 10.0)}
    assert at(700)["a"] == ("n1:0-7", 500.0)


@pytest.mark.parametrize("seed", range(10))
def test_any_second_is_as_looked_up_row_by_row(seed, file, tmp_path):
    """Jobs one after the other on each node; who is where is asked of the rows themselves."""
    rng = Random(seed)
    rows = []
    for node in ("n0", "n1", "n2"):
        times = sorted(rng.sample(range(1000), 40))
        for i, (start, end) in enumerate(pairwise(times)):
            first = rng.randrange(8)
            text = f"{node}:{first}-{rng.randrange(first, 8)}"
            if rng.random() < 0.8:
                rows.append((f"{node}-{i}", start, end, rng.choice(["spare", "dedicated"]), text))
    rng.shuffle(rows)
    lines = [f"{name},p,0,1,{s},{e},{stream},{text}" for name, s, e, stream, text in rows]
    path = written(tmp_path, "\n".join([HEADER, *lines]) + "\n", "jobs.csv")
    gpus = CellGpus(read_spec(file))
    for at in (0.0, *rng.sample(range(1000), 5)):
        found = running_at(path, float(at), gpus).running
        assert {(job.job_id, job.spare, job.nodes) for job in found} == {
            (name, stream == "spare", text) for name, s, e, stream, text in rows if s <= at < e
        }


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (",nodes", "", "column nodes is missing"),
        ("n0:0-7", "", "row 2, column nodes: it names no GPUs; replay with --cells"),
        ("n0:0-7", ";", "row 2, column nodes: it names no GPUs; replay with --cells"),
        ("n0:0-7", "n9:0", "row 2, column nodes: there is no node 'n9'; give the cells file"),
        ("n0:0-7", "n0:6-8", "row 2, column nodes: node 'n0' has no GPU 8; give the cells file"),
        ("n0:0-7", "n0", "row 2, column nodes: 'n0' names no GPUs, like n3:0-3,5; give"),
        ("n0:0-7", "n1:2", "row 3, column nodes: 'a' and 'b' have one GPU of it; write the"),
        ("n0:0-7", "n1:3;n1:3", "row 2, column nodes: 'a' and 'a' have one GPU of it; write"),
        ("dedicated,n0", "lent,n0", "row 2, column stream: it is 'lent'; write dedicated or spare"),
        ("0,1000", "0,long", "row 2, column end: 'long' is not a number; write seconds"),
    ],
)
def test_results_that_cannot_be_shown_are_refused(old, new, says, file, tmp_path):
    text = JOBS.replace(old, new, 1)
    assert text != JOBS
    path = written(tmp_path, text, "jobs.csv")
    assert says in refusal(show, file, path, 900.0, of=path, as_json=False)


def test_segments_without_nodes_are_refused(file, jobs):
    segments = written(jobs.parent, "job_id,start,end,width,nodes\na,0,1000,8,\n", "segments.csv")
    said = refusal(show, file, jobs, 5.0, of=segments, as_json=False)
    assert "row 2, column nodes: it names no GPUs; replay with --cells" in said


def test_a_wrong_cells_file_is_refused_as_anywhere(tmp_path):
    path = written(tmp_path, FILE.replace("rack = { rack = 1 }", "rack = { rack = 9 }"), "c.toml")
    assert "quota: 9 rack requested in chain rack" in refusal(show, path, None, None, as_json=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--jobs", "jobs.csv"], "--jobs and --at belong together; give both or none"),
        (["--at", "3d"], "--jobs and --at belong together; give both or none"),
        (["--jobs", "none.csv", "--at", "3d"], "none.csv: no such file"),
        (["--jobs", "jobs.csv", "--at", "3x"], "'3x' is not a time; write a number with s, m"),
        (["--jobs", "jobs.csv", "--at", "3d12x"], "'3d12x' is not a time"),
        (["--jobs", "jobs.csv", "--at", ""], "'' is not a time"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(words, says, file, jobs):
    words = [str(jobs.with_name(word)) if word.endswith(".csv") else word for word in words]
    done = sia("cells", "show", file, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_same_file_gives_the_same_bytes(file, jobs):
    first, second = (
        sia("cells", "show", file, "--jobs", jobs, "--at", "15m", hash_seed=seed)
        for seed in (None, "2")  # that of this process is random
    )
    assert first.returncode == 0
    assert first.stdout == second.stdout
    assert "\x1b" not in first.stdout
