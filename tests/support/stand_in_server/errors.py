"""What the server answers when it cannot: a code of gRPC's and a message."""

from enum import IntEnum


class Code(IntEnum):
    """The codes that TensorFlow and gRPC share."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14


class RequestError(Exception):
    """A request that fails; the server goes on.

    Args:
        code: A code of gRPC's, one of `Code` or another that TensorFlow raised.
        message: For the client.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def invalid(message: str) -> RequestError:
    return RequestError(Code.INVALID_ARGUMENT, message)
