"""`secformer gateway`: HTTP for applications on this side of the trust line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from secformer.errors import SettingsError
from secformer.parties.logs import set_up
from secformer.parties.serve import end
from secformer.settings import Settings


def gateway(names: Sequence[str], settings: Settings, new_token: Path | None) -> None:
    """Serve applications until told to stop, or write a token for them first of all."""
    try:
        from secformer.gateway.service import run, write_token
    except ImportError as error:
        raise SettingsError(
            f"the gateway needs packages that are not here ({error.name}): pip install 'secformer[gateway]'"
        ) from None
    if new_token is not None:
        write_token(new_token)
        print(f"wrote {new_token}: give it to applications, and to this gateway as --token", file=sys.stderr)
        return
    set_up(settings)
    for number in (signal.SIGTERM, signal.SIGINT):  # once it has stopped, the server passes on what it was told by
        signal.signal(number, lambda *_: None)
    run(names, settings)
    end(0)
