"""Ids of other toolkits become those of this package, in vocabularies and SentencePiece models."""

import numpy as np
import pytest
from support.parallel_text import SENTENCES

from keras_transformer import Tokenizer
from keras_transformer.data import vocabulary
from keras_transformer.data.vocabulary import ABSENT, Vocabulary, converted, new_ids, word_model


@pytest.fixture(scope="module")
def model():
    return Tokenizer.train(SENTENCES, 60).source_model


def test_special_ids_come_first_and_rows_are_those_of_the_original(monkeypatch):
    monkeypatch.setattr(vocabulary, "_MOST_UNKNOWN", 0.5)  # of a model with three pieces
    model = word_model(["▁a", "▁b", "▁new"])
    old = Vocabulary(["▁a", "</s>", "<unk>", "<s>", "▁b"], model, unk=2, eos=1)
    ids = new_ids(old, [model], size=9)
    assert ids.pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    # What the model never starts with is an ordinary piece, but needs another name.
    assert ids.pieces[4:] == ["▁a", "<s>#", "▁b", "▁new", "<unused 0>"]
    assert ids.rows.tolist() == [-1, 2, -1, 1, 0, 3, 4, 2, 2]
    matrix = np.arange(1, 6, dtype="float32")[:, None]
    assert ids.gathered(matrix)[:, 0].tolist() == [0, 3, 0, 2, 1, 4, 5, 3, 3]
    expected = [ABSENT, 3, ABSENT, 2, 1, 4, 5, ABSENT, ABSENT]
    assert ids.bias(matrix[:, 0]).tolist() == expected


def test_a_start_that_is_another_token_is_a_copy_that_is_never_predicted():
    old = Vocabulary(["</s>", "<unk>", "▁a", "<pad>"], b"", unk=1, eos=0, pad=3, start=3)
    ids = new_ids(old, [])
    assert ids.rows.tolist() == [3, 1, 3, 0, 2]
    assert ids.is_absent.tolist() == [False, False, True, False, False]


def test_a_converted_model_splits_texts_alike_and_decodes_pieces_of_others(model):
    plain, text = Tokenizer(model), "the man runs in the park"
    pieces = [*plain.source_pieces[:4], "▁other", *plain.source_pieces[:3:-1]]
    changed = Tokenizer(converted(model, pieces))
    (ids,), (expected,) = changed.encode_source([text]), plain.encode_source([text])
    assert [pieces[id] for id in ids] == [plain.source_pieces[id] for id in expected]
    assert changed.decode_target([[*ids, 4]]) == [f"{text} other"]
    assert 4 not in changed.encode_source(["other"])[0]
