"""`sia token`: create, list and revoke API tokens."""

from __future__ import annotations

import click

from daemon.cli.client import Client, at
from daemon.cli.common import asks, moment, say
from daemon.model.access import ISSUED, Role, wrong_scope
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.console.text import SPAN


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke API tokens.

    All but sign-out need the role operator.
    """


@token.command("create")
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in ISSUED]), required=True,
    help="What the token allows: viewer reads, submitter submits jobs, admin changes pools, "
    "operator does everything.",
)  # fmt: skip
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="POOL",
    help="Limit the token to this pool; repeatable.",
)
@click.option(
    "--expires", type=SPAN, help="Let the token expire after this time, like 30d.  [default: never]"
)
@asks
def create(
    client: Client,
    name: str,
    role: str,
    pools: tuple[str, ...],
    expires: float | None,
    *,
    as_json: bool,
) -> None:
    """Create a token and print it.

    The daemon cannot show the token again.
    """
    wrong = wrong_scope(Role(role), pools)
    if wrong is not None:
        raise click.UsageError(f"{wrong[0]}; {wrong[1]}, with --pool")
    body = {"name": name, "role": role, "pools": list(pools), "lasts": expires}
    answer = client.ask("POST", "/v1/tokens", body)
    if as_json:
        say(answer)
        return
    click.echo(answer["token"])
    until = f" until {moment(answer['expires'])}" if answer["expires"] else ", until it is revoked"
    scope = f" of {', '.join(answer['pools'])}" if answer["pools"] else ""
    click.echo(f"{name}: {role}{scope}{until}; store it now, it is not shown again", err=True)


@token.command("list")
@asks
def list_tokens(client: Client, as_json: bool) -> None:
    """List tokens with their role, pools and expiry."""
    answer = client.get("/v1/tokens")
    if as_json:
        say(answer)
        return
    rows = [
        [
            each["name"], each["role"], ", ".join(each["pools"]) or "all", moment(each["created"]),
            each["by"], _until(each["expires"], expired=each["expired"]),
        ]
        for each in answer["tokens"]
    ]  # fmt: skip
    show_table("Tokens", ["token", "role", "pools", "issued", "by", "expires"], rows)


def _until(expires: float | None, *, expired: bool) -> str:
    if expires is None:
        return "never"
    return f"{moment(expires)}{' (expired)' if expired else ''}"


@token.command("revoke")
@click.argument("name")
@asks
def revoke(client: Client, name: str, as_json: bool) -> None:
    """Revoke a token."""
    client.ask("DELETE", f"/v1/tokens/{at(name)}")
    if as_json:
        say({"name": name})
        return
    click.echo(f"{name} is revoked")


@token.command("sign-out")
@click.argument("name", required=False)
@asks
def sign_out(client: Client, name: str | None, as_json: bool) -> None:
    """Sign all browsers out.

    Ends the web sessions of your token, or of the token NAME. The token itself stays valid.
    """
    client.ask("DELETE", "/v1/sessions" if name is None else f"/v1/tokens/{at(name)}/sessions")
    if as_json:
        say({"name": name})
        return
    click.echo(f"all sessions{'' if name is None else f' of {name}'} ended; the token stays valid")
