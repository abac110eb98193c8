"""Typical mistakes: each is right by default, or one sentence says what to do. None is silent.

The table is also in docs/how-to/own-model.md.
"""

from pathlib import Path

import numpy as np
import pytest
from support.cases import most_once

from keras_transformer import (
    BertEncoder,
    MaskedLanguageModel,
    ParallelDataset,
    Run,
    SlicedLogitsTrainer,
    Tokenizer,
    Transformer,
    Translator,
)

V, BOS, EOS = 13, 2, 3
SIZES = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 6}
PIECES = np.random.default_rng(1).integers(4, V, (8, 5)).astype("int32")
LABELS = np.pad(PIECES, ((0, 0), (0, 1)), constant_values=EOS)
INPUTS = {
    "source_ids": LABELS,
    "target_ids": np.pad(PIECES, ((0, 0), (1, 0)), constant_values=BOS),
}
PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "own-model.md"


def new_model(*compiled):
    model = Transformer(V, **SIZES)
    model.compile(*(compiled or ("adam",)))
    return model


def fit(labels=LABELS, **inputs):
    return new_model().fit({**INPUTS, **inputs}, labels, verbose=0).history


def instead(array, id):
    changed = array.copy()
    changed[2, 3] = id
    return changed


def tokenizer_of(words, size):
    return Tokenizer.train([(words, words)], vocabulary_size=size)


def without_targets(tmp_path):
    inputs = {"token_ids": LABELS, "masked_positions": LABELS[:, :1]}
    model = MaskedLanguageModel(BertEncoder(V, **SIZES))
    model.compile("adam")
    model.fit(inputs, verbose=0)


# The row of the page, what does it, and a part of what it says.
REFUSED = {
    "labels of another shape": (
        lambda _: fit(LABELS[:, 1:]),
        r"`y_true` must have one label for each token",
    ),
    "an id outside the vocabulary": (
        lambda _: fit(source_ids=instead(LABELS, V)),
        r"`source_ids` must be integers from 0 to 12\. Received: values from 3 to 13",
    ),
    "an id outside the vocabulary, eagerly": (
        lambda _: new_model()({**INPUTS, "target_ids": instead(LABELS, V)}),
        r"`ids` must be integers from 0 to 12\. Received: values from 3 to 13",
    ),
    "a label outside the vocabulary": (
        lambda _: fit(instead(LABELS, -100)),
        r"`labels` must be integers from 0 to 12\. Received: values from -100",
    ),
    "targets that are not shifted": (
        lambda _: fit(target_ids=LABELS),
        r"The labels equal `target_ids`.*leave `y` out",
    ),
    "no targets for a `MaskedLanguageModel`": (without_targets, r"needs labels \(B, M\)"),
    "wrong keys, in rows": (
        lambda _: new_model().fit([{"input_ids": [5, 3], "labels": [5, 3]}]),
        r"Missing data for input \"source_ids\".*\['input_ids'\]",
    ),
    "a loss or metric of Keras that counts padding": (
        lambda _: new_model("adam", "mse"),
        r"would count padding\. Use 'sparse_categorical_crossentropy'",
    ),
    "the tokenizer of another model, with arrays": (
        lambda _: Translator(new_model(), tokenizer_of("a b c d e f g h i j k l", 20)),
        r"more source tokens than the model",
    ),
    "a model without a tokenizer in `Translator`": (
        lambda _: Translator(new_model()),
        r"The model has no tokenizer: give one",
    ),
    "a translator in a file that is not named x.keras": (
        lambda path: Translator(new_model(), tokenizer_of("a b", 9)).save(path / "x.h5"),
        r"the name of the file must end in \.keras",
    ),
    "sentences in `ParallelDataset` that are no pairs": (
        lambda _: ParallelDataset(["a b", "c d"], tokenizer_of("a b c d", 11)),
        r"give \(source, target\) pairs\. Received: 'a b'",
    ),
}


# Python finds the others before the backend computes.
EACH_BACKEND = (
    "an id outside the vocabulary",
    "an id outside the vocabulary, eagerly",
    "a label outside the vocabulary",
)


@pytest.mark.each_backend
@pytest.mark.parametrize("mistake", most_once(REFUSED, *EACH_BACKEND))
def test_a_mistake_is_named(mistake, tmp_path):
    act, message = REFUSED[mistake]
    with pytest.raises(Exception, match=f"(?s){message}"):
        act(tmp_path)


def targets_without_bos():
    with pytest.warns(UserWarning, match="Each must begin with bos"):
        fit(LABELS[:, 1:], target_ids=PIECES)


def a_trainer_translates():
    tokenizer = tokenizer_of("a b c d", 11)
    translator = Translator(SlicedLogitsTrainer(new_model()), tokenizer)
    assert isinstance(translator.model, Transformer)


def a_run_by_its_name():
    assert Run("tatoeba_en_de").directory == Run.open("tatoeba_en_de").directory


RIGHT = {
    "targets without bos": targets_without_bos,
    "a trainer in `Translator`": a_trainer_translates,
    '`Run("name")`': a_run_by_its_name,
}


@pytest.mark.parametrize("mistake", RIGHT)
def test_a_mistake_is_none_by_default(mistake):
    RIGHT[mistake]()


def test_datasets_and_translators_say_what_they_are():
    tokenizer = tokenizer_of("a b c d", 11)
    dataset = ParallelDataset([("a b", "c d")], tokenizer)
    assert repr(dataset) == "<ParallelDataset of 1 pairs in 1 batches>"
    assert "<Tokenizer of 11 and 11 ids>" in repr(Translator(new_model(), tokenizer))


def test_rows_of_padding_need_no_bos(recwarn):
    framed = INPUTS["target_ids"].copy()
    framed[-1] = 0  # as in the last batch of a `ParallelDataset`
    fit(np.where(framed == 0, 0, LABELS), target_ids=framed)
    assert not [x for x in recwarn if "bos" in str(x.message)]


def test_the_page_has_the_same_table():
    rows = {line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines()}
    assert {x.split(", ")[0] for x in (*REFUSED, *RIGHT)} <= rows
