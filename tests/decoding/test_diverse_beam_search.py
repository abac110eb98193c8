"""Groups of beams, against Hugging Face's group beam search with the same weights."""

import json

import numpy as np
import pytest
from support.fake_models import BOS, EOS, BigramModel
from support.hugging_face_groups import FIXTURE, LONGEST, SEARCHES, eager_to_end, sources
from support.searching import beam_search

A, Z, V = 4, 5, 6
SOURCES = np.array([[7, 3], [11, 3], [20, 3]], "int32")


@pytest.fixture(scope="module")
def model():
    return eager_to_end()


@pytest.mark.parametrize("index", range(len(SEARCHES)))
def test_finds_what_hugging_face_finds(model, index):
    options, expected = SEARCHES[index], json.loads(FIXTURE.read_text())[index]
    found = beam_search(
        model,
        sources(),
        max_length=LONGEST,
        n_best=options["beam_size"],
        length_penalty_form="power",
        **options,
    )
    assert len(np.unique(found.lengths)) > 2
    np.testing.assert_array_equal(found.ids, expected["ids"])
    np.testing.assert_allclose(found.scores, expected["scores"], atol=2e-5)


def test_a_token_that_an_earlier_group_chose_costs_the_penalty():
    """A is likelier than Z by a factor of 1.5; log 1.5 is 0.405."""
    model = BigramModel({BOS: {A: 0.6, Z: 0.4}, A: {EOS: 1.0}, Z: {EOS: 1.0}}, V)
    for penalty, second in ((0.39, A), (0.42, Z)):
        found = beam_search(
            model,
            SOURCES[:1],
            max_length=3,
            beam_size=2,
            n_best=2,
            num_beam_groups=2,
            diversity_penalty=penalty,
            length_penalty=0.0,
        )
        assert found.ids[0, :, 0].tolist() == [A, second]
        expected = np.log(0.6) - penalty if second == A else np.log(0.4)
        np.testing.assert_allclose(found.scores[0], [np.log(0.6), expected], rtol=1e-5)
