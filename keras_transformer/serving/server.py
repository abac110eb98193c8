"""A server with LibreTranslate's API.

Source: https://docs.libretranslate.com
"""

import asyncio
import functools
import hmac
import itertools
import logging
import math
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import prometheus_client as prometheus
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse
from langcodes import Language
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.data.languages import base_language
from keras_transformer.documents.document import Document
from keras_transformer.documents.html import escape, read_html
from keras_transformer.documents.subtitles import read_text
from keras_transformer.errors import UserError
from keras_transformer.serving.batcher import Batcher, Full, ServerOptions
from keras_transformer.translation.base_translator import BaseTranslator
from keras_transformer.translation.glossary import Glossary
from keras_transformer.translation.long_lines import sentence_ends
from keras_transformer.translation.markup import Segment

Pair = tuple[str, str]
T = TypeVar("T")
_CODE = Field(min_length=1, max_length=100)
# A character of JSON has up to 12 bytes, such as two escaped surrogates. The rest are other fields.
_BYTES_PER_CHARACTER, _OTHER_BYTES = 12, 2**16
_SENTENCES = [2**n for n in range(11)]
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# The page runs its own script, and asks nobody else.
_POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
_POLICY += "style-src 'unsafe-inline'; frame-ancestors 'none'"


class DetectRequest(BaseModel):
    """Asks for the language of a text."""

    q: str = Field(min_length=1)
    api_key: str | None = None


class TranslateRequest(BaseModel):
    """Asks for translations."""

    q: Annotated[str | list[str], Field(min_length=1, description="A text, or a list of texts.")]
    source: Annotated[str, _CODE, Field(description="Code of a language, or auto.")]
    target: Annotated[str, _CODE]
    format: Literal["text", "html"] | None = "text"
    alternatives: int = Field(0, ge=0, description="How many further translations, at most.")
    glossary: str | None = Field(None, description="Name of a glossary of the server.")
    api_key: str | None = None


class _Kind(NamedTuple):
    """What segments have in common that are translated together."""

    is_html: bool
    glossary: str | None
    wants_alternatives: bool

    @property
    def is_document(self) -> bool:
        return self.is_html or bool(self.glossary)


class _Guard:
    """Limits the bytes and the time of each request, and measures it. No error shows a text."""

    def __init__(self, app: ASGIApp, options: ServerOptions, histogram: Any) -> None:
        self.app, self.histogram, self.timeout = app, histogram, options.timeout
        self.most = options.char_limit * _BYTES_PER_CHARACTER + _OTHER_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if scope["method"] == "HEAD":  # The ASGI server sends no body.
            scope = {**scope, "method": "GET"}
        begin, size, status = time.perf_counter(), 0, 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                rule = f"a request has at most {self.most} bytes"
                raise HTTPException(413, rule, {"Connection": "close"})
            return message

        async def sent(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            async with asyncio.timeout(self.timeout):
                await self.app(scope, counted, sent)
        except ClientDisconnect:
            status = 499
        except Exception as error:
            is_late = isinstance(error, TimeoutError)
            if not is_late:  # Its message may have a text.
                places = "".join(traceback.format_tb(error.__traceback__))
                logging.getLogger("uvicorn.error").error("%s%s", places, type(error).__name__)
            message = "the translation took too long" if is_late else "internal error"
            if not status:
                answer = JSONResponse({"error": message}, 504 if is_late else 500)
                await answer(scope, receive, sent)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - begin
            self.histogram.labels(route, status).observe(seconds)


def create_app(
    translators: Mapping[Pair, BaseTranslator],
    options: ServerOptions | None = None,
    glossaries: Mapping[str, Glossary] | None = None,
    keys: Sequence[str] = (),
) -> FastAPI:
    """Returns an application with LibreTranslate's API, to run with an ASGI server.

    Example:

    >>> app = create_app({("en", "de"): open_translator("tatoeba_en_de")})

    Args:
        translators: The translator of each pair of source and target language.
        options: What clients may do. Defaults to `ServerOptions()`.
        glossaries: Glossaries by the names that requests have for them.
        keys: The keys that requests must have one of. Defaults to none: all requests are answered.
    """
    options = options or ServerOptions()
    service = _Service(translators, options, glossaries or {}, keys)
    pages: dict[str, Any] = {"openapi_url": "/spec", "docs_url": None, "redoc_url": None}
    app = FastAPI(title="keras_transformer", lifespan=service.running, **pages)
    if options.cors:
        allowed: dict[str, Any] = {"allow_origins": options.cors, "allow_headers": ["*"]}
        app.add_middleware(CORSMiddleware, allow_methods=["GET", "POST"], **allowed)
    app.add_middleware(_Guard, options=options, histogram=service.seconds)

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    for kind, answer in ((TranslateRequest, service.translate), (DetectRequest, service.detect)):
        types = "application/json", "application/x-www-form-urlencoded"
        content = {x: {"schema": kind.model_json_schema()} for x in types}
        body = {"requestBody": {"content": content}}
        app.post(f"/{answer.__name__}", response_model=None, openapi_extra=body)(answer)
    app.get("/languages")(service.languages)
    app.get("/frontend/settings")(service.settings)
    app.get("/health")(service.health)
    app.get("/metrics", include_in_schema=False)(service.show_metrics)
    for path in ("/", "/docs"):
        app.get(path, include_in_schema=False, response_class=HTMLResponse)(service.page)
    return app


class _Service:
    """What answers the requests."""

    def __init__(
        self,
        translators: Mapping[Pair, BaseTranslator],
        options: ServerOptions,
        glossaries: Mapping[str, Glossary],
        keys: Sequence[str],
    ) -> None:
        self.translators, self.options = translators, options
        self.glossaries, self.keys = glossaries, [key.encode() for key in keys]
        self.batchers: dict[Pair, Batcher] = {}
        self.registry = prometheus.CollectorRegistry()
        own: dict[str, Any] = {"namespace": "keras_transformer", "registry": self.registry}
        self.seconds = prometheus.Histogram(
            "request_seconds", "Requests", ["route", "status"], buckets=_SECONDS, **own
        )
        self.batch = prometheus.Histogram(
            "batch_sentences", "Sentences of a batch", ["pair"], buckets=_SENTENCES, **own
        )
        self.characters = prometheus.Counter("characters", "Translated characters", ["pair"], **own)
        self.waiting = prometheus.Gauge("waiting_sentences", "Waiting sentences", ["pair"], **own)
        self.detector = _detector() if len({source for source, _ in translators}) > 1 else None

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Has the threads of the pairs."""
        for pair, translator in self.translators.items():
            name = "-".join(pair)
            translate = functools.partial(self._translated, translator)
            batcher = Batcher(translate, self.options, self.batch.labels(name).observe)
            self.waiting.labels(name).set_function(functools.partial(getattr, batcher, "waiting"))
            self.batchers[pair] = batcher
        yield
        for batcher in self.batchers.values():
            batcher.close()

    def _translated(
        self, translator: BaseTranslator, kind: _Kind, segments: list[Segment]
    ) -> list[list[str]]:
        """Returns the translations of each segment, the best first."""
        texts = [segment.text for segment in segments]
        if kind.is_document:
            terms = self.glossaries.get(kind.glossary or "")
            written = escape if kind.is_html else str
            found = translator.translate_segments(segments, glossary=terms, escape=written)
            return [[x.text] for x in found]
        if kind.wants_alternatives:
            return [[x.text for x in best] for best in translator.translate_nbest(texts)]
        return [[text] for text in translator.translate(texts)]

    async def _read(self, request: Request, kind: type[T]) -> T:
        """Reads JSON, or else the fields of the query and of a form."""
        model: Any = kind
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            body = await request.body()
            if media_type.startswith("application/") and media_type.endswith("json"):
                given = model.model_validate_json(body)
            else:
                form: Any = await request.form(max_files=0)
                if media_type != "multipart/form-data":  # Starlette reads raw bytes as Latin-1.
                    form = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
                given = model.model_validate({**request.query_params, **form})
        except UnicodeDecodeError:
            raise HTTPException(400, "Invalid request: a form must be UTF-8") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = first["loc"][0] if first["loc"] else "the body"
            message = f"Invalid request: {place}: {first['msg']}"
            if first["type"] != "missing":
                message += f". Received: {first['input']!r:.80}"
            raise HTTPException(400, message) from None
        key = (given.api_key or "").encode()
        if self.keys and not any([hmac.compare_digest(key, own) for own in self.keys]):
            raise HTTPException(403, "Invalid API key")
        return given

    def _check(self, name: str, size: int, limit: int) -> None:
        if size > limit:
            rule = f"Invalid request: a request has at most {limit} {name}. Received: {size}"
            raise HTTPException(400, rule)

    async def translate(self, request: Request) -> dict[str, Any]:
        """Translates a text or a list of texts."""
        given = await self._read(request, TranslateRequest)
        texts = given.q if isinstance(given.q, list) else [given.q]
        self._check("texts", len(texts), self.options.batch_limit)
        self._check("characters", sum(map(len, texts)), self.options.char_limit)
        if given.glossary and given.glossary not in self.glossaries:
            known = ", ".join(self.glossaries) or "none"
            raise HTTPException(
                400, f"glossary must be one of: {known}. Received: {given.glossary}"
            )
        source, detected = given.source, None
        if source == "auto":
            sources = [x for x, target in self.translators if target == given.target]
            detected = next(iter(self._ranked("\n".join(texts), sources)), None)
            source = detected["language"] if detected else source
        if (pair := (source, given.target)) not in self.batchers:
            pairs = ", ".join(f"{x} to {y}" for x, y in self.translators)
            received = f"Received: {given.source} to {given.target}"
            raise HTTPException(400, f"the server translates {pairs}. {received}")
        kind = _Kind(given.format == "html", given.glossary or None, given.alternatives > 0)
        work = self._rendered(texts, kind, pair, given.alternatives)
        rendered = await _while_connected(request, work)
        self.characters.labels("-".join(pair)).inc(sum(map(len, texts)))
        answer: dict[str, list[Any]] = {"translatedText": [best for best, *_ in rendered]}
        if given.alternatives:
            answer["alternatives"] = [others for _, *others in rendered]
        if detected:
            answer["detectedLanguage"] = [detected] * len(texts)
        return answer if texts is given.q else {name: x for name, (x,) in answer.items()}

    async def _rendered(
        self, texts: Sequence[str], kind: _Kind, pair: Pair, alternatives: int
    ) -> list[list[str]]:
        """Returns the translation of each text, and up to so many other ones."""
        forms = self.translators[pair].word_forms
        is_split = kind.wants_alternatives or not forms.lines_are_sentences
        arguments = kind, pair, is_split
        documents = await asyncio.to_thread(lambda: [_document(x, *arguments) for x in texts])
        segments = [x for document in documents for x in document.segments]
        try:
            found = iter(await self.batchers[pair].translate(kind, segments))
        except Full:
            rule = "too many sentences are waiting"
            raise HTTPException(503, rule, {"Retry-After": "1"}) from None
        except UserError as error:
            raise HTTPException(400, f"Invalid request: {error}") from None
        rows = [[next(found) for _ in document.segments] for document in documents]
        pairs = zip(documents, rows, strict=True)
        return await asyncio.to_thread(lambda: [_renderings(*x, alternatives) for x in pairs])

    async def detect(self, request: Request) -> list[dict[str, Any]]:
        """Returns the languages of a text, the most probable first."""
        given = await self._read(request, DetectRequest)
        self._check("characters", len(given.q), self.options.char_limit)
        return self._ranked(given.q, [source for source, _ in self.translators])

    def _ranked(self, text: str, sources: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the source languages that can be told apart, and how probable they are."""
        sources = sorted({*sources})
        if len(sources) == 1 or self.detector is None:
            return [{"language": source, "confidence": 100.0} for source in sources]
        codes = {base_language(source): source for source in sources}
        found = [(codes[x], float(share)) for x, share in self.detector(text) if x in codes]
        total = math.fsum(share for _, share in found) or 1.0
        return [{"language": x, "confidence": 100 * share / total} for x, share in found]

    async def languages(self) -> list[dict[str, Any]]:
        """Returns the languages, and what each can be translated to."""
        codes = sorted({code for pair in self.translators for code in pair})
        pairs = sorted(self.translators)
        return [_named(x) | {"targets": [b for a, b in pairs if a == x]} for x in codes]

    async def settings(self) -> dict[str, Any]:
        """Returns what a user interface must know."""
        source, target = map(_named, next(iter(self.translators)))
        return {
            **dict.fromkeys(("apiKeys", "keyRequired"), bool(self.keys)),
            **dict.fromkeys(("suggestions", "filesTranslation"), False),
            **{"charLimit": self.options.char_limit, "frontendTimeout": 500},
            **{"supportedFilesFormat": [], "language": {"source": source, "target": target}},
        }

    async def health(self) -> dict[str, str]:
        """Says that the server is ready."""
        return {"status": "ok"}

    async def show_metrics(self) -> Response:
        content = prometheus.generate_latest(self.registry)
        return Response(content, media_type=prometheus.CONTENT_TYPE_LATEST)

    async def page(self) -> HTMLResponse:
        content = Path(__file__).with_name("page.html").read_text("utf-8")
        return HTMLResponse(content, headers={"Content-Security-Policy": _POLICY})


def _named(code: str) -> dict[str, str]:
    return {"code": code, "name": Language.get(code).display_name()}


def _detector() -> Callable[[str], list[tuple[str, float]]]:
    from py3langid import langid  # unpacks its model

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True).rank


def _document(text: str, kind: _Kind, pair: Pair, is_split: bool) -> Document:
    """Returns a text as a document, whose segments are translated: its lines, or sentences."""
    if kind.is_document:
        return (read_html if kind.is_html else read_text)(text, pair, Path())
    document, parts = Document(), []
    for line in text.splitlines(keepends=True):
        ends = sentence_ends(line) if is_split else ()
        for start, end in itertools.pairwise((0, *ends, len(line))):
            piece = line[start:end]
            own = piece.strip()
            before, after = piece.split(own, 1) if own else (piece, "")
            parts += [before, document.mark(Segment(own)) if own else "", after]
    document.text = "".join(parts)
    return document


def _renderings(document: Document, rows: Sequence[Sequence[str]], alternatives: int) -> list[str]:
    """Returns the translation of a text, and up to so many other ones."""
    count = min(max(map(len, rows), default=1), alternatives + 1)
    texts = (document.render([x[min(n, len(x) - 1)] for x in rows]) for n in range(count))
    best, *others = dict.fromkeys(texts)
    return [best, *filter(None, others)]


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Waits for `work`, and cancels it if the client goes."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise HTTPException(499, "the client has gone")
    finally:
        for task in tasks:
            task.cancel()
