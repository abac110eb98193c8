"""The signatures of an exported model against the package's own tokenizer, search and scores."""

import random

import numpy as np
import pytest
import sentencepiece
from support.contract import to_numpy
from support.exporting import BEAM_SIZE, LONGEST, PAIRS
from support.hostile_text import TEXT
from support.parallel_text import LOSSLESS_TARGET

from keras_transformer.data import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.formats.saved_model import run_signatures
from keras_transformer.translation.scoring import Scorer
from keras_transformer.translation.translator import Translator

pytest.importorskip("tensorflow_text", reason="tensorflow-text is an optional dependency")

from tensorflow.core.protobuf import saved_model_pb2  # noqa: E402

from keras_transformer.formats.translation_graph import (  # noqa: E402
    GraphTokenizer,
    map_length_chunks,
    tf,
)

SENTENCES = ["a bad cab", "\u00ad", "fed a deaf face", " dab\u3000", "each fad add bead", "zzz 😀"]
OPTIONS = [1, 2, -1, 4, 2, 99], [0.0, 1.0, -1.0, 0.6, 2.0, -1.0], [-1, 5, 4, 2, -1, 999]
ROWS = list(zip(SENTENCES, *OPTIONS, strict=True))
SOURCE_IDS, TARGET_IDS = [[5, 9, 3, 0], [7, 8, 11, 3]], [[2, 6, 7], [2, 9, 0]]


def nbest(texts, *options):
    names = ("beam_size", "length_penalty", "max_length")
    return "translate_nbest", {"text": texts, **dict(zip(names, options, strict=True))}


# Calls of the exported model by their names.
CALLS = {
    "default": ("serving_default", {"text": SENTENCES}),
    "nbest": nbest(SENTENCES, [-1], [-1.0], [-1]),
    "long": ("serving_default", {"text": ["bad " * 2000, "bad " * 30]}),
    "together": nbest(SENTENCES, *OPTIONS),
    **{f"alone {i}": nbest(*([value] for value in ROWS[i])) for i in (0, 2, 3, 5)},
    "left out": ("translate_nbest", {"text": SENTENCES}),
    "negative": nbest(SENTENCES, [-7], [float("nan")], [-9]),
    "penalty 10": nbest(SENTENCES[:1], [2], [10.0], [-1]),
    "penalty 1e9": nbest(SENTENCES[:1], [2], [1e9], [-1]),
    "score": ("score", {"source": ["a bad cab", "fed", "fed"], "target": ["A", "BA" * 500, ""]}),
    "logits": ("encode_tokens", {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}),
    "some invalid": (
        "encode_tokens",
        {"source_ids": [SOURCE_IDS[0], [5, 40, 3, 0]], "target_ids": [[2, 6, 7], [2, -1, 0]]},
    ),
}


@pytest.fixture(scope="module")
def outputs(exported):
    found = run_signatures(exported.version, list(CALLS.values()))
    return dict(zip(CALLS, found, strict=True))


@pytest.fixture(scope="module")
def model(exported):
    return exported.model


@pytest.fixture(scope="module")
def tokenizer(exported):
    return exported.tokenizer


@pytest.fixture(scope="module")
def hypotheses(model, tokenizer):
    """What `Translator` finds with the options of the export."""
    options = SearchOptions(beam_size=BEAM_SIZE, n_best=BEAM_SIZE)
    return Translator(model, tokenizer, options, overlong="truncate").translate_nbest(SENTENCES)


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


def test_alignments_name_the_source_piece_of_most_attention(outputs, hypotheses, model, tokenizer):
    row = max(range(len(SENTENCES)), key=lambda row: len(hypotheses[row][0].ids))
    ids = hypotheses[row][0].ids
    (source,) = tokenizer.encode_source([SENTENCES[row].strip()])
    attention = model.source_attention(
        np.array([[*source, tokenizer.eos_id]], "int32"),
        np.array([[[tokenizer.bos_id, *ids[:-1]]]], "int32"),
    )
    expected = np.argmax(to_numpy(attention)[0, 0, :, : len(source)], axis=-1).tolist()
    found = outputs["nbest"]["alignments"][row][0]
    assert found == [*expected, *[-1] * (len(found) - len(ids))]
    assert len(set(expected)) > 1


def test_each_row_of_a_batch_gets_what_it_gets_alone(outputs):
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


def test_inputs_that_are_left_out_stand_for_what_was_exported(exported, outputs):
    content = (exported.version / "saved_model.pb").read_bytes()
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    defaults = {name: x.defaults for name, x in graph.signature_def.items() if x.defaults}
    (given,) = defaults.values()
    unset = {"beam_size": [-1], "length_penalty": [-1.0], "max_length": [-1]}
    assert {key: tf.make_ndarray(x).tolist() for key, x in given.items()} == unset
    assert defaults.keys() == {"translate_nbest"}
    assert outputs["left out"] == outputs["negative"] == outputs["nbest"]
    assert outputs["penalty 1e9"] == outputs["penalty 10"]  # the largest one


def test_length_limits_and_penalties_are_those_of_the_row(outputs, model, tokenizer):
    """Row 3 asks for 4 beams, penalty 0.6 and at most 2 tokens."""
    translator = Translator(model, tokenizer, SearchOptions(n_best=4, max_length=2))
    (expected,) = translator.translate_nbest(SENTENCES[3:4])
    found = outputs["alone 3"]
    np.testing.assert_allclose(
        found["scores"][0], [hypothesis.score for hypothesis in expected], atol=1e-4
    )
    assert found["translations"][0] == [hypothesis.text for hypothesis in expected]


def test_a_text_that_is_too_long_is_cut(outputs, tokenizer):
    """The beginning of 23 pieces of either text is the same."""
    _, shorter = CALLS["long"][1]["text"]
    (ids,) = tokenizer.encode_source([shorter.strip()])
    assert len(ids) > LONGEST
    found = outputs["long"]
    assert found["translation"][0] == found["translation"][1]
    np.testing.assert_allclose(*found["score"], atol=1e-5)


def test_scores_of_pairs_are_those_of_the_scorer(outputs, model, tokenizer):
    _, given = CALLS["score"]
    rows = (0, 2)
    sources, targets = ([given[side][row] for row in rows] for side in ("source", "target"))
    expected = Scorer(model, tokenizer).score(sources, targets)
    for row, score in zip(rows, expected, strict=True):
        np.testing.assert_allclose(outputs["score"]["log_probability"][row], score[0], atol=1e-4)
        assert outputs["score"]["length"][row] == score[1]
    (ids,) = tokenizer.encode_target([given["target"][1]])  # too long
    assert outputs["score"]["length"][1] == len(ids) + 1 > LONGEST
    assert np.isnan(outputs["score"]["log_probability"][1])


def test_logits_are_the_model_s_and_nan_for_an_invalid_row(outputs, model):
    logits = model({"source_ids": np.array(SOURCE_IDS), "target_ids": np.array(TARGET_IDS)})
    np.testing.assert_allclose(outputs["logits"]["logits"], to_numpy(logits), atol=1e-5)
    valid, invalid = np.array(outputs["some invalid"]["logits"])  # by a row with an invalid id
    np.testing.assert_allclose(valid, outputs["logits"]["logits"][0], atol=1e-5)
    assert np.isnan(invalid).all()


@pytest.mark.slow
def test_ids_without_a_valid_row_and_too_long_rows_are_refused(exported):
    encode_tokens = tf.saved_model.load(str(exported.version)).signatures["encode_tokens"]
    out_of_range = "source_ids must be from 0 to 39 and target_ids from 0 to 39. Received:.*"
    too_long = r"ids must have at most 24 tokens per row. Received:\] "
    for source, target, message in (
        ([5, 40, 3], [2, 6], rf"{out_of_range}\[\[5 40 3\]\]"),
        ([5, -1, 3], [2, 6], out_of_range),
        ([5, 3], [2, 40], out_of_range),
        ([5] * (LONGEST + 1), [2, 6], rf"{too_long}\[25\] \[2\]"),
        ([5, 3], [2] * (LONGEST + 2), rf"{too_long}\[2\] \[26\]"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
            encode_tokens(source_ids=tf.constant([source]), target_ids=tf.constant([target]))


TEXTS = [text.decode() for text in TEXT.values()]
TEXTS += ["\u3000 a\u2003bad  cab\x85\x1f", "한국어 é ﬁ ① ½", "ba" * 5000]
BYTES = [b"\xff\xfe a \xc3", b"\xed\xa0\x80bad", b"a\xe2\x82", b"\x80 cab \x80"]


def random_texts():
    """Strings of characters from all over Unicode, but for the halves of surrogate pairs."""
    generator = random.Random(0)
    for limit in (0x80, 0x3100, 0x110000):
        for _ in range(30):
            codes = [generator.randrange(1, limit) for _ in range(generator.randrange(1, 9))]
            yield "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


TOKENIZERS = {
    "joint": lambda: Tokenizer.train(PAIRS, 40),
    "separate": lambda: Tokenizer.train(
        PAIRS, 18, "unigram", joint=False, normalization="identity"
    ),
    "one vocabulary, two models": lambda: Tokenizer.train(
        [*PAIRS, ("ﬁ", "½ e\u0301 b\u200cc")], 40, **LOSSLESS_TARGET
    ),
}


@pytest.fixture(params=TOKENIZERS)
def both(request):
    """A tokenizer, and its operations, which do not outlive `keras.utils.set_random_seed`."""
    tokenizer = TOKENIZERS[request.param]()
    return tokenizer, GraphTokenizer(tokenizer)


def test_any_text_has_the_ids_that_it_has_in_python(both):
    tokenizer, graph = both
    given = [*TEXTS, *random_texts()]
    texts = [text.strip() for text in given]
    source_ids = graph.encode_source(tf.constant(given)).to_list()
    assert source_ids == tokenizer.encode_source(texts)
    assert graph.encode_target(tf.constant(given)).to_list() == tokenizer.encode_target(texts)
    assert any(tokenizer.unk_id in ids for ids in source_ids)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.source_model)
    found = graph.encode_source(tf.constant(BYTES)).to_list()
    assert found == [processor.encode(text) for text in BYTES]  # of bytes that are no text


def test_any_ids_give_the_text_that_they_give_in_python(both):
    tokenizer, graph = both
    generator = np.random.default_rng(0)
    ids = generator.integers(1, tokenizer.target_vocabulary_size, (20, 7), "int32")
    ids[np.arange(7) >= generator.integers(0, 8, (20, 1))] = tokenizer.pad_id
    decoded = [text.decode() for text in graph.decode_target(tf.constant(ids)).numpy()]
    assert decoded == tokenizer.decode_target([row[row != tokenizer.pad_id] for row in ids])
    assert any("⁇" in text for text in decoded)
    specials = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    names = ["" if id in specials else x for id, x in enumerate(tokenizer.target_pieces)]
    pieces = [[piece.decode() for piece in row] for row in graph.pieces(ids).numpy()]
    assert pieces == [[names[id] for id in row] for row in ids]


def test_rows_of_similar_length_go_together_and_come_back_in_order():
    """Lengths 1, 4, 2, 5, 2, 1, 9 and 8 tokens a chunk: 9 | 5 | 4 2 | 2 1 1, the longest first."""

    def double(rows, longest):
        widths = [[0, 0], [0, 9 - longest]]
        return [tf.pad(2 * rows[:, :longest], widths), tf.fill(tf.shape(rows)[:1], longest)]

    @tf.function(autograph=False)
    def chunked(rows, lengths):
        empty = [tf.zeros([0, 9], tf.int32), tf.zeros([0], tf.int32)]
        return map_length_chunks(double, [rows], lengths, 8, empty)

    lengths, rows = tf.constant([1, 4, 2, 5, 2, 1, 9]), tf.reshape(tf.range(63), (7, 9))
    values, longest = (x.numpy() for x in chunked(rows, lengths))
    assert longest.tolist() == [2, 4, 4, 5, 2, 2, 9]
    np.testing.assert_array_equal(values, 2 * rows * (np.arange(9) < longest[:, None]))
    assert [x.shape for x in chunked(rows[:0], lengths[:0])] == [[0, 9], [0]]
