"""A model's public architecture: shapes, activation, head, pooling.

A `ModelConfig` is all that is public about a model's architecture: two models with equal configurations run the same
program. Families (families.py) differ in how their checkpoints are named; what they compute is said here,
x ← LayerNorm(x + Attention(x)), x ← LayerNorm(x + FFN(x)) on the sum of embedding rows. Fields that are zero or empty
leave out what they name: an embedding of its own size, layers that are used again, a bias of scores by distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from secformer.errors import InputError, ModelError
from secformer.models.sentences import DenseActivation, Pooling, Prompts
from secformer.protocols.functions import activation_named

Head = Literal["embedding", "classification", "regression", "tokens", "question", "choice", "masked"]
Softmax = Literal["exact", "2quad"]
Pooler = Literal["", "tanh", "relu", "gelu"]

QUAD_SHIFT = 5.0
"""c of 2Quad, (x + c)² / Σ (x + c)², where a model does not bring its own."""


@dataclass(frozen=True)
class ModelConfig:
    """Everything public about a model's architecture."""

    family: str
    layers: int
    heads: int
    hidden: int
    intermediate: int
    vocabulary: int
    positions: int  # the longest usable input, special tokens included
    token_types: int = 0  # rows of the token-type table; 0: the family has none
    activation: str = "gelu"  # one of protocols/functions.py
    layer_norm_eps: float = 1e-12
    embedding_size: int = 0  # of the tables' rows and their LayerNorm, with a map to `hidden` behind; 0: hidden, no map
    stored_layers: int = 0  # layers with weights of their own, each used several times in a row; 0: all of them
    relative_buckets: int = 0  # classes of distances with a bias of the scores for each head; 0: there is none
    distance_span: int = (
        0  # distances to either side with a row of their own, which scores are also made of; 0: they are not
    )
    distance_buckets: int = 0  # from half of these on, distances share rows; 0: they do not
    distance_limit: int = 0  # where that ends
    distance_norm: bool = False  # a LayerNorm of the rows
    norm_first: bool = False  # x ← x + Attention(LayerNorm(x)), x ← x + FFN(LayerNorm(x)), and a last LayerNorm
    gated: bool = False  # the activation is multiplied by a second map
    rotary_base: float = 0.0  # queries and keys are turned by their position, and no table has any; 0: they are not
    local_rotary_base: float = 0.0  # the same in local layers
    local_layers: tuple[int, ...] = ()  # those in which a token sees only near ones
    local_reach: int = 0  # how far, to either side
    image_size: int = 0  # of an image's side, in pixels; 0: the model takes texts
    patch_size: int = 0  # of a patch's
    channels: int = 0
    first_rows: int = 0  # rows before those of an image's patches
    head: Head = "embedding"
    pooler: Pooler = ""  # the activation of a dense layer on the first token, before the classifier; "": there is none
    transform: str = (
        ""  # the activation of one on every row that is classified, with a LayerNorm behind; "": there is none
    )
    transform_size: int = 0
    labels: tuple[str, ...] = ()
    multi_label: bool = False  # classification with an independent yes or no for every label
    position_offset: int = 0  # rows of the stored position table before the first token's (RoBERTa: pad + 1)
    pad_token: int = 0
    softmax: Softmax = "exact"
    quad_shift: float = 0.0  # c of 2Quad
    pooling: Pooling = "mean"  # of the embedding head
    dense_size: int = 0  # of a map behind the pooling; 0: there is none
    dense_activation: DenseActivation = ""  # behind that; "": none
    normalise: bool = False  # scale sentence embeddings to length 1
    strip: bool = False  # spaces around a text are dropped before the tokenizer sees it
    lower_case: bool = False  # and the text is lowered
    max_tokens: int = 0  # a longer text is cut here, as sentence-transformers does; 0: it is refused
    prompts: Prompts = ()  # what may be put before a text, by name
    default_prompt: str = ""  # the name of the one that is, unless another is asked for

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_sizes()
        if not (math.isfinite(self.layer_norm_eps) and self.layer_norm_eps > 0):
            raise ModelError(f"layer_norm_eps must be a positive number, not {self.layer_norm_eps}")
        if not math.isfinite(self.quad_shift):
            raise ModelError(f"quad_shift must be a finite number, not {self.quad_shift}")
        if (self.head in ("embedding", "masked")) != (not self.labels):
            raise ModelError(f"a model with head '{self.head}' and {len(self.labels)} labels makes no sense")

    def _check_choices(self) -> None:
        choices = {"head": Head, "softmax": Softmax, "pooling": Pooling, "pooler": Pooler}
        choices["dense_activation"] = DenseActivation
        for name, allowed in choices.items():
            value, supported = getattr(self, name), get_args(allowed)
            if value not in supported:
                raise ModelError(f"{name} '{value}' is not supported; supported: {', '.join(supported)}")
        for activation in filter(None, (self.activation, self.transform)):
            activation_named(activation)

    def _check_sizes(self) -> None:
        needed = ("layers", "heads", "hidden", "intermediate", "positions")
        needed += ("patch_size", "channels") if self.image_size else ("vocabulary",)
        for name in needed:
            if getattr(self, name) < 1:
                raise ModelError(f"the model's {name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "token_types",
            "position_offset",
            "max_tokens",
            "embedding_size",
            "stored_layers",
            "relative_buckets",
            "transform_size",
            "dense_size",
        ):
            if getattr(self, name) < 0:
                raise ModelError(f"the model's {name} cannot be negative")
        if self.stored_layers > self.layers:
            raise ModelError(f"{self.stored_layers} stored layers are more than the {self.layers} there are")
        if self.stored_layers and self.norm_first:
            raise ModelError("layers that are used again with their LayerNorm first are not supported")
        if self.rotary_base and self.head_size % 2:
            raise ModelError(f"heads of {self.head_size} numbers cannot be turned by position: the size must be even")
        if self.gated and activation_named(self.activation).rectifies:
            raise ModelError(f"activation '{self.activation}' in a gated feed-forward block is not supported")
        if self.max_tokens > self.positions:
            raise ModelError(f"texts of {self.max_tokens} tokens do not fit into {self.positions} positions")
        if self.hidden % self.heads:
            raise ModelError(f"hidden size {self.hidden} is not a multiple of the number of heads, {self.heads}")
        if self.image_size and self.image_size % self.patch_size:
            raise ModelError(f"images of {self.image_size} pixels do not divide into patches of {self.patch_size}")
        if not (self.image_size or 0 <= self.pad_token < self.vocabulary):
            raise ModelError(f"padding token {self.pad_token} is outside the vocabulary of {self.vocabulary}")

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def position_rows(self) -> bool:
        """Whether a table of positions is added to the embedding."""
        return not (self.rotary_base or self.distance_span)

    @property
    def score_divisor(self) -> float:
        """What scores are divided by: √d, with d as often as there are products that they are the sum of."""
        return math.sqrt(self.head_size * (3 if self.distance_span else 1))

    @property
    def table_size(self) -> int:
        """Of an embedding's row."""
        return self.embedding_size or self.hidden

    @property
    def head_activation(self) -> str:
        """The one that a head has, if any: a first map's, that of rows to be classified, or that behind a vector's map."""
        return self.pooler or self.transform or self.dense_activation

    @property
    def outputs(self) -> int:
        """Numbers that a classifier gives for a row."""
        return self.vocabulary if self.head == "masked" else len(self.labels)

    def norm_size(self, place: str) -> int:
        """Of the rows that a LayerNorm takes: `embedding`, `transform`, or one of a layer."""
        return {"embedding": self.table_size, "transform": self.transform_size}.get(place, self.hidden)

    @property
    def patches(self) -> int:
        """Of an image."""
        return (self.image_size // self.patch_size) ** 2 if self.image_size else 0

    @property
    def patch_numbers(self) -> int:
        return self.channels * self.patch_size**2

    @property
    def own_layers(self) -> int:
        """Layers with weights of their own."""
        return self.stored_layers or self.layers

    def own_layer(self, index: int) -> int:
        """Whose weights the layer of this number has."""
        return int(index / (self.layers / self.stored_layers)) if self.stored_layers else index

    def layer_before(self, index: int) -> int | None:
        """Whose weights the layer before it has; None for the first."""
        return self.own_layer(index - 1) if index else None

    def output_norm(self, index: int) -> str:
        """What the LayerNorm behind a layer is called."""
        last = self.norm_first and index == self.layers - 1
        return "final_norm" if last else f"layers.{self.own_layer(index)}.output_norm"

    @property
    def one_row(self) -> bool:
        """Whether a head takes one row of a text: its first, or where `pooling` says so for it, the mean."""
        return self.head in ("classification", "regression", "choice")

    @property
    def shares_in_mean(self) -> bool:
        """Whether the client has to bring each token's share in the mean: something that is not linear comes behind it."""
        behind = self.dense_activation if self.head == "embedding" else self.transform and self.one_row
        return bool(behind) and self.pooling == "mean"

    def prompt(self, name: str | None = None) -> str:
        """What to put before a text: the prompt of this name, of the default's name for None, nothing for ""."""
        name = self.default_prompt if name is None else name
        known = {"": "", **dict(self.prompts)}
        if name not in known:
            have = ", ".join(repr(known) for known, _ in self.prompts) or "none"
            raise InputError(f"the model has no prompt {name!r}; it has {have}")
        return known[name]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ModelConfig:
        """From what JSON made of `asdict`."""
        prompts = tuple((str(name), str(text)) for name, text in data["prompts"])
        local = tuple(data.get("local_layers", ()))
        return cls(**{**data, "labels": tuple(data["labels"]), "prompts": prompts, "local_layers": local})
