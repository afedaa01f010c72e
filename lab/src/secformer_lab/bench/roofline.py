"""What each operation on the GPU moves and computes, against what the machine could: a document out of measured JSON.

python -m secformer_lab.bench.roofline docs/results/h200.json > docs/results/roofline.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from secformer.ring.kernels.float64 import ACCELERATOR_RECOMBINATION
from secformer.ring.keystream import stream_bytes
from secformer.ring.limbs import plan
from secformer_lab.bench.measured import here

CHACHA_OPERATIONS = 960
"""32-bit operations a block of 64 bytes: 80 quarter rounds of four additions, xors and rotations."""

HEAD = """# What the GPU does with its time

Rendered by `python -m secformer_lab.bench.roofline` from `{source}`; measured on {machine}.

Compared with: copies at {copy:.1f} TB/s, bytes read plus bytes written (measured on another machine of this kind, not in these
runs); int8 products at {int8:.0f} TOP/s (the vendor's datasheet, dense); 32-bit integer operations at {int32:.1f} TOP/s
(reckoned: 64 lanes on each of 132 processors at 1.98 GHz). Hardware counters
were read of the products on Hopper alone: what limits anything else is inferred."""

TAIL = """## What holds the rest back

* **Products.** On Hopper they have a kernel of their own (ring/kernels/hopper.py), which loads every digit once for all its
  products; the aim was four times float64, and every shape is above it at both widths. At 35 bits what is left is mostly not
  products: sums of few tiles are put together in memory, and a tile stores its sums while the tensor cores wait. Cutting the
  activations is a kernel of its own. It took 5 µs of 512 × 768 and 11 µs of 512 × 3072, through shared memory; once the
  compiler knows that the inner dimension is a multiple of sixteen, a thread cuts sixteen terms by itself: 3.5 and 7 µs in
  tiles of 32 rows, 2.8 and 5.2 µs in tiles of 16. The product now begins while the cut still runs, and waits for its end
  inside (programmatic dependent launch). Both together brought 35 bits from 3.5 to 5.1 times to 4.1 to 5.4 (tiles of 32).
  Every plan of the kernel was timed on all shapes: the one that is chosen was the fastest but once, by 5%. Giving a stage
  back used to be a release at the cluster's scope, a fence in every step, which guards nothing here: without it products are
  2 to 20% faster at 64 bits and 3 to 28% at 35, by the bench on one machine.
* **Products on other GPUs** are Triton's (ring/kernels/int8.py), 2.5 to 4 times as fast as float64 on an H200: a step of a
  128 × 128 tile reads 32 KiB for 4.2 million operations, 4.3 TB/s from the second-level cache at 550 TOP/s, and 96 tiles on 132
  processors leave a quarter of them idle at 512 × 3072. cuBLAS on digits of the same shapes (`torch._int_mm`, without putting
  the sums together) was slower in the same run.
* **Residues** were not built: 18 products at 64 bits instead of 36, but 11 instead of 15 at 35 bits, each with a modular
  reduction of every sum.
* **Streams.** A wide draw reaches what was reckoned for integer arithmetic, and a little more: the count of operations, or
  the clock, is that rough. Openings move 64-bit words: a share is read, mask and sum are written besides the packed bytes.
* **A model between processes.** From the second run on a server replays graphs (engine/replaying.py): beginning the kernels
  takes 6 ms of a query at 128 tokens. Most of what is left is the exchange between the servers: its bytes, waking threads, and
  waiting for the other server, whose kernels share the GPU. A bare exchange of a few kilobytes takes 0.08 ms; in a query at 128
  tokens it took 0.27 ms before short rounds had a lane of their own (transport/quick.py), and 0.18 ms with it: the rest is
  what the other server is late by. Frames of 256 KiB to 1 MiB took 0.53 ms before and 0.52 ms after.
* **While servers exchange** a GPU has nothing to do, and dealt values depend on no opening: S0 draws its halves, S1 unpacks T's
  corrections, for the round after, meanwhile (engine/recording.py). `exact` at 512 tokens took 0.275 and 0.277 s so, and 0.313 s
  without, on one machine.
* **Dealing** was begun kernel by kernel, each correction fetched and awaited: 0.56 and 0.80 s (`exact`), 0.60 and 0.87 s
  (`fast`), transport aside, most of it the interpreter's. Recorded (engine/redealing.py) it takes what the table above says, of
  which fetching the corrections is a part. With the way to S1 `exact` at 512 tokens takes 1.26 s, 6.4 GB/s: what limits
  that was not profiled. A fourth connection for its stripes, which between the servers serves short rounds, brought `fast` from
  0.90 to 0.81 s and `exact` nothing, on two machines.
* **Frames of 0.9 to 2.7 MB**, six of a layer's rounds at 512 tokens. Sent by a thread while the caller already reads, in records
  of 64, 128 or 256 KiB, all on the quick lane, they took 1.2 to 2.3 times as long as they do; in stripes of 512 KiB instead of a
  MiB, up to 1.4 times. What helped is that the caller itself sends the header, for which the other server waits, and of one
  stripe what the socket takes at once: on one machine, in two runs each, frames of 1.3, 1.7 and 2.7 MB took 0.60 and 0.66, 0.73
  and 0.74, 0.84 and 0.83 ms before, and 0.49 and 0.57, 0.62 and 0.68, 0.78 and 0.78 ms since; larger ones as long as before.
  Threads that wait for their stripes before the header has come brought nothing more, in the same runs, and were not kept.
* **Fetching** what arrived as the first step of the next graph took the 12 ms of 225 separate copies away and made the graphs
  27 ms slower, on another machine of this kind; so it is a copy of its own again, from the place where the frame landed: 7 ms
  at 128 tokens.
* **Turns.** Without MPS the kernels of both servers take turns on the one GPU: `exact` at 128 tokens waited 68 ms for it, with
  MPS 37 ms. In later runs it took 0.172 s in turns and 0.102 s side by side, on two machines, and BERT-large at 512 tokens
  1.336 s and 0.713 s (both of earlier states).
* **Large frames.** `fast` at 512 tokens, side by side, on one machine: 0.367 s with records of 128 KiB on 3 connections, 0.288 s
  with 512 KiB on 5; T's dealing, transport included, went from 2.4 s to 1.4 s. At 128 tokens both took 0.114 s, and 512 KiB on 7
  connections 0.106 s.
* **TLS.** Python reads TLS one record of 16 KiB a call, under the interpreter's lock: 2 connections each way moved 2.2 GB/s in
  each direction, 4 moved 1.4, 8 moved 1.2, and BERT-base took 0.90 s at 512 tokens. Sealed lanes (transport/sealed.py) brought
  that to 0.47 s.
* **A query of 512 tokens** under `exact`, kernels and copies at S1 while S0 computes beside it (profiler, 68 ms in all, of which
  the exchange hides a part): copies to and from the host 25.7 ms, unpacking what T dealt and what arrived 12.2 ms, openings
  5.5 ms, ring products 4.9 ms and their cuts 1.2 ms, Fourier series by sums 2.6 ms and by tables 2.3 ms, histograms 1.7 ms; 2,900
  kernels below 4 µs take 7.1 ms, and 5.3 ms pass between kernels. Per layer histograms were 0.63 ms before and are 0.14 ms,
  series by tables 0.52 and 0.19 ms, by sums 0.44 and 0.22 ms. What T deals in blocks of rows, so that a CPU handles little at a
  time, is laid out in one piece and evaluated by one launch (24 for a histogram before), and the compiler knows how many terms a
  row has. Since this profile products of wires element by element, unmasking and lifting are a kernel each.
* **Openings in parts.** Copied from the device in parts, each sent when it was there, announced by a header ahead of them, and
  fetched in parts as they arrived, with blocks of rows in one launch: `exact` at 512 tokens took 0.395 s so, and without both
  0.274 s, in one call. A copy and its event take the host some 40 µs, fifteen times a large round, and exchanges took 0.285 s
  instead of 0.163 s with that many threads that wait for the device or talk to it. Not kept.
* **Products over GF(2)** of the embedding: 32 terms are one instruction (ring/kernels/bit_planes.py). 512 × 30,522 × 16,896 bits
  take 0.86 ms, a third of it laying the table out, and 128 rows 0.45 ms; 3.7 and 1.0 ms before. The embedding of a query of 512
  tokens went from 16 to 8 ms. Since then both products of a lookup are one, whose table stays laid out, and its bits are added up
  by one kernel instead of a dozen operations: 6 to 8 ms in the rows above.
* **Before runs were recorded**, a layer in threads at 512 tokens took 15 ms of kernels for all three roles together, 28 ms of
  copies, and 1,630 launches of 10 µs each on the host; between processes it took 103 ms longer. The tables of single layers
  above are from then."""


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def streams(data: dict[str, Any], ceilings: dict[str, float]) -> str:
    count, rows = data["elements"], []
    for width, times in data["milliseconds"].items():
        packed, keystream = count * int(width) / 8, stream_bytes(count, int(width))
        moved = {
            "draw": 8 * count,
            "close": 24 * count + packed,
            "reveal": 16 * count + packed,
            "correct": 8 * count + packed,
        }
        for name, milliseconds in times.items():
            memory = moved[name] / milliseconds / 1e-3
            integer = 0 if name == "reveal" else keystream / 64 * CHACHA_OPERATIONS / milliseconds / 1e-3
            shares = (memory / ceilings["copy_bytes_a_second"], integer / ceilings["int32_operations_a_second"])
            rows.append((name, width, milliseconds, f"{memory / 1e12:.2f}", f"{shares[0]:.0%}", f"{shares[1]:.0%}"))
    return table(("step", "bits", "ms", "TB/s", "of copies", "of integer arithmetic"), rows)


def products(data: Iterable[dict[str, Any]], ceilings: dict[str, float]) -> str:
    rows = []
    for each in data:
        batch, limbs = each.get("batch", 1), -(-each["width"] // 8)
        rate = limbs * (limbs + 1) * batch * each["rows"] * each["inner"] * each["columns"] / each["int8_ms"] / 1e-3
        digits = plan(each["inner"], each["width"], each["width"], each["width"], ACCELERATOR_RECOMBINATION).products
        rows.append(
            (
                (f"{batch} of " if batch > 1 else "") + f"{each['rows']} × {each['inner']} × {each['columns']}",
                each["width"],
                f"{limbs * (limbs + 1) // 2} / {digits}",
                each["int8_ms"],
                each["float64_ms"],
                f"{each['float64_ms'] / each['int8_ms']:.1f}",
                f"{rate / 1e12:.0f}",
                f"{rate / ceilings['int8_operations_a_second']:.0%}",
                each.get("int_mm_ms", ""),
            )
        )
    head = (
        "shape",
        "bits",
        "products int8 / float64",
        "int8 ms",
        "float64 ms",
        "ratio",
        "TOP/s",
        "of peak",
        "cuBLAS ms",
    )
    return table(head, rows)


def layers(data: Iterable[dict[str, Any]]) -> str:
    rows = []
    for each in data:
        before, after = each["before"], each["after"]
        parts = ", ".join(
            f"{name} {1e3 * seconds:.1f}" for name, seconds in each["operations"].items() if seconds > 1e-3
        )
        times = [f"{1e3 * run[name]:.0f}" for name in ("online_seconds", "dealer_seconds") for run in (before, after)]
        rows.append((each["suite"], each["tokens"], *times, f"{after['max_error']:.1e}", parts))
    head = (
        "suite",
        "tokens",
        "online before, ms",
        "after",
        "dealer before, ms",
        "after",
        "error",
        "operations at S0, ms",
    )
    return table(head, rows)


def runs(data: Iterable[dict[str, Any]], seconds: str) -> str:
    head = ("what", "suite", "tokens", "online s", "dealer s", "rounds", "online MB", "dealer MB", "error")
    rows = []
    for each in data:
        counted = each.get("plan", each)
        rows.append(
            (
                each.get("model", "one layer"),
                each["suite"],
                each["tokens"],
                each[seconds],
                each["dealer_seconds"],
                counted["rounds"],
                f"{counted['online_bytes'] / 1e6:.1f}",
                f"{counted['dealer_bytes'] / 1e6:.0f}",
                f"{each['max_error']:.1e}",
            )
        )
    return table(head, rows)


def states(data: Iterable[dict[str, Any]]) -> str:
    """How rows above were measured, where that was not as the code stands."""
    rows = []
    for each in data:
        if "state" in each:
            name = f"{each['model']}, {each['suite']}, {each['tokens']}"
            rows.append((name, each["online_seconds"], each["state"], each.get("connections", 2), each.get("note", "")))
    return table(("row", "online s", "state", "connections", "note"), rows) if rows else ""


def recorded(models: Sequence[dict[str, Any]], earlier: Iterable[dict[str, Any]]) -> str:
    """Where a replayed query's time goes, and went in earlier states."""
    parts = ("total_ms", "launch_ms", "gpu_ms", "exchange_ms", "fetch_ms")
    again = [each for each in models if "replay" in each]
    rows = [
        (
            ", ".join(filter(None, (each["model"], each["material"], each.get("state") and f"state: {each['state']}"))),
            each["suite"],
            each["tokens"],
            each["replay"]["rounds"],
            *(f"{each['replay'][name]:.1f}" for name in parts),
            f"{each['plan']['online_bytes'] // 2:,}",
        )
        for each in again
    ]
    rows += [
        (
            each.get("state") or each["model"],
            each["suite"],
            each["tokens"],
            each["graphs"],
            *(_part(each, name) for name in parts),
            f"{each['bytes_each_way']:,}",
        )
        for each in earlier
    ]
    head = (
        "",
        "suite",
        "tokens",
        "graphs",
        "total",
        "launching",
        "waiting for the GPU",
        "exchanging",
        "fetching",
        "bytes",
    )
    return table(head, rows)


def _part(row: dict[str, Any], name: str) -> str:
    """bench/rounds.py counts the host's work in one."""
    if "host_ms" in row and name in ("launch_ms", "fetch_ms"):
        return f"{row['host_ms']:.1f}" if name == "launch_ms" else "with launching"
    return f"{row[name]:.1f}"


def exchanges(data: Sequence[dict[str, Any]]) -> str:
    sizes = sorted({size for each in data for size in each["milliseconds"]}, key=int)
    head = ("connections", *(f"{int(size):,}" for size in sizes), "")
    rows = (
        (
            each["connections"],
            *(each["milliseconds"].get(size, "") for size in sizes),
            each.get("variant", each.get("state", "")),
        )
        for each in data
    )
    return table(head, rows)


def dealing(data: Iterable[dict[str, Any]]) -> str:
    rows = (
        (each["model"], each["suite"], each["tokens"], each["seconds"], f"{each['dealer_bytes'] / 1e9:.2f}")
        for each in data
    )
    return table(("model", "suite", "tokens", "s", "GB"), rows)


def render(source: str, data: dict[str, Any]) -> str:
    ceilings, usual = data["ceilings"], here(data["models"])
    head = HEAD.format(
        source=source,
        machine=data["machine"],
        copy=ceilings["copy_bytes_a_second"] / 1e12,
        int8=ceilings["int8_operations_a_second"] / 1e12,
        int32=ceilings["int32_operations_a_second"] / 1e12,
    )
    parts = [
        head,
        "## Ring products (weights prepared, activations cut in the time given)",
        products(data["products"], ceilings),
        f"## Streams and openings, {data['streams']['elements']:,} elements",
        streams(data["streams"], ceilings),
        "## One BERT-base layer, three roles as threads of one process, no network",
        layers(data["layers"]),
        "## Three processes over loopback TLS, one GPU between them",
        runs(data["processes"], "seconds"),
        runs(usual, "online_seconds"),
        states(usual),
        "## A replayed query at S0, ms",
        recorded(data["models"], data["recorded"]),
        "## One exchange of so many bytes each way, ms, both servers on one machine",
        exchanges(data["exchanges"]),
        "## Dealing, transport aside (corrections copied to the host and dropped)",
        dealing(data["dealing"]),
        TAIL,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Prints roofline.md.")
    parser.add_argument("measured", help="such as docs/results/h200.json")
    source = parser.parse_args(arguments).measured
    print(render(source, json.loads(Path(source).read_text())), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
