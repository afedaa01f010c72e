"""What a checkpoint folder says about its model: config.json, and sentence-transformers' files where there are any.

Anything that would change the function computed and is not listed here is refused by name: a model that
runs must give what `transformers` gives. (`chunk_size_feed_forward` only saves memory there, and is
ignored.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from secformer.errors import ModelError
from secformer.models.config import Head, ModelConfig, Softmax
from secformer.models.families import Family, HeadNames, family_named
from secformer.models.json_files import as_integer, as_number, read_json
from secformer.models.sentences import Pooling, SentenceSettings
from secformer.protocols.functions import activation_named

LONGEST_ROWS = 512
"""Tokens that attention has windows for (protocols/menu.py): a model without a position table could take more."""

SPAN_LABELS = ("start", "end")
"""What a question's head gives for every token."""
CHOICE_LABELS = ("choice",)


def load_config(folder: str | Path) -> ModelConfig:
    """The configuration of a checkpoint in its folder."""
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
