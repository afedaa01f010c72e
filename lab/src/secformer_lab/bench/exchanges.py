"""What a round takes between two servers on one machine by the size of its frame: milliseconds of an exchange, nothing computed.

    python -m secformer_lab.bench.exchanges --connections 3,5,7

Two processes over loopback TLS exchange frames of one size after the other, each where the one before landed, as a recorded
query does. The sizes are those of the rounds of a BERT-base layer at 512 tokens. Prints JSON, a line for each number of
connections: the median of many exchanges, by one server's clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from secformer.crypto.identity import PinnedPeers, create_identity
from secformer.transport.channel import Channel
from secformer.transport.tls import listen
from secformer_lab.bench.bandwidth import HOST, SESSION, START_UP, joined, peer

SIZES = (4_000, 50_000, 256_000, 650_000, 934_000, 1_347_000, 1_720_000, 2_654_000, 5_063_000, 7_490_000, 14_572_000)
REPETITIONS = 40
_MODULE = "secformer_lab.bench.exchanges"


def measure(connections: int, sizes: Sequence[int] = SIZES, repetitions: int = REPETITIONS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        identity = create_identity("server0", Path(folder))
        create_identity("server1", Path(folder))
        peers = PinnedPeers.load_folder(Path(folder))
        with listen(identity, peers, HOST, roles=("server1",)) as listener:
            port = listener.address[1]
            with peer(_MODULE, "--peer", folder, port, connections, repetitions, *sizes) as process:
                try:
                    channel = listener.accept("server1", SESSION, connections, timeout=START_UP)
                    times = _exchanged(channel, sizes, repetitions)
                except BaseException:
                    process.kill()
                    raise
    return {"connections": connections, "repetitions": repetitions, "milliseconds": times}


def _peer_main(folder: str, *numbers: str) -> None:
    """The other process: does the same."""
    port, connections, repetitions, *sizes = map(int, numbers)
    channel, _, _ = joined(folder, port, connections)
    _exchanged(channel, sizes, repetitions)


def _exchanged(channel: Channel, sizes: Sequence[int], repetitions: int) -> dict[str, float]:
    with channel:
        return {str(size): 1e3 * median(_times(channel, size, repetitions)) for size in sizes}


def _times(channel: Channel, size: int, repetitions: int) -> list[float]:
    outgoing, landing = (torch.zeros((2, size), dtype=torch.uint8) for _ in range(2))
    times = []
    for number in range(repetitions):
        channel.land(landing[number % 2])
        started = perf_counter()
        channel.exchange(outgoing[number % 2])
        times.append(perf_counter() - started)
    return times


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--peer"]:
        _peer_main(*arguments[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", default="3,5,7", help="numbers of them, each way")
    numbers = parser.parse_args(arguments).connections.split(",")
    if not all(number.isdecimal() and int(number) for number in numbers):
        parser.error("--connections takes numbers from 1 on, such as 3,5,7")
    for number in numbers:
        print(json.dumps(measure(int(number))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
