"""Requests and responses, as OpenAI and text-embeddings-inference write them, and `/answer`, which has room for everything."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

TEXT_LIMIT = 1 << 20
"""Letters of one text: far above what any model's positions hold."""
TEXTS_LIMIT = 4096
NO_TOKENS = "token ids are not taken: send texts, the model's own tokenizer is here"

Text = Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=TEXTS_LIMIT)]
Name = Annotated[str, Field(min_length=1, max_length=97)]
Prompt = Annotated[str, Field(max_length=97)]


def _has_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_numbers(part) for part in value[:1])
    return isinstance(value, int | float) and not isinstance(value, bool)


class Request(BaseModel):
    """A field that nobody knows is an error: a misspelt option that is ignored is a wrong answer."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class EmbeddingsRequest(Request):
    input: Text | Texts = Field(description="One text, or several.")
    model: Name | None = Field(None, description="A model that is offered here; by default the first that embeds.")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: float32, little-endian.")
    dimensions: Annotated[int, Field(ge=1)] | None = Field(None, description="Only the model's own number.")
    user: str | None = Field(None, description="Accepted, and not used.")

    @field_validator("input", mode="before")
    @classmethod
    def texts_only(cls, value: Any) -> Any:
        if _has_numbers(value):
            raise ValueError(NO_TOKENS)
        return value

    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class EmbedRequest(Request):
    inputs: Text | Texts = Field(description="One text, or several.")
    normalize: bool = Field(True, description="Scale vectors to length 1.")
    truncate: bool = Field(False, description="Cut a text that is too long, instead of refusing it.")
    truncation_direction: Literal["Right", "right"] = "Right"
    prompt_name: Prompt | None = Field(None, description="One of the model's own prompts.")
    dimensions: Annotated[int, Field(ge=1)] | None = Field(None, description="Only the model's own number.")
    model: Name | None = Field(None, description="A model that is offered here; by default the first that embeds.")

    @field_validator("inputs", mode="before")
    @classmethod
    def texts_only(cls, value: Any) -> Any:
        if _has_numbers(value):
            raise ValueError(NO_TOKENS)
        return value

    def texts(self) -> list[str]:
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


Sequence = Annotated[list[Text], Field(min_length=1, max_length=2)]


class PredictRequest(Request):
    inputs: Text | Sequence | Annotated[list[Sequence], Field(min_length=1, max_length=TEXTS_LIMIT)] = Field(
        description='A text, a pair ["a", "b"], or a batch [["a"], ["b", "c"]] of either.'
    )
    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    truncate: bool = Field(False, description="Cut a text that is too long, instead of refusing it.")
    truncation_direction: Literal["Right", "right"] = "Right"
    model: Name | None = Field(None, description="A model that is offered here; by default the first classifier.")

    @field_validator("inputs", mode="before")
    @classmethod
    def texts_only(cls, value: Any) -> Any:
        if _has_numbers(value):
            raise ValueError(NO_TOKENS)
        return value

    @property
    def is_batch(self) -> bool:
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def sequences(self) -> list[list[str]]:
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        return (
            [part for part in self.inputs if isinstance(part, list)] if self.is_batch else [list(map(str, self.inputs))]
        )


class AnswerRequest(Request):
    text: Text
    pair: Text | None = Field(None, description="The second text of a pair.")
    prompt: Prompt | None = Field(None, description="One of the model's own prompts.")
    truncate: bool = False
    model: Name | None = Field(None, description="A model that is offered here; by default the first.")


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    marked: bool = Field(description="Whether the vector may be wrong, because the text left the calibrated ranges.")


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Scored(BaseModel):
    label: str
    score: float


class Cost(BaseModel):
    texts_in_session: int
    rounds: int
    online_bytes: int = Field(description="Sent and received by S0 while the program ran.")
    dealer_bytes: int
    client_bytes: int
    seconds: float
    online_seconds: float


class AnswerResponse(BaseModel):
    model: str
    head: str
    result: list[float] | list[list[float]]
    label: str | list[str] | None
    scores: list[Scored] | None
    marked: bool
    evidence: dict[str, int] | None = Field(
        description="Rows that left their range, by place; null where the model's suite does not count them."
    )
    advice: str
    cost: Cost
    seen: dict[str, list[str]] = Field(description="What each party saw of the session.")


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "secformer"
    head: str


class ModelsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class OpenAIProblem(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(BaseModel):
    error: OpenAIProblem


class PlainError(BaseModel):
    error: str
    error_type: str
    code: str


REQUESTS = (EmbeddingsRequest, EmbedRequest, PredictRequest, AnswerRequest)
FIELDS = frozenset(name for form in REQUESTS for name in form.model_fields)
