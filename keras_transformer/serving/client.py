"""Client of an exported model on TensorFlow Serving."""

import random
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.data.corpus import available_chunks
from keras_transformer.decoding.options import LARGEST_LENGTH_PENALTY
from keras_transformer.errors import UserError, check_is_list, check_sizes
from keras_transformer.serving.endpoint import (
    GrpcEndpoint,
    NotFoundError,
    RestEndpoint,
    TemporaryError,
    Values,
)

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds
_LONGEST_TIMEOUT = 24 * 60 * 60  # seconds
_ENDPOINTS: dict[str, Any] = {"rest": RestEndpoint, "grpc": GrpcEndpoint}
_HINT = (
    "Start a server, for example with `docker compose up` in the folder of the exported SavedModel;"
    " give the `address` of one, usually with port 8501 for REST and 8500 for gRPC; or set "
    "`retries` to a larger number"
)


class ServedTranslation(NamedTuple):
    """A translation and its score.

    The score is the log-probability in nats divided by the length penalty, plus the coverage
    penalty.
    """

    text: str
    score: float


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
        protocol: `"rest"` or `"grpc"`. gRPC needs tensorflow-serving-api and TensorFlow.
        version: Version of the model. Defaults to None, which means the newest version.
        timeout: Longest wait for a connection, and for an answer, in seconds. The highest allowed
            value is one day.
        retries: How many times a request is repeated if the server is unreachable, slow, overloaded
            or still loading the model.

    Raises:
        UserError: If `timeout` is out of range, if `model` is not valid Unicode, or if `protocol`
            is `"grpc"` but tensorflow-serving-api is not installed.
    """
    if not 0 < timeout <= _LONGEST_TIMEOUT:
        raise UserError(
            f"timeout must be above 0 and at most {_LONGEST_TIMEOUT:,} s. Received: {timeout}"
        )
    if model.encode("utf-8", "ignore").decode() != model:  # an argument that is not UTF-8
        raise UserError(f"the name of a model must be UTF-8. Received: {model!r}")
    return ServingClient(_ENDPOINTS[protocol](model, address, version, timeout), retries)


class ServingClient:
    """Sends sentences to a model server and repeats requests after temporary errors.

    The pauses between attempts grow from 0.5 to 30 seconds. Each pause is randomly shortened by up
    to half, so that clients do not all retry together. A warning announces each pause.

    Args:
        endpoint: The connection to one model on one server.
        retries: How many times a request is repeated after temporary errors.
    """

    def __init__(self, endpoint: RestEndpoint | GrpcEndpoint, retries: int = 5) -> None:
        self._endpoint, self._retries = endpoint, retries

    def translate(self, texts: Sequence[str | bytes]) -> list[ServedTranslation]:
        """Sends one request and returns the best translation of each sentence.

        The server uses the exported search options.

        Args:
            texts: Sentences as str or bytes. Bytes need not be UTF-8.

        Raises:
            TypeError: If `texts` is a single string.
            UserError: If the server cannot be reached, does not serve the model, refuses the
                request, or does not answer with one translation per sentence.
        """
        check_is_list(texts=texts)
        if not texts:
            return []
        outputs = self._predict("serving_default", {"text": texts})
        return self._translations(len(texts), outputs, "translation", "score")

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
            texts: Sentences as str or bytes. Bytes need not be UTF-8.
            n_best: Maximum number of translations per sentence, at most the beam size.
            beam_size: Number of beams. Defaults to None, which means the exported value.
            length_penalty: Exponent of the length penalty. Defaults to None, which means the
                exported value.
            max_length: Maximum number of tokens per translation, including eos. Defaults to None,
                which means the exported value.

        Raises:
            TypeError: If `texts` is a single string.
            UserError: In the same cases as `translate`, if `n_best` exceeds the beam size, and if
                `beam_size` exceeds the largest that the exported model allows.
            ValueError: If a size is below 1, or if `length_penalty` is not from 0 to 10.
        """
        check_is_list(texts=texts)
        sizes = {"n_best": n_best, "beam_size": beam_size, "max_length": max_length}
        check_sizes(**{name: size for name, size in sizes.items() if size is not None})
        if length_penalty is not None and not 0 <= length_penalty <= LARGEST_LENGTH_PENALTY:
            raise ValueError(
                f"`length_penalty` must be from 0 to {LARGEST_LENGTH_PENALTY:g}. "
                f"Received: length_penalty={length_penalty}"
            )
        if not texts:
            return []

        def column(value: float | None, kind: type = int) -> list[Any]:
            return [kind(-1 if value is None else value)] * len(texts)  # -1: the exported value

        outputs = self._predict(
            "translate_nbest",
            {
                "text": texts,
                "beam_size": column(beam_size),
                "length_penalty": column(length_penalty, float),
                "max_length": column(max_length),
            },
        )
        found = self._translations(len(texts), outputs, "translations", "scores")
        beams = min(map(len, found))
        if beams < max(n_best, beam_size or 1):
            raise UserError(
                f"the number of beams on {self._endpoint.address} is {beams}. Received: "
                f"n_best={n_best}, beam_size={beam_size}"
            )
        # A sentence with fewer translations is padded with scores of minus infinity.
        return [[x for x in best[:n_best] if x.score > float("-inf")] for best in found]

    def stream(
        self, lines: Iterable[str], batch_size: int = 32, n_best: int = 1, **search: Any
    ) -> Iterator[list[list[ServedTranslation]]]:
        """Translates lines as they arrive. Each request contains the lines that are available.

        Args:
            lines: Sentences. The iterator may block until a line is available.
            batch_size: Maximum number of sentences per request, at most the server's
                `max_batch_size`.
            n_best: As in `translate_nbest`.
            **search: Search options of `translate_nbest`.

        Yields:
            The translations of each request, as `translate_nbest` returns them.
        """
        is_default = n_best == 1 and all(value is None for value in search.values())
        for chunk in available_chunks(lines, batch_size):
            if is_default:
                yield [[translation] for translation in self.translate(chunk)]
            else:
                yield self.translate_nbest(chunk, n_best, **search)

    def _translations(self, count: int, outputs: Any, text: str, score: str) -> list[Any]:
        """Returns a translation, or a list of translations, for each of `count` sentences."""

        def paired(texts: Any, scores: Any) -> Any:
            if isinstance(texts, list):
                return [paired(*pair) for pair in zip(texts, scores, strict=True)]
            if not isinstance(texts, str):
                raise TypeError
            return ServedTranslation(texts, float(scores))

        try:
            found = paired(outputs[text], outputs[score])
            if len(found) == count and isinstance(found[0], list) == (text == "translations"):
                return found
        except (KeyError, TypeError, ValueError):
            pass
        message = f"{self._endpoint.address} must answer with {text} and {score} of each sentence"
        raise UserError(f"{message}. Received: {outputs}"[:300])

    def _predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        """Sends a request, again and again after temporary errors."""
        wait, attempts = _FIRST_WAIT, 0
        while True:
            try:
                return self._endpoint.predict(signature, inputs)
            except NotFoundError as error:
                trouble = self._why_not_found(str(error))
            except TemporaryError as error:
                trouble = str(error)
            attempts += 1
            if attempts > self._retries:
                count = f"{attempts} attempt{'s' * (attempts > 1)}"
                raise UserError(f"{trouble} (after {count}). {_HINT}")
            pause = wait * random.uniform(0.5, 1)
            warnings.warn(f"{trouble}; next attempt in {pause:.1f} s", stacklevel=2)
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _why_not_found(self, message: str) -> str:
        """Returns the reason why the model is not available yet.

        Raises:
            UserError: If the server does not have the model or version, or could not load it.
        """
        server = self._endpoint
        address, model, version = server.address, server.model, server.version
        try:
            states = server.states()
        except TemporaryError as error:
            return str(error)
        except NotFoundError:
            raise UserError(f"{address} has no model {model!r}: {message}") from None
        wanted = [state for state in states if version in (None, state.version)]
        if any(state.state != "END" for state in wanted):
            return f"{address} is still loading the model {model!r}"
        for state in wanted:
            if state.error:
                raise UserError(f"{address} could not load the model {model!r}: {state.error}")
        which = "any version" if version is None else f"version {version}"
        served = ", ".join(str(state.version) for state in states if state.state == "AVAILABLE")
        only = f", only {served}" if served else ""
        raise UserError(f"{address} does not serve {which} of {model!r}{only}")
