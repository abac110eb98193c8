"""Client of an exported model on TensorFlow Serving, by REST or by gRPC."""

import base64
import json
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import requests
from pydantic import AfterValidator, BaseModel
from urllib3.exceptions import HTTPError

from keras_transformer.data.text_files import available_chunks
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError, check_is_list, check_sizes

__all__ = ["ServedTranslation", "ServingClient", "connect"]

Inputs = Mapping[str, Sequence[Any]]  # One value per sentence for each name.

T = TypeVar("T")
_MOST_BYTES = 2**26  # of an answer
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds
# HTTP status: not found (also while a model is loading), too many requests, bad gateway, service
# unavailable, gateway timeout.
_TEMPORARY = (404, 429, 502, 503, 504)
_TEMPORARY_CODES = ("NOT_FOUND", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")  # gRPC
# By default, gRPC refuses messages over 4 MiB and makes ever longer pauses before it reconnects.
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_HINT = (
    "Start a server, for example with `docker compose up` in the folder of the exported SavedModel;"
    " give the `address` of one, usually with port 8501 for REST and 8500 for gRPC; or set "
    "`retries` to a larger number"
)


# JSON can have half of a surrogate pair, which nothing can write.
_Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]


class _Best(BaseModel, strict=True):
    """The outputs of the signature `serving_default`."""

    translation: list[_Text]
    score: list[float]

    @staticmethod
    def found(text: str, score: float) -> "ServedTranslation":
        return ServedTranslation(text, score)


class _NBest(BaseModel, strict=True):
    """The outputs of the signature `translate_nbest`."""

    translations: list[list[_Text]]
    scores: list[list[float]]

    @staticmethod
    def found(texts: list[str], scores: list[float]) -> "list[ServedTranslation]":
        return [ServedTranslation(*pair) for pair in zip(texts, scores, strict=True)]


class TemporaryError(Exception):
    """The same request may succeed later: the server is away, overloaded, slow or loading."""


class ServedTranslation(NamedTuple):
    """A translation and its score."""

    text: str
    score: float  # log-probability in nats by the length penalty, plus the coverage penalty


def connect(
    model: str,
    address: str | None = None,
    *,
    protocol: str = "rest",
    version: int | None = None,
    timeout: float = 60.0,
    retries: int = 5,
) -> "ServingClient":
    """Returns a client of one model on a server. The client connects at its first request.

    Example:

    >>> connect("multi30k", "http://localhost:8501").translate(["A dog runs."])[0].text

    Args:
        model: The model's name on the server.
        address: `host:port` of the server. For REST, it can begin with `http://` or `https://`.
            Defaults to None, which means `localhost:8501` for REST and `localhost:8500` for gRPC.
        protocol: `"rest"`, or `"grpc"`, which needs tensorflow-serving-api and TensorFlow.
        version: Version of the model. Defaults to None, which means the newest version.
        timeout: Longest wait for an answer, the connection included, in seconds.
        retries: How many times a request is repeated if the server is unreachable, slow, overloaded
            or does not have the model, because the server may still be loading the model.
    """
    kind: Any = {"rest": RestEndpoint, "grpc": GrpcEndpoint}[protocol]
    address = address or {"rest": "localhost:8501", "grpc": "localhost:8500"}[protocol]
    return ServingClient(kind(model, address, version, timeout), retries)


class ServingClient:
    """Sends sentences to a model server and repeats requests after temporary errors.

    `connect` returns a client. The pauses between attempts grow from 0.5 to 30 seconds, randomly
    shortened by up to half, so that clients do not all retry together. A warning announces each.
    """

    def __init__(self, endpoint: "RestEndpoint | GrpcEndpoint", retries: int = 5) -> None:
        self._endpoint, self._retries = endpoint, retries

    def translate(self, texts: Sequence[str | bytes]) -> list[ServedTranslation]:
        """Sends one request and returns the best translation by the exported search options.

        Args:
            texts: Sentences as str or bytes. Bytes need not be UTF-8.

        Raises:
            TypeError: If `texts` is a single string.
            UserError: If the server cannot be reached, does not serve the model, refuses the
                request, or does not answer with one translation per sentence.
        """
        check_is_list(texts=texts)
        return self._ask("serving_default", {"text": texts}, _Best)

    def translate_nbest(
        self,
        texts: Sequence[str | bytes],
        n_best: int = 1,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
    ) -> list[list[ServedTranslation]]:
        """Sends one request and returns several translations of each sentence, best first.

        Args:
            texts: As in `translate`.
            n_best: Maximum number of translations per sentence, at most the beam size.
            beam_size: Number of beams. None, also for the next arguments, means the exported value.
            length_penalty: Exponent of the length penalty, from 0 to 10.
            max_length: Maximum number of tokens per translation, including eos.

        Raises:
            UserError: As `translate`, and if `n_best` or `beam_size` exceeds the number of beams.
        """
        check_is_list(texts=texts)
        check_sizes(n_best=n_best)
        exported: dict[str, Any] = {"beam_size": -1, "length_penalty": -1.0, "max_length": -1}
        given = zip(exported, (beam_size, length_penalty, max_length), strict=True)
        options = SearchOptions(**{name: x for name, x in given if x is not None})  # checks ranges
        values = exported | options.model_dump(exclude_unset=True)
        inputs = {"text": texts, **{name: [x] * len(texts) for name, x in values.items()}}
        found = []
        for best in self._ask("translate_nbest", inputs, _NBest):
            if len(best) < max(n_best, beam_size or 1):
                raise UserError(
                    f"the number of beams on {self._endpoint.address} is {len(best)}. Received: "
                    f"n_best={n_best}, beam_size={beam_size}"
                )
            # A sentence with fewer translations is padded with scores of minus infinity.
            found.append([x for x in best[:n_best] if x.score > float("-inf")])
        return found

    def stream(
        self, lines: Iterable[str], batch_size: int = 32, n_best: int = 1, **search: Any
    ) -> Iterator[list[list[ServedTranslation]]]:
        """Translates lines as they arrive, at most `batch_size` that are available in a request.

        `batch_size` must be at most the server's `max_batch_size`. `n_best` and `search` are the
        arguments of `translate_nbest`. Yields the translations of each request as it returns them.
        """
        is_default = n_best == 1 and all(value is None for value in search.values())
        for chunk in available_chunks(lines, batch_size):
            if is_default:
                yield [[translation] for translation in self.translate(chunk)]
            else:
                yield self.translate_nbest(chunk, n_best, **search)

    def _ask(self, signature: str, inputs: Inputs, form: type["_Best | _NBest"]) -> list[Any]:
        """Returns what the server found for each sentence. `form` has the outputs by name."""
        if not inputs["text"]:
            return []
        outputs = self._predict(signature, inputs)
        try:
            columns = [column for _, column in form.model_validate(outputs)]
            rows = zip(inputs["text"], *columns, strict=True)
            return [form.found(*values) for _, *values in rows]
        except ValueError:
            expected = " and ".join(form.model_fields)
            message = f"{self._endpoint.address} must answer with {expected} of each sentence"
            raise UserError(f"{message}. Received: {outputs}"[:300]) from None

    def _predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        """Sends a request, again and again after temporary errors."""
        for attempt in range(self._retries + 1):
            try:
                return self._endpoint.predict(signature, inputs)
            except TemporaryError as error:
                trouble = error
            if attempt < self._retries:
                longest = min(_FIRST_WAIT * 2 ** min(attempt, 6), _LONGEST_WAIT)
                wait = longest * random.uniform(0.5, 1)
                warnings.warn(f"{trouble}; next attempt in {wait:.1f} s", stacklevel=2)
                time.sleep(wait)
        raise UserError(f"{trouble} (after {self._retries} retries). {_HINT}")


@dataclass
class RestEndpoint:
    """Sends requests over HTTP or HTTPS. An address without a scheme gets `http://`.

    Source: https://www.tensorflow.org/tfx/serving/api_rest
    """

    model: str
    address: str
    version: int | None = None
    timeout: float = 60.0
    session: requests.Session = field(default_factory=requests.Session)

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        body = json.dumps(
            {"signature_name": signature, "inputs": inputs},
            default=lambda text: {"b64": base64.b64encode(text).decode("ascii")},  # Of bytes.
        )
        version = "" if self.version is None else f"/versions/{self.version}"
        server = self.address if "://" in self.address else f"http://{self.address}"
        try:
            model = quote(self.model, safe="")
            url = f"{server.rstrip('/')}/v1/models/{model}{version}:predict"
            status, content = _within(self.timeout, lambda: self._post(url, body))
        except (ValueError, OverflowError) as error:
            raise UserError(f"no request can be sent to {self.address}: {error}") from None
        except (requests.RequestException, HTTPError, TimeoutError) as error:
            reason = str(getattr((*error.args, None)[0], "reason", error)).rsplit(": ", 1)[-1]
            raise TemporaryError(f"{self.address} cannot be reached: {reason}") from None
        text = content.decode("utf-8", errors="replace")
        message = f"{self.address} answers {status}: {text[:200]}"
        if status in _TEMPORARY:
            raise TemporaryError(message)
        try:
            return json.loads(text)["outputs"]  # The server also writes NaN and -Infinity.
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(message) from None

    def _post(self, url: str, body: str) -> tuple[int, bytes]:
        """Returns the status and at most `_MOST_BYTES` of the content."""
        plain = {"Accept-Encoding": "identity"}  # A small compressed answer could fill the memory.
        with self.session.post(
            url, body, headers=plain, timeout=self.timeout, stream=True
        ) as response:
            content = bytearray()
            part = b" "
            while part and len(content) < _MOST_BYTES:
                part = response.raw.read(2**16, decode_content=False)
                content += part
            return response.status_code, bytes(content)


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Calls a function, which may wait again and again. Raises `TimeoutError` after `seconds`."""
    found: Future[T] = Future()

    def call() -> None:
        try:
            found.set_result(function())
        except Exception as error:
            found.set_exception(error)

    Thread(target=call, daemon=True).start()  # The end of the process does not wait for it.
    try:
        return found.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"timed out after {seconds} s") from None


@dataclass
class GrpcEndpoint:
    """Does the same as `RestEndpoint` over gRPC, without encryption. Imports TensorFlow.

    Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
    """

    model: str
    address: str
    version: int | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        try:
            import grpc
            import tensorflow as tf
            from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
        except ImportError as error:
            raise UserError(
                "gRPC needs tensorflow-serving-api: pip install 'keras3-transformer[serving]' "
                f"({error})"
            ) from None
        self._grpc, self._tf, self._request = grpc, tf, predict_pb2.PredictRequest
        channel = grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        self._predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        request = self._request()
        request.model_spec.name, request.model_spec.signature_name = self.model, signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        for name, values in inputs.items():
            dtype = self._tf.string if name == "text" else None  # Otherwise int32 or float32.
            request.inputs[name].CopyFrom(self._tf.make_tensor_proto(values, dtype))
        try:
            response = self._predict(request, timeout=self.timeout)
        except self._grpc.RpcError as error:
            code = error.code().name
            message = f"{self.address} answers {code}: {error.details()}"
            raise (TemporaryError if code in _TEMPORARY_CODES else UserError)(message) from None
        try:
            arrays = {name: self._tf.make_ndarray(x) for name, x in response.outputs.items()}
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.address} answers with a wrong tensor: {error}") from None
        text = np.vectorize(lambda x: x.decode("utf-8", errors="replace"), otypes=[object])
        return {
            name: (text(array) if array.dtype == object else array).tolist()
            for name, array in arrays.items()
        }
