"""What sentence-transformers keeps beside a checkpoint: the modules behind the encoder, and what it does to a text first.

    modules.json                        pooling, a map behind it, and whether vectors are normalised
    sentence_bert_config.json           max_seq_length: longer texts are cut there; do_lower_case
    config_sentence_transformers.json   prompts: what is put before a text, by name; default_prompt_name

All of it is public: a client prepares its texts as the model's author does, or gets other vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from secformer.errors import ModelError
from secformer.models.json_files import as_integer, read_json

Pooling = Literal["mean", "cls"]
DenseActivation = Literal["", "tanh"]
Prompts = tuple[tuple[str, str], ...]

MODULES_FILE = "modules.json"
MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
PROMPTS_FILE = "config_sentence_transformers.json"
TEXT_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json")
LONGEST = 1 << 30
"""Instead of a length where none is given."""


@dataclass(frozen=True)
class SentenceSettings:
    """Without such files `pooling` is None, and a text is used as it is."""

    pooling: Pooling | None = None
    dense_size: int = 0
    dense_activation: DenseActivation = ""
    normalise: bool = False
    strip: bool = False
    lower_case: bool = False
    max_tokens: int = 0
    prompts: Prompts = ()
    default_prompt: str = ""

    @classmethod
    def from_folder(cls, folder: Path) -> SentenceSettings:
        if not (folder / MODULES_FILE).is_file():
            return cls()
        kinds, pooling, dense, includes_prompt = [], None, (0, ""), True
        for kind, path in _modules(folder):
            kinds.append(kind)
            if kind == "Pooling":
                settings = read_json(path / "config.json")
                pooling, includes_prompt = _pooling_mode(settings), settings.get("include_prompt") is not False
            elif kind == "Dense":
                dense = _dense(read_json(path / "config.json"))
        _check_order(kinds)
        prompts, default = _prompts(folder)
        if not includes_prompt and any(text for _, text in prompts):
            raise ModelError("pooling without the prompt (include_prompt) is not supported")
        lower_case, longest = _text_settings(folder)
        return cls(pooling, *dense, "Normalize" in kinds, True, lower_case, longest, prompts, default)  # type: ignore[arg-type]


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Kind and folder of each, in order."""
    for module in read_json(folder / MODULES_FILE, expected=list):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1] if isinstance(module, dict) else "?"
        if kind not in MODULES:
            raise ModelError(f"{MODULES_FILE}: the sentence-transformers module '{kind}' is not supported")
        yield kind, folder / str(module.get("path", ""))


def _check_order(kinds: list[str]) -> None:
    """One of each at the most, and in the order in which they are computed."""
    if kinds != [kind for kind in MODULES if kind in kinds]:
        raise ModelError(
            f"{MODULES_FILE}: modules in the order {', '.join(kinds)} are not supported; {', '.join(MODULES)} are"
        )


def _dense(settings: Mapping[str, Any]) -> tuple[int, DenseActivation]:
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    known: Mapping[str, DenseActivation] = {"Identity": "", "Tanh": "tanh"}
    if activation not in known:
        raise ModelError(f"Dense with activation '{activation}' is not supported; supported: {', '.join(known)}")
    return as_integer("out_features", settings.get("out_features"), "Dense"), known[activation]


def dense_folder(folder: Path) -> Path:
    """Where the map behind the pooling has its weights."""
    return next(path for kind, path in _modules(folder) if kind == "Dense")


def _pooling_mode(settings: Mapping[str, Any]) -> Pooling:
    prefix = "pooling_mode_"
    modes = [key.removeprefix(prefix) for key, on in settings.items() if key.startswith(prefix) and on]
    if "pooling_mode" in settings:  # newer versions name it in one word
        modes = [str(settings["pooling_mode"])]
    short: Mapping[str, Pooling] = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    if len(modes) != 1 or modes[0] not in short:
        raise ModelError(f"pooling {modes} is not supported; supported: mean, cls")
    return short[modes[0]]


def _text_settings(folder: Path) -> tuple[bool, int]:
    """Whether texts are lowered, and the tokens from which on they are cut."""
    path = next((folder / name for name in TEXT_FILES if (folder / name).is_file()), None)
    settings = read_json(path) if path else {}
    given = settings.get("max_seq_length")
    longest = _tokenizer_length(folder) if given is None else as_integer("max_seq_length", given, str(path))
    if longest < 1:
        raise ModelError(f"'{path}': max_seq_length must be at least 1, not {longest}")
    return bool(settings.get("do_lower_case")), longest


def _tokenizer_length(folder: Path) -> int:
    """Where sentence-transformers looks for a length next; a number beyond all bounds stands for none."""
    path = folder / "tokenizer_config.json"
    given = read_json(path).get("model_max_length") if path.is_file() else None
    return int(min(given, LONGEST)) if isinstance(given, int | float) and given >= 1 else LONGEST


def _prompts(folder: Path) -> tuple[Prompts, str]:
    path = folder / PROMPTS_FILE
    settings = read_json(path) if path.is_file() else {}
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{PROMPTS_FILE}: prompts must be texts by name")
    if default and default not in prompts:
        raise ModelError(f"{PROMPTS_FILE}: there is no prompt '{default}', which default_prompt_name asks for")
    return tuple(prompts.items()), default
