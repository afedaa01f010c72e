"""The two pages of a gateway: one to try a text in, one that shows its interface. Each is one file that loads nothing.

A browser is told so, too: nothing may run or be fetched but the page's own script and style, by their hashes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from starlette.responses import HTMLResponse


def page(name: str) -> HTMLResponse:
    text = files("secformer.gateway").joinpath(name).read_text(encoding="utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": policy(text), "X-Frame-Options": "DENY"})


def policy(text: str) -> str:
    """What a browser may do on this page."""
    allowed = "; ".join(f"{part}-src {' '.join(_hashes(text, part))}" for part in ("script", "style"))
    return f"default-src 'none'; connect-src 'self'; {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _hashes(text: str, part: str) -> list[str]:
    inside = re.findall(rf"<{part}>(.*?)</{part}>", text, re.S)
    return [f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in inside]
