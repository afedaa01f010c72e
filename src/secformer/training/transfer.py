"""Texts without labels that a distillation takes beside the task's own: of other tasks, or the own ones altered.

Everything is done on token ids, [CLS] … [SEP] or [CLS] … [SEP] … [SEP]: the order of a text's rows is a function of the seed
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from secformer.training.batches import Rows, joined
from secformer.training.tasks import task_named

SHORTEST = 4
"""Tokens of a text in which a word can be changed: two besides [CLS] and [SEP]."""


def others(task: str, names: Iterable[str], apart: bool = False) -> list[str]:
    """Of these tasks those whose texts it may take."""
    pairs = task_named(task).pairs
    return [name for name in names if name != task and (task_named(name).pairs == pairs) != apart]


def other_texts(task: str, train: Mapping[str, Rows], count: int, longest: int, apart: bool = False) -> list[Rows]:
    """`count` of the texts of other tasks, of up to `longest` tokens: of tasks of the same kind, of one text or of pairs; or
    for a task of one text the texts of all pairs, each by itself (`apart`)."""
    like = others(task, train, apart)
    if not (count and like):
        return []
    longest = min(longest, train[task].ids.shape[1])
    parts = [taken_apart(train[name]) if apart else train[name] for name in like]
    return [some(joined([_up_to(part, longest) for part in parts]), count)]


def some(rows: Rows, count: int) -> Rows:
    """So many of them, from all over."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(rows.ids.device)
    return rows.chosen(order[:count])


def _up_to(rows: Rows, longest: int) -> Rows:
    found = rows.chosen((rows.lengths <= longest).nonzero()[:, 0])
    return replace(found, ids=found.ids[:, :longest], types=found.types[:, :longest])


def taken_apart(rows: Rows) -> Rows:
    """Pairs as twice as many texts: what has token type 0, and [CLS] before what has type 1."""
    columns = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    first = ((rows.types == 0) & (columns < rows.lengths[:, None])).sum(-1)
    last = columns.max()
    behind = torch.where(columns == 0, columns, (first[:, None] - 1 + columns).clamp(max=last))
    ids = torch.cat([rows.ids, rows.ids.gather(1, behind)])
    lengths = torch.cat([first, rows.lengths - first + 1])
    return Rows(ids, torch.zeros_like(ids), lengths, torch.cat([rows.targets, rows.targets]))


def altered(rows: Rows, times: int, seed: int = 0) -> list[Rows]:
    """Each text `times`, each time with one change: a token left out, two neighbours exchanged, or one in the place of another
    that comes from anywhere in these texts."""
    own = rows.to("cpu")
    long_enough = own.chosen((own.lengths >= SHORTEST).nonzero()[:, 0])
    if not (times and len(long_enough)):
        return []
    generator = torch.Generator().manual_seed(seed)
    return [_changed(long_enough, generator).to(rows.ids.device) for _ in range(times)]


def _changed(rows: Rows, generator: torch.Generator) -> Rows:
    count, longest = rows.ids.shape
    columns = torch.arange(longest).expand(count, longest)
    kind = torch.randint(3, (count, 1), generator=generator)
    place = (
        1 + (torch.rand(count, 1, generator=generator) * (rows.lengths[:, None] - 3)).long()
    )  # the last but one at most
    leaving_out = columns + (columns >= place).long()
    exchanging = columns + (columns == place).long() - (columns == place + 1).long()
    order = torch.where(kind == 0, leaving_out, torch.where(kind == 1, exchanging, columns)).clamp(max=longest - 1)
    ids = rows.ids.gather(1, order)
    ids = torch.where((kind == 2) & (columns == place), _any_tokens(rows, count, generator)[:, None], ids)
    return replace(rows, ids=ids, types=rows.types.gather(1, order), lengths=rows.lengths - (kind[:, 0] == 0).long())


def _any_tokens(rows: Rows, count: int, generator: torch.Generator) -> Tensor:
    """Drawn from all tokens inside these texts."""
    columns = torch.arange(rows.ids.shape[1])
    inside = rows.ids[(columns > 0) & (columns < rows.lengths[:, None] - 1)]
    return inside[torch.randint(len(inside), (count,), generator=generator)]
