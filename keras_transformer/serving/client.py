"""Translations from an exported model on TensorFlow Serving."""

import random
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.data.available_chunks import available_chunks
from keras_transformer.errors import UserError
from keras_transformer.serving.endpoint import (
    Endpoint,
    NotFoundError,
    TemporaryError,
    Values,
    VersionState,
)

AS_EXPORTED = -1  # In place of a setting of the search: what was chosen at export.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds


class Translation(NamedTuple):
    """A translation and its score: log-probability in nats, divided by the length penalty."""

    text: str
    score: float

    def line(self, with_score: bool) -> str:
        """The text, and before it the score and a tab if so wanted."""
        return f"{self.score:.4f}\t{self.text}\n" if with_score else f"{self.text}\n"


def connect(
    model: str,
    address: str | None = None,
    *,
    protocol: str = "rest",
    version: int | None = None,
    timeout: float = 60.0,
    retries: int = 5,
) -> "ServingClient":
    """A client of one model on one server.

    Nothing is sent before the first sentence.

    Example:

    ```python
    client = connect("multi30k", "http://localhost:8501")
    client.translate(["A dog runs."])[0].text
    ```

    Args:
        model: Its name on the server.
        address: `http://host:port`, by default `http://localhost:8501`; with gRPC `host:port`, by
            default `localhost:8500`.
        protocol: `"rest"`, which needs `requests` alone, or `"grpc"`, which needs
            tensorflow-serving-api and loads TensorFlow.
        version: Of the model. Defaults to None: the newest.
        timeout: Seconds that one request may take.
        retries: How often a request is sent again while the server is away, full or loading.

    Returns:
        A `ServingClient`.

    Raises:
        UserError: If gRPC is wanted and tensorflow-serving-api is not installed.
        ValueError: If there is no such protocol.
    """
    endpoint: type
    if protocol == "rest":
        from keras_transformer.serving.rest_endpoint import RestEndpoint as endpoint
    elif protocol == "grpc":
        from keras_transformer.serving.grpc_endpoint import GrpcEndpoint as endpoint
    else:
        raise ValueError(f"`protocol` must be 'rest' or 'grpc'. Received: protocol={protocol!r}")
    settings: dict[str, Any] = {"version": version, "timeout": timeout}
    if address:
        settings["address"] = address
    return ServingClient(endpoint(model, **settings), retries)


class ServingClient:
    """Sends sentences to a model server and tries again where that may help.

    The waits between tries grow from half a second to half a minute, each shortened at random by
    up to a half, so that many clients do not come back at the same time. A warning tells of each.

    Args:
        endpoint: One model on one server.
        retries: How often a request is sent again.
    """

    def __init__(self, endpoint: Endpoint, retries: int = 5) -> None:
        self._endpoint = endpoint
        self._retries = retries

    def translate(self, texts: Sequence[str | bytes]) -> list[Translation]:
        """Best translations by the search as it was exported, in one request.

        Args:
            texts: Sentences; bytes may be anything.

        Returns:
            A translation for each sentence, in their order.

        Raises:
            UserError: If the server cannot be reached, does not serve the model, or refuses.
        """
        if not texts:
            return []
        outputs = self._predict("serving_default", {"text": texts})
        rows = zip(outputs["translation"], outputs["score"], strict=True)
        return [Translation(*row) for row in rows]

    def translate_nbest(
        self,
        texts: Sequence[str | bytes],
        n_best: int = 1,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
    ) -> list[list[Translation]]:
        """Several translations of each sentence, or those of another search, in one request.

        Args:
            texts: Sentences; bytes may be anything.
            n_best: Translations per sentence, at most the beam size. A sentence can have fewer.
            beam_size: Hypotheses of the search. Defaults to None: as exported.
            length_penalty: Defaults to None: as exported.
            max_length: Most tokens of a translation, eos included. Defaults to None: as exported.

        Returns:
            Lists of translations, best first, in the order of the sentences.

        Raises:
            UserError: As in `translate`, or if the search has fewer beams than `n_best`.
        """
        if not texts:
            return []
        settings = {"beam_size": beam_size, "max_length": max_length}
        inputs: dict[str, Values] = {"text": texts}
        for name, value in settings.items():
            inputs[name] = [AS_EXPORTED if value is None else value] * len(texts)
        penalty = AS_EXPORTED if length_penalty is None else length_penalty
        inputs["length_penalty"] = [float(penalty)] * len(texts)
        outputs = self._predict("translate_nbest", inputs)
        rows = zip(outputs["translations"], outputs["scores"], strict=True)
        return [_best(*row, n_best) for row in rows]

    def stream(
        self, lines: Iterable[str], batch_size: int = 32, n_best: int = 1, **search: Any
    ) -> Iterator[list[list[Translation]]]:
        """Translates lines as they come; a request has as many as are there.

        Args:
            lines: May block while nothing is there.
            batch_size: Most sentences of one request. The server may take fewer than you wish: see
                `max_batch_size` in its batching parameters.
            n_best: As in `translate_nbest`.
            **search: Settings of `translate_nbest`; None is as exported.

        Yields:
            For some lines at a time what `translate_nbest` returns.
        """
        is_default = n_best == 1 and all(value is None for value in search.values())
        for chunk in available_chunks(lines, batch_size):
            if is_default:
                yield [[translation] for translation in self.translate(chunk)]
            else:
                yield self.translate_nbest(chunk, n_best, **search)

    def _predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        wait = _FIRST_WAIT
        for attempt in range(self._retries + 1):
            try:
                return self._endpoint.predict(signature, inputs)
            except NotFoundError as error:
                trouble = self._why_not_found(str(error))
            except TemporaryError as error:
                trouble = str(error)
            if attempt < self._retries:
                pause = wait * random.uniform(0.5, 1)
                warnings.warn(f"{trouble}; next try in {pause:.1f} s", stacklevel=2)
                time.sleep(pause)
                wait = min(2 * wait, _LONGEST_WAIT)
        raise UserError(f"{trouble} (after {self._retries + 1} tries)")

    def _why_not_found(self, message: str) -> str:
        """What there is to wait for.

        Raises:
            UserError: If there is nothing.
        """
        model, address, version = (
            self._endpoint.model,
            self._endpoint.address,
            self._endpoint.version,
        )
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
        raise UserError(f"{address} does not serve {which} of {model!r}{_others(states)}")


def _others(states: Iterable[VersionState]) -> str:
    versions = [str(state.version) for state in states if state.state == "AVAILABLE"]
    return f", only {', '.join(versions)}" if versions else ""


def _best(texts: Sequence[str], scores: Sequence[float], n_best: int) -> list[Translation]:
    """The first of a row that are there; the rest is padding, of score -inf."""
    if len(texts) < n_best:
        raise UserError(
            f"the search has {len(texts)} beams and gives no more translations. "
            f"Received: n_best={n_best}; ask for a larger beam size"
        )
    rows = zip(texts[:n_best], scores, strict=False)
    return [Translation(text, score) for text, score in rows if score > float("-inf")]
