"""Tokens: the engine stores their digests, names, roles and pools, never the tokens."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.engine.step import StepContext
from daemon.model.access import OPERATOR_NAME, RESERVED, wrong_scope
from daemon.model.book import TokenRecord
from daemon.model.inputs import IssueToken, RevokeToken, SignOut
from daemon.model.limits import MAX_TOKENS, TOKEN_REMEMBERED
from daemon.model.outputs import Accepted, Answer, Refused, name_a_pool


class Tokens:
    """Issues and revokes tokens."""

    def __init__(self, context: StepContext) -> None:
        """Work on this context."""
        self._context = context
        self._book = context.book

    def issue(self, asked: IssueToken) -> Answer:
        """Issue a token. O(tokens)."""
        self._remove_expired()
        wrong = self._wrong(asked)
        if wrong is not None:
            return wrong
        before = self._book.token(asked.name)
        if before is not None:  # `_wrong` has checked that it has expired
            del self._book.tokens[before.digest]
        self._book.tokens[asked.digest] = TokenRecord(
            asked.name, asked.role, asked.digest, self._context.now, asked.pools, asked.expires,
            asked.actor,
        )  # fmt: skip
        self._context.notify(
            "token_issued", name=asked.name, role=asked.role.value, pools=list(asked.pools),
            expires=asked.expires, by=asked.actor,
        )  # fmt: skip
        return Accepted()

    def _wrong(self, asked: IssueToken) -> Refused | None:
        """Return why this token cannot be issued; None if it can."""
        book, now = self._book, self._context.now
        scope = wrong_scope(asked.role, asked.pools)
        if scope is not None:
            return _unfit(*scope)
        gone = next((pool for pool in asked.pools if pool not in book.pools), None)
        if gone is not None:
            return _unfit(f"there is no pool {gone!r}", name_a_pool(gone, book.pools))
        if asked.expires is not None and asked.expires <= now:
            return _unfit("the token expires before it is issued", "give a time in the future")
        known = book.token(asked.name)
        taken = known is not None and not known.over(now)
        if asked.name in RESERVED or taken or asked.digest in book.tokens:
            why = f"there is already a token {asked.name!r}"
            return Refused(409, "name is taken", why, "choose another name, or revoke that token")
        if len(book.tokens) >= MAX_TOKENS:
            why = f"there are already {MAX_TOKENS} tokens"
            return Refused(409, "too many tokens", why, "revoke tokens that are not needed")
        return None

    def _remove_expired(self) -> None:
        """Remove tokens that expired more than `TOKEN_REMEMBERED` ago."""
        tokens, oldest = self._book.tokens, self._context.now - TOKEN_REMEMBERED
        for digest in [digest for digest, token in tokens.items() if token.over(oldest)]:
            del tokens[digest]

    def revoke(self, asked: RevokeToken) -> Answer:
        """Revoke a token. O(tokens)."""
        known = self._book.token(asked.name)
        if known is None:
            return _unknown(asked.name)
        del self._book.tokens[known.digest]
        self._context.notify("token_revoked", name=asked.name, by=asked.actor)
        return Accepted()

    def sign_out(self, asked: SignOut) -> Answer:
        """End all browser sessions of a token, which stays valid. O(tokens)."""
        book = self._book
        known = book.token(asked.name)
        if known is not None:
            book.tokens[known.digest] = replace(known, signed_out=known.signed_out + 1)
        elif asked.name == OPERATOR_NAME:
            book.signed_out += 1
        else:
            return _unknown(asked.name)
        self._context.notify("token_signed_out", name=asked.name, by=asked.actor)
        return Accepted()


def _unknown(name: str) -> Refused:
    return Refused(404, "no such token", f"there is no token {name!r}", "see: sia token list")


def _unfit(why: str, fix: str) -> Refused:
    return Refused(422, "invalid", why, fix)
