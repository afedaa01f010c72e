"""The gateway's interface: what an application may ask, and in which form it hears the answer.

POST /v1/embeddings     as OpenAI has it
POST /embed, /predict   as text-embeddings-inference has them; marks and cost are in X-SecFormer-… headers
POST /answer            one text, with evidence, cost and what each party saw
GET  /v1/models, /health, /metrics, /docs, and / to try a text in
"""

from __future__ import annotations

import asyncio
import base64
import logging
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from secformer.errors import SecFormerError
from secformer.gateway import forms
from secformer.gateway.answers import Answer, scores, unit
from secformer.gateway.desk import Desk, Sitting
from secformer.gateway.failures import RETRY, Failure, of_request, unreadable
from secformer.gateway.guard import Guard, Token
from secformer.gateway.metrics import GatewayMetrics
from secformer.gateway.offers import Offer, Offers
from secformer.gateway.pages import page
from secformer.models.tokens import Tokens
from secformer.parties.server import describe
from secformer.settings import Settings
from secformer.transport.network import Network
from secformer.version import __version__

_log = logging.getLogger(__name__)

VECTORS = ("embedding",)
NUMBERS = ("classification", "regression")
HEADS = (*VECTORS, *NUMBERS, "tokens")

_GONE = 0.5  # seconds between two looks at whether the application is still there
_FIRST_LOOK = 10.0  # seconds that the start waits for the servers


class Gateway:
    """What all routes share."""

    def __init__(self, names: Sequence[str], network: Network, settings: Settings) -> None:
        self.metrics = GatewayMetrics()
        self.offers = Offers(names, network, settings)
        self.desk = Desk(settings.gateway_queue, settings.gateway_batch, settings.gateway_sessions, self._watch)
        self.metrics.show(self.desk, self.offers)

    def _watch(self, sitting: Sitting) -> None:
        self.metrics.session(sitting)
        if sitting.error is not None:
            _log.warning("a session of %d texts failed: %s", sitting.texts, describe(sitting.error))
            self.offers.failed(sitting.error)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.offers.start()
        self.desk.start()
        await run_in_threadpool(self.offers.wait, _FIRST_LOOK)
        yield
        self.desk.stop()
        self.offers.stop()

    async def encode(self, offer: Offer, *arguments: Any) -> list[Tokens]:
        try:
            return await run_in_threadpool(offer.encode, *arguments)
        except SecFormerError as error:
            raise of_request(error) from None

    async def answered(self, request: Request, offer: Offer, rows: Sequence[Tokens]) -> list[Answer]:
        """The answers to all of a request's texts; none is asked about for an application that has gone."""
        futures = [asyncio.wrap_future(future) for future in self.desk.submit(offer, rows)]
        waiting = asyncio.gather(*futures)
        try:
            while not (await asyncio.wait([waiting], timeout=_GONE))[0]:
                if await request.is_disconnected():
                    raise Failure(400, "gateway.gone", "the application has hung up")
            return list(waiting.result())
        finally:
            for future in futures:
                future.cancel()


def _told(request: Request, failure: Failure) -> JSONResponse:
    status, body = failure.told(request.url.path)
    return JSONResponse(body, status, failure.headers())


def _gateway(request: Request) -> Gateway:
    return request.app.state.gateway


Here = Annotated[Gateway, Depends(_gateway)]


def _openai_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": forms.OpenAIError} for status in statuses}


def _plain_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": forms.PlainError} for status in statuses}


_REFUSALS = (401, 403, 404, 413, 421, 429, 502, 503)


def make_app(names: Sequence[str], network: Network, settings: Settings, token: Token | None = None) -> FastAPI:
    """The application; its models are fetched, and its workers run, while it is started."""
    gateway = Gateway(names, network, settings)
    app = FastAPI(
        title="SecFormer gateway",
        version=__version__,
        description="Private inference: texts stay on this side, servers compute on shares of them.",
        lifespan=gateway.lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.gateway = gateway
    for add in (_add_openai, _add_embeddings_inference, _add_answer, _add_pages, _add_errors):
        add(app)
    paths = {str(getattr(route, "path", "")) for route in app.routes}
    app.add_middleware(Guard, token=token, paths=paths, watch=gateway.metrics.request)  # type: ignore[arg-type]
    return app


# As OpenAI has it


def _add_openai(app: FastAPI) -> None:
    @app.post("/v1/embeddings", responses=_openai_errors(400, *_REFUSALS), tags=["OpenAI"])
    async def embeddings(
        wanted: forms.EmbeddingsRequest, request: Request, response: Response, here: Here
    ) -> forms.EmbeddingsResponse:
        """Vectors of length 1, one a text. `marked` says that one may be wrong."""
        offer = here.offers.choose(wanted.model, VECTORS, "embeddings")
        rows = await here.encode(offer, wanted.texts())
        found = await here.answered(request, offer, rows)
        _check_dimensions(wanted.dimensions, found[0])
        _describe(response, found)
        as_text = wanted.encoding_format == "base64"
        data = [
            forms.Embedding(index=place, embedding=_written(unit(one.result).tolist(), as_text), marked=one.marked)
            for place, one in enumerate(found)
        ]
        count = sum(len(row.ids) for row in rows)
        usage = forms.Usage(prompt_tokens=count, total_tokens=count)
        return forms.EmbeddingsResponse(data=data, model=found[0].session.model, usage=usage)

    @app.get("/v1/models", responses=_openai_errors(401, 421), tags=["OpenAI"])
    async def models(here: Here) -> forms.ModelsResponse:
        """What is offered here."""
        offered = [(one.name, one.offer) for one in here.offers.listed()]
        return forms.ModelsResponse(
            data=[forms.Model(id=name, head=offer.config.head) for name, offer in offered if offer is not None]
        )


def _written(vector: list[float], as_text: bool) -> list[float] | str:
    if not as_text:
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _check_dimensions(wanted: int | None, answer: Answer) -> None:
    if wanted is not None and wanted != answer.result.shape[-1]:
        raise Failure(422, "input", f"dimensions: this model's vectors have {answer.result.shape[-1]}")


# As text-embeddings-inference has them


def _add_embeddings_inference(app: FastAPI) -> None:
    responses = _plain_errors(422, *_REFUSALS)
    tags: list[Any] = ["text-embeddings-inference"]

    @app.post("/embed", responses=responses, tags=tags)
    async def embed(wanted: forms.EmbedRequest, request: Request, response: Response, here: Here) -> list[list[float]]:
        """A vector a text."""
        offer = here.offers.choose(wanted.model, VECTORS, "embeddings")
        rows = await here.encode(offer, wanted.texts(), None, wanted.prompt_name, wanted.truncate)
        found = await here.answered(request, offer, rows)
        _check_dimensions(wanted.dimensions, found[0])
        _describe(response, found)
        return [(unit(one.result) if wanted.normalize else one.result).tolist() for one in found]

    @app.post("/predict", responses=responses, tags=tags)
    async def predict(
        wanted: forms.PredictRequest, request: Request, response: Response, here: Here
    ) -> list[forms.Scored] | list[list[forms.Scored]]:
        """Labels with scores, the highest first: one list, or one a text for a batch."""
        offer = here.offers.choose(wanted.model, NUMBERS, "predictions")
        rows = []
        for given in wanted.sequences():
            rows += await here.encode(offer, given[:1], given[1:] or None, None, wanted.truncate)
        found = await here.answered(request, offer, rows)
        _describe(response, found)
        lists = [_scored(offer, one, wanted.raw_scores) for one in found]
        return lists if wanted.is_batch else lists[0]


def _scored(offer: Offer, answer: Answer, raw: bool) -> list[forms.Scored]:
    return [forms.Scored(label=label, score=score) for label, score in scores(offer.config, answer.result, raw)]


def _describe(response: Response, found: Sequence[Answer]) -> None:
    """What forms of others have no field for. Sessions that several texts shared count once."""
    sessions = list({id(one.session): one.session for one in found}.values())
    costs = [session.cost() for session in sessions]
    told = {
        "Model": found[0].session.model,
        "Marked": ",".join(str(place) for place, one in enumerate(found) if one.marked),
        "Sessions": str(len(sessions)),
        "Rounds": str(sum(cost["rounds"] for cost in costs)),
        "Online-Bytes": str(sum(cost["online_bytes"] for cost in costs)),
        "Dealer-Bytes": str(sum(cost["dealer_bytes"] for cost in costs)),
    }
    for name, value in told.items():
        response.headers[f"X-SecFormer-{name}"] = value


# Everything about one text


def _add_answer(app: FastAPI) -> None:
    @app.post("/answer", responses=_plain_errors(422, *_REFUSALS), tags=["SecFormer"])
    async def answer(wanted: forms.AnswerRequest, request: Request, here: Here) -> forms.AnswerResponse:
        """One text, with range evidence, cost, and what each party saw."""
        offer = here.offers.choose(wanted.model, HEADS, "answers")
        pairs = None if wanted.pair is None else [wanted.pair]
        rows = await here.encode(offer, [wanted.text], pairs, wanted.prompt, wanted.truncate)
        found = (await here.answered(request, offer, rows))[0]
        head = offer.config.head
        return forms.AnswerResponse(
            model=found.session.model,
            head=head,
            result=found.result.tolist(),
            label=found.label,
            scores=_scored(offer, found, False) if head in NUMBERS else None,
            marked=found.marked,
            evidence=found.evidence,
            advice=found.advice,
            cost=forms.Cost(**found.session.cost()),
            seen=found.session.views(),
        )


# For operators and people


def _add_pages(app: FastAPI) -> None:
    @app.get("/health", responses=_plain_errors(421, 503), tags=["operation"])
    async def health(here: Here) -> forms.Health:
        """200 when every model could be had from both servers lately."""
        if here.offers.healthy:
            return forms.Health()
        troubles = [one.trouble for one in here.offers.listed() if one.trouble is not None]
        code = troubles[0].code if troubles else "gateway.starting"
        raise Failure(503, code, "not every model can be had from the servers; the log says why", RETRY)

    @app.get("/metrics", responses=_plain_errors(401, 421), tags=["operation"], response_class=Response)
    async def metrics(here: Here) -> Response:
        """For Prometheus."""
        return Response(here.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def try_a_text() -> Response:
        return page("try.html")

    @app.get("/docs", include_in_schema=False)
    async def interface() -> Response:
        return page("interface.html")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Failure)
    async def failed(request: Request, failure: Failure) -> JSONResponse:
        return _told(request, failure)

    @app.exception_handler(RequestValidationError)
    async def not_understood(request: Request, error: RequestValidationError) -> JSONResponse:
        return _told(request, unreadable(error.errors(), forms.FIELDS))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        said = {404: "there is nothing at this path; /docs shows what there is", 405: "not by this method"}
        status = error.status_code if error.status_code in said else 422
        told = _told(request, Failure(status, "input", said.get(status, "the body cannot be read")))
        if error.headers and "allow" in {name.lower() for name in error.headers}:
            told.headers["Allow"] = next(value for name, value in error.headers.items() if name.lower() == "allow")
        return told
