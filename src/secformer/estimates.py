"""How long a query takes, from what its plan costs and what this machine was measured to do.

A server spends its time on rounds (the calls of each opening), on bytes (what is drawn, masked, packed, unpacked and summed up
grows with what is opened and dealt), on products with the weights, and on the secret word table, all of which a look-up reads:

    computing  =  rounds · seconds a round  +  (online + dealer bytes) · seconds a byte
                  +  products · seconds a product  +  words of the table combined · seconds a word
    online     =  computing  +  rounds · round trip / 2  +  bytes one way / bandwidth
    seconds    =  the longer of that and the dealer's own line,  dealer bytes / bandwidth

The four speeds are measured on four small models of the suite, in which one kind of work after the other prevails, by S0, S1 and
T in threads of this process with a core each, as three servers on this machine would have; the fastest of a few runs counts. They
are kept in the cache folder. Servers that have just started take longer for their first query; a run says how far off the
estimate was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from secformer.engine.ledger import Cost
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.engine.tracing import Plan, trace
from secformer.models.config import ModelConfig
from secformer.models.shapes import PRESETS
from secformer.settings import Settings
from secformer.systems import suite_named
from secformer.transport.shaped import PROFILES, Profile
from secformer.version import __version__

PROBE = replace(PRESETS["bert-base"], layers=2, heads=3, hidden=192, intermediate=768, vocabulary=1024)
WIDE = replace(PROBE, layers=1, heads=12, hidden=768, intermediate=3072)
WORDY = replace(PROBE, layers=1, vocabulary=30_522)
PROBES = ((PROBE, 16), (PROBE, 96), (WIDE, 32), (WORDY, 32))
"""Shapes and lengths that are ruled by rounds, bytes, products and the word table."""
REPETITIONS = 2
NETWORKS: dict[str, Profile | None] = {"none": None, **PROFILES}
MEANT = {"none": "three servers on this machine", "lan": "over a LAN", "wan": "over a WAN"}


@dataclass(frozen=True)
class Speeds:
    """Of a server here, under a suite."""

    round_seconds: float
    byte_seconds: float
    product_seconds: float
    word_seconds: float

    def seconds(self, cost: Cost, network: str = "none") -> float:
        """Of a query that costs this."""
        computing = cost.rounds * self.round_seconds + (cost.online_bytes + cost.dealer_bytes) * self.byte_seconds
        computing += cost.products * self.product_seconds + cost.combined_words * self.word_seconds
        line = NETWORKS[network]
        if line is None:
            return computing
        online = computing + cost.rounds * line.round_trip / 2 + 8 * cost.opened_bytes / line.bandwidth
        return max(online, 8 * cost.dealer_bytes / line.bandwidth)


def _work(cost: Cost) -> tuple[int, int, int, int]:
    """How much there is of each kind, in the order of the speeds."""
    return cost.rounds, cost.online_bytes + cost.dealer_bytes, cost.products, cost.combined_words


def speeds_here(suite: str, settings: Settings) -> Speeds:
    """Measured once for a suite and device, and kept."""
    place = settings.cache_folder / "speeds" / f"{suite}-{settings.device.replace(':', '-')}-{__version__}.json"
    found = _read(place)
    if found is None:
        found = measure_speeds(suite, settings.device)
        _keep(place, found)
    return found


def measure_speeds(suite: str, device: str = "cpu") -> Speeds:
    """Four models give four equations."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timed = [_timed(suite, config, tokens, device) for config, tokens in PROBES]
    finally:
        torch.set_num_threads(threads)
    return _solved([_work(cost) for _, cost in timed], [seconds for seconds, _ in timed])


def _solved(work: Sequence[Sequence[int]], seconds: Sequence[float]) -> Speeds:
    """What comes nearest to the seconds, each equation relative to its own. A speed below 0, of a machine that was disturbed, is
    none: the others share its part."""
    rows = np.array(work, dtype=float) / np.array(seconds)[:, None]
    sizes = rows.max(0)
    kept = [kind for kind in range(len(sizes)) if sizes[kind]]  # a suite may have none of it
    while True:
        found = np.linalg.lstsq(rows[:, kept] / sizes[kept], np.ones(len(rows)), rcond=None)[0]
        if found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    speeds = np.zeros(len(sizes))
    speeds[kept] = found / sizes[kept]
    return Speeds(*speeds.tolist())


def _timed(suite: str, config: ModelConfig, tokens: int, device: str) -> tuple[float, Cost]:
    plan = trace(suite_named(suite).preset(config).query_program(1, tokens))
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
        return Speeds(*(float(content[part.name]) for part in fields(Speeds)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, found: Speeds) -> None:
    """Where that can be; a cache that is read-only or full costs the next one a second."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(asdict(found)), encoding="utf-8")
    except OSError:
        return
