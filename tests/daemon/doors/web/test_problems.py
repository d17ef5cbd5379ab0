"""Error pages say what is true, and what a reader can do."""

import pytest
from aiohttp.test_utils import TestClient, TestServer

from daemon.doors.http.not_ready import waiting
from daemon.model.errors import UnavailableError
from daemon.wire.problems import ProblemError
from tests.daemon.doors.web.test_jobs import token_of
from tests.support.daemons.doors import door, story
from tests.support.servers.browsers import PAGE, browser, parsed, seal_in, seen


async def told(visitor, method, path, status, **fields):
    """(Tags, text of the main part) of a page about a problem."""
    request = visitor.request(method, path, data=fields or None, allow_redirects=False)
    async with request as response:
        page = await response.text()
        assert response.status == status, page
        assert response.content_type == "text/html"
        tags, text = parsed(page)
        assert f"HTTP status {status}" in text
        assert "openapi" not in text
        return tags, text


PROBLEMS = (
    ("GET", "/ui/nothing", 404, "No such path. Check the address"),
    ("GET", "/ui/jobs/nobody", 404, "There is no job 'nobody'. Check the address"),
    ("GET", "/ui/pools/visoin", 404, "There is no pool 'visoin'. Did you mean 'vision'? Overview"),
    ("GET", "/ui/sign-out", 405, "This path does not take GET. Open the page that has this form"),
    ("GET", "/ui/?page=x", 422, "'x' is invalid; use an integer. Go back"),
    ("POST", "/ui/settings/lending", 422, "'no' is invalid; use on, shadow, off. Go back"),
)


@pytest.mark.parametrize(("method", "path", "status", "words"), PROBLEMS)
def test_an_error_page_says_what_is_wrong(tmp_path, method, path, status, words):
    @story
    async def tell(folder):
        async with door(folder) as client, browser(client) as visitor:
            form = seal_in(await seen(visitor, "/ui/"))
            fields = {"form": form, "mode": "no"} if method == "POST" else {}
            tags, text = await told(visitor, method, path, status, **fields)
            assert words in text
            plain = [has["href"] for tag, has in tags if tag == "a" and has["href"] == "/ui/"]
            assert len(plain) > 1

    tell(tmp_path)


@story
async def test_a_forbidden_page_names_the_token_of_the_session(folder):
    async with door(folder) as client:
        token = await token_of(client, role="viewer")
        async with browser(client, token) as visitor:
            _, text = await told(visitor, "GET", "/ui/audit", 403)
            assert (
                "Token t is a viewer token: it may not operate the daemon. Ask an operator" in text
            )


@story
async def test_a_large_form_and_one_from_elsewhere_are_refused_in_words(folder):
    async with door(folder) as client, browser(client) as visitor:
        form = seal_in(await seen(visitor, "/ui/"))
        path = "/ui/settings/lending"
        _, text = await told(visitor, "POST", path, 413, form=form, x="a" * 70_000)
        assert "The form has more than 65,536 bytes. Shorten the fields." in text
        _, text = await told(visitor, "POST", path, 403, mode="off")
        assert "Reload the page and submit the form again." in text


@pytest.mark.parametrize("status", [429, 503])
def test_a_page_that_may_become_available_reloads_itself(tmp_path, status, monkeypatch):
    async def away():
        raise UnavailableError(status, "the disk is full", 7.0)

    @story
    async def tell(folder):
        async with door(folder) as client, browser(client) as visitor:
            monkeypatch.setattr(client.service, "settled", away)
            tags, text = await told(visitor, "GET", "/ui/jobs", status)
            assert "The disk is full. Try again in 7 s. Try again The page does this" in text
            assert ("p", {"data-again": "7"}) in tags
            assert ("a", {"href": "/ui/jobs"}) in tags

    tell(tmp_path)


@story
async def test_a_daemon_that_is_not_ready_shows_a_page_that_says_so(folder):
    why = ProblemError(503, "starting", "this <daemon> is becoming the leader", "wait")
    app = waiting(lambda: why, lambda: (False, 0))
    async with TestClient(TestServer(app)) as client:
        async with client.get("/ui/", headers=PAGE) as response:
            assert response.status == 503
            tags, text = parsed(await response.text())
        assert "This <daemon> is becoming the leader. Wait." in text
        assert {"content": "1", "http-equiv": "refresh"} in [
            has for tag, has in tags if tag == "meta"
        ]
        async with client.get("/v1/jobs") as response:
            assert response.content_type == "application/problem+json"
