"""Batches of sentence pairs for `model.fit`, and their order."""

import json
import re

import keras
import numpy as np
import pytest
from support.parallel_text import SENTENCES

from keras_transformer import ParallelDataset, Tokenizer, TokenStore
from keras_transformer.errors import UserError

# Of several lengths on both sides, so that there are several shapes.
PAIRS = [(f"{a} {a}" * n, f"{b} " * (1 + m)) for a, b in SENTENCES for n in (1, 2) for m in (0, 2)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(PAIRS, vocabulary_size=120)


def sentences(dataset: ParallelDataset) -> list[str]:
    """The targets of a pass, in which all tokens but padding have the weight 1."""
    found = []
    for _, labels, weights in dataset:
        np.testing.assert_array_equal(weights, labels != dataset.tokenizer.pad_id)
        found += filter(None, dataset.tokenizer.decode_target(labels))
    return found


def test_a_pass_has_every_pair_once_and_the_seed_alone_gives_its_order(tokenizer):
    dataset, same = (ParallelDataset(PAIRS, tokenizer, 256, seed=3) for _ in range(2))
    first, second = sentences(dataset), sentences(dataset)
    assert sorted(first) == sorted(second) == sorted(target.strip() for _, target in PAIRS)
    assert first != second
    assert [sentences(same), sentences(same)] == [first, second]
    same.epoch = 1
    assert sentences(same) == second


def test_the_first_two_of_few_shapes_differ_in_every_length_that_varies(tokenizer):
    """From these, Keras on TensorFlow infers which lengths vary."""
    for seed in range(5):
        dataset = ParallelDataset(PAIRS, tokenizer, batch_tokens=128, seed=seed, max_shapes=3)
        for epoch in range(3):
            dataset.epoch = epoch
            batches = [dataset[index] for index in range(len(dataset))]
            assert all(labels.size <= 128 for _, labels, _ in batches)
            shapes = [(x["source_ids"].shape[1], y.shape[1]) for x, y, _ in batches]
            assert len({*shapes}) <= 3
            varies = [len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)]
            assert all(varies)
            assert [a != b for a, b in zip(*shapes[:2], strict=True)] == varies


def test_any_keras_model_trains_on_it_with_validation(tokenizer):
    size = tokenizer.source_vocabulary_size
    inputs = {x: keras.Input((None,), name=x) for x in ("source_ids", "target_ids")}
    source, target = (keras.layers.Embedding(size, 8)(x) for x in inputs.values())
    states = target + keras.ops.mean(source, axis=1, keepdims=True)
    model = keras.Model(inputs, keras.layers.Dense(size)(states))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = ParallelDataset(PAIRS, tokenizer, batch_tokens=128)
    options = {"shuffle": False, "validation_data": dataset, "verbose": 0}
    history = model.fit(dataset, epochs=3, **options).history
    assert history["loss"][2] < history["loss"][0]
    assert len(history["val_loss"]) == 3


def test_pairs_come_from_files_rows_generators_and_a_store(tokenizer, tmp_path):
    for side, name in enumerate(("train.en", "train.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS), "utf-8")
    rows = [{"id": "7", "translation": {"en": a, "de": b}} for a, b in PAIRS]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    files = (tmp_path / "train.en", f"{tmp_path}/train.de")
    store = TokenStore.build(tmp_path / "store", PAIRS, tokenizer, progress=False)
    wanted = sentences(ParallelDataset(PAIRS, tokenizer))
    for pairs in (files, tmp_path / "train.jsonl", rows, iter(PAIRS), store):
        assert sentences(ParallelDataset(pairs, tokenizer)) == wanted
    columns = [{"fr": "", "de": b, "en": a} for a, b in PAIRS]
    dataset = ParallelDataset(
        [*columns, columns[0] | {"en": None}], tokenizer, languages=("en", "de")
    )
    assert sentences(dataset) == wanted
    assert dataset.plan.store.report == "24 pairs kept, 1 dropped: 1 with an empty source"


def test_refusals(tokenizer):
    with pytest.raises(UserError, match=r"two languages. Received: columns fr, de, en"):
        ParallelDataset([{"fr": "a", "de": "b", "en": "c"}], tokenizer)
    for row in (("a", 5), "ab"):
        with pytest.raises(UserError, match=rf"pairs\. Received: {re.escape(repr(row))}"):
            ParallelDataset([row], tokenizer)
    with pytest.raises(UserError, match="no pair is left"):
        ParallelDataset([("a", None)], tokenizer)
