"""What `sia replay` says first, on logs so small that the verdict is known by hand."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from replay.cli.replay import replay

HEADER = "job_id,pool,submit,width,duration"
QUEUE = ["j0,busy,0,1,100", "j1,busy,0,1,100"]
"""Alone the second job of the pool waits 100 s. On another pool's GPUs it starts at once."""


@pytest.fixture
def decide(tmp_path):
    """Replay rows of a log in pools by quota; return what is printed, the verdict and the page."""

    def play(rows, policies, *options, report=False, **quotas):
        (tmp_path / "log.csv").write_text("\n".join([HEADER, *rows, ""]))
        pools = [f"{pool},{quota}" for pool, quota in quotas.items()]
        (tmp_path / "pools.csv").write_text("\n".join(["pool,quota", *pools, ""]))
        words = ["--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv"]
        words += ["--policy", policies, "--out", tmp_path / "out", *options]
        words += [] if report else ["--no-report"]
        ended = CliRunner().invoke(replay, [str(word) for word in words], standalone_mode=False)
        if ended.exception is not None:
            raise ended.exception
        page = (tmp_path / "out" / "report.html").read_text() if report else ""
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        return SimpleNamespace(said=ended.stdout, page=page, **summary["verdict"])

    return play


def test_an_idle_neighbour_saves_the_second_job_its_wait(decide):
    told = decide(QUEUE, "ssf,mmfs,sia,fcfs", busy=1, idle=4)
    assert told.words == [
        "Share idle GPUs, with mmfs.",
        (
            "1 of 2 pools would lend 0.03 GPU-hours, and jobs end 50 s sooner on average (1 m 40 s "
            "after their submission, without sharing 2 m 30 s)."
        ),
        "Risk: none of 2 jobs would end later.",
        (
            "Perfect forecasts (sia) would make jobs end 50 s sooner on average; mmfs gains "
            "100 % of that."
        ),
        (
            'Start with policy = "mmfs" in sia.toml, and lending = "shadow": the daemon then shows '
            "what it would lend, and lends nothing."
        ),
    ]
    assert (told.answer, told.recommended) == ("share", "mmfs")
    assert told.compared["today"]["sooner_s"] == told.compared["perfect"]["sooner_s"] == 50


def test_a_policy_that_stops_jobs_is_named_with_what_the_replay_assumed_of_stops(decide):
    def start(*marked):
        told = decide(QUEUE, "fcfs,sia-reclaim@peaks+survival", *marked, busy=1, idle=4)
        assert told.recommended == "sia-reclaim@peaks+survival"
        return next((words, after) for words, after in pairwise(told.words) if "Start" in words)

    assert 'preemptible = "restart", ' in start("--preemptible", "100:restart")[0]
    assert 'preemptible = "5m", ' in start("--preemptible", "100:5m")[0]
    some, marks = start("--preemptible", "99:restart")
    assert "preemptible" not in some
    assert "each job must say so: sia submit --preemptible restart." in marks


def test_the_verdict_is_the_first_thing_that_is_printed(decide):
    first, second = decide(QUEUE, "fcfs,mmfs", busy=1, idle=4).said.splitlines()[:2]
    assert first == "VERDICT  Share idle GPUs, with mmfs."
    assert second.startswith("  1 of 2 pools would lend 0.03 GPU-hours")


def test_tables_and_page_begin_with_what_to_decide_by_and_end_with_what_does_not_share(decide):
    told = decide(QUEUE, "ssf,sia,mmfs,fcfs", report=True, busy=1, idle=4)
    rows = [line.split()[0] for line in told.said.split("─\n")[2].splitlines() if line]
    assert rows[:4] == ["fcfs", "mmfs", "sia", "ssf"]
    answer = told.page.index("Share idle GPUs, with mmfs.")
    cards = [told.page.index(f"<strong>{name}</strong>") for name in ("mmfs", "sia", "ssf")]
    assert [answer, *cards] == sorted([answer, *cards])


def test_lending_that_makes_the_lender_wait_is_not_recommended(decide):
    rows = [*QUEUE, "j2,lender,50,1,10"]  # finds its only GPU lent until 100 s
    told = decide(rows, "fcfs,mmfs", busy=1, lender=1)
    assert told.answer == "too many delayed"
    assert told.recommended is None
    assert told.words[0].startswith("Do not share with these settings")
    assert "Risk: 1 of 3 jobs (33.33 %) would end up to 50 s later." in told.words
    assert any("more careful forecasts" in words for words in told.words)


def test_an_idle_cluster_gains_nothing(decide):
    told = decide(["j0,a,0,1,100", "j1,b,0,1,100"], "fcfs,mmfs,sia", a=1, b=1)
    assert told.words[0] == (
        "Do not share: under the policies that can run today no pool lends a GPU."
    )
    assert told.words[1] == (
        "Even perfect forecasts (sia) would not make jobs end sooner on average."
    )


def test_a_policy_that_only_a_replay_can_have_gives_no_verdict_but_an_upper_bound(decide):
    told = decide(QUEUE, "fcfs,sia", busy=1, idle=4)
    assert told.words == [
        "No verdict: every policy that shares here knew the future, and none can run today.",
        "Perfect forecasts (sia) would make jobs end 50 s sooner on average.",
        "Add sia@peaks+survival to --policy.",
    ]


def test_forecasts_without_history_lend_nothing_and_the_verdict_says_why(decide):
    told = decide([*QUEUE, "j2,busy,3600,1,9"], "fcfs,sia@peaks+survival", busy=1, idle=4)
    assert told.answer == "nothing lent"
    assert told.words[-1] == (
        "The log covers only 1 h; forecasts learn from up to 14 d of history and lend little until "
        "they have it."
    )
    assert told.words[-2].startswith("If jobs may be stopped and started again, try --preemptible")


def test_a_single_pool_cannot_share(decide):
    told = decide(QUEUE, "fcfs,mmfs", busy=1)
    assert told.words == [
        "Do not share: every pool is alone in its sharing group, so that none can lend."
    ]


def test_without_a_measured_job_there_is_no_verdict(decide):
    told = decide(QUEUE, "fcfs,mmfs,sia", "--warmup", "1h", busy=1, idle=4)
    assert told.words == ["No verdict: no job was measured."]


def test_the_baseline_alone_says_what_to_add(decide):
    told = decide(QUEUE, "fcfs", busy=1, idle=4)
    assert told.words == [
        "No verdict: no policy that shares GPUs was replayed.",
        "Add sia@peaks+survival to --policy.",
    ]


def test_the_lines_for_sia_toml_are_those_of_the_setting_that_was_replayed(decide):
    """Two days in which nobody asks for more than a GPU are enough for forecasts of 5 minutes."""
    rows = [f"p{i},{pool},{i * 600},1,60" for i in range(288) for pool in ("busy", "idle")]
    rows = [f"r{n},{row.split(',', 1)[1]}" for n, row in enumerate(rows)]
    late = 288 * 600
    rows += [f"x{i},busy,{late},1,60" for i in range(4)]
    label = "sia@peaks:0.9+survival:0.8+guard:1"
    options = ("--windows", "5m,10m", "--slack", "0.5", "--warmup", "2d")
    told = decide(rows, f"fcfs,{label}", *options, busy=1, idle=4)
    assert told.recommended == label
    assert told.sia_toml == [
        'policy = "sia"', 'forecast = "peaks:0.9+survival:0.8+guard:1"',
        'windows = ["5m", "10m"]', "slack = 0.5",
    ]  # fmt: skip


def test_waits_are_compared_by_pool_and_by_width(decide):
    rows = [*QUEUE, "wide,idle,0,3,50"]
    told = decide(rows, "fcfs,mmfs,sia", busy=1, idle=4)
    none, some = {"mean_s": 0.0, "p90_s": 0.0}, {"mean_s": 50.0, "p90_s": 100.0}
    assert told.waits["pools"] == [
        {
            "group": "busy",
            "baseline": {"jobs": 2, **some},
            "today": {"jobs": 2, **none},
            "perfect": {"jobs": 2, **none},
        },
        {
            "group": "idle",
            "baseline": {"jobs": 1, **none},
            "today": {"jobs": 1, **none},
            "perfect": {"jobs": 1, **none},
        },
    ]
    assert [row["group"] for row in told.waits["widths"]] == ["1", "3–4"]
    assert told.waits["widths"][0]["baseline"] == {"jobs": 2, **some}
    assert told.compared["baseline"]["wait_avg_s"] == pytest.approx(100 / 3)


def test_lenders_are_listed_against_borrowers(decide):
    told = decide(QUEUE, "fcfs,mmfs", report=True, busy=1, idle=4)
    lender, borrower = told.pools
    assert (lender["pool"], lender["gpu_hours_borrowed"]) == ("idle", 0)
    assert lender["gpu_hours_lent"] == borrower["gpu_hours_borrowed"] == pytest.approx(100 / 3600)
    assert (borrower["pool"], borrower["sooner_s"], lender["sooner_s"]) == ("busy", 50, None)
    assert "Lenders and borrowers" in told.page
    told = decide(["j0,busy,0,1,100"], "fcfs,mmfs", report=True, busy=1, idle=4)
    assert "Lenders and borrowers" not in told.page


def test_forecasts_are_compared_with_what_then_was_needed(decide):
    """Nothing is forecast; one job of 2 GPUs comes in the second of four windows of 5 minutes."""
    rows = ["first,a,0,1,10", "some,a,400,2,100", "long,a,401,1,400", "last,a,1250,1,10"]
    options = ("--windows", "5m")
    told = decide(rows, "fcfs,sia@sliding-max+history", *options, report=True, a=4, b=4)
    [loads] = told.forecasts["loads"]
    assert loads["forecasts"] == 8  # four windows of two pools
    assert loads["all_reserved"] + loads["covered"] + loads["missed"] == 8
    assert loads["actual_gpus"] == 3 / 8  # at most 3 GPUs at once, in one of the eight
    [run_times] = told.forecasts["run_times"]
    assert (run_times["jobs"], run_times["actual"]) == (4, 3)
    assert "Forecasts against what happened" in told.page


TYPES = """
types = [
    { name = "gpu" },
    { name = "quad", child = "gpu", count = 4 },
    { name = "node", child = "quad", count = 2, node = true },
]
"""


def test_with_cells_forecasts_are_of_the_gpus_of_whole_cells(decide, tmp_path):
    """A job of 3 GPUs takes a cell of 4, and one that cannot be lent such a cell waits."""
    (tmp_path / "types.toml").write_text(TYPES)
    rows = [
        "first,a,0,1,10",
        "some,a,400,3,400",
        "last,a,1250,1,10",
        "busy,b,0,8,100",
        "next,b,1,4,9",
    ]
    options = ("--windows", "5m", "--cells", tmp_path / "types.toml")
    told = decide(rows, "fcfs,sia@sliding-max+history", *options, report=True, a=8, b=8)
    [loads] = told.forecasts["loads"]
    assert loads["forecasts"] == 8  # four windows of two pools
    assert loads["actual_gpus"] == (4 + 4) / 8  # one cell of 4 in a pool's window each
    count = f"Of 8 load forecasts {loads['missed']} "
    assert told.words[-1].startswith(count)
    assert any("forecasts count the GPUs of whole cells" in words for words in told.words)
    assert "Forecasts against what happened" in told.page


def test_perfect_forecasts_are_not_compared_with_themselves(decide):
    told = decide(QUEUE, "fcfs,mmfs,sia", report=True, busy=1, idle=4)
    assert told.forecasts is None
    assert "Forecasts against what happened" not in told.page
