"""How long a query takes, from what its plan costs and what this machine was measured to do.

A server spends its time on rounds (the calls of each opening) and on bytes (what is drawn, masked, packed, unpacked, multiplied
and summed up grows with what is opened and dealt):

    computing  =  rounds · seconds a round  +  (online + dealer bytes) · seconds a byte
    online     =  computing  +  rounds · round trip / 2  +  bytes one way / bandwidth
    seconds    =  the longer of that and the dealer's own line,  dealer bytes / bandwidth

The two speeds are measured on a small model of the suite, one layer at two lengths, by S0, S1 and T in threads of this process
with a core each, as three servers on this machine would have; the fastest of a few runs counts. They are kept in the cache
folder. An estimate is good to about a factor of two where the machine is idle and its servers are warm (their first query after a
start takes longer); a run says how far off it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from secformer.engine.ledger import Cost
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.engine.tracing import Plan, trace
from secformer.models.config import PRESETS
from secformer.settings import Settings
from secformer.systems import suite_named
from secformer.transport.shaped import PROFILES, Profile
from secformer.version import __version__

PROBE = replace(PRESETS["bert-base"], layers=1, heads=3, hidden=192, intermediate=768, vocabulary=1024)
LENGTHS = (16, 96)
REPETITIONS = 2
NETWORKS: dict[str, Profile | None] = {"none": None, **PROFILES}
MEANT = {"none": "three servers on this machine", "lan": "over a LAN", "wan": "over a WAN"}


@dataclass(frozen=True)
class Speeds:
    """Of a server here, under a suite."""

    round_seconds: float
    byte_seconds: float

    def seconds(self, cost: Cost, network: str = "none") -> float:
        """Of a query that costs this."""
        computing = cost.rounds * self.round_seconds + (cost.online_bytes + cost.dealer_bytes) * self.byte_seconds
        line = NETWORKS[network]
        if line is None:
            return computing
        online = computing + cost.rounds * line.round_trip / 2 + 8 * cost.opened_bytes / line.bandwidth
        return max(online, 8 * cost.dealer_bytes / line.bandwidth)


def speeds_here(suite: str, settings: Settings) -> Speeds:
    """Measured once for a suite and device, and kept."""
    place = settings.cache_folder / "speeds" / f"{suite}-{settings.device.replace(':', '-')}-{__version__}.json"
    found = _read(place)
    if found is None:
        found = measure_speeds(suite, settings.device)
        _keep(place, found)
    return found


def measure_speeds(suite: str, device: str = "cpu") -> Speeds:
    """Two lengths give two equations."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        (short, few), (long, many) = (_timed(suite, tokens, device) for tokens in LENGTHS)
    finally:
        torch.set_num_threads(threads)
    work = [cost.online_bytes + cost.dealer_bytes for cost in (few, many)]
    a_byte = max(0.0, (long - short * many.rounds / few.rounds) / (work[1] - work[0] * many.rounds / few.rounds))
    return Speeds(max(0.0, short - work[0] * a_byte) / few.rounds, a_byte)


def _timed(suite: str, tokens: int, device: str) -> tuple[float, Cost]:
    plan = trace(suite_named(suite).preset(PROBE).query_program(1, tokens))
    return min(_run(plan, device) for _ in range(REPETITIONS)), plan.cost


def _run(plan: Plan, device: str) -> float:
    """On zeros in shares: what is computed does not change how long it takes."""
    forms = plan.program.inputs.items()
    inputs = {
        name: share(Encoded(form, torch.zeros(form.shape, dtype=torch.int64, device=device))) for name, form in forms
    }
    began = perf_counter()
    run_locally(plan.program, inputs, plan=plan, device=device)
    return perf_counter() - began


def _read(place: Path) -> Speeds | None:
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        return Speeds(float(content["round_seconds"]), float(content["byte_seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, found: Speeds) -> None:
    """Where that can be; a cache that is read-only or full costs the next one a second."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(asdict(found)), encoding="utf-8")
    except OSError:
        return
