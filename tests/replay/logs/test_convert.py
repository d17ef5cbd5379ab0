"""From a publisher's log, of any format, to a canonical one."""

import json

import pytest
from click.testing import CliRunner

from replay.cli.trace import trace as trace_command
from replay.logs.importers import importer
from replay.logs.read import read_pools, read_trace
from sia.model import Pool
from sia.wording import counted
from tests.support.files import by_id, refusal, written
from tests.support.logs import (
    JOINED,
    JOINED_HEAD,
    PAI_GROUPS,
    PAI_JOBS,
    PAI_TASKS,
    SURE,
    SWF_HEAD,
    SWF_LOG,
)


def sia_trace(*arguments):
    return CliRunner().invoke(trace_command, [str(argument) for argument in arguments])


def files_of(form, folder):
    """A log of each format, and its second file if it has one."""
    if form == "alibaba":
        written(folder, PAI_GROUPS, "pai_group_tag_table.csv")
        return [written(folder, PAI_JOBS), written(folder, PAI_TASKS, "tasks.csv")]
    return [written(folder, {"swf": SWF_HEAD + SWF_LOG, "google": JOINED_HEAD + JOINED}[form])]


@pytest.mark.parametrize("form", ["alibaba", "google", "swf"])
def test_convert_writes_what_the_importer_read(tmp_path, form):
    files = files_of(form, tmp_path)
    trace, table = importer(form)(files[0], files[1] if len(files) > 1 else None)
    done = sia_trace("convert", *files, "--format", form, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    again = read_trace(tmp_path / "out" / "trace.csv")
    assert (again.arrivals, again.columns, again.extras) == (
        trace.arrivals,
        trace.columns,
        trace.extras,
    )
    for reason, count in trace.dropped.items():
        assert f"dropped: {counted(count, 'job')} {reason}\n" in done.output
    for note in trace.notes:
        assert f"note: {note}\n" in done.output
    assert ("quotas are unknown" in done.output) is (table is None)
    assert (tmp_path / "out" / "pools.csv").exists() is (table is not None)


@pytest.mark.parametrize("form", ["alibaba", "google", "swf"])
def test_info_describes_what_convert_wrote(tmp_path, form):
    sia_trace("convert", *files_of(form, tmp_path), "--format", form, "--out", tmp_path / "out")
    facts = json.loads(sia_trace("info", "--trace", tmp_path / "out/trace.csv", "--json").output)
    jobs = {name: pool["jobs"] for name, pool in facts["pools"].items()}
    assert (
        jobs
        == {
            "alibaba": {"MISC": 1, "T4": 1, "V100": 1},
            "google": {"google": 2},
            "swf": {"machine": 4},
        }[form]
    )


def test_the_pool_of_an_swf_log_is_written(tmp_path):
    log = written(tmp_path, SWF_HEAD + SWF_LOG)
    sia_trace("convert", log, "--format", "swf", "--out", tmp_path / "out")
    assert read_pools(tmp_path / "out" / "pools.csv").pools == [Pool("machine", 16)]


def test_a_folder_of_parts_is_converted(tmp_path):
    parts = tmp_path / "job_events"
    parts.mkdir()
    written(parts, SURE, "part-00000-of-00001.csv")
    done = sia_trace("convert", parts, "--format", "google", "--out", tmp_path / "out")
    assert done.output.startswith("1 job: ")
    assert by_id(read_trace(tmp_path / "out" / "trace.csv")).keys() == {"sure"}


@pytest.mark.parametrize("form", ["alibaba", "google", "swf"])
def test_a_bad_log_ends_the_command_with_2_and_leaves_nothing(tmp_path, form):
    files = files_of(form, tmp_path)
    files[0].write_text("1,2\n")
    done = sia_trace("convert", *files, "--format", form, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"Error: {files[0]}: row 1, column" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("form", "word"), [("google", "Google's trace"), ("swf", "an SWF log")])
def test_a_log_that_is_one_file_takes_no_second_one(tmp_path, form, word):
    second = written(tmp_path, "pool,quota\n", "pools.csv")
    text = refusal(importer(form), tmp_path / "log", second, of=second)
    assert word in text
    assert "omit this argument" in text
