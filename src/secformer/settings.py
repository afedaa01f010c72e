"""Every setting a person can turn, and the one place that decides which of its values counts:

    flag  >  environment (SECFORMER_CONNECTIONS=…)  >  file (secformer.toml)  >  default

These are the settings of one machine; what all parties agree on is in the deployment file (deployment.py).

The file is `secformer.toml` in the working directory, or the one that SECFORMER_CONFIG names. A name that
nobody knows is an error wherever it stands: a misspelt setting that is ignored is a wrong measurement.

`Settings` itself needs the standard library only. `load_settings` reads the sources and imports
pydantic-settings when it is called, so that the engine imports on machines that lack it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

from secformer.errors import SettingsError

ENVIRONMENT_PREFIX = "SECFORMER_"
CONFIG_VARIABLE = "SECFORMER_CONFIG"
CONFIG_FILE = "secformer.toml"

NetworkProfile = Literal["none", "lan", "wan"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process needs to know besides the program it runs. Nothing here is secret."""

    deployment: Path = Path("deployment.toml")
    """The deployment file: where the servers are called, and who they are."""
    listen_callers: str = ""
    """host:port at which this server listens for clients and providers; empty: as the deployment file says."""
    listen_servers: str = ""
    """The same for the other servers."""
    connections: int = 2
    """Parallel connections between two servers. More move more bytes a second; of three or more between S0 and S1 the last
    serves short rounds."""
    network: NetworkProfile = "none"
    """Network to imitate: `lan` 10 Gb/s and 0.2 ms, `wan` 400 Mb/s and 40 ms, `none` the real one.
    With `deal_first` T's line is left as it is."""

    lanes: int = 2
    """Sessions that a server has under way at once."""
    queue: int = 64
    """Callers that may wait for a lane; whoever comes then is told when to come again."""
    suites: str = "exact, fast"
    """Suites whose models this server accepts. The paper's four need the lab, and their truncation fails by chance."""
    trio: int = 0
    """Which of its addresses in the deployment file this server is, counted from 0."""

    threads: int = 0
    """Threads of a server's arithmetic in each lane; 0 leaves the choice to torch."""
    device: str = "cpu"
    """Torch device of a server's arithmetic, and of `plain` and `simulate`, such as `cpu` or `cuda:0`."""

    log_level: LogLevel = "info"
    """Least severe message that is logged; no level logs a secret."""
    log_format: LogFormat = "text"
    """`text` for people, `json` for a collector: an object a line."""
    metrics: str = ""
    """host:port at which this server shows its metrics to Prometheus; a loopback address, unless you mean others to see
    them. Empty: nowhere."""
    identity_folder: Path = Path("~/.secformer/identity")
    """Keys and certificates of this machine's roles."""
    data_folder: Path = Path("~/.secformer/data")
    """Models that servers keep, a folder a role. Losing it loses the models."""
    cache_folder: Path = Path("~/.secformer/cache")
    """What can be computed or fetched again: fits, calibrations, cards and tokenizers."""
    loaded_models: int = 4
    """Models that a server holds in memory, those used last; the others wait on its disk."""

    stock: str = ""
    """What S0 has T deal ahead of demand: model, texts x padded tokens, items, as in "sentiment 1x32 4, sentiment 8x32 2"."""
    stock_space: int = 16 << 30
    """Bytes of corrections that S1 keeps on its disk for that."""

    message_limit: int = 1 << 32
    """Largest payload in bytes that a frame may announce; checked before anything is allocated."""
    receive_buffer: int = 256 << 20
    """Bytes received ahead of their reader before the sender has to wait."""

    deal_first: bool = False
    """Wait until T has dealt everything before the first round, to time the two phases apart; needs a receive_buffer
    that holds it all. Meanwhile a server on a CPU computes what its masks alone decide, and keeps it: an int64 for every
    output of a linear layer."""
    material_on_device: bool = True
    """Where the device is a GPU and a query is recorded there: take what T deals into its memory as it comes, ahead of the run.
    Else it waits in the machine's memory and is fetched while the servers compute."""

    connect_timeout: float = 4.0
    """Seconds to find a peer that is still starting."""
    handshake_timeout: float = 4.0
    """Seconds for the TLS handshake, and for the comparison of tape, version and settings."""
    receive_timeout: float = 15.0
    """Seconds without a sign of life: a party says every second that it is there. One that died is noticed at once."""
    caller_timeout: float = 20.0
    """Seconds in which a caller must have sent its inputs once it is asked to, whatever it dribbles; large ones get more."""
    session_timeout: float = 3600.0
    """Seconds after which a session is given up, however alive everybody is."""

    gateway_listen: str = "127.0.0.1:27180"
    """host:port at which the gateway takes texts from applications; beyond loopback it needs a token."""
    gateway_token: str = ""
    """A file with the token that applications must show, readable by its owner alone."""
    gateway_certificate: str = ""
    """A certificate, in PEM, for HTTPS at the gateway; empty: plain HTTP."""
    gateway_key: str = ""
    """Its private key, in PEM."""
    gateway_queue: int = 256
    """Texts that may wait at the gateway; whoever brings more is told when to come again."""
    gateway_batch: int = 8
    """Texts that share a session at the most."""
    gateway_sessions: int = 2
    """Sessions that the gateway has under way at once."""

    @property
    def accepted_suites(self) -> tuple[str, ...]:
        """The names in `suites`."""
        return tuple(name.strip() for name in self.suites.split(",") if name.strip())

    def __post_init__(self) -> None:
        for name in ("deployment", "identity_folder", "data_folder", "cache_folder"):
            object.__setattr__(self, name, _expanded(name, Path(getattr(self, name))))
        _check_ranges(self)


def load_settings(**flags: Any) -> Settings:
    """Settings from all four sources; `flags` are the command line's, None where one was not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    path = _config_path()
    from_file = _read_file(path) if path else {}
    _reject_unknown(given, "a flag")
    _reject_unknown(_environment_names(), "the environment")
    _reject_unknown(from_file, str(path))
    return Settings(**_merged(given, from_file))


def _merged(given: dict[str, Any], from_file: dict[str, Any]) -> dict[str, Any]:
    """One value for every setting, converted to its declared type."""
    from pydantic import ValidationError, create_model
    from pydantic_settings import BaseSettings, InitSettingsSource, SettingsConfigDict

    class Sources(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, env_ignore_empty=True)

        @classmethod
        def settings_customise_sources(cls, settings_cls, init_settings, env_settings, **_others):
            return init_settings, env_settings, InitSettingsSource(settings_cls, from_file)

    hints = get_type_hints(Settings)
    declared: dict[str, Any] = {field.name: (hints[field.name], field.default) for field in fields(Settings)}
    loader = create_model("Loader", __base__=Sources, **declared)
    try:
        return loader(**given).model_dump()
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False)[0]
        raise _invalid(str(first["loc"][0]), first["msg"]) from None


def _config_path() -> Path | None:
    """The file that SECFORMER_CONFIG names and that must exist, or secformer.toml if there is one."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser()
    path = Path(CONFIG_FILE)
    return path if path.is_file() else None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        reason = problem.strerror or "unreadable"
        raise SettingsError(f"cannot read {path} ({reason}): create it or unset {CONFIG_VARIABLE}") from problem
    except ValueError as problem:  # not UTF-8, or not TOML
        raise SettingsError(f"{path} is not valid TOML ({problem}): write lines such as threads = 4") from None


def _environment_names() -> list[str]:
    """The settings that the environment names, without the prefix and in lower case."""
    names = [name.upper() for name in os.environ]
    mine = [name for name in names if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE]
    return [name.removeprefix(ENVIRONMENT_PREFIX).lower() for name in mine]


def _reject_unknown(names: Iterable[str], source: str) -> None:
    known = [field.name for field in fields(Settings)]
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise SettingsError(f"unknown setting {name!r} in {source}: {advice}")


def _check_ranges(settings: Settings) -> None:
    positive = ("connections", "message_limit", "receive_buffer", "loaded_models", "lanes", "queue", "stock_space")
    positive += ("gateway_queue", "gateway_batch", "gateway_sessions")
    timeouts = ("connect_timeout", "handshake_timeout", "receive_timeout", "caller_timeout", "session_timeout")
    for name in (*positive, *timeouts):
        # written so that NaN fails; a timeout of infinity would be a hang
        if not 0 < getattr(settings, name) < float("inf"):
            raise _invalid(name, "must be a positive, finite number")
    if settings.trio < 0:
        raise _invalid("trio", "must be 0 or more")
    if settings.threads < 0:
        raise _invalid("threads", "must be 0 (torch's choice) or more")


def _expanded(name: str, path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise _invalid(name, f"{path} needs a home folder, and there is none: name another place") from None


def _invalid(name: str, reason: str) -> SettingsError:
    places = f"flag, {ENVIRONMENT_PREFIX}{name.upper()} and {CONFIG_FILE}"
    return SettingsError(f"setting {name}: {reason}. Correct it where it is set (in this order: {places})")
