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
    Endpoint,
    GrpcEndpoint,
    NotFoundError,
    RestEndpoint,
    TemporaryError,
    UnreachableError,
    Values,
)

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds
_HINT = (
    ". Start a server, for example with `docker compose up` in the folder of the exported "
    "SavedModel, or give the `address` of one"
)
_PATIENCE = ". Wait and try again, or set `retries` to a larger number"
_LONGEST_TIMEOUT = 24 * 60 * 60  # seconds


class Translation(NamedTuple):
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
        timeout: Maximum duration of a request in seconds, including connection and answer. The
            highest allowed value is one day.
        retries: How many times a request is repeated if the server is unreachable, slow, overloaded
            or still loading the model.

    Raises:
        UserError: If `timeout` is out of range, if `model` is not valid Unicode, or if `protocol`
            is `"grpc"` but tensorflow-serving-api is not installed.
        ValueError: If `protocol` is unknown.
    """
    endpoints: dict[str, type] = {"rest": RestEndpoint, "grpc": GrpcEndpoint}
    if protocol not in endpoints:
        raise ValueError(f"`protocol` must be 'rest' or 'grpc'. Received: protocol={protocol!r}")
    if not 0 < timeout <= _LONGEST_TIMEOUT:
        raise UserError(
            f"timeout must be above 0 and at most {_LONGEST_TIMEOUT:,} s. Received: {timeout}"
        )
    if not _is_unicode(model):
        raise UserError(f"the name of a model must be UTF-8. Received: {model!r}")
    settings: dict[str, Any] = {"version": version, "timeout": timeout}
    if address:
        settings["address"] = address
    return ServingClient(endpoints[protocol](model, **settings), retries)


class ServingClient:
    """Sends sentences to a model server and repeats requests after temporary errors.

    The pauses between attempts grow from 0.5 to 30 seconds. Each pause is randomly shortened by up
    to half, so that clients do not all retry together. A warning announces each pause.

    Args:
        endpoint: The connection to one model on one server.
        retries: How many times a request is repeated after temporary errors.
    """

    def __init__(self, endpoint: Endpoint, retries: int = 5) -> None:
        if retries < 0:
            raise ValueError(f"`retries` must be at least 0. Received: retries={retries}")
        self._endpoint = endpoint
        self._retries = retries

    def translate(self, texts: Sequence[str | bytes]) -> list[Translation]:
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
        translations, scores = self._columns(outputs, ("translation", "score"), len(texts))
        return [self._translation(*row) for row in zip(translations, scores, strict=True)]

    def translate_nbest(
        self,
        texts: Sequence[str | bytes],
        n_best: int = 1,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
    ) -> list[list[Translation]]:
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
        inputs: dict[str, Values] = {
            "text": texts,
            "beam_size": [-1 if beam_size is None else beam_size] * len(texts),
            "length_penalty": [float(-1 if length_penalty is None else length_penalty)]
            * len(texts),
            "max_length": [-1 if max_length is None else max_length] * len(texts),
        }
        outputs = self._predict("translate_nbest", inputs)
        rows = zip(*self._columns(outputs, ("translations", "scores"), len(texts)), strict=True)
        return [self._best(texts, scores, n_best, beam_size or 1) for texts, scores in rows]

    def stream(
        self, lines: Iterable[str], batch_size: int = 32, n_best: int = 1, **search: Any
    ) -> Iterator[list[list[Translation]]]:
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

    def _predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        wait, hint = _FIRST_WAIT, ""
        for attempt in range(self._retries + 1):
            try:
                return self._endpoint.predict(signature, inputs)
            except NotFoundError as error:
                trouble, hint = self._why_not_found(str(error)), _PATIENCE
            except TemporaryError as error:
                trouble = str(error)
                hint = _HINT if isinstance(error, UnreachableError) else ""
            if attempt < self._retries:
                pause = wait * random.uniform(0.5, 1)
                warnings.warn(f"{trouble}; next attempt in {pause:.1f} s", stacklevel=2)
                time.sleep(pause)
                wait = min(2 * wait, _LONGEST_WAIT)
        attempts = "1 attempt" if self._retries == 0 else f"{self._retries + 1} attempts"
        raise UserError(f"{trouble} (after {attempts}){hint}")

    def _columns(
        self, outputs: dict[str, list[Any]], names: Sequence[str], count: int
    ) -> list[list[Any]]:
        """Returns the named outputs. Checks that each has `count` values, one per sentence."""
        if not isinstance(outputs, dict):
            outputs = {}
        for name in names:
            values = outputs.get(name)
            if not isinstance(values, list) or len(values) != count:
                number = len(values) if isinstance(values, list) else "no"
                raise UserError(
                    f"{self._endpoint.address} must answer {count} sentences with {count} values "
                    f"of {name!r}. Received: {number} values"
                )
        return [outputs[name] for name in names]

    def _translation(self, text: Any, score: Any) -> Translation:
        if not isinstance(text, str) or not isinstance(score, int | float):
            raise UserError(
                f"{self._endpoint.address} must answer with a text and a score per sentence. "
                f"Received: {text!r:.100} and {score!r:.100}"
            )
        return Translation(text, score)

    def _best(self, texts: Any, scores: Any, n_best: int, beam_size: int) -> list[Translation]:
        """Returns the first `n_best` translations. Drops padding, whose score is minus infinity."""
        if not isinstance(texts, list) or not isinstance(scores, list):
            texts, scores = [texts], [scores]
        if len(texts) != len(scores):
            raise UserError(
                f"{self._endpoint.address} must answer with as many scores as translations. "
                f"Received: {len(scores)} scores and {len(texts)} translations"
            )
        if len(texts) < beam_size:
            raise UserError(
                f"the model on {self._endpoint.address} allows a beam size of at most "
                f"{len(texts)}. Received: beam_size={beam_size}"
            )
        if len(texts) < n_best:
            raise UserError(
                f"n_best must be at most the number of beams, which is {len(texts)}. "
                f"Received: n_best={n_best}; ask for a larger beam size"
            )
        best = [self._translation(*row) for row in zip(texts, scores, strict=True)][:n_best]
        return [translation for translation in best if translation.score > float("-inf")]

    def _why_not_found(self, message: str) -> str:
        """Returns the reason why the model is not available yet.

        Raises:
            UserError: If the server does not have the model or version, or could not load it.
        """
        model, address = self._endpoint.model, self._endpoint.address
        version = self._endpoint.version
        try:
            states = self._endpoint.states()
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


def _is_unicode(text: str) -> bool:
    """Returns whether a text is valid Unicode, without surrogates.

    Python decodes command-line arguments that are not UTF-8 to text with surrogates.
    """
    return text.encode("utf-8", "ignore").decode() == text
