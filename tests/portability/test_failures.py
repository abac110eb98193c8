"""Which failures are reported. `test_conformance` tests the scripts."""

from types import SimpleNamespace

from keras_transformer.portability.audit import BackendError
from keras_transformer.portability.compare import Difference
from keras_transformer.portability.failures import Failures


class Audit(SimpleNamespace):
    """Stands for the results of backends a, b and c; nothing can be saved."""

    def pairs(self):
        return [("a", "b"), ("a", "c"), ("b", "c")]

    def differences(self, check, pair):
        return self.found.get((check, pair), [])

    def failing_call(self, name):
        return None

    def parting(self, check, pair):
        return ("model/layer", [])


class Process:
    def ask(self, method, **_):
        raise BackendError("it cannot be saved")


def find(tmp_path, found, errors=()):
    audit = Audit(backends=dict.fromkeys("abc", Process()), found=found, errors=dict(errors))
    return Failures(audit, tmp_path, [], seed=0).find()


def test_nothing_fails(tmp_path):
    right = [Difference("x", 0.5, 1.0)]
    assert find(tmp_path, {("outputs", ("a", "b")): right}) == []


def test_a_call_is_reported_once_and_explains_later_checks(tmp_path):
    wrong, worse = ([Difference("x", x, 1.0)] for x in (2.0, 3.0))
    pairs = ("a", "c"), ("b", "c")
    found = {("outputs", pairs[0]): wrong, ("outputs", pairs[1]): worse}
    (failure,) = find(tmp_path, {**found, ("search", pairs[0]): wrong})
    assert failure[:4] == ("outputs", ("b", "c"), "model/layer", "3.0e+00 / 1.0e+00")
    assert failure.script is None and not any(tmp_path.iterdir())
    assert str(failure).startswith("outputs: b and c differ in model/layer: 3.0e+00 / 1.0e+00\n")


def test_a_result_of_one_backend_is_named(tmp_path):
    missing = [Difference("output 1", float("inf"), 0.0, is_shared=False)]
    (failure,) = find(tmp_path, {("outputs", ("a", "b")): missing})
    assert failure.message == "only one has output 1"


def test_an_error_of_each_backend_is_reported(tmp_path):
    errors = {("outputs", name): BackendError(f"of {name}") for name in "ab"}
    errors["gradients", "a"] = BackendError("of a too")
    assert [x[:4] for x in find(tmp_path, {}, errors)] == [
        ("outputs", ("a",), None, "of a"),
        ("outputs", ("b",), None, "of b"),
    ]
