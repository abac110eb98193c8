"""The interface between the client and a connection to one model on TensorFlow Serving."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Values = Sequence[str | bytes] | Sequence[int] | Sequence[float]


class TemporaryError(Exception):
    """The same request may succeed later: the server is unreachable, overloaded or slow."""


class NotFoundError(Exception):
    """The server does not serve this model or version now; `Endpoint.states` gives the reason."""


class VersionState(NamedTuple):
    """State of a version of a model: START, LOADING, AVAILABLE, UNLOADING or END."""

    version: int
    state: str
    error: str


class Endpoint(Protocol):
    """A connection to one model on one server."""

    address: str
    model: str
    version: int | None

    def predict(self, signature: str, inputs: Mapping[str, Values]) -> dict[str, list[Any]]:
        """Runs a signature of the model.

        Args:
            signature: Name of the signature.
            inputs: Values by name of the input, as many for each input. Bytes need not be UTF-8;
                integers become int32 and floats float32.

        Returns:
            Nested lists by name of the output. Bytes that are not UTF-8 become U+FFFD.

        Raises:
            TemporaryError: If the same request may succeed later.
            NotFoundError: If the server does not serve this model or version now.
            UserError: If the server refuses the request for another reason.
        """
        ...

    def states(self) -> list[VersionState]:
        """Returns the states of all versions of the model.

        Raises:
            TemporaryError: If the same request may succeed later.
            NotFoundError: If the server has no model of this name.
        """
        ...
