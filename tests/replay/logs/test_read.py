"""Canonical job logs and pools files: what is read, what is refused and in which words."""

import gzip
import re
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.logs.limits import MAX_LINE, MIN_DURATION
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.output import write_pools, write_trace
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.limits import MAX_QUOTA
from sia.model import Job, Pool
from tests.support.files import refusal, written

HEAD = "job_id,pool,submit,width,duration\n"
GOOD = "a,p,0,1,1\n"
LAST = "z,p,9,1,1\n"


def parquet(folder, select, name="log.parquet"):
    """A Parquet file with the rows of a query, written without the project's code."""
    path = folder / name
    duckdb = pytest.importorskip("duckdb", reason="Parquet needs duckdb")
    with duckdb.connect() as database:
        database.execute(f"COPY ({select}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return path


def ids(trace):
    return [arrival.job.id for arrival in trace.arrivals]


def job_log(arrivals, columns=(), extras=None):
    return Trace(arrivals, columns, extras or {})


# What is read


def test_a_log_is_jobs_in_order_with_their_times_widths_and_durations(tmp_path):
    trace = read_trace(written(tmp_path, HEAD + "a,p,0,1,2.5\nb,q,1.25,8,3e3\n"))
    assert trace.arrivals == [
        Arrival(Job("a", "p", 0.0, 1), 2.5),
        Arrival(Job("b", "q", 1.25, 8), 3000.0),
    ]
    assert trace.dropped == Counter()
    assert trace.notes == []


def test_csv_gzip_and_parquet_hold_the_same_trace(tmp_path):
    header = "job_id,pool,submit,width,duration,user,name,state\n"
    text = header + 'a,p,0.1,1,2.5,ann,"train, big",done\nb,q,86400.0,8,1e-3,,,\n'
    plain = read_trace(written(tmp_path, text))
    zipped = read_trace(written(tmp_path, gzip.compress(text.encode()), "log.csv.gz"))
    select = (
        "SELECT 'a' job_id, 'p' pool, 0.1::DOUBLE submit, 1::BIGINT width, 2.5::DOUBLE duration, "
        "'ann' \"user\", 'train, big' \"name\", 'done' state "
        "UNION ALL SELECT 'b', 'q', 86400, 8, 1e-3, NULL, NULL, NULL"
    )
    table = read_trace(parquet(tmp_path, select))
    assert plain.arrivals[0].job == Job("a", "p", 0.1, 1, "ann", "train, big")
    assert plain.extras == {"a": ("done",), "b": ("",)}
    assert zipped == plain
    assert table == plain


def test_the_content_tells_the_format_and_not_the_name(tmp_path):
    plain = read_trace(written(tmp_path, HEAD + GOOD, "log.parquet"))
    zipped = read_trace(written(tmp_path, gzip.compress((HEAD + GOOD).encode()), "log.txt"))
    table = "SELECT 'a' job_id, 'p' pool, 0 submit, 1 width, 1 duration"
    assert plain == zipped == read_trace(parquet(tmp_path, table, "log.csv"))


@pytest.mark.parametrize(
    "select",
    [
        "SELECT 7 job_id, 'p' pool, 3::FLOAT submit, 2::DOUBLE width, 4::SMALLINT duration",
        "SELECT '7' job_id, 'p' pool, '3' submit, '2.0' width, '4e0' duration",
        "SELECT 7::BIGINT job_id, 'p' pool, 3.00::DECIMAL(9,2) submit, 2 width, 4 duration",
    ],
    ids=["numbers of other sizes", "text", "decimals"],
)
def test_parquet_may_hold_its_numbers_in_other_types(tmp_path, select):
    trace = read_trace(parquet(tmp_path, select))
    assert trace.arrivals == [Arrival(Job("7", "p", 3.0, 2), 4.0)]


@pytest.mark.parametrize("name", ["day?.parquet", "day*.parquet", "day[1].parquet"])
def test_a_parquet_name_is_no_pattern(tmp_path, name):
    row = "'p' pool, 0 submit, 1 width, 1 duration"
    parquet(tmp_path, f"SELECT 'other' job_id, {row}", "day1.parquet")
    path = parquet(tmp_path, f"SELECT 'mine' job_id, {row}", "mine").rename(tmp_path / name)
    assert ids(read_trace(path)) == ["mine"]


def test_a_byte_order_mark_crlf_and_blank_lines_change_nothing(tmp_path):
    plain = read_trace(written(tmp_path, HEAD + GOOD + LAST))
    windows = "\ufeff" + HEAD + "\n" + GOOD + "\n\n" + LAST + "\n"
    path = written(tmp_path, windows.replace("\n", "\r\n"))
    assert read_trace(path) == plain


def test_spaces_around_column_names_are_ignored(tmp_path):
    path = written(tmp_path, HEAD.replace(",", " , ") + GOOD)
    assert ids(read_trace(path)) == ["a"]


def test_the_last_line_may_lack_its_end(tmp_path):
    assert ids(read_trace(written(tmp_path, HEAD + GOOD + LAST.rstrip()))) == ["a", "z"]


def test_quoted_cells_keep_commas_quotes_and_line_ends(tmp_path):
    row = '"a,1","p ""x""",0,1,1,"two\nlines"\n'
    trace = read_trace(written(tmp_path, HEAD.rstrip() + ",name\n" + row))
    assert trace.arrivals[0].job == Job("a,1", 'p "x"', 0.0, 1, "", "two\nlines")


def test_columns_may_stand_in_any_order(tmp_path):
    path = written(tmp_path, "width,user,duration,job_id,submit,pool\n2,ann,4,a,3,p\n")
    assert read_trace(path).arrivals == [Arrival(Job("a", "p", 3.0, 2, "ann"), 4.0)]


def test_user_and_name_belong_to_the_job_and_other_columns_are_kept_as_text(tmp_path):
    header = "state,job_id,user,pool,submit,width,gpu_type,duration,name\n"
    trace = read_trace(written(tmp_path, header + "007,a,ann,p,0,1, V100 ,1,train\n"))
    assert trace.arrivals[0].job == Job("a", "p", 0.0, 1, "ann", "train")
    assert trace.columns == ("state", "gpu_type")
    assert trace.extras == {"a": ("007", " V100 ")}


def test_columns_without_a_name_are_left_out(tmp_path):
    trace = read_trace(written(tmp_path, HEAD.rstrip() + ",,\na,p,0,1,1,x,y\n"))
    assert trace.columns == ()
    assert ids(trace) == ["a"]


def test_unsorted_rows_are_sorted_and_that_is_said(tmp_path):
    header = HEAD.rstrip() + ",state\n"
    rows = "late,p,5,1,1,L\nz,p,1,9,1,Z\na,b,1,1,1,A\n"
    trace = read_trace(written(tmp_path, header + rows))
    assert ids(trace) == ["z", "a", "late"]
    assert trace.extras == {"late": ("L",), "z": ("Z",), "a": ("A",)}
    assert len(trace.notes) == 1
    assert "sorted" in trace.notes[0]


def test_equal_submissions_keep_their_order_in_the_file(tmp_path):
    names = ["m", "b", "z", "a", "k"]
    rows = "".join(f"{name},p,3,{i + 1},1\n" for i, name in enumerate(names))
    trace = read_trace(written(tmp_path, HEAD + rows))
    assert ids(trace) == names
    assert trace.notes == []


# What is written is read again

SECONDS = st.floats(0, 1e15, exclude_max=True)
RUNS = st.floats(MIN_DURATION, 1e15, exclude_max=True)
CELLS = st.text(
    st.one_of(
        st.sampled_from("\r\n\t ,;|\"'\\#"),
        st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")),
    ),
    max_size=6,
)


@st.composite
def logs(draw, cells=CELLS):
    """Traces whose cells hold whatever a name may hold."""
    submits = sorted(draw(st.lists(SECONDS, min_size=1, max_size=6)))
    arrivals, extras = [], {}
    for i, submit in enumerate(submits):
        job_id = f"{i}{draw(cells)}"
        width = draw(st.integers(1, MAX_QUOTA))
        job = Job(job_id, draw(cells), submit, width, draw(cells), draw(cells))
        arrivals.append(Arrival(job, draw(RUNS)))
        extras[job_id] = (draw(cells), draw(cells))
    return job_log(arrivals, ("state", "queue"), extras)


@settings(deadline=None)
@given(logs(cells=st.sampled_from(["", "x", "a b"])))
def test_every_float_survives_writing_and_reading(folder, trace):
    write_trace(folder / "log.csv", trace)
    assert read_trace(folder / "log.csv") == trace


@settings(deadline=None)
@given(logs())
def test_every_text_survives_csv(folder, trace):
    write_trace(folder / "log.csv", trace)
    assert read_trace(folder / "log.csv") == trace


@settings(max_examples=30, deadline=None)
@given(logs())
def test_every_trace_survives_parquet(folder, trace):
    pytest.importorskip("duckdb", reason="Parquet needs duckdb")
    write_trace(folder / "log.parquet", trace)
    assert read_trace(folder / "log.parquet") == trace


def test_without_duckdb_parquet_is_refused_and_the_mend_is_its_installation(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    path = written(tmp_path, b"PAR1PAR1", "log.parquet")
    trace = read_trace(written(tmp_path, HEAD + GOOD))
    assert "pipx install --force 'sia-scheduler[parquet]'" in refusal(read_trace, path)
    assert "pipx install --force 'sia-scheduler[parquet]'" in refusal(
        write_trace, path, trace=trace
    )


def test_a_log_named_gz_is_compressed(tmp_path):
    trace = job_log([Arrival(Job("a", "p", 0.1, 1, "ann"), 0.2)])
    path = tmp_path / "log.csv.gz"
    write_trace(path, trace)
    assert gzip.decompress(path.read_bytes()).startswith(HEAD.encode().rstrip())
    assert read_trace(path) == trace


# Rows that are refused

BAD_ROWS = {
    "submit is a word": ("b,p,soon,1,1", "submit", "write seconds", "submit is no number"),
    "submit is empty": ("b,p,,1,1", "submit", "write seconds", "submit is no number"),
    "submit is a date": ("b,p,2020-01-01,1,1", "submit", "write seconds", "submit is no number"),
    "submit is negative": ("b,p,-1,1,1", "submit", "shift all times", "submit is negative"),
    "submit is NaN": ("b,p,nan,1,1", "submit", "write seconds", "submit is not finite"),
    "submit is inf": ("b,p,inf,1,1", "submit", "write seconds", "submit is not finite"),
    "submit overflows": ("b,p,1e999,1,1", "submit", "write seconds", "submit is not finite"),
    "duration is a word": ("b,p,1,1,long", "duration", "write seconds", "duration is no number"),
    "duration is zero": ("b,p,1,1,0", "duration", "above 0", "duration is zero"),
    "duration is below a microsecond": ("b,p,1,1,1e-7", "duration", "1e-06", "duration is zero"),
    "submit has an underscore": ("b,p,1_0,1,1", "submit", "write seconds", "submit is no number"),
    "width has an underscore": ("b,p,1,1_0,1", "width", "whole number", "width is no number"),
    "duration is -0.0": ("b,p,1,1,-0.0", "duration", "above 0", "duration is zero"),
    "duration is negative": ("b,p,1,1,-5", "duration", "above 0", "duration is negative"),
    "duration is NaN": ("b,p,1,1,NaN", "duration", "write seconds", "duration is not finite"),
    "duration is -inf": ("b,p,1,1,-inf", "duration", "write seconds", "duration is not finite"),
    "width is a word": ("b,p,1,two,1", "width", "whole number from 1", "width is no number"),
    "width is empty": ("b,p,1,,1", "width", "whole number from 1", "width is no number"),
    "width is zero": ("b,p,1,0,1", "width", "from 1", "width is no whole number from 1 up"),
    "width is a half": ("b,p,1,1.5,1", "width", "from 1", "width is no whole number from 1 up"),
    "width is negative": ("b,p,1,-2,1", "width", "from 1", "width is no whole number from 1 up"),
    "width is NaN": ("b,p,1,nan,1", "width", "from 1", "width is no whole number from 1 up"),
    "width is huge": (
        f"b,p,1,{MAX_QUOTA + 1},1",
        "width",
        f"to {MAX_QUOTA}",
        "width is no whole number from 1 up",
    ),
    "width is absurd": (
        f"b,p,1,{'9' * 400},1",
        "width",
        f"to {MAX_QUOTA}",
        "width is no whole number from 1 up",
    ),
    "id is empty": (",p,1,1,1", "job_id", "give the job an ID", "job_id is empty"),
    "id stands twice": ("a,q,1,1,1", "job_id", "a unique ID", "job_id stands twice"),
    "row is short": ("b,p,1,1", "job_id", "one cell for each column", "wrong number of cells"),
    "row is long": ("b,p,1,1,1,", "job_id", "one cell for each column", "wrong number of cells"),
}
CELLS_OF_BAD_ROWS = {
    name: bad for name, bad in BAD_ROWS.items() if not name.startswith("row is")
}  # a Parquet row cannot be short or long


def in_the_middle(row):
    return HEAD + GOOD + row + "\n" + LAST


@pytest.mark.parametrize(("row", "column", "mend", "_"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_refused_with_its_place_and_mend(tmp_path, row, column, mend, _):
    text = refusal(read_trace, written(tmp_path, in_the_middle(row)))
    assert f": row 3, column {column}: " in text
    assert mend in text
    assert "--skip-invalid" in text


@pytest.mark.parametrize(("row", "_c", "_m", "reason"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_left_out_and_counted_where_asked(tmp_path, row, _c, _m, reason):
    path = written(tmp_path, in_the_middle(row))
    trace = read_trace(path, skip_invalid=True)
    assert ids(trace) == ["a", "z"]
    assert trace.dropped == Counter({f"invalid: {reason}": 1})


def as_parquet_rows(row):
    header = HEAD.rstrip().split(",")
    rows = [line.rstrip().split(",") for line in (GOOD, row, LAST)]
    selects = [
        "SELECT "
        + ", ".join(f"'{cell}' {column}" for cell, column in zip(cells, header, strict=True))
        for cells in rows
    ]
    return " UNION ALL ".join(selects)


@pytest.mark.parametrize(
    ("row", "column", "mend", "reason"), CELLS_OF_BAD_ROWS.values(), ids=CELLS_OF_BAD_ROWS
)
def test_a_bad_row_of_parquet_is_refused_or_counted_in_the_same_words(
    tmp_path, row, column, mend, reason
):
    path = parquet(tmp_path, as_parquet_rows(row))
    text = refusal(read_trace, path)
    assert f": row 2, column {column}: " in text
    assert mend in text
    trace = read_trace(path, skip_invalid=True)
    assert ids(trace) == ["a", "z"]
    assert trace.dropped == Counter({f"invalid: {reason}": 1})


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ("'abc' submit, 1 width, 1 duration", "submit"),
        ("NULL::DOUBLE submit, 1 width, 1 duration", "submit"),
        ("'nan'::DOUBLE submit, 1 width, 1 duration", "submit"),
        ("TIMESTAMP '2020-01-01 00:00:00' submit, 1 width, 1 duration", "submit"),
        ("DATE '2020-01-01' submit, 1 width, 1 duration", "submit"),
        ("TIMESTAMPTZ '2020-01-01 00:00:00+00' submit, 1 width, 1 duration", "submit"),
        ("0 submit, 1.5::DOUBLE width, 1 duration", "width"),
        ("0 submit, true width, 1 duration", "width"),
        ("0 submit, [1, 2] width, 1 duration", "width"),
        ("0 submit, 1 width, INTERVAL 1 HOUR duration", "duration"),
    ],
)
def test_parquet_of_types_that_are_no_numbers_is_refused_with_its_place(tmp_path, cells, column):
    path = parquet(tmp_path, f"SELECT 'a' job_id, 'p' pool, {cells}")
    assert f": row 1, column {column}: " in refusal(read_trace, path)


def test_rows_are_counted_with_the_lines_of_the_file(tmp_path):
    text = HEAD + '\n\n"a",p,0,1,1\nb,p,0,1,0\n'
    assert ": row 5, column duration: " in refusal(read_trace, written(tmp_path, text))


@pytest.mark.parametrize("column", ["submit", "duration"])
def test_times_beyond_the_limit_are_refused(tmp_path, column):
    """Where an end would be infinite, the job would hold its GPUs and never be done."""
    cells = {"submit": "1", "duration": "1"} | {column: "1.7e308"}
    row = f"b,p,{cells['submit']},1,{cells['duration']}"
    text = refusal(read_trace, written(tmp_path, in_the_middle(row)))
    assert f": row 3, column {column}: " in text


def test_each_reason_is_counted_by_itself(tmp_path):
    rows = "".join(row + "\n" for row, *_ in BAD_ROWS.values())
    trace = read_trace(written(tmp_path, HEAD + GOOD + rows + LAST), skip_invalid=True)
    assert ids(trace) == ["a", "z"]
    assert trace.dropped == Counter(f"invalid: {reason}" for *_, reason in BAD_ROWS.values())


def test_the_first_of_two_rows_with_one_id_is_kept_with_its_other_columns(tmp_path):
    path = written(tmp_path, HEAD.rstrip() + ",state\na,p,0,1,1,first\na,q,1,1,1,second\n")
    assert "column job_id: duplicate 'a'" in refusal(read_trace, path)
    trace = read_trace(path, skip_invalid=True)
    assert trace.arrivals == [Arrival(Job("a", "p", 0.0, 1), 1.0)]
    assert trace.extras == {"a": ("first",)}


def test_an_id_may_come_again_where_its_first_row_was_left_out(tmp_path):
    path = written(tmp_path, HEAD + "a,p,-1,1,1\n" + GOOD)
    trace = read_trace(path, skip_invalid=True)
    assert ids(trace) == ["a"]
    assert trace.dropped.total() == 1


def test_odd_characters_are_spelled_out_in_one_short_line(tmp_path):
    row = f'b,p,"\x1b[31m\n{"x" * 500}",1,1'
    text = refusal(read_trace, written(tmp_path, in_the_middle(row)))
    assert r"\x1b[31m\n" in text
    assert len(text) < len(str(tmp_path)) + 250


# Files that are refused as a whole, bad rows left out or not


def cut_gzip(folder):
    return written(folder, gzip.compress(long_log())[:-2000], "log.csv.gz")


def long_log():
    return (HEAD + "".join(f"j{i},p,{i},1,{i + 1}\n" for i in range(5000))).encode()


def damaged_gzip(folder):
    content = bytearray(gzip.compress(long_log()))
    content[500] ^= 0x55
    return written(folder, bytes(content), "log.csv.gz")


def gzip_of_another_sum(folder):
    content = bytearray(gzip.compress((HEAD + GOOD).encode()))
    content[-6] ^= 0x55
    return written(folder, bytes(content), "log.csv.gz")


def cut_parquet(folder):
    path = parquet(folder, "SELECT 'a' job_id, 'p' pool, 0 submit, 1 width, 1 duration")
    return written(folder, path.read_bytes()[:-50], "log.parquet")


def parquet_damaged_at(folder, share):
    """Many row groups, so that the first are read before the damage is met."""
    rows = "SELECT 'job' || i job_id, md5(i::VARCHAR) pool, i submit, 1 width, 1 duration"
    path = parquet(folder, f"{rows} FROM range(100000) t(i)")
    content = bytearray(path.read_bytes())
    middle = int(len(content) * share)
    content[middle : middle + 60_000] = b"\xff" * 60_000
    return written(folder, bytes(content), "log.parquet")


BAD_FILES = {
    "no file": (lambda folder: folder / "none.csv", "no such file"),
    "a folder": (lambda folder: folder, "readable file"),
    "empty file": (lambda folder: written(folder, ""), "empty"),
    "empty gzip": (lambda folder: written(folder, gzip.compress(b"")), "empty"),
    "blank lines only": (lambda folder: written(folder, "\n\n\n"), "empty"),
    "header only": (lambda folder: written(folder, HEAD), "no valid job"),
    "column missing": (
        lambda folder: written(folder, "job_id,pool,submit,duration\na,p,0,1\n"),
        "row 1: column width is missing",
    ),
    "no header": (lambda folder: written(folder, GOOD + LAST), "row 1: column job_id, pool"),
    "column twice": (
        lambda folder: written(folder, HEAD.rstrip() + ",submit\na,p,0,1,1,0\n"),
        "row 1: duplicate column submit",
    ),
    "other column twice": (
        lambda folder: written(folder, HEAD.rstrip() + ",x,x\na,p,0,1,1,0,0\n"),
        "row 1: duplicate column x",
    ),
    "gzip cut off": (cut_gzip, "truncated or damaged"),
    "gzip cut to its magic": (lambda folder: written(folder, b"\x1f\x8b"), "truncated or damaged"),
    "gzip damaged": (damaged_gzip, "truncated or damaged"),
    "gzip of another sum": (gzip_of_another_sum, "truncated or damaged"),
    "gzip and more": (
        lambda folder: written(folder, gzip.compress((HEAD + GOOD).encode()) + b"more"),
        "truncated or damaged",
    ),
    "binary": (lambda folder: written(folder, bytes(range(256)) * 9), "not UTF-8"),
    "zero bytes": (lambda folder: written(folder, bytes(100)), "row 1: column"),
    "UTF-16": (lambda folder: written(folder, (HEAD + GOOD).encode("utf-16")), "not UTF-8"),
    "binary later": (
        lambda folder: written(folder, (HEAD + GOOD).encode() + b"\xff\xfe\xfd\n"),
        "not UTF-8",
    ),
    "quote not closed": (
        lambda folder: written(folder, HEAD + GOOD + '"b,p,0,1,1\n' + LAST * 3),
        "row 3: ",
    ),
    "quote in a cell": (lambda folder: written(folder, HEAD + GOOD + '"b"x,p,0,1,1\n'), "row 3: "),
    "line too long": (
        lambda folder: written(folder, HEAD + GOOD + "b," + "p," * MAX_LINE + "\n"),
        f"row 3: the line exceeds {MAX_LINE} characters",
    ),
    "line too long, zipped": (
        lambda folder: written(folder, gzip.compress((HEAD + "b" * 2 * MAX_LINE).encode())),
        f"row 2: the line exceeds {MAX_LINE} characters",
    ),
    "header too long": (
        lambda folder: written(folder, HEAD.strip() * MAX_LINE),
        "row 1: the line exceeds",
    ),
    "cell too long": (
        lambda folder: written(folder, HEAD + GOOD + "b," + "p" * 200_000 + ",0,1,1\n"),
        "row 3: ",
    ),
    "Parquet magic only": (lambda folder: written(folder, b"PAR1" * 2), "Parquet"),
    "Parquet cut off": (cut_parquet, "Parquet"),
    "Parquet damaged early": (lambda folder: parquet_damaged_at(folder, 0.01), "Parquet"),
    "Parquet damaged late": (lambda folder: parquet_damaged_at(folder, 0.9), "Parquet"),
    "Parquet without a column": (
        lambda folder: parquet(folder, "SELECT 'a' job_id, 'p' pool, 0 submit, 1 width"),
        "column duration is missing",
    ),
    "Parquet without rows": (
        lambda folder: parquet(folder, as_parquet_rows(LAST) + " LIMIT 0"),
        "no valid job",
    ),
}


@pytest.mark.parametrize("skip_invalid", [False, True], ids=["strict", "skip-invalid"])
@pytest.mark.parametrize(("make", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(tmp_path, make, says, skip_invalid):
    assert says in refusal(read_trace, make(tmp_path), skip_invalid=skip_invalid)


def test_a_log_of_bad_rows_only_is_refused_even_where_they_are_left_out(tmp_path):
    path = written(tmp_path, HEAD + "a,p,0,0,1\n")
    assert "no valid job" in refusal(read_trace, path, skip_invalid=True)


def test_the_row_of_an_open_quote_is_where_it_opens_even_after_long_cells(tmp_path):
    text = HEAD + '"a\n\n\n",p,0,1,1\n' + '"b,p,0,1,1\n' + LAST * 9
    assert ": row 6: " in refusal(read_trace, written(tmp_path, text))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_line(folder, junk):
    for head in (b"", HEAD.encode(), b"\x1f\x8b\x08\x00", b"PAR1"):
        refusal(read_trace, written(folder, head + junk), skip_invalid=True)


# Pools files


def pools_of(folder, text):
    return read_pools(written(folder, text, "pools.csv"))


def test_pools_stand_in_the_order_of_their_file(tmp_path):
    table = pools_of(tmp_path, "pool,quota\nb,8\na,0\nc,16.0\n")
    assert table.pools == [Pool("b", 8), Pool("a", 0), Pool("c", 16)]
    assert table.changes == []


def test_further_columns_of_pools_are_kept_as_text(tmp_path):
    table = pools_of(tmp_path, "nodes,pool,quota,gpus_per_node\n2,a,16,08\n")
    assert table.columns == ("nodes", "gpus_per_node")
    assert table.extras == {("a", 0.0): ("2", "08")}


@pytest.mark.parametrize(
    ("word", "shares"),
    [("yes", True), ("TRUE", True), ("1", True), ("", True), (" no ", False), ("False", False)],
)
def test_share_is_a_yes_or_a_no(tmp_path, word, shares):
    table = pools_of(tmp_path, f"pool,quota,group,share\na,8,v100,{word}\n")
    assert table.pools == [Pool("a", 8, "v100", shares)]


def test_quotas_change_at_the_seconds_of_column_from(tmp_path):
    rows = "b,1,0\na,4,100\na,2,0\nb,3,50\na,0,200.5\nb,5,100\n"
    table = pools_of(tmp_path, "pool,quota,from\n" + rows)
    assert table.pools == [Pool("b", 1), Pool("a", 2)]
    assert table.changes == [
        PoolChanged(50.0, "b", 3),
        PoolChanged(100.0, "a", 4),
        PoolChanged(100.0, "b", 5),
        PoolChanged(200.5, "a", 0),
    ]


def test_a_pool_that_begins_later_has_nothing_until_then(tmp_path):
    table = pools_of(tmp_path, "pool,quota,from\na,8,100\nb,4,\n")
    assert table.pools == [Pool("a", 0), Pool("b", 4)]
    assert table.changes == [PoolChanged(100.0, "a", 8)]
    assert table.quotas()["a"][1:] == [(100.0, 8)]


POOL_HEAD = "pool,quota,from,group,share\n"
BAD_POOLS = {
    "quota is negative": ("b,-1,,,", "quota", "whole number from 0"),
    "quota is a fraction": ("b,1.5,,,", "quota", "whole number from 0"),
    "quota is a word": ("b,many,,,", "quota", "whole number from 0"),
    "quota is empty": ("b,,,,", "quota", "whole number from 0"),
    "quota is NaN": ("b,nan,,,", "quota", "whole number from 0"),
    "quota is huge": (f"b,{MAX_QUOTA + 1},,,", "quota", f"to {MAX_QUOTA}"),
    "pool is empty": (",1,,,", "pool", "name the pool"),
    "pool stands twice": ("a,8,,,", "pool", "a different time in column from"),
    "pool twice at one time": ("a,8,0,,", "pool", "a different time in column from"),
    "from is negative": ("b,1,-5,,", "from", "at least 0"),
    "from is a word": ("b,1,monday,,", "from", "write seconds"),
    "from is NaN": ("b,1,nan,,", "from", "write seconds"),
    "share is a bad word": ("b,1,,,maybe", "share", "write yes or no"),
    "row is short": ("b,1", "pool", "one cell for each column"),
    "row is long": ("b,1,,,,", "pool", ""),
}


@pytest.mark.parametrize(("row", "column", "mend"), BAD_POOLS.values(), ids=BAD_POOLS)
def test_a_bad_row_of_pools_is_refused_with_its_place_and_mend(tmp_path, row, column, mend):
    path = written(tmp_path, POOL_HEAD + "a,4,0,,yes\n" + row + "\n", "pools.csv")
    text = refusal(read_pools, path)
    assert f": row 3, column {column}: " in text
    assert mend in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("pool,quota\n", "no pool"),
        ("pool,gpus\na,1\n", "row 1: column quota is missing"),
        ("pool,quota,quota\na,1,1\n", "row 1: duplicate column quota"),
        ('pool,quota\n"a,1\n', "row 2: "),
    ],
)
def test_a_bad_pools_file_is_refused_in_one_line(tmp_path, text, says):
    assert says in refusal(read_pools, written(tmp_path, text, "pools.csv"))


@st.composite
def pool_tables(draw):
    names = draw(st.lists(CELLS.filter(bool), min_size=1, max_size=4, unique=True))
    quotas = st.integers(0, MAX_QUOTA)
    pools = [
        Pool(name, draw(quotas), draw(st.sampled_from(["", "v100"])), draw(st.booleans()))
        for name in names
    ]
    times = st.floats(0, 1e9, exclude_min=True)
    moments = draw(st.sets(st.tuples(times, st.sampled_from(names)), max_size=6))
    changes = [PoolChanged(time, name, draw(quotas)) for time, name in sorted(moments)]
    rows = [*((name, 0.0) for name in names), *((name, time) for time, name in sorted(moments))]
    return PoolTable(pools, changes, ("nodes",), {row: (draw(CELLS),) for row in rows})


@settings(deadline=None)
@given(pool_tables())
def test_every_pools_file_survives_writing_and_reading(folder, table):
    write_pools(folder / "pools.csv", table)
    assert read_pools(folder / "pools.csv") == table


# Which jobs can be played


def arrival(job_id, pool, submit, width):
    return Arrival(Job(job_id, pool, float(submit), width), 1.0)


def test_jobs_of_unknown_pools_and_wider_than_their_pool_are_dropped_and_counted():
    trace = job_log(
        [
            arrival("fits", "a", 0, 4),
            arrival("wide", "a", 0, 5),
            arrival("lost", "nowhere", 1, 1),
            arrival("lost too", "", 1, 1),
            arrival("no room", "closed", 2, 1),
        ]
    )
    trace.dropped["invalid: width is zero"] = 3
    played = playable(trace, PoolTable([Pool("a", 4), Pool("closed", 0)]))
    assert ids(played) == ["fits"]
    assert played.dropped == Counter(
        {
            "invalid: width is zero": 3,
            "of a pool that the pools file lacks": 2,
            "wider than its pool": 2,
        }
    )
    assert trace.dropped.total() == 3, "the trace itself stays as it was"


def test_a_job_waits_for_its_pool_to_grow_but_not_for_one_that_will_never():
    table = PoolTable(
        [Pool("a", 8)],
        [PoolChanged(10.0, "a", 2), PoolChanged(20.0, "a", 4), PoolChanged(30.0, "a", 1)],
    )
    trace = job_log(
        [
            arrival("in time", "a", 9, 8),
            arrival("a moment late", "a", 10, 8),
            arrival("can wait", "a", 10, 4),
            arrival("last chance", "a", 29, 4),
            arrival("missed", "a", 30, 4),
            arrival("narrow", "a", 99, 1),
            arrival("never", "a", 0, 9),
        ]
    )
    played = playable(trace, table)
    assert ids(played) == ["in time", "can wait", "last chance", "narrow"]
    assert played.dropped == Counter(
        {"wider than its pool": 1, "wider than its pool will ever be again": 2}
    )


@settings(deadline=None)
@given(pool_tables(), st.lists(st.tuples(SECONDS, st.integers(1, MAX_QUOTA)), max_size=8))
def test_a_job_is_played_where_some_quota_from_its_submission_on_is_wide_enough(table, rows):
    name = table.pools[0].name
    trace = job_log([arrival(f"{i}", name, s, w) for i, (s, w) in enumerate(sorted(rows))])
    steps = table.quotas()[name]
    ends = [time for time, _ in steps[1:]] + [float("inf")]
    expected = [
        job.id
        for job, _ in trace.arrivals
        if any(
            job.width <= quota and job.submit < end
            for (_, quota), end in zip(steps, ends, strict=True)
        )
    ]
    played = playable(trace, table)
    assert ids(played) == expected
    assert played.dropped.total() + len(expected) == len(rows)


def test_reasons_are_words_for_people():
    reasons = {reason for *_, reason in BAD_ROWS.values()}
    assert all(re.fullmatch(r"[a-z_]+( [a-z0-9]+)+", reason) for reason in reasons)


# Jobs whose width may change


ELASTIC_HEAD = "job_id,pool,submit,width,duration,min_width,max_width,demand\n"


def test_a_log_says_how_far_a_width_may_change_and_what_that_does(tmp_path):
    rows = "a,p,0,2,60,1,4,1:100;2:60;4:40\nb,p,0,2,60,,,\n"
    first, second = (a.job for a in read_trace(written(tmp_path, ELASTIC_HEAD + rows)).arrivals)
    points = ((1, 100.0), (2, 60.0), (4, 40.0))
    assert first == Job("a", "p", 0.0, 2, min_width=1, max_width=4, demand=points)
    assert second == Job("b", "p", 0.0, 2)
    assert [first.speed(gpus) for gpus in (1, 2, 4, 8)] == [0.6, 1.0, 1.5, 1.5]
    assert first.speed(3) == pytest.approx((1.0 + 1.5) / 2)
    assert [second.speed(gpus) for gpus in (1, 2, 4)] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ("3,,", "min_width"),
        (",1,", "max_width"),
        ("0,,", "min_width"),
        ("1.5,,", "min_width"),
        (",many,", "max_width"),
        (",,2", "demand"),
        (",,1:0", "demand"),
        (",,0:5", "demand"),
        (",,2:50;1:90", "demand"),
        (",,1:60;1:50", "demand"),
        (",,1:60;", "demand"),
    ],
)
def test_widths_that_do_not_ascend_and_odd_demands_are_refused(tmp_path, cells, column):
    log = written(tmp_path, f"{ELASTIC_HEAD}a,p,0,2,60,{cells}\n")
    assert f"row 2, column {column}: " in refusal(read_trace, log)
    both = written(tmp_path, f"{ELASTIC_HEAD}a,p,0,2,60,{cells}\nb,p,0,1,1,,,\n")
    assert sum(read_trace(both, skip_invalid=True).dropped.values()) == 1
