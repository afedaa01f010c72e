"""The gateway's door: who may come in, how much they may carry, and what is written down of it.

Every request passes here first. Without a token only this machine's own names are answered (a web page elsewhere could
otherwise point a name of its own at this port, and read). A body is counted as it comes. What no handler caught ends here: a
foreign exception's text may quote a private one, so that the log has its type and place, and the application a code.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
from collections.abc import Callable, Collection
from hashlib import sha256
from time import monotonic
from typing import Any
from uuid import uuid4

from secformer.gateway.failures import Failure, of_session
from secformer.parties.server import describe

_log = logging.getLogger(__name__)

BODY_LIMIT = 8 << 20
OPEN = frozenset({"/", "/docs", "/health", "/openapi.json"})
"""Answered without a token: nothing in them is anybody's."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Watch = Callable[[str, int, float], None]
"""Hears route, status and seconds of every request."""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Token:
    """What applications must show. Only its digest is kept, and it prints as nothing."""

    def __init__(self, text: str) -> None:
        self._digest = sha256(text.encode()).digest()

    def fits(self, header: str) -> bool:
        """Takes as long for a wrong token as for the right one."""
        kind, _, shown = header.partition(" ")
        same = hmac.compare_digest(sha256(shown.strip().encode("utf-8", "surrogateescape")).digest(), self._digest)
        return same and kind.lower() == "bearer"


class Guard:
    """ASGI around the application."""

    def __init__(self, app: Any, token: Token | None, paths: Collection[str], watch: Watch) -> None:
        self._app, self._token, self._paths, self._watch = app, token, frozenset(paths), watch

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send)
        try:
            self._check(visit)
            await visit.take()
            await self._app(scope, visit.receive, visit.send)
        except Failure as failure:
            await visit.refuse(failure)
        except Exception as error:
            _log.error("[%s] %s", visit.id, describe(error))
            await visit.refuse(of_session(error))
        finally:
            route = visit.path if visit.path in self._paths else "other"
            seconds = monotonic() - visit.started
            self._watch(route, visit.status, seconds)
            fields = {"request": visit.id, "route": route, "status": visit.status, "seconds": round(seconds, 4)}
            _log.info("[%s] %s %d in %.3f s", visit.id, route, visit.status, seconds, extra={"fields": fields})

    def _check(self, visit: _Visit) -> None:
        if visit.carried() > BODY_LIMIT:
            raise _too_large()
        if self._token is None:
            if visit.host() not in LOCAL_NAMES:
                raise Failure(421, "gateway.host", "this gateway is called by the names of its own machine")
        elif visit.path not in OPEN and not self._token.fits(visit.header(b"authorization")):
            raise Failure(401, "gateway.token", "show the gateway's token: Authorization: Bearer …")


class _Visit:
    """One request, with its body counted and its status noted."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.id, self.started, self.status = uuid4().hex[:12], monotonic(), 0
        self.path: str = scope["path"]
        self._headers = dict(scope["headers"])
        self._receive, self._send = receive, send
        self._body: bytes | None = None

    def header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")

    def host(self) -> str:
        """The name it was called by, without the port."""
        name, colon, port = self.header(b"host").rpartition(":")
        return name.lower() if colon and port.isdecimal() else self.header(b"host").lower()

    def carried(self) -> int:
        length = self.header(b"content-length")
        return int(length) if length.isdecimal() and len(length) < 20 else 0

    async def take(self) -> None:
        """The whole body, or as much as is allowed."""
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise Failure(400, "gateway.gone", "the application has hung up")
            part, more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size += len(part)
            if size > BODY_LIMIT:
                raise _too_large()
        self._body = b"".join(parts)

    async def receive(self) -> Any:
        """The body, once; then whether the application is still there."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {**HEADERS, "X-Request-Id": self.id}
            message["headers"] = [
                *message.get("headers", ()),
                *((name.lower().encode(), value.encode()) for name, value in own.items()),
            ]
        await self._send(message)

    async def refuse(self, failure: Failure) -> None:
        """The failure as a response, unless one has begun already."""
        if self.status:
            return
        status, body = failure.told(self.path)
        content = json.dumps(body).encode()
        given = {"content-type": "application/json", "content-length": str(len(content)), **failure.headers()}
        headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})


def _too_large() -> Failure:
    return Failure(413, "input", f"the body exceeds {BODY_LIMIT >> 20} MiB: send fewer texts")
