"""`secformer bench attention`: the Softmax of suite `exact`, in shares, on a model's real attention scores.

The file of texts is cut in two. The first half calibrates windows; from the second come a batch of sentences of mixed
lengths, padded, and documents of a given length, texts joined and cut to it. The model runs on them in the clear, and
each layer's scores, every head, go through `exact_attention` in two real shares. In the place of V stands the identity,
so that the probabilities themselves come out. Of a long document some rows of every head are compared: half spread
evenly over the rows in the order of their maxima, half in the order of their sums, both ends included.

Costs are those of whole layers with the model's own V, traced from the scores to the opened output, beside those of
`fast` (2Quad) on the same shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secformer.bench.case import revealing
from secformer.engine.form import masked, shared
from secformer.engine.ledger import Cost
from secformer.engine.local import run_locally
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.sharing import Encoded
from secformer.engine.tracing import trace
from secformer.engine.values import Masked, Shared, need
from secformer.errors import InputError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch, tokenise
from secformer.protocols.attention import (
    WINDOW_FOOT,
    ExactSetting,
    QuadSetting,
    exact_attention,
    highest_score,
    quad_attention,
)
from secformer.ring.fixed_point import encode
from secformer.secure_model import SecureModel
from secformer.wires import widths as scales
from secformer.wires.calibration import LOG2_E, WiresCalibration
from secformer.wires.presets import preset_constants
from secformer.wires.suites import EXACT, FAST
from secformer.wires.widths import LayerSetting, encoder_setting

CALIBRATION_SENTENCES, CALIBRATION_DOCUMENTS = 240, 4
SENTENCES, DOCUMENTS = 8, 2
BATCH = 16
BLOCK_SCORES = 1 << 19
"""Scores of one run: bounds the memory of the three servers, which share a process here."""

SCORE_SCALE = 2 * scales.QUERY_SCALE
Step = Callable[[str], None]


@dataclass(frozen=True)
class AttentionRow:
    """One layer on one batch. Bytes: online both ways at one server, dealer from T to S1."""

    input: str
    layer: int
    batch: int
    tokens: int
    windows: tuple[int, ...]  # bits of octaves, by head, narrow windows first
    rows_a_head: int  # query rows compared in shares, of batch · tokens
    scores: int
    headroom: float  # octaves between the scores and the nearer end of their window; negative: outside
    max_error: float
    rounds: int
    online_bytes: int
    dealer_bytes: int
    fast_rounds: int
    fast_online_bytes: int

    @property
    def online_a_score(self) -> float:
        return self.online_bytes / self.scores

    @property
    def dealer_a_score(self) -> float:
        return self.dealer_bytes / self.scores

    @property
    def online_ratio(self) -> float:
        return self.online_bytes / self.fast_online_bytes

    def as_dict(self) -> dict[str, Any]:
        derived = ("online_a_score", "dealer_a_score", "online_ratio")
        return {**asdict(self), **{name: round(getattr(self, name), 3) for name in derived}}


# -- texts -------------------------------------------------------------------------------------------------------------


def sentences(texts: Sequence[str], count: int) -> list[str]:
    """Texts of all lengths, from the shortest to the longest."""
    ordered = sorted(texts, key=len)
    return [ordered[place * (len(ordered) - 1) // max(count - 1, 1)] for place in range(min(count, len(ordered)))]


def documents(model: SecureModel, texts: Sequence[str], tokens: int, count: int) -> list[Batch]:
    """Texts joined and cut to exactly `tokens` tokens, each document starting at another text."""
    starts = range(0, len(texts), max(1, len(texts) // count))
    joined = [" ".join((*texts[start:], *texts[:start])) for start in starts]
    config = replace(model.config, max_tokens=0)  # longer than the model's author would have them
    found = [tokenise(model.tokenizer, config, [text], max_length=tokens, cut=True) for text in joined]
    shortest = min(batch.ids.shape[1] for batch in found)
    if shortest < tokens:
        raise InputError(f"the held-out half of the texts has {shortest} tokens, a document needs {tokens}")
    return found[:count]


def _calibrated(model: SecureModel, texts: Sequence[str], tokens: int) -> WiresCalibration:
    """Sentences in batches of like lengths, and documents."""
    chosen = sentences(texts, CALIBRATION_SENTENCES)
    starts = range(0, len(chosen), BATCH)
    batches = [tokenise(model.tokenizer, model.config, chosen[start : start + BATCH]) for start in starts]
    return EXACT.calibrate(
        model.weights, model.config, [*batches, *documents(model, texts, tokens, CALIBRATION_DOCUMENTS)]
    )


# -- in shares ---------------------------------------------------------------------------------------------------------


def secure_softmax(scores: Tensor, keys: Tensor, setting: LayerSetting) -> Tensor:
    """Softmax by `exact_attention` on shares: scores in octaves (batch, heads, rows, n), keys (batch, n), one for real."""
    attention = setting.attention
    batch, heads, count, length = scores.shape
    identity = torch.eye(length, dtype=torch.int64)[None, None] << scales.VALUE_SCALE
    value = Encoded.ring_elements(identity, scales.VALUE_SCALE, setting.value_width, "masked")
    mask = Encoded.ring_elements(keys.to(torch.int64)[:, None, None, :])
    size = max(1, BLOCK_SCORES // (batch * heads * length))
    parts = []
    for start in range(0, count, size):
        part = encode(scores[:, :, start : start + size], SCORE_SCALE)
        placed = Encoded.ring_elements(part, SCORE_SCALE, setting.query_width)
        secrets = {"scores": placed, "value": value, "mask": mask}
        program = revealing(
            "softmax",
            lambda runtime, inputs: {"y": _attend(runtime, inputs, attention)},
            {name: secret.form for name, secret in secrets.items()},
        )
        parts.append(run_locally(program, secrets).value("y"))
    return torch.cat(parts, 2)


def _attend(runtime: Runtime, inputs: Inputs, setting: ExactSetting | QuadSetting) -> Shared:
    given = need(inputs["scores"], Shared), need(inputs["value"], Masked), need(inputs["mask"], Shared)
    if isinstance(setting, ExactSetting):
        return exact_attention(runtime, *given, setting)
    return quad_attention(runtime, *given, setting)


def attention_cost(setting: LayerSetting, config: ModelConfig, batch: int, tokens: int) -> Cost:
    """From shares of the scores to the opened output, traced."""

    def body(runtime: Runtime, inputs: Inputs) -> Outputs:
        context = _attend(runtime, inputs, setting.attention)
        runtime.open(context.at(scales.OUTPUT_SCALE, setting.context_width))
        return {}

    shape = (batch, config.heads, tokens)
    forms = {
        "scores": shared((*shape, tokens), setting.query_width, SCORE_SCALE),
        "value": masked((*shape, config.head_size), setting.value_width, scales.VALUE_SCALE),
        "mask": shared((batch, 1, 1, tokens)),
    }
    return trace(Program("attention", body, forms)).cost


# -- a layer -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """What a batch is measured with. Costs of `fast` have the ranges of a measured preset."""

    model: SecureModel
    calibration: WiresCalibration
    rows: int

    def measure(self, name: str, batch: Batch, step: Step) -> Iterator[AttentionRow]:
        found: list[AttentionRow] = []
        size, tokens = batch.ids.shape
        settings = encoder_setting(self.calibration.constants, self.model.config, tokens).layers
        fast = FAST.adapt(self.model.config)
        fast_settings = encoder_setting(preset_constants(fast), fast, tokens).layers

        def observe(what: str, layer: int, scores: Tensor, real: Tensor) -> None:
            if what != "scores":
                return
            step(f"{name}: layer {layer}")
            costs = [attention_cost(s[layer], self.model.config, size, tokens) for s in (settings, fast_settings)]
            ordered = (scores * real)[:, list(self.calibration.layout.heads[layer])]
            found.append(self._row(name, layer, ordered, batch.mask, settings[layer], *costs))

        plain.forward(self.model.weights, self.model.config, batch, observe)
        yield from found

    def _row(
        self, name: str, layer: int, scores: Tensor, keys: Tensor, setting: LayerSetting, cost: Cost, fast: Cost
    ) -> AttentionRow:
        """`scores` (batch, heads, n, n) in the order of the layout, zero at padding."""
        attention = setting.attention
        assert isinstance(attention, ExactSetting)
        chosen, real = self._choose(scores, keys)
        secure = secure_softmax(chosen * LOG2_E, keys, setting)
        exact = torch.softmax(chosen.masked_fill(~keys[:, None, None, :], -math.inf), -1)
        error = ((secure - exact).abs() * real).max()
        return AttentionRow(
            input=name,
            layer=layer,
            batch=len(scores),
            tokens=scores.shape[-1],
            windows=tuple(group.window_bits for group in attention.groups for _ in range(group.count)),
            rows_a_head=int(real.sum()) // scores.shape[1],
            scores=scores.numel(),
            headroom=round(_headroom(scores * LOG2_E, keys, attention), 2),
            max_error=float(error),
            rounds=cost.rounds,
            online_bytes=cost.online_bytes,
            dealer_bytes=cost.dealer_bytes,
            fast_rounds=fast.rounds,
            fast_online_bytes=fast.online_bytes,
        )

    def _choose(self, scores: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Rows to compare, and which of them are real: (batch, heads, rows, n), (batch, 1 or heads, rows, 1)."""
        count, rows = scores.shape[2], self.rows
        if not 0 < rows < count or not bool(keys.all()):
            return scores, keys[:, None, :, None].expand(-1, scores.shape[1], -1, -1)
        maxima = scores.amax(-1)
        sums = torch.exp(scores - maxima[..., None]).sum(-1)
        places = torch.linspace(0, count - 1, -(-rows // 2)).round().long()
        chosen = torch.cat([order.argsort(-1)[..., places] for order in (maxima, sums)], -1)
        picked = scores.gather(2, chosen[..., None].expand(-1, -1, -1, scores.shape[-1]))
        return picked, torch.ones_like(picked[..., :1], dtype=torch.bool)


def _headroom(octaves: Tensor, keys: Tensor, setting: ExactSetting) -> float:
    lowest = [low for group in setting.groups for low in group.lowest]
    highest = [highest_score(group) for group in setting.groups for _ in range(group.count)]
    placed = octaves - torch.tensor(lowest, dtype=torch.float64)[:, None, None] + WINDOW_FOOT
    top = torch.tensor(highest, dtype=torch.float64)[:, None, None]
    room = torch.minimum(placed, top - placed)
    real = keys[:, None, None, :] & keys[:, None, :, None]
    return float(room.masked_fill(~real, math.inf).min())


def measure_attention(
    folder: Path, texts: Sequence[str], tokens: int = 512, rows: int = 64, step: Step = lambda _: None
) -> list[AttentionRow]:
    """A row for every layer on sentences and on documents. `rows` of each head are compared on a document; 0: all."""
    texts = [text for text in texts if text.strip()]
    if len(texts) < 2:
        raise InputError("one half of the texts calibrates, the other is evaluated: at least two are needed")
    step("reading the model")
    model = SecureModel.from_pretrained(folder, "exact", uncalibrated=True)
    if not 2 < tokens <= model.config.positions:
        raise InputError(f"documents of {tokens} tokens were asked for; the model takes 3 to {model.config.positions}")
    middle = len(texts) // 2
    step("calibrating on the first half of the texts")
    bench = Bench(model, _calibrated(model, texts[:middle], tokens), rows)
    held_out = texts[middle:]
    batch = tokenise(model.tokenizer, model.config, sentences(held_out, SENTENCES))
    found = list(bench.measure("sentences", batch, step))
    for number, document in enumerate(documents(model, held_out, tokens, DOCUMENTS)):
        found += bench.measure(f"document {number}", document, step)
    return found


def table(rows: Sequence[AttentionRow]) -> Any:
    from rich.table import Table

    shown = Table(title="True Softmax in shares on real attention scores, every layer and head", title_justify="left")
    headings = ("input", "layer", "shape", "rows a head", "windows", "headroom", "max error", "rounds")
    for heading in (*headings, "online B a score", "of fast", "dealer B a score"):
        shown.add_column(heading, justify="left" if heading == "input" else "right")
    for row in rows:
        windows = " ".join(f"{row.windows.count(bits)}×2^{bits}" for bits in sorted(set(row.windows)))
        what = (row.input, str(row.layer), f"{row.batch} × {row.tokens}", str(row.rows_a_head), windows)
        found = (f"{row.headroom:.1f}", f"{row.max_error:.1e}", str(row.rounds))
        shown.add_row(
            *what, *found, f"{row.online_a_score:.1f}", f"{row.online_ratio:.2f}", f"{row.dealer_a_score:.0f}"
        )
    return shown
