"""What a body of JSON may contain, whatever the request."""

import json

import msgspec
import pytest

from daemon.wire.bodies import at_once, decoded, read_batch
from daemon.wire.jobs import MAX_ARGUMENTS, JobRequest
from daemon.wire.limits import MAX_OBJECTS
from daemon.wire.problems import ProblemError


def problem(**job):
    body = json.dumps({"pool": "vision", "gpus": 1, **job}).encode()
    with pytest.raises(ProblemError) as raised:
        decoded(body, msgspec.json.Decoder(JobRequest), JobRequest)
    return raised.value


def test_a_list_with_too_many_members_is_refused_before_its_members_are_checked():
    counted = problem(command=["-v"] * MAX_OBJECTS)
    assert counted.status == 422
    assert f"length {MAX_ARGUMENTS} or less" in counted.details.detail
    refused = problem(command=["-v"] * (MAX_OBJECTS + 1))
    assert (refused.status, refused.details.title) == (400, "too deep")
    assert "a list or object is too long: at most 10,000 objects" in refused.details.detail


def test_json_that_is_nested_too_deeply_is_refused_without_a_word_on_lists():
    body = b"[" * 50_000 + b"]" * 50_000
    with pytest.raises(ProblemError) as raised:
        decoded(body, msgspec.json.Decoder(JobRequest), JobRequest)
    assert raised.value.details.detail == "the body: is nested too deeply"


def test_a_long_list_is_found_inside_other_values():
    assert problem(tags={"a": [[0], [[0] * (MAX_OBJECTS + 1)]]}).status == 400


def test_an_object_with_too_many_keys_is_refused():
    assert problem(tags={str(i): "" for i in range(MAX_OBJECTS)}).status == 422
    assert problem(tags={str(i): "" for i in range(MAX_OBJECTS + 1)}).status == 400


def test_the_job_of_a_batch_with_a_list_that_is_too_long_is_named():
    jobs = [{"pool": "vision"}, {"pool": "vision", "command": ["-v"] * (MAX_OBJECTS + 1)}]
    with pytest.raises(ProblemError) as raised:
        at_once(
            read_batch(
                json.dumps({"jobs": jobs}).encode(), msgspec.json.Decoder(JobRequest), JobRequest,
                dict,
            )
        )  # fmt: skip
    assert raised.value.details.detail.startswith("jobs[1]: has too many objects, or a list")
