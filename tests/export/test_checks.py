import keras
import pytest
from parallel_text import SENTENCES

from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.export.checks import (
    check_attention,
    check_is_free,
    check_model,
    random_sentences,
)
from keras_transformer.models import Transformer

V = 60


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V, joint=False)


def new_model(vocabulary_size=V, **options):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}
    return Transformer(vocabulary_size, target_vocabulary_size=V, **sizes, **options)


def test_new_and_empty_folders_are_free(tmp_path):
    check_is_free(tmp_path / "new")
    check_is_free(tmp_path)
    (tmp_path / "note").write_text("mine")
    for used in (tmp_path, tmp_path / "note"):
        with pytest.raises(UserError, match=f"{used} is not empty"):
            check_is_free(used)


def test_only_transformers_with_their_own_tokenizer_are_exported(tokenizer):
    check_model(new_model(), tokenizer)
    with pytest.raises(ValueError, match="must be the one of the model.*61, 60, 0.*60, 60, 0"):
        check_model(new_model(61), tokenizer)
    with pytest.raises(ValueError, match="must be a Transformer. Received: model=<Sequential"):
        check_model(keras.Sequential(), tokenizer)


def test_random_sentences_are_always_the_same_and_of_known_pieces(tokenizer):
    sentences = random_sentences(tokenizer, 9, longest=5)
    assert sentences == random_sentences(tokenizer, 9, longest=5)
    assert len(set(sentences)) > 1
    for ids in tokenizer.encode_source(sentences):
        assert tokenizer.unk_id not in ids


@pytest.mark.parametrize(
    "options, received",
    [
        ({"attention_pattern": "local", "attention_window": 3}, "model.attention_pattern='local'"),
        ({"position_encoding": "alibi"}, "model.position_encoding='alibi'"),
        ({"position_encoding": "t5"}, "model.position_encoding='t5'"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_name(options, received):
    check_attention(new_model(), "It")
    check_attention(new_model(attention_pattern="full"), "It")
    with pytest.raises(ValueError, match=f"It has no .*Received: {received}"):
        check_attention(new_model(**options), "It")
