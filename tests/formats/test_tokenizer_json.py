"""tokenizer.json: Hugging Face's tokenizers as a witness."""

import io
import json

import pytest
import sentencepiece
from support.parallel_text import SENTENCES

from keras_transformer import Tokenizer
from keras_transformer.data.vocabulary import changed, with_own_ids
from keras_transformer.formats.tokenizer_json import tokenizer_json

TEXTS = [*(x for pair in SENTENCES for x in pair), "", "two  spaces", " ﬁne ☃☃ 1,299.50\tB"]
SIZE = 60


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("source_eos", [True, False])
def test_tokenizers_gives_the_same_ids(model_type, source_eos):
    tokenizers = pytest.importorskip("tokenizers", reason="transformers is an optional dependency")
    model = Tokenizer.train(SENTENCES, SIZE, model_type=model_type).source_model
    for each in (model, trained(split_by_whitespace=False)):
        own = Tokenizer(each, source_prefix=["▁"], target_prefix=["▁"], source_eos=source_eos)
        theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(own)))
        expected = [own.frame_source(x) for x in own.encode_source(TEXTS)]
        assert [x.ids for x in theirs.encode_batch(TEXTS)] == expected


def trained(**options):
    """A model of SentencePiece with options that `Tokenizer.train` does not have."""
    file, texts = io.BytesIO(), iter(TEXTS[:-3])
    options = {"vocab_size": 90, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=file, **options)
    return with_own_ids(file.getvalue())


def added(model):
    (new,) = changed([model], ["xyzzy"], None)[1]
    return new


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda bpe, other: Tokenizer(bpe, other), "one vocabulary"),
        (lambda bpe, other: Tokenizer(bpe, target_prefix=["▁"] * 2), "at most one piece"),
        (lambda bpe, other: Tokenizer.train(SENTENCES, SIZE, tags=["<x>"]), "pieces of the user"),
        (lambda bpe, other: Tokenizer(trained(treat_whitespace_as_suffix=True)), "spaces before"),
        (lambda bpe, other: Tokenizer(added(bpe)), "no added words"),
    ],
)
def test_what_tokenizers_would_split_otherwise_is_refused(make, rule):
    models = (Tokenizer.train(SENTENCES, x, model_type="bpe").source_model for x in (SIZE, 50))
    with pytest.raises(ValueError, match=f"supports .*{rule}"):
        tokenizer_json(make(*models))
