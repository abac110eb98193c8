"""A model belongs to no backend: files, logits and translations are the same on all."""

import keras
import numpy as np
import pytest
from support import portability

BACKENDS = portability.BACKENDS


def assert_same_answers(one, other):
    np.testing.assert_allclose(one["logits"], other["logits"], atol=1e-4)
    np.testing.assert_array_equal(one["greedy"], other["greedy"])
    np.testing.assert_array_equal(one["beam"], other["beam"])


def test_the_next_backend_gives_the_same_answers(tmp_path):
    here = keras.backend.backend()
    there = BACKENDS[(BACKENDS.index(here) + 1) % len(BACKENDS)]
    path, answers = tmp_path / "model.keras", tmp_path / "answers.npz"
    portability.write(path)
    portability.run(there, "answer", path, answers)
    assert_same_answers(np.load(answers), portability.answer(path))


@pytest.mark.slow
def test_all_nine_pairs_give_the_same_answers(tmp_path):
    files = {writer: tmp_path / f"{writer}.keras" for writer in BACKENDS}
    for writer, path in files.items():
        portability.run(writer, "write", path)
    answers = []
    for reader in BACKENDS:
        pairs = [(path, tmp_path / f"{writer}-{reader}.npz") for writer, path in files.items()]
        portability.run(reader, "answer", *(argument for pair in pairs for argument in pair))
        answers += [np.load(path) for _, path in pairs]
    assert len(answers) == 9
    for other in answers[1:]:
        assert_same_answers(answers[0], other)


def test_keras_export_makes_a_saved_model(tmp_path):
    path, answers = tmp_path / "model.keras", tmp_path / "answers.npz"
    portability.write(path)
    portability.run("tensorflow", "export", path, tmp_path / "saved_model", answers)
    expected = portability.answer(path)["logits"]
    np.testing.assert_allclose(np.load(answers)["logits"], expected, atol=1e-4)
