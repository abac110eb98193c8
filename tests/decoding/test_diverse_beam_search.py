"""Groups of beams, against Hugging Face's group beam search with the same weights."""

import json

import numpy as np
import pytest
from support.hugging_face_groups import FIXTURE, LONGEST, SEARCHES, eager_to_end, sources
from support.searching import beam_search


@pytest.fixture(scope="module")
def model():
    return eager_to_end()


@pytest.mark.parametrize("index", range(len(SEARCHES)))
def test_finds_what_hugging_face_finds(model, index):
    options, expected = SEARCHES[index], json.loads(FIXTURE.read_text())[index]
    options = {**options, "n_best": options["beam_size"], "length_penalty_form": "power"}
    found = beam_search(model, sources(), max_length=LONGEST, **options)
    assert len(np.unique(found.lengths)) > 2
    np.testing.assert_array_equal(found.ids, expected["ids"])
    np.testing.assert_allclose(found.scores, expected["scores"], atol=2e-5)
