"""Groups of beams, against Hugging Face's group beam search with the same weights."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import randomize, to_numpy
from support.fake_models import EOS
from support.searching import beam_search

from keras_transformer import Transformer

# Found with MarianMTModel.generate of transformers 4.46.3 (later releases have no groups), with the
# weights of `model`, its epsilon 1e-6, and SEARCHES on `sources`, pad and bos being bad words.
FIXTURE = Path(__file__).parent.parent / "fixtures" / "hugging_face_groups.json"
VOCAB_SIZE = 40
SEARCHES = [
    {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "length_penalty": 0.0},
    {"beam_size": 6, "num_beam_groups": 3, "diversity_penalty": 1.0, "length_penalty": 1.0},
    {"beam_size": 4, "num_beam_groups": 4, "diversity_penalty": 0.7, "length_penalty": 0.5},
]


def sources():
    source_ids = np.random.default_rng(0).integers(4, VOCAB_SIZE, (16, 9)).astype("int32")
    source_ids[:, -1] = EOS
    return source_ids


@pytest.fixture(scope="module")
def model():
    """Ends some hypotheses early: its eos looks like the mean of its states."""
    model = Transformer(
        VOCAB_SIZE,
        num_layers=2,
        d_model=16,
        num_heads=4,
        d_ff=32,
        position_encoding="sinusoidal_half_split",
        max_length=64,
    )
    randomize(model)
    generator = np.random.default_rng(7)
    inputs = {
        "source_ids": generator.integers(4, VOCAB_SIZE, (64, 9)),
        "target_ids": generator.integers(4, VOCAB_SIZE, (64, 6)),
    }
    mean = to_numpy(keras.Model(model.input, model.states)(inputs)).mean((0, 1))
    embeddings = to_numpy(model.target_embedding.embeddings).copy()
    embeddings[EOS] = 0.5 * mean / np.linalg.norm(mean)
    model.target_embedding.embeddings.assign(embeddings)
    return model


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("index", [1, *once(0, 2)])
def test_finds_what_hugging_face_finds(model, index):
    options, expected = SEARCHES[index], json.loads(FIXTURE.read_text())[index]
    options = {**options, "n_best": options["beam_size"], "length_penalty_form": "power"}
    found = beam_search(model, sources(), max_length=12, **options)
    assert len(np.unique(found.lengths)) > 2
    np.testing.assert_array_equal(found.ids, expected["ids"])
    np.testing.assert_allclose(found.scores, expected["scores"], atol=2e-5)
