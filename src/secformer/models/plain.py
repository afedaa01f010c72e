"""The model in the clear: what the secure one must agree with, the twin of every suite, and where ranges are measured.

One forward pass for all. Its non-linear parts are parameters (`Functions`): the exact ones give the reference, a suite's
own approximations its twin, in the dtype of the weights and without fixed point. Every intermediate a secure run would
hold is shown to an observer, `observer(name, layer, tensor, mask)`, with the layer's index (−1 outside the layers) and a
mask that broadcasts over the tensor, True for what belongs to a real token:

    name                        what it is                               shape; n: padded length, d: head_size
    input                       X, what a layer starts from              (sentences, n, hidden)
    query, key, value           Q, K, V before any scaling               (sentences, heads, n, d)
    scores                      S = QKᵀ/√d                               (sentences, heads, n, n)
    denominator                 Σ exp(S − row maximum), or Σ (S + c)²    (sentences, heads, n, 1)
    weighted                    the numerators times V                   (sentences, heads, n, d)
    context                     O = weighted / denominator               (sentences, n, hidden)
    middle                      X₁, between attention and FFN            (sentences, n, hidden)
    preactivation, activation   z and gelu(z)                            (sentences, n, intermediate)
    N.residual, N.centred       inside LayerNorm N = embedding,          (sentences, n, hidden)
    N.variance                  attention, output or transform           (sentences, n, 1)
    hidden                      the encoder's output                     (sentences, n, hidden)
    pooled                      its mean or first row                    (sentences, hidden)
    squared_norm                |pooled|², where that is normalised      (sentences, 1)
    pooler                      the head's first map, before its tanh    (sentences, hidden)
    transform                   the map of rows before the classifier    (sentences, n, transform_size)
    dense                       the map behind the pooling               (sentences, dense_size)
    logits                                                               (sentences, [n,] outputs)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from secformer.errors import InputError
from secformer.models.config import ModelConfig
from secformer.models.positions import band, buckets, distances, half_turned, rotation
from secformer.models.tokens import Batch
from secformer.models.weights import Norm, Weights
from secformer.protocols.functions import activation_named, gelu

Observer = Callable[[str, int, Tensor, Tensor], None]
OUTSIDE = -1  # the layer of what lies outside the layers

POOLERS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "gelu": gelu}
SHORTEST = 1e-24  # the least squared length of a vector that is normalised, as in sentence-transformers


@dataclass(frozen=True)
class Functions:
    """The non-linear parts of a model. A `place` names one of them: "embedding_norm", "layers.0.softmax", "head"."""

    activation: Callable[[Tensor], Tensor]
    softmax_weights: Callable[[Tensor, Tensor], Tensor]
    """Numerators from scores and the mask of keys, which broadcasts: zero where that is False."""
    reciprocal: Callable[[Tensor, str], Tensor]
    """1/D of the row sums of the numerators, at a place."""
    inverse_deviation: Callable[[Tensor, int, str], Tensor]
    """1/√(v + ε) of `count` values, at a place; ε is in the argument."""
    pooler: Callable[[Tensor], Tensor]
    transform: Callable[[Tensor], Tensor]
    inverse_length: Callable[[Tensor], Tensor]
    """1/√ of a sentence vector's squared length."""


def exact_functions(config: ModelConfig) -> Functions:
    """What `transformers` computes; 2Quad where the model was distilled for it."""
    if config.softmax == "2quad":
        weights = partial(quad_weights, shift=config.quad_shift)
    else:
        weights = exponential_weights
    return Functions(
        activation=activation_named(config.activation).function,
        softmax_weights=weights,
        reciprocal=lambda total, place: 1 / total,
        inverse_deviation=lambda variance, count, place: torch.rsqrt(variance),
        pooler=POOLERS.get(config.pooler, torch.tanh),
        transform=activation_named(config.transform or config.activation).function,
        inverse_length=lambda squared: torch.rsqrt(squared.clamp_min(SHORTEST)),
    )


def exponential_weights(scores: Tensor, keys: Tensor) -> Tensor:
    """exp(S − row maximum)."""
    scores = scores.masked_fill(~keys, -math.inf)
    return torch.exp(scores - scores.amax(-1, keepdim=True))


def quad_weights(scores: Tensor, keys: Tensor, shift: float) -> Tensor:
    """2Quad's (S + c)²."""
    return (scores + shift).square() * keys


@dataclass(frozen=True, repr=False)
class Output:
    hidden: Tensor  # (sentences, length, hidden)
    result: Tensor  # (sentences, hidden), (sentences, labels) or, for tokens, (sentences, length, labels)


def distance_rows(weights: Weights, config: ModelConfig) -> Tensor:
    """The table of distances, as queries and keys are made of it (2 · span, hidden)."""
    rows = weights["distance"]
    if not config.distance_norm:
        return rows
    gain, bias = weights.norm("distance_norm")
    return torch.nn.functional.layer_norm(rows, rows.shape[-1:], gain, bias, config.layer_norm_eps)


def ignore(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
    """The observer that looks at nothing."""


def forward(
    weights: Weights,
    config: ModelConfig,
    batch: Batch,
    observer: Observer = ignore,
    functions: Functions | None = None,
) -> Output:
    """Run the whole model. Rows of `hidden` at padding are without meaning."""
    if batch.ids.shape[1] > config.positions:
        raise InputError(f"the batch is {batch.ids.shape[1]} tokens long, the model takes {config.positions}")
    with torch.no_grad():
        return Forward(weights, config, batch.mask, observer, functions or exact_functions(config)).run(batch)


@dataclass(frozen=True, repr=False)
class Forward:
    """One pass over one batch; `mask` (sentences, n) is True for tokens."""

    weights: Weights
    config: ModelConfig
    mask: Tensor
    observer: Observer
    functions: Functions

    def run(self, batch: Batch) -> Output:
        if self.config.image_size:
            total = self.patches(batch)
            x = self.stream(self.norm(total, "embedding_norm", OUTSIDE), total)
        elif self.config.norm_first:
            x = self.embed(batch)
            x = self.stream(x, x)
        else:
            x = self.embed(batch)
            for index in range(self.config.layers):
                x = self.layer(x, index)
        self.observer("hidden", OUTSIDE, x, self.tokens)
        return Output(x, self.head(x, batch))

    @property
    def tokens(self) -> Tensor:
        return self.mask[..., None]

    def embed(self, batch: Batch) -> Tensor:
        """(sentences, n, hidden)."""
        x = self.weights["word"][batch.ids]
        if "position" in self.weights:
            x = x + self.weights["position"][: batch.ids.shape[1]]
        if "token_type" in self.weights:
            x = x + self.weights["token_type"][batch.token_types]
        return self.project(self.norm(x, "embedding_norm", OUTSIDE))

    def project(self, x: Tensor) -> Tensor:
        """From the size of the embedding to that of the layers."""
        return self.weights.linear("projection")(x) if self.config.embedding_size else x

    def stored(self, index: int) -> str:
        """Where a layer's weights are."""
        return f"layers.{self.config.own_layer(index)}"

    def layer(self, x: Tensor, index: int) -> Tensor:
        name = self.stored(index)
        self.observer("input", index, x, self.tokens)
        attended = self.weights.linear(f"{name}.output")(self.attention(x, index))
        x = self.norm(attended + x, "attention_norm", index)
        self.observer("middle", index, x, self.tokens)
        return self.norm(self.feed_forward(x, index) + x, "output_norm", index)

    def patches(self, batch: Batch) -> Tensor:
        """An image's rows: those before its patches, and its patches."""
        assert batch.patches is not None
        rows = self.weights.linear("patch")(batch.patches.to(self.weights["position"]))
        first = [self.weights[name].expand(len(rows), 1, -1) for name in ("first", "second") if name in self.weights]
        return torch.cat([*first, rows], 1) + self.weights["position"]

    def stream(self, x: Tensor, total: Tensor) -> Tensor:
        """All layers with their LayerNorms first: what they add up goes on as it is. A layer ends with the next one's."""
        for index in range(self.config.layers):
            self.observer("input", index, x, self.tokens)
            total = total + self.added(self.weights.linear(f"{self.stored(index)}.output")(self.attention(x, index)))
            x = self.norm(total, "attention_norm", index)
            self.observer("middle", index, x, self.tokens)
            total = total + self.added(self.feed_forward(x, index))
            x = self.norm(total, "output_norm", index)
        return x

    def added(self, x: Tensor) -> Tensor:
        """What a block adds."""
        return x

    def feed_forward(self, x: Tensor, index: int) -> Tensor:
        inner = self.weights.linear(f"{self.stored(index)}.up")(x)
        self.observer("preactivation", index, inner, self.tokens)
        inner = self.functions.activation(inner)
        if self.config.gated:
            inner = inner * self.weights.linear(f"{self.stored(index)}.gate")(x)
        self.observer("activation", index, inner, self.tokens)
        return self.weights.linear(f"{self.stored(index)}.down")(inner)

    def attention(self, x: Tensor, index: int) -> Tensor:
        name = self.stored(index)
        queries, keys = self.mask[:, None, :, None], self.mask[:, None, None, :]
        split = {part: self._heads(self.weights.linear(f"{name}.{part}")(x)) for part in ("query", "key", "value")}
        for part, tensor in split.items():
            self.observer(part, index, tensor, queries)
        if self.config.rotary_base:
            cosine, sine = (turn.to(x) for turn in rotation(self.config, index, x.shape[1]))
            for part in ("query", "key"):
                split[part] = split[part] * cosine + half_turned(split[part]) * sine
        near = band(self.config, index, x.shape[1])
        if near is not None:  # a query sees itself always: one of padding may have no other key
            keys = (keys & near.to(keys.device)) | torch.eye(len(near), dtype=torch.bool, device=keys.device)
        scores = split["query"] @ split["key"].transpose(-1, -2)
        if self.config.distance_span:
            scores = scores + self._by_distance(split["query"], split["key"], name)
        scores = scores / self.config.score_divisor
        if self.config.relative_buckets:
            scores = scores + self.weights["relative"][buckets(self.config, x.shape[1])].permute(2, 0, 1)
        self.observer("scores", index, scores, queries & keys)
        numerators = self.functions.softmax_weights(scores, keys)
        denominator = numerators.sum(-1, keepdim=True)
        self.observer("denominator", index, denominator, queries)
        weighted = numerators @ split["value"]
        self.observer("weighted", index, weighted, queries)
        context = weighted * self.functions.reciprocal(denominator, f"layers.{index}.softmax")
        context = context.transpose(1, 2).flatten(-2)  # (sentences, n, hidden)
        self.observer("context", index, context, self.tokens)
        return context

    def _by_distance(self, query: Tensor, key: Tensor, name: str) -> Tensor:
        """Content with distance and distance with content (sentences, heads, n, n)."""
        rows = distance_rows(self.weights, self.config)[None].to(query)
        keys, queries = (self._heads(self.weights.linear(f"{name}.{part}")(rows)) for part in ("key", "query"))
        classes = distances(self.config, query.shape[-2]).to(query.device).expand(*query.shape[:2], -1, -1)
        from_query = (query @ keys.transpose(-1, -2)).gather(-1, classes)
        from_key = (key @ queries.transpose(-1, -2)).gather(-1, classes.transpose(-1, -2))  # of keys by queries
        return from_query + from_key.transpose(-1, -2)

    def _heads(self, rows: Tensor) -> Tensor:
        """(sentences, n, hidden) → (sentences, heads, n, d)."""
        return rows.unflatten(-1, (self.config.heads, self.config.head_size)).transpose(1, 2)

    def norm(self, residual: Tensor, part: str, index: int) -> Tensor:
        """LayerNorm `part`, of a layer unless that is OUTSIDE."""
        name, place = part.removesuffix("_norm"), part if index == OUTSIDE else f"layers.{index}.{part}"
        self.observer(f"{name}.residual", index, residual, self.tokens)
        centred = residual - residual.mean(-1, keepdim=True)
        self.observer(f"{name}.centred", index, centred, self.tokens)
        variance = centred.square().mean(-1, keepdim=True)
        self.observer(f"{name}.variance", index, variance, self.tokens)
        inverse = self.functions.inverse_deviation(variance + self.config.layer_norm_eps, residual.shape[-1], place)
        gain, bias = self.norm_weights(part, index)
        return centred * inverse * gain + bias

    def norm_weights(self, part: str, index: int) -> Norm:
        if part == "output_norm":
            return self.weights.norm(self.config.output_norm(index))
        return self.weights.norm(part if index == OUTSIDE else f"{self.stored(index)}.{part}")

    def head(self, x: Tensor, batch: Batch) -> Tensor:
        sentences = self.mask[:, :1]  # every sentence has a first token: all True, (sentences, 1)
        if self.config.head == "embedding":
            pooled = self.pool(x)
            self.observer("pooled", OUTSIDE, pooled, sentences)
            pooled = self.dense(pooled, sentences) if self.config.dense_size else pooled
            return self.unit_length(pooled, sentences) if self.config.normalise else pooled
        if self.config.transform and batch.places is not None:
            rows = batch.places[..., None].expand(-1, -1, x.shape[-1])
            asked = replace(self, mask=torch.ones_like(batch.places, dtype=torch.bool))
            return asked.classify(x.gather(1, rows))
        if self.config.pooler:
            x = self.weights.linear("pooler")(x[:, 0])
            self.observer("pooler", OUTSIDE, x, sentences)
            x = self.functions.pooler(x)
        elif self.config.one_row:
            return replace(self, mask=sentences).classify(self.pool(x)[:, None])[:, 0]
        return self.classify(x)

    def classify(self, x: Tensor) -> Tensor:
        if self.config.transform:
            x = self.weights.linear("transform")(x)
            self.observer("transform", OUTSIDE, x, self.tokens)
            x = self.norm(self.functions.transform(x), "transform_norm", OUTSIDE)
        logits = self.weights.linear("classifier")(x)
        self.observer("logits", OUTSIDE, logits, self.mask[:, :1] if logits.ndim == 2 else self.tokens)
        return logits

    def dense(self, pooled: Tensor, sentences: Tensor) -> Tensor:
        """The map behind the pooling, and its tanh."""
        found = self.weights.linear("dense")(pooled)
        self.observer("dense", OUTSIDE, found, sentences)
        return self.functions.pooler(found) if self.config.dense_activation else found

    def pool(self, x: Tensor) -> Tensor:
        """One vector a sentence: the first token's, or the mean over its tokens."""
        if self.config.pooling == "cls":
            return x[:, 0]
        tokens = self.tokens.to(x.dtype)
        return (x * tokens).sum(1) / tokens.sum(1)

    def unit_length(self, pooled: Tensor, sentences: Tensor) -> Tensor:
        squared = pooled.square().sum(-1, keepdim=True)
        self.observer("squared_norm", OUTSIDE, squared, sentences)
        return pooled * self.functions.inverse_length(squared)
