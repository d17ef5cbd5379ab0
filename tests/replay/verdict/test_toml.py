"""The lines for `sia.toml` are accepted by the daemon and mean what was replayed."""

import pytest

from daemon.config.read import read_config
from replay.run.run import Settings
from replay.verdict.words import toml
from sia.model import Options

POOLS = '[[pool]]\nname = "a"\nquota = 4\n[[pool]]\nname = "b"\nquota = 4\n'


@pytest.mark.parametrize(
    "label",
    [
        "mmfs",
        "hived",
        "themis@none+history:0.8",
        "sia@peaks+survival",
        "sia@peaks:0.9+survival:0.8+guard:2",
        "sia@none+jvupredict",
        "sia-recall@sliding-max+survival",
        "sia-recall:recall=0.3@peaks+history+guard",
        "srtf@none+survival",
    ],
)
def test_the_daemon_starts_with_them(label, tmp_path):
    options = Options(windows=(300.0, 7200.0), slack=1.5)
    lines = toml(Settings([label], options=options), label)
    path = tmp_path / "sia.toml"
    path.write_text("\n".join(["[daemon]", *lines, POOLS]))
    config = read_config(path)
    policy, _, forecast = label.partition("@")
    assert config.policy == policy
    assert not forecast or config.forecast == forecast
    if policy.startswith("sia"):
        assert (config.windows, config.slack) == (options.windows, options.slack)


def test_forecasts_of_the_options_and_params_are_written_out(tmp_path):
    settings = Settings(
        ["sia-recall"],
        "peaks",
        "survival",
        load_quantile=0.9,
        params={"sia-recall": {"recall": 0.5}},
    )
    assert toml(settings, "sia-recall") == [
        'policy = "sia-recall:recall=0.5"', 'forecast = "peaks:0.9+survival"',
    ]  # fmt: skip


def test_a_forecast_that_the_policy_does_not_use_is_left_out():
    assert toml(Settings(["srtf"], durations="history"), "srtf") == [
        'policy = "srtf"', 'forecast = "none+history"',
    ]  # fmt: skip
