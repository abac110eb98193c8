"""Prefixes of sources and targets, and sources without eos, in all that reads a tokenizer."""

import numpy as np
import pytest
from keras import ops
from support.contract import randomize
from support.parallel_text import SENTENCES

from keras_transformer import (
    BatchPlan,
    SamplingOptions,
    Scorer,
    SearchOptions,
    Tokenizer,
    TokenStore,
    Translator,
)
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


@pytest.mark.once
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
    expected = each[np.arange(len(labels)), labels].sum()
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


@pytest.mark.once
def test_long_sentences_are_split_to_what_fits(tokenizer, model):
    translator = Translator(model, tokenizer, SearchOptions(beam_size=1, max_length=3))
    parts = translator._parts([" ".join(SOURCES)])
    assert len(parts) > 1 and max(len(part.ids) for part in parts) <= LONGEST
    assert all(part.ids[:2] == tokenizer.source_prefix_ids for part in parts)


@pytest.mark.once
def test_batches_have_the_frames(tokenizer, tmp_path):
    store = TokenStore.build(tmp_path / "store", SENTENCES, tokenizer, progress=False)
    inputs, labels, _ = BatchPlan(store, 512, shuffle=False).batch(0)
    rows = zip(inputs["source_ids"], inputs["target_ids"], labels, strict=True)
    found = {tuple(tuple(row[row != 0].tolist()) for row in three) for three in rows}
    encoded = zip(tokenizer.encode_source(SOURCES), tokenizer.encode_target(TARGETS), strict=True)
    for source, target in encoded:
        frames = tokenizer.frame_source(source), *tokenizer.frame_target(target)
        assert tuple(map(tuple, frames)) in found
