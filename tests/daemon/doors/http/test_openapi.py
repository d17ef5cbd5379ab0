"""The OpenAPI document says what the door does: every route, every answer, whatever is sent."""

import re
import subprocess
import sys

import pytest
from aiohttp import web

from tests.daemon.cli.test_commands import Served
from tests.support.budget import budget
from tests.support.daemons.doors import asked, door, story
from tests.support.paths import ROOT

EXAMPLES = budget(ci=2, soak=60)
"""For each operation; `make soak` makes thousands of cases."""

PHASES = budget(ci="fuzzing,stateful", soak="examples,coverage,fuzzing,stateful")

BESIDES = "positive_data_acceptance,use_after_free"
"""Schemathesis' checks that nothing well formed is refused (a job of a pool that is not there is,
and so is 1.0 where JSON Schema sees an integer), and that what was deleted is gone (a job that was
cancelled can still be looked at)."""


@story
async def test_every_route_is_documented_and_nothing_else(folder):
    async with door(folder) as client:
        document = await asked(client, "GET", "/v1/openapi.json")
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in client.app.router.routes()
            if isinstance(route, web.ResourceRoute) and route.method != "HEAD"
        }
    routes = {(method, path) for method, path in routes if not is_page(path)}
    said = {(method, path) for path, item in document["paths"].items() for method in item}
    assert said == routes
    assert document["openapi"] == "3.1.0"
    operations = [document["paths"][path][method] for method, path in said]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] for operation in operations)


def is_page(path):
    return path == "/" or path.startswith("/ui/")


@story
async def test_all_references_resolve(folder):
    async with door(folder) as client:
        async with client.get("/v1/openapi.json") as response:
            text = await response.text()
        schemas = (await asked(client, "GET", "/v1/openapi.json"))["components"]["schemas"]
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names
    assert names <= set(schemas)
    assert "§" not in text


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    daemon = Served(tmp_path_factory.mktemp("served"))
    yield daemon
    assert daemon.end() == 0
    assert '"level": "error"' not in daemon.log


CHANGES = [
    word for method in ("POST", "PUT", "PATCH", "DELETE") for word in ("--include-method", method)
]

OPERATIONS = {"operator": [], "submitter": budget(ci=CHANGES, soak=[])}
"""What each role asks for: answers to a submitter's GET have the same form, and less in them."""


SCHEMATHESIS = f"""
import sys
from runpy import run_module
sys.path.append({str(ROOT)!r})
from tests.support.characters import know_utf_8
know_utf_8()
run_module("schemathesis.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("role", OPERATIONS)
def test_the_answer_to_any_request_matches_the_documentation(served, role):
    for state in ("--hold", "--requeue"):
        served("submit", "--pool", "vision", "--duration", "9d", "--id", f"{role}{state}", state)
    url = served.first.split()[2].rstrip(";")
    token = (served.config.parent / "state" / "token").read_text().strip()
    if role == "submitter":
        token = served.said("token", "create", "s", "--role", role, "--pool", "vision")["token"]
    done = subprocess.run(
        [sys.executable, "-c", SCHEMATHESIS, "run", f"{url}/v1/openapi.json",
         "--header", f"Authorization: Bearer {token}", "--max-examples", str(EXAMPLES),
         "--phases", PHASES, "--checks", "all", "--exclude-checks", BESIDES, "--seed", "1",
         "--no-color", *OPERATIONS[role]],
        capture_output=True, text=True, check=False, cwd=served.config.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    cases = int(re.search(r"(\d[\d,]*) generated", done.stdout)[1].replace(",", ""))
    assert cases >= 25 * EXAMPLES
