"""Both protocols offer the client the same."""

import inspect

import pytest

from keras_transformer.serving.endpoint import Endpoint, GrpcEndpoint, RestEndpoint


@pytest.mark.parametrize("endpoint", [RestEndpoint, GrpcEndpoint])
def test_endpoints_have_the_methods_and_arguments_of_the_protocol(endpoint):
    for name in ("predict", "states"):
        assert inspect.signature(getattr(endpoint, name)) == inspect.signature(
            getattr(Endpoint, name)
        )
    assert list(inspect.signature(endpoint).parameters) == [
        "model",
        "address",
        "version",
        "timeout",
    ]
