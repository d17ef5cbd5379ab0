"""The engine's part for tokens: who may come in, by digests alone."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.engine.step import StepContext
from daemon.model.access import OPERATOR_NAME, RESERVED, wrong_scope
from daemon.model.book import TokenRecord
from daemon.model.inputs import IssueToken, RevokeToken, SignOut
from daemon.model.limits import MAX_TOKENS, TOKEN_REMEMBERED
from daemon.model.outputs import Accepted, Answer, Refused, name_a_pool


class Tokens:
    """Issues and revokes them."""

    def __init__(self, context: StepContext) -> None:
        """Work at this context."""
        self._context = context
        self._book = context.book

    def issue(self, asked: IssueToken) -> Answer:
        """Let whoever has it in from now on. O(tokens)."""
        self._forget()
        wrong = self._wrong(asked)
        if wrong is not None:
            return wrong
        before = self._book.token(asked.name)
        if before is not None:  # it has expired, as `_wrong` has seen
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
        """Why there cannot be such a token, if so."""
        book, now = self._book, self._context.now
        scope = wrong_scope(asked.role, asked.pools)
        if scope is not None:
            return _unfit(*scope)
        gone = next((pool for pool in asked.pools if pool not in book.pools), None)
        if gone is not None:
            return _unfit(f"there is no pool {gone!r}", name_a_pool(gone, book.pools))
        if asked.expires is not None and asked.expires <= now:
            return _unfit("it expires before it is issued", "name a time to come")
        known = book.token(asked.name)
        taken = known is not None and not known.over(now)
        if asked.name in RESERVED or taken or asked.digest in book.tokens:
            why = f"there is a token {asked.name!r} already"
            return Refused(409, "name is taken", why, "take another name, or revoke that one")
        if len(book.tokens) >= MAX_TOKENS:
            why = f"there are {MAX_TOKENS} tokens already"
            return Refused(409, "too many tokens", why, "revoke those that nobody needs")
        return None

    def _forget(self) -> None:
        """Those that expired long ago are not even listed any more."""
        tokens, oldest = self._book.tokens, self._context.now - TOKEN_REMEMBERED
        for digest in [digest for digest, token in tokens.items() if token.over(oldest)]:
            del tokens[digest]

    def revoke(self, asked: RevokeToken) -> Answer:
        """Let nobody in by it any more. O(tokens)."""
        known = self._book.token(asked.name)
        if known is None:
            return _unknown(asked.name)
        del self._book.tokens[known.digest]
        self._context.notify("token_revoked", name=asked.name, by=asked.actor)
        return Accepted()

    def sign_out(self, asked: SignOut) -> Answer:
        """Have all sessions that began by it be over; the token itself counts on. O(tokens)."""
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


def _unfit(why: str, mend: str) -> Refused:
    return Refused(422, "cannot be", why, mend)
