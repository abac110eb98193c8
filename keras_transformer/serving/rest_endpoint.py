"""TensorFlow Serving's REST interface."""

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import requests

from keras_transformer.errors import UserError
from keras_transformer.serving.endpoint import (
    NotFoundError,
    TemporaryError,
    Values,
    VersionState,
)

DEFAULT_ADDRESS = "http://localhost:8501"
# Too many requests; and bad gateway, unavailable and gateway timeout of the server or a proxy.
_TEMPORARY = (429, 502, 503, 504)


class RestEndpoint:
    """One model by HTTP; connections are reused.

    Args:
        model: The model's name on the server.
        address: `http://host:port`, or `https://...` for a proxy in front of the server.
        version: Version of the model. Defaults to None: the newest.
        timeout: Maximum duration of a request in seconds, from connecting to the last byte.

    Source:
        The RESTful API of TensorFlow Serving, https://www.tensorflow.org/tfx/serving/api_rest
    """

    def __init__(
        self,
        model: str,
        address: str = DEFAULT_ADDRESS,
        version: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.model, self.address, self.version = model, address, version
        self._timeout = timeout
        self._model_url = f"{address.rstrip('/')}/v1/models/{quote(model, safe='')}"
        self._session = requests.Session()

    def predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        version = "" if self.version is None else f"/versions/{self.version}"
        body = {
            "signature_name": signature,
            "inputs": {name: _json_values(values) for name, values in inputs.items()},
        }
        answer = self._ask("POST", f"{self._model_url}{version}:predict", body)
        if "outputs" not in answer:
            raise UserError(f"{self.address} answers without 'outputs': {str(answer)[:200]}")
        return answer["outputs"]

    def states(self) -> list[VersionState]:
        answer = self._ask("GET", self._model_url)
        return [
            VersionState(
                int(entry["version"]),
                entry["state"],
                entry.get("status", {}).get("error_message", ""),
            )
            for entry in answer.get("model_version_status", ())
        ]

    def _ask(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        try:
            response = self._request(method, url, body)
        except (requests.Timeout, TimeoutError):
            raise TemporaryError(
                f"{self.address} gave no answer within {self._timeout:g} s"
            ) from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise TemporaryError(f"{self.address} cannot be reached: {_reason(error)}") from None
        except ValueError as error:  # raised by requests for an invalid address
            raise UserError(
                f"the address must look like {DEFAULT_ADDRESS}. Received: {self.address} ({error})"
            ) from None
        return self._read(response)

    def _request(self, method: str, url: str, body: Any) -> requests.Response:
        """Sends a request and waits for the whole answer, at most `timeout` seconds.

        The time-out of requests restarts with every byte. So a thread waits for the answer, and is
        left to itself when the time is up.
        """
        answer: Future[requests.Response] = Future()
        session = self._session

        def wait() -> None:
            try:
                answer.set_result(session.request(method, url, json=body, timeout=self._timeout))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        try:
            return answer.result(self._timeout)
        except TimeoutError:
            self._session = requests.Session()  # the thread still uses the other one
            raise

    def _read(self, response: requests.Response) -> dict[str, Any]:
        text = response.content.decode("utf-8", errors="replace")
        try:
            answer = json.loads(text)  # with NaN and -Infinity, as the server writes them
        except json.JSONDecodeError:
            answer = None
        message = answer.get("error") if isinstance(answer, dict) else text[:200]
        if response.status_code == 404:
            raise NotFoundError(message)
        if response.status_code in _TEMPORARY:
            raise TemporaryError(f"{self.address} answers {response.status_code}: {message}")
        if response.status_code != 200 or not isinstance(answer, dict):
            raise UserError(f"{self.address} answers {response.status_code}: {message}")
        return answer


def _json_values(values: Values) -> Sequence[Any]:
    return [_json_text(value) if isinstance(value, bytes) else value for value in values]


def _json_text(value: bytes) -> str | dict[str, str]:
    """A string for UTF-8; JSON has no other way for other bytes than base64."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode("ascii")}


def _reason(error: Exception) -> str:
    """The last part of the innermost error's message."""
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rsplit(": ", 1)[-1]
