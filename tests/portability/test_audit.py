"""The processes of backends; the call where two backends part, from made-up results."""

import keras
import numpy as np
import pytest

from keras_transformer.portability.audit import Audit, Backend, BackendError, measured

CALLS = ("model/a", "model/block/b", "model/block/c", "model/block", "model/d", "model")
HERE = keras.config.backend()
PAIR = ("one", HERE)


class Process:
    """Answers with ones; with twos for `wrong` names."""

    def __init__(self, folder, name, wrong=(), failing=None, more=()):
        self.path, self.wrong, self.failing = folder / f"{name}.npz", wrong, failing
        self.more = list(more)

    def ask(self, method, call="model", **_):
        if method == self.failing:
            raise BackendError("an error", "model/a")
        names = [f"{x} {kind} 0" for x in CALLS for kind in ("input", "output")]
        if method == "step":
            names = [f"gradient 0 of {call}", "variable 0"]
        elif method != "walk":
            names = ["output 0"]
        names += self.more
        values = [np.full(2, 1.0 + (name in self.wrong)) for name in names]
        np.savez(self.path, *values, *(np.zeros(2) for _ in names))
        answer = {"file": str(self.path), "names": names, "epsilon": 2.0**-23, "terms": 1}
        return {**answer, "is_training": True}


def audit(folder, **options):
    backends = {"one": Process(folder, "one"), HERE: Process(folder, "other", **options)}
    return Audit(backends, folder, [np.ones(2)])


def test_the_first_call_parts_whose_inputs_do_not(tmp_path):
    wrong = [f"{x} output 0" for x in CALLS[2:]] + ["model/d input 0"]
    call, (found,) = audit(tmp_path, wrong=wrong).parting("outputs", PAIR)
    assert (call, found.name, found.largest) == ("model/block/c", "output 0", 1.0)


def test_an_outer_call_parts_if_its_own_code_does(tmp_path):
    wrong = ["model/block/c input 0"] + [f"{x} output 0" for x in CALLS[2:]]
    assert audit(tmp_path, wrong=wrong).parting("outputs", PAIR)[0] == "model/block"


def test_an_output_of_one_backend_parts_but_not_a_call_of_one_backend(tmp_path):
    more = ["model/block/only output 0", "model/d output 1"]
    call, (found,) = audit(tmp_path, more=more).parting("outputs", PAIR)
    assert (call, found.name, found.is_shared) == ("model/d", "output 1", False)


def test_the_innermost_step_parts(tmp_path):
    wrong = [f"gradient 0 of {x}" for x in ("model", "model/block", "model/block/c")]
    found = audit(tmp_path, wrong=wrong)
    assert found.parting("gradients", PAIR)[0] == "model/block/c"
    assert found.parting("training step", PAIR) is None


def test_errors_are_kept_and_have_a_call(tmp_path):
    found = audit(tmp_path, failing="outputs")
    found.run(["outputs", "gradients", "training step"], report=lambda total: None)
    assert list(found.errors) == [("outputs", HERE)]
    assert found.differences("outputs", PAIR) == []
    assert [x.largest for x in found.differences("training step", PAIR)] == [0.0]
    assert audit(tmp_path, failing="walk").failing_call(HERE) == "model/a"


def test_the_original_model_is_compared_with_what_is_loaded(tmp_path):
    found = audit(tmp_path, wrong=["output 0"])
    found.run(["outputs"], report=lambda total: None)
    assert [(x.reader, x.differences()[0].parts) for x in found.readings(PAIR)] == [(HERE, True)]


def test_an_output_that_only_the_original_or_the_loaded_model_has_parts(tmp_path):
    found = audit(tmp_path, more=["output 1"])
    found.run(["outputs"], report=lambda total: None)
    (reading,) = found.readings(PAIR)
    assert [(x.name, x.parts) for x in reading.differences()] == [
        ("output 0", False),
        ("output 1", True),
    ]


@pytest.fixture
def folder(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **{"0": np.ones((1, 2), "float32")})
    (tmp_path / "inputs.json").write_text("0")
    return tmp_path


def test_a_process_answers_and_reports_errors_until_it_ends(folder):
    with Backend(keras.config.backend(), folder, [], seed=0) as backend:
        found = measured(backend.ask("outputs"))
        assert found.values["output 0"].shape == (1, 3)
        assert found.noise["output 0"].max() > 0 and found.terms == 2
        with pytest.raises(BackendError, match="No such file|not found"):
            backend.ask("load", path=str(folder / "nothing.keras"))
        backend._process.kill()
        with pytest.raises(BackendError, match="the process ended with status -9"):
            backend.ask("outputs")


def test_a_module_that_is_missing_is_an_error(folder):
    with Backend(keras.config.backend(), folder, ["no_such_module"], seed=0) as backend:
        with pytest.raises(BackendError, match="ModuleNotFoundError.*no_such_module"):
            backend.ask("outputs")
