"""The verdict over several runs: every measured job counts the same."""

import msgspec

from replay.experiment.measures import Experiment
from replay.experiment.report import write_experiment_report
from replay.experiment.verdict import verdict_of
from tests.replay.experiment.test_experiment_report import PEAKS, gave, run


def over(*runs, **settings):
    return verdict_of(Experiment(runs, settings))


def both(number, peaks, perfect, queues=4):
    return run(number, queues, fcfs=gave(), sia=perfect, **{PEAKS: peaks})


def test_gains_and_delays_of_all_runs_are_put_together():
    told = over(
        both(0, gave(2.0, lent=5), gave(3.0, lent=9)),
        both(1, gave(1.0), gave(3.0, lent=9)),
        both(2, gave(None), gave(None)),
    )
    assert told["words"] == [
        f"Share idle GPUs, with {PEAKS}.",
        ("Over 3 runs, 1 pool would lend 5.0 GPU-hours, and jobs end 15 m sooner on average (45 m "
        "after their submission, without sharing 1 h)."),
        "Risk: none of 400 jobs would end later.",
        (f"Perfect forecasts (sia) would make jobs end 40 m sooner on average; {PEAKS} gains 38 % "
        "of that."),
        ('Start with policy = "sia", forecast = "peaks:0.95+survival:0.9" in sia.toml, and lending '
        '= "shadow": the daemon then shows what it would lend, and lends nothing.'),
    ]  # fmt: skip


def test_a_single_run_with_many_delayed_jobs_makes_a_policy_too_risky():
    told = over(both(0, gave(2.0, 1, 3.0, lent=5), gave(3.0)), both(1, gave(2.0), gave(3.0)))
    assert told["answer"] == "too many delayed"  # 1 of 400 is 0.25 %
    assert "Risk: 1 of 400 jobs (0.25 %) would end up to 3 m later." in told["words"]
    many = [both(i, gave(2.0, i == 0, 3.0 * (i == 0)), gave(3.0)) for i in range(5)]
    assert over(*many)["recommended"] == PEAKS  # 1 of 1,000 is 0.1 %


def test_without_a_setting_for_today_there_is_only_an_upper_bound():
    told = over(run(0, fcfs=gave(), sia=gave(2.0, lent=3)))
    assert told["answer"] == "only the future"
    assert told["compared"]["today"] is None
    assert told["compared"]["perfect"]["sooner_s"] == 1800


def test_runs_of_one_pool_cannot_share():
    assert over(both(0, gave(), gave(), queues=1))["answer"] == "pools alone"


def test_waits_and_loans_are_summed_over_the_runs():
    told = over(both(0, gave(2.0, lent=5), gave(3.0)), both(1, gave(1.0, lent=1), gave(3.0)))
    [pool] = told["waits"]["pools"]
    assert pool["group"] == "p1"
    assert pool["baseline"] == {"jobs": 400, "mean_s": 3600}
    assert pool["today"] == {"jobs": 400, "mean_s": 2700}
    assert pool["perfect"] == {"jobs": 400, "mean_s": 1200}
    assert [row["group"] for row in told["waits"]["widths"]] == ["1"]
    assert [(row["pool"], row["gpu_hours_lent"], row["gpu_hours_borrowed"]) for row in
            told["pools"]] == [("p0", 6, 0), ("p1", 0, 6)]  # fmt: skip


def test_the_lines_for_sia_toml_have_the_windows_of_the_experiment():
    settings = {"windows_s": [300.0, 7200.0], "slack": 1.5}
    told = over(both(0, gave(2.0, lent=5), gave(3.0)), **settings)
    assert told["sia_toml"][2:] == ['windows = ["5m", "2h"]', "slack = 1.5"]


def test_the_report_begins_with_the_verdict_and_its_file_says_the_same(tmp_path):
    runs = [
        run(0, fcfs=gave(), ssf=gave(9.0), sia=gave(3.0, lent=9), **{PEAKS: gave(2.0, lent=5)}),
    ]
    write_experiment_report(tmp_path, runs, {})
    told = msgspec.json.decode((tmp_path / "verdict.json").read_bytes())
    assert told == msgspec.json.decode(msgspec.json.encode(over(*runs)))
    page = (tmp_path / "report.html").read_text()
    cards = page.index("Each policy")
    assert page.index(told["words"][0]) < page.index("Lenders and borrowers") < cards
    assert page.index(f"{PEAKS}</span> slowed", cards) < page.index("ssf</span> slowed", cards)
