"""The log: nobody who reads it slowly, or not at all, holds up the daemon."""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from daemon.runtime.logs import LogWriterThread, begin, log

LINE = "x" * 1000


class Logged:
    """What is logged into a pipe."""

    def __init__(self, most):
        self.reader, self.writer = os.pipe()
        self.handler = LogWriterThread(self.writer, most)

    def tell(self, line):
        self.handler.handle(logging.makeLogRecord({"msg": line}))

    def read(self):
        """All of it, by somebody who reads from now on."""
        with os.fdopen(self.reader, encoding="utf-8") as lines, ThreadPoolExecutor(1) as reading:
            read = reading.submit(lines.readlines)
            self.handler.flush()
            os.close(self.writer)
            return [line.removesuffix("\n") for line in read.result()]


def test_log_lines_are_written_in_order_before_the_process_ends():
    said = [f"line {number} ünd" for number in range(50)]
    logged = Logged(100)
    for line in said:
        logged.tell(line)
    assert logged.read() == said


def test_a_pipe_that_nobody_reads_does_not_block_and_dropped_lines_are_counted():
    logged = Logged(20)
    for _ in range(1000):  # many times what the pipe takes
        logged.tell(LINE)
    read = logged.read()
    dropped = [json.loads(line) for line in read if line != LINE]
    assert all(each["event"] == "log lines were dropped" for each in dropped)
    lost = sum(each["lines"] for each in dropped)
    assert lost > 500
    assert read.count(LINE) + lost == 1000


@pytest.mark.parametrize("most", [1, 10])
def test_a_closed_pipe_is_not_an_error(most):
    logged = Logged(most)
    os.close(logged.reader)
    for _ in range(3):
        logged.tell(LINE)
    logged.handler.flush()
    assert not logged.handler._lines.unfinished_tasks
    os.close(logged.writer)


def test_a_traceback_contains_no_values(capfd):
    begin("info")
    try:
        password = "hunter" + "2"
        raise ValueError(len(password))
    except ValueError:
        log().exception("it failed")
    logging.getLogger("sia").handlers[0].flush()
    (line,) = capfd.readouterr().err.splitlines()
    said = json.loads(line)
    assert said["event"] == "it failed"
    assert said["exception"][0]["exc_value"] == "7"
    assert "hunter2" not in line


def test_log_lines_of_libraries_are_json_and_bounded(capfd):
    begin("info")
    library = logging.getLogger("some.library")
    library.propagate = False  # as without pytest, which listens everywhere
    for number in range(1000):
        library.error("it broke\n%s", number)
    library.warning(LINE * 10)
    logging.getLogger("sia").handlers[0].flush()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert 1 <= len(lines) < 100
    assert lines[0]["event"] == "it broke\n0"
    assert (lines[0]["level"], lines[0]["logger"]) == ("error", "some.library")
    assert all(len(line["event"]) <= 500 for line in lines)
