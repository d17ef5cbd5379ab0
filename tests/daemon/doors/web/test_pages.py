"""What all pages have: nothing from elsewhere, no script within, names for all that is there."""

from collections import Counter

from daemon.config.config import PoolConfig
from tests.daemon.answers.test_eta import taught
from tests.daemon.doors.web.test_jobs import send
from tests.daemon.doors.web.test_places import NODES, lent
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.servers.browsers import browser, filled, parsed, seen

LABELLED = ("input", "select", "textarea")


def pages_of(client):
    """Each page, of a pool, and of a job that runs, one that waits and an array."""
    paths = {
        route.resource.canonical
        for route in client.app.router.routes()
        if route.method == "GET" and route.resource.canonical.startswith("/ui/")
    }
    for path in sorted(paths - {"/ui/assets/{name}", "/ui/events", "/ui/series"}):
        for job in ("now-too", "waits", "array"):
            yield path.replace("{id}", job).replace("{name}", "speech")
    yield from ("/ui/queue?what=running", "/ui/plan?span=hour", "/ui/jobs?phase=cancelled")


def wrong_in(html):
    """What a page should not have, or has not."""
    tags, _ = parsed(html)
    ids = Counter(a["id"] for _, a in tags if "id" in a)
    labels = {a.get("for") for tag, a in tags if tag == "label"}
    yield from (f"twice: {each}" for each, count in ids.items() if count > 1)
    for tag, has in tags:
        for what, wrong in (*strange(tag, has), *nameless(tag, has, ids, labels)):
            if wrong:
                yield f"{what}: {tag} {has}"


def strange(tag, has):
    """What the policy forbids, and what leads elsewhere."""
    inline = any(key.startswith("on") or key == "style" for key in has) or tag == "style"
    yield "from within", inline or (tag == "script" and "src" not in has)
    for key in ("href", "src", "action"):
        value = has.get(key, "/")
        yield "elsewhere", not value.startswith(("/", "#")) or value.startswith("//")


def nameless(tag, has, ids, labels):
    """What those cannot tell who do not see it, and what scripts cannot find."""
    for key in ("aria-labelledby", "aria-describedby"):
        yield "names nothing", key in has and has[key] not in ids
    yield "no scope", tag == "th" and "scope" not in has
    yield "cannot be found again", "data-live" in has and "id" not in has
    inside = has.get("type") in ("hidden", "checkbox", "radio")
    named = has.get("aria-label") or has.get("id") in labels
    yield "no label", tag in LABELLED and not inside and not named


@story
async def test_every_page_is_well_formed_and_escapes_everything(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client, browser(client) as visitor:
        taught(client)
        client.eta.ready = True
        await lent(client)
        await send(client, "waits", pool="speech", gpus=4)
        await send(client, "array", pool="speech", gpus=1, array=3)
        await asked(client, "POST", "/v1/nodes/n2/drain", {"why": "fan"})
        await job_in(client, "now-too", "running")
        await client.eta.look()
        wrong, number = [], 0
        for path in dict.fromkeys(pages_of(client)):
            page = await seen(visitor, path)
            wrong += [(path, each) for each in wrong_in(page)]
            number += 1
        assert wrong == []
        assert number > 15


EMPTY = {
    "/ui/queue": "nothing is pending",
    "/ui/queue?what=held": "no job is held",
    "/ui/queue?what=running": "nothing is running",
    "/ui/queue?what=held&user=ann": "No jobs match.",
    "/ui/jobs": "No jobs yet. Submit one",
    "/ui/plan": "No running jobs. Each would be a bar",
    "/ui/nodes": "No nodes are configured",
    "/ui/loans": "No open loans. Each loan would be listed",
    "/ui/settings": "No token but the machine's own",
    "/ui/pools/speech": "There is no account yet, or you may not see it. It would show",
}
"""What pages say of a daemon that nobody has used yet."""


@story
async def test_an_empty_page_says_what_would_be_there(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        for path, words in EMPTY.items():
            tags, text = parsed(await seen(visitor, path))
            assert words in text, path
            assert any("empty" in has.get("class", "").split() for _, has in tags), path


@story
async def test_few_pools_are_offered_in_a_menu_and_many_as_suggestions(folder):
    pools = tuple(PoolConfig(f"p{i:03}", 1) for i in range(600))
    async with door(folder, pools=pools[:3], speed=1.0) as client, browser(client) as visitor:
        for path in ("/ui/queue", "/ui/jobs", "/ui/plan", "/ui/loans"):
            page = await seen(visitor, f"{path}?pool=p001")
            assert choices(page, "select", "pool") == ["", "p000", "p001", "p002"]
            assert filled(page)["pool"] == "p001"
            page = await seen(visitor, f"{path}?pool=gone")
            assert filled(page)["pool"] == "gone", "what is asked for is shown, known or not"
    (folder / "many").mkdir()
    async with door(folder / "many", pools=pools, speed=1.0) as client, browser(client) as visitor:
        for path in ("/ui/queue", "/ui/whatif"):
            page = await seen(visitor, f"{path}?pool=p599")
            assert choices(page, "datalist", "pool-list") == [f"p{i:03}" for i in range(500)]
            assert filled(page)["pool"] == "p599"


def choices(page, tag, name):
    """The values that a menu or a list of suggestions offers."""
    values, inside = [], False
    for each, has in parsed(page)[0]:
        if each in ("select", "datalist"):
            inside = each == tag and name in (has.get("name"), has.get("id"))
        elif each == "option" and inside:
            values.append(has["value"])
    return values
