"""The signatures of an exported model against the package's own tokenizer, search and scores."""

import numpy as np
import pytest
import sentencepiece
from support.contract import to_numpy

from keras_transformer.data import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.loading import load_model
from keras_transformer.translation.scoring import Scorer
from keras_transformer.translation.translator import Translator

KINDS = {
    "joint": "tokenizer",
    "separate": "separate_tokenizer",
    "normalized": "normalized_tokenizer",  # one vocabulary, two models
}
BEAM_SIZE, LONGEST = 3, 24  # as in exporting_process.py


@pytest.fixture(scope="module")
def model(exporting):
    return load_model(exporting.folder / "model.keras")


@pytest.fixture(scope="module")
def tokenizer(exporting):
    return Tokenizer.load(exporting.folder / "tokenizer")


@pytest.fixture(scope="module")
def hypotheses(exporting, model, tokenizer):
    """What `Translator` finds with the options of the export."""
    sentences = exporting.answers["signatures"]["nbest"]["inputs"]["text"]
    translator = Translator(
        model,
        tokenizer,
        SearchOptions(beam_size=BEAM_SIZE, n_best=BEAM_SIZE),
        overlong="truncate",
    )
    return translator.translate_nbest(sentences)


@pytest.fixture
def outputs(exporting):
    return {name: call["outputs"] for name, call in exporting.answers["signatures"].items()}


def test_translations_and_scores_are_those_of_the_translator(outputs, hypotheses, tokenizer):
    found = outputs["default"]
    assert found["translation"] == [best.text for best, *_ in hypotheses]
    np.testing.assert_allclose(found["score"], [best.score for best, *_ in hypotheses], atol=1e-4)
    found = outputs["nbest"]
    for row, expected in enumerate(hypotheses):
        if not expected[0].text:
            assert found["translations"][row] == [""] * BEAM_SIZE
            assert found["scores"][row] == [0.0, -np.inf, -np.inf]
            continue
        assert found["translations"][row] == [hypothesis.text for hypothesis in expected]
        scores = [hypothesis.score for hypothesis in expected]
        np.testing.assert_allclose(found["scores"][row], scores, atol=1e-4)
        for pieces, hypothesis in zip(found["pieces"][row], expected, strict=True):
            assert [x for x in pieces if x] == [tokenizer.target_pieces[x] for x in hypothesis.ids]


def test_alignments_name_the_source_piece_of_most_attention(
    exporting, outputs, hypotheses, model, tokenizer
):
    sentences = exporting.answers["signatures"]["nbest"]["inputs"]["text"]
    row = max(range(len(sentences)), key=lambda row: len(hypotheses[row][0].ids))
    ids = hypotheses[row][0].ids
    (source,) = tokenizer.encode_source([sentences[row].strip()])
    attention = model.source_attention(
        np.array([[*source, tokenizer.eos_id]], "int32"),
        np.array([[[tokenizer.bos_id, *ids[:-1]]]], "int32"),
    )
    expected = np.argmax(to_numpy(attention)[0, 0, :, : len(source)], axis=-1).tolist()
    found = outputs["nbest"]["alignments"][row][0]
    assert found == [*expected, *[-1] * (len(found) - len(ids))]
    assert len(set(expected)) > 1


def test_each_row_of_a_batch_gets_what_it_gets_alone(exporting, outputs):
    together = outputs["together"]
    for row, beam_size in {0: 1, 2: BEAM_SIZE, 3: 4, 5: 16}.items():
        alone, text = outputs[f"alone {row}"], together["translations"][row]
        assert len(text) == 16
        assert len(alone["translations"][0]) == beam_size
        assert text == alone["translations"][0] + [""] * (16 - beam_size)
        np.testing.assert_allclose(
            together["scores"][row], alone["scores"][0] + [-np.inf] * (16 - beam_size), atol=1e-5
        )
        trimmed = [list(filter(None, pieces)) for pieces in together["pieces"][row]]
        own = [list(filter(None, pieces)) for pieces in alone["pieces"][0]]
        assert trimmed == own + [[]] * (16 - beam_size)


def test_inputs_that_are_left_out_stand_for_what_was_exported(exporting, outputs):
    unset = {"beam_size": [-1], "length_penalty": [-1.0], "max_length": [-1]}
    assert exporting.answers["defaults"] == {"translate_nbest": unset}
    assert outputs["left out"] == outputs["negative"] == outputs["nbest"]
    assert outputs["penalty 1e9"] == outputs["penalty 10"]  # the largest one


def test_length_limits_and_penalties_are_those_of_the_row(exporting, outputs, model, tokenizer):
    """Row 3 asks for 4 beams, penalty 0.6 and at most 2 tokens."""
    call = exporting.answers["signatures"]["alone 3"]["inputs"]
    assert (call["beam_size"], call["max_length"]) == ([4], [2])
    translator = Translator(model, tokenizer, SearchOptions(n_best=4, max_length=2))
    (expected,) = translator.translate_nbest(call["text"])
    found = outputs["alone 3"]
    np.testing.assert_allclose(
        found["scores"][0], [hypothesis.score for hypothesis in expected], atol=1e-4
    )
    assert found["translations"][0] == [hypothesis.text for hypothesis in expected]


def test_a_text_that_is_too_long_is_cut(exporting, outputs, model, tokenizer):
    """The beginning of 23 pieces of either text is the same."""
    long, shorter = exporting.answers["signatures"]["long"]["inputs"]["text"]
    assert long.startswith(shorter)
    (ids,) = tokenizer.encode_source([shorter.strip()])
    assert len(ids) > LONGEST
    found = outputs["long"]
    assert found["translation"][0] == found["translation"][1]
    np.testing.assert_allclose(*found["score"], atol=1e-5)


def test_scores_of_pairs_are_those_of_the_scorer(exporting, outputs, model, tokenizer):
    call = exporting.answers["signatures"]["score"]
    rows = (0, 2)
    sources, targets = (
        [call["inputs"][side][row] for row in rows] for side in ("source", "target")
    )
    expected = Scorer(model, tokenizer).score(sources, targets)
    for row, score in zip(rows, expected, strict=True):
        np.testing.assert_allclose(outputs["score"]["log_probability"][row], score[0], atol=1e-4)
        assert outputs["score"]["length"][row] == score[1]
    (ids,) = tokenizer.encode_target([call["inputs"]["target"][1]])  # too long
    assert outputs["score"]["length"][1] == len(ids) + 1 > LONGEST
    assert np.isnan(outputs["score"]["log_probability"][1])


def test_logits_are_the_model_s_and_nan_for_an_invalid_row(exporting, outputs, model):
    call = exporting.answers["signatures"]["logits"]["inputs"]
    logits = model({name: np.array(ids, "int32") for name, ids in call.items()})
    np.testing.assert_allclose(outputs["logits"]["logits"], to_numpy(logits), atol=1e-5)
    valid, invalid = np.array(outputs["some invalid"]["logits"])  # by a row with an invalid id
    np.testing.assert_allclose(valid, outputs["logits"]["logits"][0], atol=1e-5)
    assert np.isnan(invalid).all()


@pytest.mark.slow
def test_ids_without_a_valid_row_and_too_long_rows_are_refused(exporting):
    *ids, long_source, long_target = exporting.other["refused"]
    for message in ids:
        assert "source_ids must be from 0 to 17 and target_ids from 0 to 17. Received:" in message
    assert "[[5 18 3]]" in ids[0]
    for message, lengths in ((long_source, "[25] [2]"), (long_target, "[2] [26]")):
        assert f"ids must have at most 24 tokens per row. Received:] {lengths}" in message


@pytest.fixture(params=KINDS)
def both(request, exporting):
    """A tokenizer, and what its operations gave."""
    tokenizer = Tokenizer.load(exporting.folder / KINDS[request.param])
    return tokenizer, exporting.answers[request.param]


def test_any_text_has_the_ids_that_it_has_in_python(both):
    tokenizer, answers = both
    texts = [text.strip() for text in answers["texts"]]
    assert answers["source_ids"] == tokenizer.encode_source(texts)
    assert answers["target_ids"] == tokenizer.encode_target(texts)
    assert any(tokenizer.unk_id in ids for ids in answers["source_ids"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.source_model)
    expected = [processor.encode(bytes.fromhex(text)) for text in answers["bytes"]]
    assert answers["bytes_ids"] == expected  # of bytes that are no text


def test_any_ids_give_the_text_that_they_give_in_python(both):
    tokenizer, answers = both
    rows = [[id for id in row if id != tokenizer.pad_id] for row in answers["ids"]]
    assert answers["decoded"] == tokenizer.decode_target(rows)
    assert any("⁇" in text for text in answers["decoded"])
    specials = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    names = ["" if id in specials else x for id, x in enumerate(tokenizer.target_pieces)]
    assert answers["pieces"] == [[names[id] for id in row] for row in answers["ids"]]


def test_rows_of_similar_length_go_together_and_come_back_in_order(exporting):
    """Lengths 1, 4, 2, 5, 2, 1, 9 and 8 tokens a chunk: 9 | 5 | 4 2 | 2 1 1, the longest first."""
    rows = exporting.answers["chunks"]["rows"]
    values, longest = exporting.answers["chunks"]["found"]
    assert longest == [2, 4, 4, 5, 2, 2, 9]
    assert values == [
        [2 * value if column < end else 0 for column, value in enumerate(row)]
        for row, end in zip(rows, longest, strict=True)
    ]
    assert exporting.answers["chunks"]["empty"] == [[0, 9], [0]]  # of no rows
