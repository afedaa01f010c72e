"""What a checkpoint folder says about its model: shapes, activation, head, pooling.

A `ModelConfig` is all that is public about a model's architecture: two models with equal configurations run the same
program. Families (families.py) differ in how their checkpoints are named; what they compute is said here,
x ← LayerNorm(x + Attention(x)), x ← LayerNorm(x + FFN(x)) on the sum of embedding rows. Fields that are zero or empty
leave out what they name: an embedding of its own size, layers that are used again, a bias of scores by distance.

Anything that would change the function computed and is not listed here is refused by name: a model that
runs must give what `transformers` gives. (`chunk_size_feed_forward` only saves memory there, and is
ignored.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from secformer.errors import InputError, ModelError
from secformer.models.families import Family, HeadNames, family_named
from secformer.models.json_files import as_integer, as_number, read_json
from secformer.models.sentences import DenseActivation, Pooling, Prompts, SentenceSettings
from secformer.protocols.functions import activation_named

Head = Literal["embedding", "classification", "regression", "tokens", "question", "choice", "masked"]
Softmax = Literal["exact", "2quad"]
Pooler = Literal["", "tanh", "relu", "gelu"]

LONGEST_ROWS = 512
"""Tokens that attention has windows for (protocols/menu.py): a model without a position table could take more."""

SPAN_LABELS = ("start", "end")
"""What a question's head gives for every token."""
CHOICE_LABELS = ("choice",)

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

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Read `config.json`, and sentence-transformers' files where there are any."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ModelError(f"'{folder}' is not a folder; give the folder of a checkpoint saved by transformers")
        return from_settings(read_json(folder / "config.json"), SentenceSettings.from_folder(folder))


def from_settings(settings: Mapping[str, Any], sentence: SentenceSettings | None = None) -> ModelConfig:
    """The configuration that the contents of `config.json` describe."""
    family = family_named(settings.get("model_type"))
    _refuse_unsupported(settings)
    sentence = sentence or SentenceSettings()
    read = _Reader(family, settings)
    head = _head(family, settings, sentence)
    names = family.heads.get("classification" if head == "regression" else head)
    _require(family, names, settings)
    pad = read.integer("pad_token_id", 0)
    offset = pad + 1 if family.positions_follow_padding else 0
    positions = read.integer("max_position_embeddings") - offset
    if family.rotary:  # no table ends them
        positions = min(positions, LONGEST_ROWS)
    softmax, shift = _softmax(settings)
    return ModelConfig(
        family=family.name,
        layers=read.integer("num_hidden_layers"),
        heads=read.integer("num_attention_heads"),
        hidden=read.integer("hidden_size"),
        intermediate=read.integer("intermediate_size"),
        vocabulary=read.integer("vocab_size"),
        positions=positions or _image_rows(family, read),
        token_types=read.integer("type_vocab_size", 2),
        activation=activation_named(str(read.get("hidden_act", "gelu")), by_checkpoint=True).name,
        layer_norm_eps=read.number("layer_norm_eps", 1e-12),
        embedding_size=_embedding_size(family, read),
        stored_layers=read.integer("num_hidden_groups") if "num_hidden_groups" in family.defaults else 0,
        relative_buckets=family.relative_buckets,
        norm_first=family.norm_first,
        gated=family.gated,
        **(_rotary(read) if family.rotary else {}),
        **(_distances(read) if family.disentangled else {}),
        **(_image(family, read) if family.first_rows else {}),
        head=head,
        pooler=names.pooler if names else "",  # type: ignore[arg-type]
        transform=_transform(names, read),
        transform_size=_transform_size(family, names, read),
        labels=_head_labels(head, settings),
        multi_label=settings.get("problem_type") == "multi_label_classification",
        position_offset=offset,
        pad_token=pad,
        softmax=softmax,
        quad_shift=shift,
        pooling=sentence.pooling or _pooling(head, settings),
        dense_size=sentence.dense_size,
        dense_activation=sentence.dense_activation,
        normalise=sentence.normalise,
        strip=sentence.strip,
        lower_case=sentence.lower_case,
        max_tokens=min(sentence.max_tokens, positions),
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
    )


@dataclass(frozen=True)
class _Reader:
    """config.json by BERT's keys, whatever the family calls them."""

    family: Family
    settings: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        value = self.settings.get(self.family.settings.get(key, key))
        if value is None:
            value = self.settings.get(key) if key not in self.family.defaults else None
        value = self.family.defaults.get(key, default) if value is None else value
        if value is None:
            raise ModelError(f"config.json: '{key}' is missing")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return as_integer(key, self.get(key, default))

    def number(self, key: str, default: float | None = None) -> float:
        return as_number(key, self.get(key, default))


def _refuse_unsupported(settings: Mapping[str, Any]) -> None:
    positions = settings.get("position_embedding_type") or "absolute"
    parts = {
        f"position_embedding_type '{positions}' (only 'absolute' is)": positions != "absolute",
        "a decoder (is_decoder)": settings.get("is_decoder"),
        "cross attention (add_cross_attention)": settings.get("add_cross_attention"),
        "pruned heads (pruned_heads)": settings.get("pruned_heads"),
        "a quantised checkpoint (quantization_config)": settings.get("quantization_config"),
        "code of the checkpoint's own (auto_map)": settings.get("auto_map"),
    }
    for part, present in parts.items():
        if present:
            raise ModelError(f"config.json: {part} is not supported")


def _require(family: Family, names: HeadNames | None, settings: Mapping[str, Any]) -> None:
    for key, value in {**family.requires, **(names.requires if names else {})}.items():
        if settings.get(key, value) != value:
            raise ModelError(f"config.json: {key} {settings[key]!r} is not supported; supported: {value!r}")


def _embedding_size(family: Family, read: _Reader) -> int:
    """0 where the tables' rows are the layers' own."""
    if not family.projection:
        return 0
    size = read.integer("embedding_size")
    return 0 if family.projection == "where sizes differ" and size == read.integer("hidden_size") else size


def _pooling(head: Head, settings: Mapping[str, Any]) -> Pooling:
    """Of a model that says nothing about sentences. `classifier_pooling` is a classifier's: a vector is the mean."""
    first = settings.get("model_type") in ("modernbert", "vit", "deit")
    pooling = settings.get("classifier_pooling", "cls" if first else "mean")
    if pooling not in get_args(Pooling):
        raise ModelError(f"classifier_pooling '{pooling}' is not supported; supported: {', '.join(get_args(Pooling))}")
    return "mean" if head == "embedding" else pooling


def _distances(read: _Reader) -> dict[str, Any]:
    """How content and distance make scores; DeBERTa-v2 and v3 as they were published."""
    settings = read.settings
    kinds = settings.get("pos_att_type") or ()
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    norm = settings.get("norm_rel_ebd", "none")
    parts = {
        "scores without distances (relative_attention)": not settings.get("relative_attention", False),
        "positions in the embedding (position_biased_input)": settings.get("position_biased_input", True),
        "maps of their own for distances (share_att_key)": not settings.get("share_att_key", False),
        f"pos_att_type {list(kinds)} (only p2c with c2p is)": sorted(kinds) != ["c2p", "p2c"],
        f"norm_rel_ebd '{norm}'": norm not in ("none", "layer_norm"),
        "an embedding of its own size (embedding_size)": settings.get("embedding_size", read.integer("hidden_size"))
        != read.integer("hidden_size"),
    }
    for part, present in parts.items():
        if present:
            raise ModelError(f"config.json: {part} is not supported")
    limit = read.integer("max_relative_positions", -1)
    limit = limit if limit > 0 else read.integer("max_position_embeddings")
    buckets = max(0, read.integer("position_buckets", -1))
    found = {"distance_span": buckets or limit, "distance_buckets": buckets, "distance_limit": limit}
    return {**found, "distance_norm": norm == "layer_norm"}


def _image(family: Family, read: _Reader) -> dict[str, Any]:
    sizes = {"image_size": read.integer("image_size"), "patch_size": read.integer("patch_size")}
    return {**sizes, "channels": read.integer("num_channels"), "first_rows": family.first_rows}


def _image_rows(family: Family, read: _Reader) -> int:
    """Rows of a whole image: its patches, and those before."""
    if not family.first_rows:
        return 0
    return (read.integer("image_size") // max(1, read.integer("patch_size"))) ** 2 + family.first_rows


def _rotary(read: _Reader) -> dict[str, Any]:
    """How positions turn queries and keys, and which layers see near tokens only."""
    kinds, layers = read.settings.get("layer_types"), read.integer("num_hidden_layers")
    if kinds is None:
        every = read.integer("global_attn_every_n_layers")
        kinds = ["sliding_attention" if index % every else "full_attention" for index in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise ModelError(f"config.json: layer_types must name {' or '.join(known)} for each of {layers} layers")
    return {
        "rotary_base": _theta(read, "full_attention", "global_rope_theta"),
        "local_rotary_base": _theta(read, "sliding_attention", "local_rope_theta"),
        "local_layers": tuple(index for index, kind in enumerate(kinds) if kind == "sliding_attention"),
        "local_reach": read.integer("local_attention") // 2,
    }


def _theta(read: _Reader, kind: str, key: str) -> float:
    given = (read.settings.get("rope_parameters") or {}).get(kind) or {}
    if given.get("rope_type", "default") != "default" or read.settings.get("rope_scaling"):
        raise ModelError("config.json: positions that are scaled (rope_type, rope_scaling) are not supported")
    return as_number("rope_theta", given["rope_theta"]) if "rope_theta" in given else read.number(key)


def _transform(names: HeadNames | None, read: _Reader) -> str:
    if names is None or not names.transform:
        return ""
    key = names.transform
    name = str(read.get(key, "gelu")) if key in ("hidden_act", "classifier_activation") else key
    return activation_named(name, by_checkpoint=True).name


def _transform_size(family: Family, names: HeadNames | None, read: _Reader) -> int:
    if names is None or not names.transform:
        return 0
    return read.integer("embedding_size" if family.projection else "hidden_size")


def _head(family: Family, settings: Mapping[str, Any], sentence: SentenceSettings) -> Head:
    if sentence.pooling is not None:  # a sentence encoder, whatever head the encoder was first trained with
        return "embedding"
    listed = settings.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else None
    known = {family.classes + "Model": "embedding"}
    known |= {family.classes + names.ending: kind for kind, names in family.heads.items()}
    if not isinstance(name, str) or name not in known:
        raise ModelError(
            f"architecture '{name}' is not supported; for model type '{family.name}' these are: {', '.join(known)}"
        )
    kind = known[name]
    if kind == "classification" and (settings.get("problem_type") == "regression" or len(_labels(settings)) == 1):
        return "regression"
    return kind  # type: ignore[return-value]


def _head_labels(head: Head, settings: Mapping[str, Any]) -> tuple[str, ...]:
    fixed = {"embedding": (), "masked": (), "question": SPAN_LABELS, "choice": CHOICE_LABELS}
    return fixed[head] if head in fixed else _labels(settings)


def _labels(settings: Mapping[str, Any]) -> tuple[str, ...]:
    names = settings.get("id2label")
    if not names:  # transformers leaves out its default, two unnamed labels
        names = {index: f"LABEL_{index}" for index in range(as_integer("num_labels", settings.get("num_labels", 2)))}
    try:
        by_index = {int(index): str(name) for index, name in names.items()}
        return tuple(by_index[index] for index in range(len(names)))
    except (AttributeError, KeyError, ValueError):
        raise ModelError("config.json: id2label must name the labels 0, 1, … without gaps") from None


def _softmax(settings: Mapping[str, Any]) -> tuple[Softmax, float]:
    """A distilled student carries `"softmax": "2quad"` and its shift, `"quad_shift": c`."""
    softmax = settings.get("softmax", "exact")
    if softmax not in get_args(Softmax):
        raise ModelError(f"softmax '{softmax}' is not supported; supported: {', '.join(get_args(Softmax))}")
    if softmax == "exact":
        return "exact", 0.0
    if settings.get("quad_shift") is None:
        raise ModelError("config.json: 'quad_shift' is missing")
    return softmax, as_number("quad_shift", settings["quad_shift"])


def _published(model_type: str, classes: str, layers: int, hidden: int, **settings: Any) -> ModelConfig:
    """A published shape, classifying into two labels unless it says more."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64}
    kind = {"architectures": [f"{classes}ForSequenceClassification"], "model_type": model_type}
    return from_settings({"intermediate_size": 4 * hidden, **sizes, **kind, **settings})


def _texts(vocabulary: int, positions: int = 512, types: int = 2) -> dict[str, int]:
    return {"vocab_size": vocabulary, "max_position_embeddings": positions, "type_vocab_size": types}


PRESETS: Mapping[str, ModelConfig] = {
    "bert-base": _published("bert", "Bert", 12, 768, **_texts(30522)),
    "bert-large": _published("bert", "Bert", 24, 1024, **_texts(30522)),
    "xlm-roberta-base": _published("xlm-roberta", "XLMRoberta", 12, 768, layer_norm_eps=1e-5, **_texts(250002, 514, 1)),
    "electra-base": _published("electra", "Electra", 12, 768, embedding_size=768, **_texts(30522)),
    "albert-base-v2": _published(
        "albert", "Albert", 12, 768, embedding_size=128, hidden_act="gelu_new", **_texts(30000)
    ),
    "all-mpnet-base-v2": from_settings(
        {
            "model_type": "mpnet",
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "vocab_size": 30527,
            "max_position_embeddings": 514,
            "layer_norm_eps": 1e-5,
        },
        SentenceSettings(pooling="mean", normalise=True, strip=True, max_tokens=384),
    ),
    "deberta-v3-base": _published(
        "deberta-v2",
        "DebertaV2",
        12,
        768,
        layer_norm_eps=1e-7,
        relative_attention=True,
        position_biased_input=False,
        share_att_key=True,
        pos_att_type="p2c|c2p",
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        **_texts(128100, 512, 0),
    ),
    "ModernBERT-base": _published(
        "modernbert", "ModernBert", 22, 768, intermediate_size=1152, **_texts(50368, 8192, 0)
    ),
    "vit-base-patch16-224": _published(
        "vit", "ViT", 12, 768, architectures=["ViTForImageClassification"], num_labels=1000
    ),
}
"""Shapes as they were published, for plans without a checkpoint."""
