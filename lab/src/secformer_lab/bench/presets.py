"""`python -m secformer_lab.bench.presets DATA`: remake wires/presets.json from real encoders.

`exact` from a 12-layer encoder (gte-small) on sentences and documents; `fast` from MiniLM with 2Quad put in, on documents.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

import torch

from secformer.models.batches import batched, documents
from secformer.models.bundled import bundled_model
from secformer.models.config_json import load_config
from secformer.models.huggingface import load_weights
from secformer.models.tokens import encode, load_tokenizer
from secformer.wires.constants import Constants
from secformer.wires.presets import FILE
from secformer.wires.suites import EXACT, FAST, Wires
from secformer_lab.bench.ranges import CALIBRATED_ON, shuffled

TEXTS = 3000
"""As many as a provider should have: margins follow from it."""

PARTS = 12


def preset(folder: Path, system: Wires, texts: list[str]) -> Constants:
    config = replace(system.adapt(load_config(folder)), max_tokens=0)
    rows = encode(load_tokenizer(folder, config), config, texts, cut=True)
    if system is EXACT:
        measured = [*rows, *documents(rows, config)]
    else:
        measured = [document for part in range(PARTS) for document in documents(rows[part::PARTS], config)]
    weights = load_weights(folder, config, torch.float32)
    return system.calibrate(weights, config, batched(measured, config)).constants


def main() -> None:
    data = Path(sys.argv[1])
    texts = shuffled(data, CALIBRATED_ON, "train", TEXTS)
    found = {
        "exact": preset(data / "models" / "gte-small", EXACT, texts),
        "2quad": preset(bundled_model(), FAST, texts),
    }
    path = str(resources.files("secformer.wires").joinpath(FILE))
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: asdict(constants) for name, constants in found.items()}, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
