"""A tiny task that a tiny model learns in seconds: does a text say good or bad things?"""

from __future__ import annotations

import random
from pathlib import Path

GOOD, BAD = ("good", "home", "cat"), ("bad", "mat", "dog")
FILLING = ("the", "a", "it", "was", "on", "sat", "ran", "film")


def sentence(chance: random.Random, label: int) -> str:
    """More words of one kind than of the other, in any order."""
    more, fewer = (GOOD, BAD) if label else (BAD, GOOD)
    words = [chance.choice(more) for _ in range(chance.randint(2, 4))]
    words += [chance.choice(fewer) for _ in range(chance.randint(0, len(words) - 1))]
    words += [chance.choice(FILLING) for _ in range(chance.randint(1, 6))]
    chance.shuffle(words)
    return " ".join(words)


def write_lessons(folder: Path, train: int = 400, dev: int = 200) -> Path:
    """DATA/sst2/train.tsv and dev.tsv."""
    for part, count, seed in (("train", train, 1), ("dev", dev, 2)):
        chance = random.Random(seed)
        rows = [(sentence(chance, index % 2), index % 2) for index in range(count)]
        path = folder / "sst2" / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence1\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return folder
