"""The model in the clear: what the secure one must agree with, and where its ranges are measured.

One encoder for all families (see `config`), in the dtype of the weights. Every intermediate a secure run
would hold is shown to an observer, `observer(name, layer, tensor, mask)`, with the layer's index (−1
outside the layers) and a mask that broadcasts over the tensor, True for what belongs to a real token:

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
    N.variance                  attention or output                      (sentences, n, 1)
    hidden                      the encoder's output                     (sentences, n, hidden)
    pooled                      its mean or first row                    (sentences, hidden)
    squared_norm                |pooled|², where that is normalised      (sentences, 1)
    pooler                      the head's first map, before tanh, relu  (sentences, hidden)
    logits                                                               (sentences, [n,] labels)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from secformer.errors import InputError
from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch
from secformer.models.weights import LayerWeights, Norm, Weights

Observer = Callable[[str, int, Tensor, Tensor], None]
OUTSIDE = -1  # the layer of what lies outside the layers

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, repr=False)
class Output:
    hidden: Tensor  # (sentences, length, hidden)
    result: Tensor  # (sentences, hidden), (sentences, labels) or, for tokens, (sentences, length, labels)


def ignore(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
    """The observer that looks at nothing."""


@torch.no_grad()
def forward(weights: Weights, config: ModelConfig, batch: Batch, observer: Observer = ignore) -> Output:
    """Run the whole model. Rows of `hidden` at padding are without meaning."""
    if batch.ids.shape[1] > config.positions:
        raise InputError(f"the batch is {batch.ids.shape[1]} tokens long, the model takes {config.positions}")
    x = embed(weights, config, batch, observer)
    for index, layer in enumerate(weights.layers):
        x = encoder_layer(layer, config, x, batch.mask, observer, index)
    observer("hidden", OUTSIDE, x, batch.mask[..., None])
    return Output(x, apply_head(weights, config, x, batch.mask, observer))


def embed(weights: Weights, config: ModelConfig, batch: Batch, observer: Observer = ignore) -> Tensor:
    x = weights.word[batch.ids] + weights.position[: batch.ids.shape[1]]
    if weights.token_type is not None:
        x = x + weights.token_type[batch.token_types]
    return layer_norm(x, weights.embedding_norm, config, batch.mask, observer, "embedding", OUTSIDE)


def encoder_layer(
    weights: LayerWeights,
    config: ModelConfig,
    x: Tensor,
    mask: Tensor,
    observer: Observer = ignore,
    index: int = 0,
) -> Tensor:
    tokens = mask[..., None]
    observer("input", index, x, tokens)
    context = attention(weights, config, x, mask, observer, index)
    residual = weights.output(context) + x
    x = layer_norm(residual, weights.attention_norm, config, mask, observer, "attention", index)
    observer("middle", index, x, tokens)
    preactivation = weights.up(x)
    observer("preactivation", index, preactivation, tokens)
    activation = ACTIVATIONS[config.activation](preactivation)
    observer("activation", index, activation, tokens)
    residual = weights.down(activation) + x
    return layer_norm(residual, weights.output_norm, config, mask, observer, "output", index)


def attention(
    weights: LayerWeights, config: ModelConfig, x: Tensor, mask: Tensor, observer: Observer, index: int
) -> Tensor:
    def split(rows: Tensor) -> Tensor:  # (sentences, heads, length, head_size)
        return rows.unflatten(-1, (config.heads, config.head_size)).transpose(1, 2)

    queries, keys = mask[:, None, :, None], mask[:, None, None, :]
    query, key, value = split(weights.query(x)), split(weights.key(x)), split(weights.value(x))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        observer(name, index, tensor, queries)
    scores = query @ key.transpose(-1, -2) / math.sqrt(config.head_size)
    observer("scores", index, scores, queries & keys)
    numerators = softmax_numerators(scores, keys, config)
    denominator = numerators.sum(-1, keepdim=True)
    observer("denominator", index, denominator, queries)
    weighted = numerators @ value
    observer("weighted", index, weighted, queries)
    context = (weighted / denominator).transpose(1, 2).flatten(-2)
    observer("context", index, context, mask[..., None])
    return context


def softmax_numerators(scores: Tensor, keys: Tensor, config: ModelConfig) -> Tensor:
    """exp(S − row maximum), or 2Quad's (S + c)²; zero for keys that are padding."""
    if config.softmax == "2quad":
        return (scores + config.quad_shift).square() * keys
    scores = scores.masked_fill(~keys, -math.inf)
    return torch.exp(scores - scores.amax(-1, keepdim=True))


def layer_norm(
    residual: Tensor, norm: Norm, config: ModelConfig, mask: Tensor, observer: Observer, name: str, index: int
) -> Tensor:
    tokens = mask[..., None]
    observer(f"{name}.residual", index, residual, tokens)
    centred = residual - residual.mean(-1, keepdim=True)
    observer(f"{name}.centred", index, centred, tokens)
    variance = centred.square().mean(-1, keepdim=True)
    observer(f"{name}.variance", index, variance, tokens)
    return centred * torch.rsqrt(variance + config.layer_norm_eps) * norm.gain + norm.bias


def apply_head(weights: Weights, config: ModelConfig, x: Tensor, mask: Tensor, observer: Observer = ignore) -> Tensor:
    sentences = mask[:, :1]  # every sentence has a first token: all True, (sentences, 1)
    if config.head == "embedding":
        pooled = pool(x, mask, config)
        observer("pooled", OUTSIDE, pooled, sentences)
        return normalise(pooled, observer, sentences) if config.normalise else pooled
    if weights.pooler is not None:
        x = weights.pooler(x[:, 0])
        observer("pooler", OUTSIDE, x, sentences)
        x = ACTIVATIONS[config.pooler_activation](x)
    assert weights.classifier is not None
    logits = weights.classifier(x)
    observer("logits", OUTSIDE, logits, sentences if logits.ndim == 2 else mask[..., None])
    return logits


def pool(x: Tensor, mask: Tensor, config: ModelConfig) -> Tensor:
    """One vector a sentence: the first token's, or the mean over its tokens."""
    if config.pooling == "cls":
        return x[:, 0]
    tokens = mask[..., None].to(x.dtype)
    return (x * tokens).sum(1) / tokens.sum(1)


def normalise(pooled: Tensor, observer: Observer, sentences: Tensor) -> Tensor:
    squared = pooled.square().sum(-1, keepdim=True)
    observer("squared_norm", OUTSIDE, squared, sentences)
    return pooled / squared.sqrt().clamp_min(1e-12)  # the floor of sentence-transformers
