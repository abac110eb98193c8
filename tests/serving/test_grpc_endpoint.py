"""gRPC against the model server, from a process of its own: the stubs load TensorFlow."""

import json
import subprocess
import sys

import pytest

from keras_transformer.errors import UserError
from keras_transformer.serving import GrpcEndpoint, RestEndpoint

pytestmark = pytest.mark.once
TEXTS = ["bad cab", "", "face \0"]
ASK = """
import json, sys
from keras_transformer.errors import UserError
from keras_transformer.serving import GrpcEndpoint, TemporaryError

address, text = sys.argv[1], {"text": [*json.loads(sys.argv[3]), b"\\xff c"]}
numbers = {"beam_size": [1, 3, -1, 2], "length_penalty": [0.0] * 4, "max_length": [-1] * 4}

def outcome(function, *arguments):
    try:
        return function(*arguments)
    except (TemporaryError, UserError) as error:
        return [type(error).__name__, str(error)]

model = GrpcEndpoint("model", address, timeout=100)
print(json.dumps({
    "best": outcome(model.predict, "serving_default", text),
    "n_best": outcome(model.predict, "translate_nbest", {**text, **numbers}),
    "large": outcome(model.predict, "serving_default", {"text": ["a" * 5_000_000 + " b"]}),
    "signature": outcome(model.predict, "absent", text),
    "input": outcome(model.predict, "score", text),
    "model": outcome(GrpcEndpoint("other", address).predict, "serving_default", text),
    "version": outcome(GrpcEndpoint("model", address, 7).predict, "serving_default", text),
    "away": outcome(GrpcEndpoint("model", "localhost:1").predict, "serving_default", text),
    "rest": outcome(GrpcEndpoint("model", sys.argv[2]).predict, "serving_default", text),
    "late": outcome(
        GrpcEndpoint("model", address, timeout=1e-6).predict, "serving_default", text
    ),
}))
"""


@pytest.fixture(scope="module")
def outcomes(server, client):
    rest = server.rest.removeprefix("http://")
    command = [sys.executable, "-c", ASK, server.grpc, rest, json.dumps(TEXTS)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-4000:]
    return json.loads(child.stdout)


def test_answers_are_those_of_rest(outcomes, server):
    rest, texts = RestEndpoint("model", server.rest), [*TEXTS, b"\xff c"]
    expected = rest.predict("serving_default", {"text": texts})
    assert outcomes["best"]["translation"] == expected["translation"]
    assert outcomes["best"]["score"] == pytest.approx(expected["score"], abs=1e-4)
    rows = outcomes["n_best"]["scores"]
    assert [sum(x > -float("inf") for x in row) for row in rows] == [1, 1, 3, 2]


def test_messages_may_be_larger_than_grpc_allows_by_default(outcomes):
    assert len(outcomes["large"]["translation"]) == 1


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("signature", "UserError", 'FAILED_PRECONDITION: Serving signature key "absent" not found'),
        ("input", "UserError", "INVALID_ARGUMENT: input size does not match signature: 1!=2"),
        ("model", "TemporaryError", "Servable not found for request: Latest(other)"),
        ("version", "TemporaryError", "Servable not found for request: Specific(model, 7)"),
        ("away", "TemporaryError", "localhost:1 answers UNAVAILABLE: "),
        ("rest", "TemporaryError", "answers UNAVAILABLE: "),
        ("late", "TemporaryError", "answers DEADLINE_EXCEEDED"),
    ],
)
def test_errors_are_of_the_kind_that_decides_what_to_do(outcomes, case, kind, message):
    assert outcomes[case][0] == kind
    assert message in outcomes[case][1]


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UserError, match=r"^gRPC needs tensorflow-serving-api: pip install "):
        GrpcEndpoint("model", "localhost:8500")
