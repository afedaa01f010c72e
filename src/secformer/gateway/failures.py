"""Errors as an application hears them: a status, a code that does not change, a sentence, and when to come again.

Routes under /v1 speak as OpenAI's do, the others as text-embeddings-inference's. Neither form has room for a text: a message
is one of ours, and what a library says of a request that it cannot read is cut down to the field and the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from secformer.errors import (
    AccessError,
    BusyError,
    IdentityError,
    InputError,
    LimitError,
    MissingModelError,
    SecFormerError,
    TransportError,
)

OPENAI = "/v1/"
RETRY = 5.0
"""Seconds after which a server that was gone may be back."""

_KINDS = {
    400: ("invalid_request_error", "validation"),
    401: ("authentication_error", "unauthorized"),
    403: ("permission_error", "forbidden"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "validation"),
    413: ("invalid_request_error", "validation"),
    421: ("invalid_request_error", "validation"),
    422: ("invalid_request_error", "validation"),
    429: ("rate_limit_error", "overloaded"),
    500: ("server_error", "internal"),
    502: ("server_error", "backend"),
    503: ("server_error", "unhealthy"),
}
"""By status: what OpenAI calls it, and what text-embeddings-inference does."""


class Failure(Exception):
    """What a request ends with instead of an answer."""

    def __init__(self, status: int, code: str, message: str, retry: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry = status, code, message, retry

    def headers(self) -> dict[str, str]:
        found = {} if self.retry is None else {"Retry-After": str(max(1, math.ceil(self.retry)))}
        return {**found, "WWW-Authenticate": "Bearer"} if self.status == 401 else found

    def told(self, path: str) -> Told:
        """Status and body for a route."""
        openai, other = _KINDS.get(self.status, _KINDS[500])
        if path.startswith(OPENAI):
            status = 400 if self.status == 422 else self.status
            error = {"message": self.message, "type": openai, "param": None, "code": self.code}
            return Told(status, {"error": error})
        return Told(self.status, {"error": self.message, "error_type": other, "code": self.code})


class Told(NamedTuple):
    status: int
    body: dict[str, Any]


def busy(waiting: int, retry: float) -> Failure:
    return Failure(429, "gateway.busy", f"{waiting} texts are waiting already: come again later", retry)


def of_request(error: SecFormerError) -> Failure:
    """An error that was found before any server was asked: it is about what the application brought."""
    if isinstance(error, InputError):
        return Failure(404 if isinstance(error, MissingModelError) else 422, error.code, str(error))
    return of_session(error)


def of_session(error: BaseException) -> Failure:
    """An error of a session. Whatever it is about, it is not about this application's text, which was checked before."""
    if not isinstance(error, SecFormerError):
        return Failure(500, "internal", "the gateway met an error of its own; its log has the place")
    message = str(error)
    if isinstance(error, BusyError):
        return Failure(429, error.code, message, error.retry_after)
    if isinstance(error, LimitError):
        return Failure(429, error.code, message, RETRY)
    if isinstance(error, AccessError):
        return Failure(403, error.code, message)
    if isinstance(error, MissingModelError):
        return Failure(503, error.code, message, RETRY)
    if isinstance(error, TransportError) and not isinstance(error, IdentityError):
        return Failure(503, error.code, message, RETRY)
    return Failure(502, error.code, message)


def unreadable(problems: Sequence[Mapping[str, Any]], known: frozenset[str]) -> Failure:
    """What pydantic found wrong with a request: field and rule, never what stood there."""
    first = problems[0]
    if first["type"] == "json_invalid":
        return Failure(422, "input", "the body is not valid JSON")
    if first["type"] == "extra_forbidden":
        return Failure(
            422, "input", f"the request has a field that is not known here; known are {', '.join(sorted(known))}"
        )
    where = next((part for part in first["loc"][1:] if part in known), None)
    rule = str(first["msg"]).removeprefix("Value error, ")
    return Failure(422, "input", f"{where}: {rule}" if where else f"the request: {rule}")
