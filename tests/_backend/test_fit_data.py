"""Whatever holds batches or rows goes into `fit`, `evaluate` and `predict`, on every backend."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from support.cases import once

from keras_transformer.data import fit_data
from keras_transformer.models import Transformer
from keras_transformer.training import MaskedCrossentropy, SlicedLogitsTrainer

# The first two batches have one width.
WIDTHS = [(3, 5), (3, 5), (4, 6), (7, 5)]


def batch(source: int, target: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    ids = np.arange(4, 4 + 2 * max(source, target), dtype="int32").reshape(2, -1) % 16 + 4
    return {"source_ids": ids[:, :source], "target_ids": ids[:, :target]}, ids[:, :target] % 16 + 4


def rows() -> list[dict[str, Any]]:
    """As a Hugging Face dataset has them, with a column that is no input of the model."""
    batches = [({"text": ["", ""], **x}, y) for x, y in (batch(*width) for width in WIDTHS)]
    columns = [{**x, "labels": y} for x, y in batches]
    return [
        {name: x[row].tolist() if name != "text" else "" for name, x in column.items()}
        for column in columns
        for row in range(2)
    ]


class Stream:
    """Yields all batches in each iteration, as a dataset of Grain does."""

    def __iter__(self) -> Iterator[Any]:
        return iter([batch(*width) for width in WIDTHS])

    def __len__(self) -> int:
        return len(WIDTHS)


def torch_loader() -> Any:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    def pad(batch: list[dict[str, Any]]) -> Any:
        padded = {}
        for name in ("source_ids", "target_ids", "labels"):
            ids = [torch.tensor(row[name]) for row in batch]
            padded[name] = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        return padded

    return DataLoader(rows(), batch_size=2, collate_fn=pad)


KINDS: dict[str, Callable[[], Any]] = {
    "loader of dicts": torch_loader,
    "list of batches": lambda: [batch(*width) for width in WIDTHS],
    "iterable": Stream,
    "rows": rows,
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = Transformer(20, num_layers=1, d_model=4, num_heads=2, d_ff=4, dropout_rate=0.0)
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy())
    return model


@pytest.mark.parametrize("kind", ["rows", *once("loader of dicts", "list of batches", "iterable")])
def test_fit_takes_every_batch_in_every_epoch(kind, model):
    """The learning rate is 0, so the losses of all epochs and kinds are equal."""
    seen = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: seen.append(step))
    options = {"batch_size": 2, "validation_data": KINDS[kind](), "verbose": 0, "shuffle": False}
    history = model.fit(KINDS[kind](), epochs=2, callbacks=[count], **options).history
    assert seen == [*range(len(WIDTHS))] * 2
    losses = [model.evaluate(*batch(*width), verbose=0) for width in WIDTHS]
    np.testing.assert_allclose(history["loss"], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(history["val_loss"], np.mean(losses), rtol=1e-5)


@pytest.mark.once
def test_the_trainer_takes_them_too_and_a_generator_lasts_one_epoch(model):
    trainer = SlicedLogitsTrainer(model)
    trainer.compile("sgd")
    assert len(trainer.fit(rows(), batch_size=4, epochs=2, verbose=0).history["loss"]) == 2
    generator = (batch(*width) for width in WIDTHS)
    trainer.fit(generator, steps_per_epoch=2, epochs=2, verbose=0)
    assert next(generator, None) is None
    with pytest.raises(ValueError, match="last one epoch: give `steps_per_epoch`"):
        trainer.fit((batch(*width) for width in WIDTHS), epochs=3)


def test_rows_are_padded_and_in_a_new_order_in_each_epoch():
    numbers = [{"ids": [7] * length, "label": length} for length in range(1, 31)]
    data = fit_data(numbers, batch_size=15)
    orders = []
    for _ in range(2):
        batches = [x for (x,) in data]
        assert [x["ids"].shape[1] % 8 for x in batches] == [0, 0]
        labels = np.concatenate([x["label"] for x in batches])
        lengths = np.concatenate([np.sum(np.asarray(x["ids"]) == 7, axis=1) for x in batches])
        np.testing.assert_array_equal(lengths, labels)
        orders.append(labels.tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == [*range(1, 31)] != orders[0] != orders[1]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_tensors_of_any_backend_go_in(backend, model):
    module = pytest.importorskip({"jax": "jax.numpy"}.get(backend, backend))
    convert = {"tensorflow": "constant", "jax": "array", "torch": "tensor"}[backend]
    convert = getattr(module, convert)
    inputs, labels = batch(3, 5)
    tensors = {name: convert(x) for name, x in inputs.items()}
    found = model.evaluate(tensors, convert(labels), verbose=0)
    assert found == pytest.approx(model.evaluate(inputs, labels, verbose=0))
    found = model.evaluate([(tensors, convert(labels))], verbose=0)
    assert found == pytest.approx(model.evaluate(inputs, labels, verbose=0))
    np.testing.assert_allclose(
        model.predict(tensors, verbose=0), model.predict(inputs, verbose=0), atol=1e-6
    )


def test_batches_keep_their_order_or_say_so():
    ids = np.arange(16).reshape(8, 2) % 5 + 4
    inputs = {"source_ids": ids, "target_ids": ids[::-1]}
    data = fit_data([(inputs, ids)] * 8)
    if not isinstance(data, keras.utils.PyDataset):
        return  # TensorFlow's datasets have an order.
    with pytest.raises(ValueError, match="give `fit` `shuffle=False`"):
        [data[place] for place in (0, 2, 1)]
    model = Transformer(13, num_layers=1, d_model=4, num_heads=2, d_ff=6)
    model.compile("adam")
    model.fit(data, epochs=2, verbose=0)


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        (([0.5] * 3, [1, 1]), 1),
        *once((([1, 1, 1], [0.5, 0.5]), 2), (([0.5] * 3, [1, 1]), 2), ((1, 0.5), 1)),
    ],
)
def test_weights_may_begin_with_whole_numbers(weights, size, model):
    """The loss is a weighted mean: twice the weights give the same."""
    losses = []
    for factor in (1, 2):
        rows = [
            {"source_ids": y, "target_ids": y, "labels": y[::-1], "sample_weight": factor * weight}
            for y, weight in zip(([6, 5, 3], [9, 3]), map(np.asarray, weights), strict=True)
        ]
        found = model.evaluate(rows, batch_size=size, verbose=0, return_dict=True)
        losses.append(found["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_a_column_has_the_dtype_that_holds_all_rows(size):
    columns = [{"ids": np.array([1], "uint8")}, {"ids": np.array([300], "int32")}]
    found = np.concatenate([x["ids"] for (x,) in fit_data(columns, None, size, False)])
    np.testing.assert_array_equal(found[:, 0], [1, 300])
