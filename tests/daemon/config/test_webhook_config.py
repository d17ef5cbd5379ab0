"""`[[webhook]]`: all that is wrong is said at once, and no secret with it."""

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from daemon.config.read import ConfigError, read_config
from daemon.config.webhook_kinds import KINDS
from daemon.config.webhook_limits import BODY, LONGEST_WISH
from daemon.config.webhooks import read_secrets
from daemon.doors.webhooks.delivery import DeliveryBatcher
from daemon.doors.webhooks.http_post import WebhookClient, seconds_of
from daemon.doors.webhooks.signature import Secrets
from daemon.model.outputs import Notice
from sia.console.errors import UserError
from tests.support.paths import ROOT
from tests.support.servers.webhooks import SECRET, hook, secret_in

POOL = '[[pool]]\nname = "vision"\nquota = 4\n'


def said(folder, text):
    path = folder / "sia.toml"
    path.write_text(POOL + text)
    try:
        return read_config(path).webhooks
    except ConfigError as error:
        return error.problems


def table(**keys):
    keys = {"name": "ops", "url": "https://ops.example/e", "secret_file": "secret"} | keys
    return "[[webhook]]\n" + "".join(f"{key} = {value!r}\n" for key, value in keys.items())


def test_a_valid_webhook_is_read(tmp_path):
    secret = secret_in(tmp_path)
    (made,) = said(
        tmp_path,
        table(events=["ended"], pools=["vision"], timeout="2s", give_up="1h", batch=1, refusals=3),
    )
    assert made == hook(
        tmp_path, "https://ops.example/e", events=["ended"], pools=["vision"], timeout=2.0,
        give_up=3600.0, batch=1, refusals=3,
    )  # fmt: skip
    assert made.secret_file == secret
    (local,) = said(tmp_path, table(url="http://127.0.0.1:8080/e"))
    assert local.origin == "http://127.0.0.1:8080"


def test_all_errors_are_reported_at_once(tmp_path):
    found = said(
        tmp_path,
        table(events=["endd"], pools=["visoin"], timeout="2h", give_up="x", ca_file="none.pem")
        + table(url="http://ops.example/", batch=0)
        + table(name="a b")
        + table(bogus=1),
    )
    text = "\n".join(found)
    for words in (
        "events: unknown event 'endd'; use account_renewed, ",
        "pools: unknown pool 'visoin'",
        "timeout: is 7200 s; use at most 60s",
        "webhook[0].give_up: 'x' is not a time",
        "none.pem: No such file or directory; give a file in PEM",
        "url: http:// to another machine is not encrypted; use https://",
        "webhook[1].batch: 0 is invalid",
        "webhook[2].name: 'a b' is invalid; use letters, digits",
        "webhook[3].bogus: is unknown",
        "webhook: the name 'ops' is used 3 times",
        "secret: No such file or directory; write the secret to this file",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    "url",
    ["ftp://a.example/", "ops.example", "https://", "https://u:hunter2@a.example/", "https://a b/",
     "https://a.example/#hunter2", "https://a.example:99999/", "http://10.0.0.1/hunter2"],
)  # fmt: skip
def test_an_impossible_url_is_refused_without_being_repeated(tmp_path, url):
    secret_in(tmp_path)
    (problem,) = said(tmp_path, table(url=url))
    assert problem.startswith("webhook ops: url: ")
    assert "hunter2" not in problem


def test_a_url_is_not_shown(tmp_path):
    made = hook(tmp_path, "https://ops.example/T0/hunter2?key=hunter3")
    assert made.origin == "https://ops.example"
    assert "hunter" not in repr(made)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_can_read_is_refused(tmp_path, mode):
    secret_in(tmp_path).chmod(mode)
    (problem,) = said(tmp_path, table())
    assert "other users can read the secret; run chmod 600" in problem


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "\n".join(["a" * 20] * 3)])
def test_a_file_without_a_secret_is_refused(tmp_path, text):
    secret_in(tmp_path, text)
    (problem,) = said(tmp_path, table())
    assert "secret" in problem.partition("secret_file: ")[2]


def test_during_a_change_of_secrets_both_sign(tmp_path):
    path = secret_in(tmp_path, f"{SECRET}\nanother-secret-of-ours")
    secrets = Secrets(read_secrets(path))
    header = secrets.header(b"{}", 5)
    assert re.fullmatch(r"t=5,v1=[0-9a-f]{64},v1=[0-9a-f]{64}", header)
    assert SECRET not in repr(secrets)


def test_invalid_certificates_are_refused(tmp_path):
    no_pem = tmp_path / "ca.pem"
    no_pem.write_text("nothing")
    made = hook(tmp_path, "https://ops.example/", ca_file=no_pem)
    with pytest.raises(UserError, match=r"ca\.pem: .*; give a file in PEM"):
        WebhookClient(made, Secrets(read_secrets(made.secret_file)))
    (found,) = said(tmp_path, table(ca_file="ca.pem"))
    assert found.startswith("webhook ops: ca_file: ")
    assert found.endswith("; give a file in PEM")


def test_every_kind_of_notice_can_be_subscribed_to():
    source = ROOT / "daemon"
    told = {
        kind
        for path in source.rglob("*.py")
        for kind in re.findall(r'\.notify\(\s*"(\w+)"', path.read_text())
    }
    assert told <= KINDS, "name it in daemon/config/webhook_kinds.py"
    by_state = {"cancelled", "ended", "lost", "lending_kept", "lending_resumed"}
    assert KINDS - told == by_state, "those are by how a job or pool stands"


def test_retry_after_is_read():
    assert seconds_of("7") == 7
    assert seconds_of("99999999999999999999") == LONGEST_WISH
    for nonsense in ("", "-1", "soon", "\u0661", "1e9", "Mon, 99 Foo"):
        assert seconds_of(nonsense) == 0, nonsense
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 55 < seconds_of(later) <= 60
    assert seconds_of("Mon, 01 Jan 2001 00:00:00 GMT") == 0
    assert seconds_of("Mon, 01 Jan 2001 00:00:00") == 0


def cut(folder, notices, last=0, **more):
    """All deliveries of these."""

    async def page(after):
        return [notice for notice in notices if notice.seq > after][:7]

    async def all_of_them():
        cutter, after, found = (
            DeliveryBatcher(hook(folder, "https://a.example/", **more), page),
            0,
            [],
        )
        while delivery := await cutter.next(after, last):
            found.append(delivery)
            after = delivery.until
        return found

    return asyncio.run(all_of_them())


def test_deliveries_are_cut_by_number_and_by_size(tmp_path):
    few = [Notice(seq, 0.0, "ended") for seq in range(1, 31)]
    made = cut(tmp_path, few, batch=3)
    assert [d.until for d in made][:5] == [3, 6, 7, 10, 13]
    large = [Notice(seq, 0.0, "ended", data={"why": "x" * (BODY // 3)}) for seq in range(1, 6)]
    made = cut(tmp_path, large)
    assert [(d.first, d.until) for d in made] == [(1, 2), (3, 4), (5, 5)]
    huge = [Notice(seq, 0.0, "ended", data={"why": "x" * 2 * BODY}) for seq in range(1, 4)]
    assert [d.until for d in cut(tmp_path, huge)] == [1, 2, 3]


def test_a_repeated_delivery_has_the_same_events(tmp_path):
    notices = [Notice(seq, 0.0, "ended") for seq in range(4, 20)]  # older ones are forgotten
    first = cut(tmp_path, notices, last=6)[0]
    assert (first.id, first.first, first.until) == ("ops-4-6", 4, 6)
    assert cut(tmp_path, notices, last=2)[0].until == 10, "nothing of it is there any more"


def test_receivers_know_a_delivery_as_the_manual_says(tmp_path):
    manual = ROOT / "docs" / "operate/webhooks.md"
    (example,) = re.findall(r"```python\n(.*?)```", manual.read_text(), re.DOTALL)
    known = {}
    exec(example, known)
    is_ours, body = known["is_ours"], b'{"events":[]}'
    now = int(time.time())
    for secret, right in ((SECRET, True), ("another-secret-of-ours", True), ("x" * 20, False)):
        signs = Secrets(read_secrets(secret_in(tmp_path, f"{SECRET}\nanother-secret-of-ours")))
        assert is_ours(signs.header(body, now), body, secret) is right
        assert not is_ours(signs.header(body, now), body + b" ", secret)
        assert not is_ours(signs.header(body, now - 301), body, secret)
    for nonsense in ("", "t=", "v1=", f"t={now}", f"t={now},v1=", "t=-5,v1=x"):
        assert not is_ours(nonsense, body, SECRET)
