"""Model folders: read for training, and written so that they load everywhere like any checkpoint.

What is saved is what `transformers` would save: safetensors under the family's names, config.json, the tokenizer's files. A
student adds `"softmax": "2quad"` and `"quad_shift": c`; one whose activation was replaced too says `"hidden_act": "quad"`,
which nobody but suite mpcformer computes, so that every other reader refuses it by name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secformer.errors import InputError, ModelError, SettingsError
from secformer.models.config import ModelConfig
from secformer.models.config_json import from_settings
from secformer.models.families import Family, family_named
from secformer.models.huggingface import WEIGHTS_FILE, Checkpoint, load_weights
from secformer.models.json_files import read_json
from secformer.models.sentences import SentenceSettings
from secformer.models.tokens import load_tokenizer
from secformer.models.weights import Weights, shapes
from secformer.training.network import Network, Swaps
from secformer.training.tasks import Task, of_another

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
)  # fmt: skip
HEAD = ("pooler.", "classifier.")
SPREAD = 0.02
"""Standard deviation of a new head's weights, as in BERT."""
HEADS_WITHOUT_PREFIX = ("classifier", "pre_classifier")


@dataclass(frozen=True, repr=False)
class Folder:
    """A model folder as it was read."""

    path: Path
    settings: Mapping[str, Any]
    """config.json."""
    network: Network
    tokenizer: Any


def read_folder(path: str | Path) -> Folder:
    """Config, weights in float32, tokenizer."""
    path = Path(path)
    settings, config, swaps = read_settings(path)
    network = Network(load_weights(path, config, torch.float32), config, swaps)
    return Folder(path, settings, network, load_tokenizer(path, config))


def read_settings(path: Path) -> tuple[Mapping[str, Any], ModelConfig, Swaps]:
    """config.json, what it says of the model with its own activation, and what was replaced in it."""
    settings = read_json(path / "config.json")
    key = setting_key(settings, "hidden_act")
    quad = settings.get(key) == "quad"
    known = {**settings, key: "gelu"} if quad else settings
    config = from_settings(known, SentenceSettings.from_folder(path))
    return settings, config, Swaps(config.softmax, config.quad_shift, "quad" if quad else "exact")


def read_base(path: str | Path, task: Task, seed: int, mean_target: float) -> Folder:
    """An encoder with a head for the task: its own first map where it has one, the rest drawn anew.

    A score's bias starts at the mean of what is to be learnt.
    """
    path = Path(path)
    settings, config, swaps = read_settings(path)
    config = task_config(config, task)
    bare = replace(config, head="embedding", labels=(), pooler="")
    tensors = dict(load_weights(path, bare, torch.float32).tensors)
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes(config).items():
        if name.startswith(HEAD):
            tensors[name] = _head_tensor(path, config, name, shape, generator)
    if task.score:
        tensors["classifier.bias"].fill_(mean_target)
    return Folder(path, settings, Network(Weights(tensors), config, swaps), load_tokenizer(path, config))


def task_config(config: ModelConfig, task: Task) -> ModelConfig:
    """The same encoder with the task's head; texts reach the tokenizer as they are."""
    return replace(
        config,
        head="regression" if task.score else "classification",
        pooler=family_named(config.family).pooler,  # type: ignore[arg-type]
        labels=("score",) if task.score else task.names,
        pooling="mean",
        normalise=False,
        strip=False,
        lower_case=False,
        max_tokens=0,
        prompts=(),
        default_prompt="",
    )


def _head_tensor(
    path: Path, config: ModelConfig, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    if name.startswith("pooler."):
        own = _stored_pooler(path, config, name, shape)
        if own is not None:
            return own
    if name.endswith(".bias"):
        return torch.zeros(shape)
    return SPREAD * torch.randn(shape, generator=generator)


def _stored_pooler(path: Path, config: ModelConfig, name: str, shape: tuple[int, ...]) -> Tensor | None:
    checkpoint = Checkpoint(path)
    try:
        tensor = checkpoint.read(checkpoint.find(family_named(config.family).stored_names(name)))
    except ModelError:
        return None
    tensor = tensor.float().T if name.endswith(".weight") else tensor.float()
    return tensor.contiguous() if tuple(tensor.shape) == shape else None


def check_task(folder: Folder, task: Task) -> None:
    """Raise SettingsError unless the model answers this task."""
    config = folder.network.config
    if config.head != ("regression" if task.score else "classification"):
        raise SettingsError(f"'{folder.path}' has head '{config.head}': it is no model of task {task.name}")
    if not task.score and task.names and (len(config.labels) != task.outputs or of_another(task, config.labels)):
        labels = ", ".join(config.labels)
        raise SettingsError(f"'{folder.path}' knows the labels {labels}: it is no model of task {task.name}")


# -- writing -----------------------------------------------------------------------------------------------------------


def prepare(out: Path) -> None:
    """Make the folder a model will be saved into; one that holds a model or anything else already is refused."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{out}' cannot be made: {error.strerror or error}") from None
    if (out / "config.json").exists():
        raise SettingsError(f"'{out}' holds a model already: remove it or name another folder")


def save_folder(out: Path, source: Folder, network: Network, dtype: torch.dtype = torch.float32) -> None:
    """`network`, which was made from `source`, with its config and tokenizer. The weights come last but one, and
    config.json, without which nothing is a model, last."""
    from safetensors.torch import save_file

    copy_tokenizer(source.path, out)
    save_file(stored_tensors(network, dtype), out / WEIGHTS_FILE, metadata={"format": "pt"})
    text = json.dumps(stored_settings(source.settings, network, dtype), indent=2)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")


def copy_tokenizer(source: Path, out: Path) -> None:
    for name in TOKENIZER_FILES:
        if source != out and (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def stored_tensors(network: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    family, config = family_named(network.config.family), network.config
    found = {}
    for name, kept in network.weights.tensors.items():
        tensor = kept.detach().cpu()
        if name == "position":  # the rows for padding, which nobody looks at
            tensor = torch.cat([torch.zeros(config.position_offset, config.table_size), tensor.float()])
        elif name.endswith(".weight"):
            tensor = tensor.T
        found[_stored_name(family, name)] = tensor.to(dtype).contiguous()
    return found


def _stored_name(family: Family, name: str) -> str:
    prefixed, *_, bare = family.stored_names(name)[:2]
    return bare if bare.startswith(HEADS_WITHOUT_PREFIX) else prefixed


def stored_settings(settings: Mapping[str, Any], network: Network, dtype: torch.dtype) -> dict[str, Any]:
    config, family = network.config, family_named(network.config.family)
    found = {key: value for key, value in settings.items() if key not in ("torch_dtype", "softmax", "quad_shift")}
    sizes = {
        "num_hidden_layers": config.layers,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.positions + config.position_offset,
        "pad_token_id": config.pad_token,
    }
    found |= {setting_key(settings, key): size for key, size in sizes.items()}
    found |= {
        "architectures": [f"{family.classes}ForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(config.labels)},
        "label2id": {label: index for index, label in enumerate(config.labels)},
        "problem_type": "regression" if config.head == "regression" else "single_label_classification",
        "dtype": str(dtype).removeprefix("torch."),
    }
    if network.swaps.gelu == "quad":
        found[setting_key(settings, "hidden_act")] = "quad"
    if network.swaps.softmax == "2quad":
        found |= {"softmax": "2quad", "quad_shift": network.swaps.shift}
    return found


def setting_key(settings: Mapping[str, Any], key: str) -> str:
    """What the family calls it."""
    return family_named(settings.get("model_type")).settings.get(key, key)
