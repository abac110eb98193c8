"""Prefixes of sources and targets, and sources without eos, in all that reads a tokenizer."""

import numpy as np
import pytest
from keras import ops
from support.contract import randomize
from support.parallel_text import SENTENCES

from keras_transformer import (
    SamplingOptions,
    Scorer,
    SearchOptions,
    Tokenizer,
    Translator,
)
from keras_transformer.data.vocabulary import converted
from keras_transformer.models import Transformer
from keras_transformer.visualization.attention import translation_attention

V, LONGEST = 60, 40
SOURCES, TARGETS = map(list, zip(*SENTENCES, strict=True))
PREFIXES = {"source_prefix": ["b", "▁a"], "target_prefix": ["c"]}


@pytest.fixture(scope="module")
def plain():
    return Tokenizer.train(SENTENCES, vocabulary_size=V)


@pytest.fixture(
    scope="module",
    params=[True, pytest.param(False, marks=pytest.mark.once)],
    ids=["source_eos", "no_source_eos"],
)
def tokenizer(plain, request):
    return Tokenizer(plain.source_model, **PREFIXES, source_eos=request.param)


@pytest.fixture(scope="module")
def model():
    model = Transformer(V, num_layers=1, d_model=12, num_heads=3, d_ff=23, max_length=LONGEST)
    randomize(model)
    return model


@pytest.mark.each_backend_if_slow
def test_search_begins_with_the_prefix_which_no_text_has(plain, tokenizer, model):
    (forced,) = tokenizer.target_prefix_ids
    translator = Translator(model, tokenizer, SearchOptions(beam_size=3, n_best=3, max_length=9))
    found = translator.translate_nbest([*SOURCES, ""], prefixes=["ein", *[""] * len(SOURCES)])
    assert found[-1][0].text == ""
    for hypotheses in found[:-1]:
        for hypothesis in hypotheses:
            assert hypothesis.ids[0] == forced
            assert hypothesis.text == plain.decode_target([hypothesis.ids[1:]])[0]
    assert found[0][0].text.startswith("ein")
    sampled = translator.sample(SOURCES, SamplingOptions(num_samples=2, max_length=4))
    assert {x.ids[0] for samples in sampled for x in samples} == {forced}
    tree = translator.beam_tree(SOURCES[1])
    assert [x.ids for x in tree.hypotheses] == [x.ids for x in found[1]]


def test_scores_and_alignments_are_those_of_the_framed_tokens(plain, tokenizer, model):
    translator = Translator(model, tokenizer, SearchOptions(beam_size=2, max_length=9))
    (best,), *_ = translator.translate_nbest(SOURCES[:1], alignments=True)
    (source,) = plain.encode_source(SOURCES[:1])
    source_ids = np.array([[*tokenizer.source_prefix_ids, *source, 3]], "int32")
    source_ids = source_ids if tokenizer.source_eos else source_ids[:, :-1]
    target_ids = np.array([[2, *best.ids]], "int32")
    logits = model({"source_ids": source_ids, "target_ids": target_ids})
    each = ops.convert_to_numpy(ops.log_softmax(logits))[0]
    labels = [*best.ids, 3][: best.length]
    forced = len(tokenizer.target_prefix_ids)
    expected = each[np.arange(len(labels)), labels][forced:].sum()
    np.testing.assert_allclose(best.log_probability, expected, rtol=1e-5)
    assert best.alignment and max(source for source, _ in best.alignment) < len(SOURCES[0].split())
    assert max(target for _, target in best.alignment) < len(best.text.split())
    example = translation_attention(translator, SOURCES[0])
    assert example.alignment == best.alignment
    scorer = Scorer(model, tokenizer)
    (pieces,) = plain.encode_target(TARGETS[:1])
    (score,) = scorer.score(SOURCES[:1], TARGETS[:1])
    assert score.length == len(pieces) + 2
    (each,) = scorer.token_log_probabilities(SOURCES[:1], TARGETS[:1])
    assert len(each) == len(pieces) + 1


def test_long_sentences_are_split_to_what_fits(tokenizer, model):
    translator = Translator(model, tokenizer, SearchOptions(beam_size=1, max_length=3))
    parts = translator._parts([" ".join(SOURCES)])
    assert len(parts) > 1 and max(len(part.ids) for part in parts) <= LONGEST
    assert all(part.ids[:2] == tokenizer.source_prefix_ids for part in parts)


def test_a_tag_is_the_piece_that_marian_has_for_it_on_every_engine(plain, tmp_path):
    pieces = [*plain.source_pieces, ">>fra<<", ">>cmn_Hans<<"]
    fra, hans = len(pieces) - 2, len(pieces) - 1
    model = converted(plain.source_model, pieces)
    tokenizer = Tokenizer(model)
    (words,), unk = plain.encode_source(["a dog"]), [tokenizer.unk_id]
    (target,) = plain.encode_target(TARGETS[:1])
    (inner,) = plain.encode_source(["a >>fra<< dog"])
    expected = {
        ">>fra<< a dog": [fra, *words],
        ">>fra<<a dog": [fra, *words],
        "  >>cmn_Hans<<   a dog ": [hans, *words],
        ">>xyz<< a dog": [*unk, *words],
        ">> a << a dog": [*unk, *words],
        ">>fra<< a >>fra<< dog": [fra, *inner],
        "a >>fra<< dog": inner,
        ">> a dog": plain.encode_source([">> a dog"])[0],
        "a dog": words,
        ">>fra<<": [fra],
        "": [],
    }
    assert tokenizer.encode_source([*expected]) == [*expected.values()]
    assert plain.encode_source([">>fra<< a dog"])[0] != [fra, *words]
    prefixed = Tokenizer(model, source_prefix=[">>cmn_Hans<<"])
    ids = prefixed.encode_source(["a dog", ">>fra<< a dog"])
    framed = [prefixed.frame_source(x) for x in ids]
    assert framed == [[hans, *words, 3], [fra, *words, 3]]
    network = Transformer(
        len(pieces), num_layers=1, d_model=12, num_heads=3, d_ff=23, max_length=LONGEST
    )
    randomize(network)
    for each in (tokenizer, prefixed):
        translator = Translator(network, each, SearchOptions(beam_size=2, max_length=6))
        lines = ["a dog", ">>fra<< a dog", ">>cmn_Hans<< a dog", ">>fra<< ", ">>fra<< 한"]
        parts = translator._parts(lines)
        start = [] if each is tokenizer else [hans]
        assert [x.ids for x in parts[:3]] == [
            [*start, *words, 3],
            [fra, *words, 3],
            [hans, *words, 3],
        ]
        assert [(x.text, x.first_word, x.is_copied) for x in parts[1:]] == [
            *[("a dog", 1, False)] * 2,
            ("한", 1, True),
        ]
        long = translator._parts([">>fra<< " + "a dog " * LONGEST])
        assert len(long) > 1 and {x.ids[0] for x in long} == {fra}
        with pytest.warns(UserWarning, match="copied, not"):
            found = translator.translate_nbest(lines, alignments=True)
        assert [x[0].text for x in found[3:]] == ["", "한"]
        assert {source for source, _ in found[1][0].alignment} <= {1, 2}
        with pytest.warns(UserWarning, match=">>fra<<, >>cmn_Hans<<. Received: '>>fr<< a'"):
            translator.translate([">>fr<< a"])
        (score,) = Scorer(network, each).score([">>fra<< a dog"], TARGETS[:1])
        inputs = {"source_ids": [[fra, *words, 3]], "target_ids": [each.frame_target(target)[0]]}
        logits = network({name: np.array(ids, "int32") for name, ids in inputs.items()})
        rows = ops.convert_to_numpy(ops.log_softmax(logits))[0]
        total = sum(row[id] for row, id in zip(rows, [*target, 3], strict=True))
        np.testing.assert_allclose(score.log_probability, total, atol=1e-4)
