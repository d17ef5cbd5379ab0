"""`/v1/tokens`: issue and revoke tokens, and end sessions. A token is shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from daemon.doors.http.authentication import too_often
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, body_of
from daemon.model.access import OPERATOR_NAME, Rule
from daemon.model.book import TokenRecord
from daemon.model.inputs import IssueToken, RevokeToken, SignOut
from daemon.model.limits import MAX_TOKENS
from daemon.model.outputs import Answer, Refused
from daemon.runtime.rate_limit import TokenBuckets
from daemon.runtime.token_file import digest_of, new_token
from daemon.wire.access import TokenList, TokenMade, TokenRequest, TokenView
from daemon.wire.bodies import decoded
from daemon.wire.limits import SIGN_OUTS, SIGN_OUTS_AT_ONCE
from daemon.wire.problems import refusal

if TYPE_CHECKING:
    from daemon.service.service import Service

NAME = Parameter("name", str, "Name of the token.", "path")


class TokenRoutes:
    """Handlers of tokens and sessions."""

    def __init__(self, service: Service, cluster: str) -> None:
        """Serve the tokens of a service; new tokens carry the name of the cluster."""
        self._service, self._cluster = service, cluster
        self._request = msgspec.json.Decoder(TokenRequest)
        self._sign_outs = TokenBuckets(SIGN_OUTS, SIGN_OUTS_AT_ONCE, MAX_TOKENS + 1)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/tokens", Rule.OPERATE, self.tokens, "List tokens, without secrets.",
                {200: TokenList},
            ),
            Operation(
                "POST", "/v1/tokens", Rule.OPERATE, self.issue, "Issue a token. It is shown once.",
                {201: TokenMade}, TokenRequest, refusals=(409, 413, 422),
            ),
            Operation(
                "DELETE", "/v1/tokens/{name}", Rule.OPERATE, self.revoke, "Revoke a token.",
                {204: None}, None, (NAME,), (404, 409),
            ),
            Operation(
                "DELETE", "/v1/tokens/{name}/sessions", Rule.OPERATE, self.sign_out,
                "End all browser sessions of a token. The token stays valid.",
                {204: None}, None, (NAME,), (404,),
            ),
            Operation(
                "DELETE", "/v1/sessions", Rule.VIEW, self.sign_out_self,
                "End all browser sessions of the caller's token.", {204: None},
            ),
        ]  # fmt: skip

    async def tokens(self, request: web.Request) -> web.Response:
        """List tokens in the order of issue."""
        await self._service.settled()
        now = self._service.clock.now()
        tokens = self._service.book.tokens.values()
        return answer(TokenList([_view(token, now) for token in tokens]))

    async def issue(self, request: web.Request) -> web.Response:
        """Issue a token."""
        payload = decoded(await body_of(request), self._request, TokenRequest)
        token, now = new_token(self._cluster), self._service.clock.now()
        expires = None if payload.lasts is None else now + payload.lasts
        command = IssueToken(
            payload.name, payload.role, digest_of(token), tuple(dict.fromkeys(payload.pools)),
            expires, who_asks(request).name,
        )  # fmt: skip
        await self._do(request, command)
        made = TokenMade(payload.name, payload.role, [*command.pools], token, expires)
        return answer(made, 201, headers={"Cache-Control": "no-store"})

    async def revoke(self, request: web.Request) -> web.Response:
        """Revoke a token. Its requests are refused and its event streams end immediately."""
        name = request.match_info["name"]
        if name == OPERATOR_NAME:
            detail = "the machine's own token is stored in daemon.token_file"
            raise refusal(
                Refused(409, "conflict", detail, "delete the file and restart the daemon")
            )
        await self._do(request, RevokeToken(name, who_asks(request).name))
        return web.Response(status=204)

    async def sign_out(self, request: web.Request) -> web.Response:
        """End all sessions of a token. Browsers must sign in again; event streams end."""
        await self._do(request, SignOut(request.match_info["name"], who_asks(request).name))
        return web.Response(status=204)

    async def sign_out_self(self, request: web.Request) -> web.Response:
        """End all sessions of the caller's token. Rate-limited, because viewers may do this."""
        name = who_asks(request).name
        if wait := self._sign_outs.take(name):
            raise too_often(wait)
        await self._do(request, SignOut(name, name))
        return web.Response(status=204)

    async def _do(self, request: web.Request, command: IssueToken | RevokeToken | SignOut) -> None:
        found: Answer
        (found,) = await self._service.submit([command], request.remote or "")
        if isinstance(found, Refused):
            raise refusal(found)


def _view(token: TokenRecord, now: float) -> TokenView:
    return TokenView(
        token.name, token.role, [*token.pools], token.created, token.by, token.expires,
        expired=token.over(now),
    )  # fmt: skip
