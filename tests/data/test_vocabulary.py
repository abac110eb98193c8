"""Ids of other toolkits become those of this package, in vocabularies and SentencePiece models."""

import numpy as np
import pytest
from support.parallel_text import SENTENCES

from keras_transformer import Tokenizer
from keras_transformer.data import vocabulary
from keras_transformer.data.vocabulary import (
    ABSENT,
    Vocabulary,
    changed,
    converted,
    new_ids,
    word_model,
)


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


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_become_pieces_and_what_stays_is_split_as_before(kind):
    model = Tokenizer.train(SENTENCES, 48, kind).source_model
    plain, words = Tokenizer(model), ["zoomania", "dogsled team", "zoom", "fra_Latn", "日本", ""]
    texts = ["two men in the park", "a zoo"]
    used = {id for ids in plain.encode_source(texts[:2]) for id in ids}
    ids, (new,) = changed([model], words, used)
    own = Tokenizer(new)
    assert own.source_pieces == ids.pieces and len({*ids.pieces}) == len(ids.pieces) < 60

    def split(tokenizer, text):
        return [tokenizer.source_pieces[id] for id in tokenizer.encode_source([text])[0]]

    for text in texts:
        assert split(own, text) == split(plain, text)
    assert split(own, "zoomania") == ["▁zoomania"] and split(own, "zoom") == ["▁zoom"]
    assert split(own, "zoomanias")[0] == "▁zoomania" and split(own, "日本") == ["▁日本"]
    assert split(own, "a dogsled team")[1:] == ["▁dogsled▁team"]
    assert own.source_pieces.count("fra_Latn") == 1 and "fra_Latn" not in split(own, "fra_Latn")
    matrix = np.random.default_rng(0).normal(size=(48, 3)).astype("float32")
    rows, bias = ids.gathered(matrix), ids.bias(matrix[:, 0])
    for id, piece in enumerate(ids.pieces):
        if piece in plain.source_pieces:
            old = plain.source_pieces.index(piece)
            assert (rows[id] == matrix[old]).all() and bias[id] == matrix[old, 0]
        elif piece in ("▁zoomania", "▁dogsled▁team", "▁zoom", "fra_Latn", "▁日本"):
            old = plain.encode_source([piece.replace("▁", " ").strip()])[0]
            np.testing.assert_allclose(rows[id], matrix[old].mean(0), atol=1e-6)
            np.testing.assert_allclose(bias[id], matrix[old, 0].mean(), atol=1e-6)
        else:  # a step of BPE, which is never predicted
            assert kind == "bpe" and bias[id] == ABSENT
    filled, _ = changed([model], [], used, size=50)
    assert len(filled.pieces) == 50 and filled.pieces[-2:] == ["<unused 0>", "<unused 1>"]
    assert changed([new], words, None)[0].pieces == ids.pieces  # nothing is left to add
