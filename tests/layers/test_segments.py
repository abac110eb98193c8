"""Rows of several texts: each text as in a row of its own."""

import keras
import numpy as np
import pytest
from support.cases import most_once
from support.contract import to_numpy

from keras_transformer import LanguageModel, SlicedLogitsTrainer, Transformer
from keras_transformer.models import BertEncoder, MaskedLanguageModel

RANDOM = np.random.default_rng(0)
TEXTS = [RANDOM.integers(4, 20, (2, n)) for n in (4, 1, 6, 3, 5)]
SOURCES = [[*text[0, ::-1], 3] for text in TEXTS]
TARGETS, LABELS = [[2, *text[1]] for text in TEXTS], [[*text[1], 3] for text in TEXTS]
PACKED, ALONE = [[2, 0, 1], [4, 3]], [[place] for place in range(len(TEXTS))]
WIDTH = 16  # a row of PACKED is full
SIZES = {"num_layers": 2, "d_model": 8, "num_heads": 2, "d_ff": 16, "dropout_rate": 0.0}
LOCAL = {"attention_pattern": "local", "attention_window": 2}


def joined(texts, rows):
    """The ids and the segments of texts that stand one after the other in each row."""
    ids, segments = np.zeros((2, len(rows), WIDTH), "int32")
    for row, members in enumerate(rows):
        tokens = [id for text in members for id in texts[text]]
        numbers = [n for n, text in enumerate(members, start=1) for _ in texts[text]]
        ids[row, : len(tokens)], segments[row, : len(tokens)] = tokens, numbers
    return ids, segments


def batch_of(model, rows):
    (sources, of_sources), (targets, of_targets) = joined(SOURCES, rows), joined(TARGETS, rows)
    inputs = {"token_ids": targets, "token_segments": of_targets}
    if isinstance(model, Transformer):
        inputs = {"source_ids": sources, "source_segments": of_sources}
        inputs |= {"target_ids": targets, "target_segments": of_targets}
    if rows is ALONE:
        inputs = {x: inputs[x] for x in inputs if x.endswith("ids")}
        inputs = inputs if len(inputs) > 1 else inputs["token_ids"]
    return inputs, joined(LABELS, rows)[0]


def new_model(position_encoding, kind=Transformer, **options):
    keras.utils.set_random_seed(1)
    if kind is LanguageModel:
        options |= {"attention_dropout_rate": 0.0}
    options |= {"position_encoding": position_encoding, "max_length": WIDTH}
    return kind(20, **SIZES, **options)


@pytest.mark.parametrize(
    ("position_encoding", "options"),
    most_once(
        [
            ("sinusoidal", {}),
            ("sinusoidal_opennmt", {"attention_pattern": "full"}),
            ("learned", LOCAL),
            ("rotary", {"normalization": "rms", "norm_first": True, "num_kv_heads": 1}),
            ("alibi", {}),
            ("t5", {"qk_norm": True, "attention_soft_cap": 5.0}),
            ("none", {}),
            ("learned", {"kind": LanguageModel}),
            ("rotary", LOCAL | {"kind": LanguageModel}),
        ],
        ("rotary", LOCAL | {"kind": LanguageModel}),
    ),
)
def test_loss_and_gradients_are_those_of_the_texts_alone(position_encoding, options):
    results = []
    for rows in (ALONE, PACKED):
        model = new_model(position_encoding, **options)
        inputs, labels = batch_of(model, rows)
        before = model.get_weights()
        logits = to_numpy(model(inputs))[labels != 0]
        order = [text for members in rows for text in members]
        parts = np.split(logits, np.cumsum([len(LABELS[text]) for text in order])[:-1])
        model.compile(keras.optimizers.SGD(1.0))
        metrics = model.train_on_batch(inputs, labels, return_dict=True)
        gradients = [x - y for x, y in zip(before, model.get_weights(), strict=True)]
        texts = np.concatenate([parts[order.index(text)] for text in range(len(TEXTS))])
        results.append([texts, *metrics.values(), *gradients])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-6, rtol=1e-5)
    assert max(abs(x).max() for x in results[0][4:]) > 0.01


@pytest.mark.once
@pytest.mark.parametrize(
    "options", [{}, {"r_drop": 2.0}, {"gradient_checkpointing": True}, "teacher"]
)
def test_sliced_logits_train_as_of_the_texts_alone(options):
    losses = []
    for rows in (ALONE, PACKED):
        model = new_model("rotary")
        given = {"teacher": new_model("learned")} if options == "teacher" else options
        trainer = SlicedLogitsTrainer(model, **given)
        trainer.compile(keras.optimizers.SGD(1.0))
        losses.append([trainer.train_on_batch(*batch_of(model, rows))[0] for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][0] != losses[0][1]


@pytest.mark.once
def test_labels_that_are_left_out_end_with_their_segment():
    model = new_model("learned", LanguageModel)
    inputs, _ = batch_of(model, PACKED)
    model.compile("sgd")
    expected = joined([[*text[1:], 0] for text in TARGETS], PACKED)[0]
    np.testing.assert_array_equal(to_numpy(model.labels(inputs)), expected)
    rows = [{**inputs}]  # a batch as a dict, as data loaders give it
    given = [model.evaluate(*x, verbose=0) for x in ((inputs, expected), (inputs,), (rows,))]
    np.testing.assert_allclose(given[1:], [given[0]] * 2, rtol=1e-6)


@pytest.mark.once
def test_other_models_refuse_packed_rows():
    model = new_model("rotary", LanguageModel)
    model.attention_pattern = ["full", "fixed"]
    masked = MaskedLanguageModel(BertEncoder(20, **SIZES, max_length=WIDTH))
    ids, segments = joined(TARGETS, PACKED)
    with pytest.raises(ValueError, match=r"LanguageModel with attention_pattern=.*fixed"):
        model({"token_ids": ids, "token_segments": segments})
    with pytest.raises(ValueError, match="Only `Transformer` and `LanguageModel` take rows of"):
        masked.packed_states({"token_segments": segments})
