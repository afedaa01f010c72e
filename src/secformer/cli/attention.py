"""`secformer bench attention`: what true Softmax in shares does to a real model's scores, and what it costs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from secformer.bench import attention as bench
from secformer.cli.bench import console, print_json
from secformer.cli.model import read_texts, steps

TEXTS = 4000


def attention(folder: Path, data: Path, tokens: int, rows: int, as_json: bool) -> None:
    texts, pairs = read_texts(data, TEXTS)
    with steps(Console(stderr=True)) as progress:
        measured = bench.measure_attention(folder, [*texts, *(pairs or ())], tokens, rows, progress)
    summaries = bench.summarise(measured)
    if as_json:
        print_json(bench.as_dict(folder.name, measured, summaries))
        return
    console().print(bench.table(measured))
    console().print(bench.summary_table(summaries))
