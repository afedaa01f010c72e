"""A tiny task that a tiny model learns in seconds, and that needs attention: does the cat come before the dog?"""

from __future__ import annotations

import random
from pathlib import Path

FILLING = ("the", "a", "it", "was", "on", "sat", "ran", "film", "good", "bad")


def sentence(chance: random.Random, label: int) -> str:
    words = [chance.choice(FILLING) for _ in range(chance.randint(3, 8))]
    first, second = sorted(chance.sample(range(len(words) + 2), 2))
    words.insert(first, "cat" if label else "dog")
    words.insert(second, "dog" if label else "cat")
    return " ".join(words)


def write_lessons(folder: Path, train: int = 600, dev: int = 300) -> Path:
    """DATA/sst2/train.tsv and dev.tsv."""
    for part, count, seed in (("train", train, 1), ("dev", dev, 2)):
        chance = random.Random(seed)
        rows = [(sentence(chance, index % 2), index % 2) for index in range(count)]
        path = folder / "sst2" / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence1\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return folder
