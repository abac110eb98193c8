"""Adam counts optimizer steps and measures the gradient; the rate follows equation 3."""

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import assert_same_arrays

from keras_transformer.models import Transformer
from keras_transformer.training import MaskedCrossentropy, TransformerAdam, TransformerSchedule
from keras_transformer.training.step.optimizer import OPTIMIZERS, ema_as_weights

V, T = 7, 6


def model_with(optimizer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, 5), keras.layers.Dense(V)]
    )
    model.compile(optimizer, loss=MaskedCrossentropy(reduction="sum"))
    return model


def sentences(count=8):
    """Labels (B, T) of very unequal lengths, and the weights that make a mean over all tokens."""
    labels = np.random.default_rng(4).integers(1, V, (count, T)).astype("int32")
    for row, length in enumerate(np.arange(count) % T + 1):
        labels[row, length:] = 0
    return labels, ((labels != 0) / (labels != 0).sum()).astype("float32")


@pytest.mark.each_backend
def test_accumulated_micro_batches_equal_the_whole_batch():
    accumulation_steps = 2
    labels, weights = sentences()
    whole = model_with(TransformerAdam(0.1))
    whole.fit(labels, labels, sample_weight=weights, batch_size=8, epochs=2, verbose=0)
    split = model_with(TransformerAdam(0.1, gradient_accumulation_steps=accumulation_steps))
    split.fit(
        labels,
        labels,
        sample_weight=weights * accumulation_steps,
        batch_size=8 // accumulation_steps,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    norms = [float(model.optimizer.gradient_norm) for model in (whole, split)]
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-4)
    assert_same_arrays(split.weights, whole.weights, atol=1e-4)


@pytest.mark.each_backend
@pytest.mark.parametrize("accumulation_steps", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_schedule_sees_optimizer_steps(accumulation_steps):
    schedule = TransformerSchedule(peak=1.0, warmup_steps=1)  # 1 / sqrt(step)
    optimizer = TransformerAdam(schedule, gradient_accumulation_steps=accumulation_steps)
    model = model_with(optimizer)
    labels, weights = sentences(4 * (accumulation_steps or 1))
    model.fit(labels, labels, sample_weight=weights, batch_size=1, verbose=0)
    assert int(optimizer.iterations) == 4
    np.testing.assert_allclose(float(optimizer.learning_rate), 5**-0.5, rtol=1e-6)


@pytest.mark.each_backend
@pytest.mark.parametrize(("global_clipnorm", "velocity"), [(2.5, 0.5), *once((10.0, 1.0))])
def test_the_whole_gradient_of_a_step_is_clipped_and_its_norm_before_is_reported(
    global_clipnorm, velocity
):
    # Micro-batches give (6, 0) and (0, 8); their mean (3, 4) has norm 5, and half of it norm 2.5.
    # Either alone has a norm of more than 5. The second moments are 0.02 * g².
    optimizer = TransformerAdam(0.1, global_clipnorm=global_clipnorm, gradient_accumulation_steps=2)
    dense_of_two(optimizer).fit(
        np.array([[6.0, 0.0], [0.0, 8.0]]), np.zeros((2, 1)), batch_size=1, shuffle=False, verbose=0
    )
    np.testing.assert_allclose(float(optimizer.gradient_norm), 5.0, rtol=1e-6)
    expected = 0.02 * np.square(velocity * np.array([[3.0], [4.0]]))
    np.testing.assert_allclose(variable_of(optimizer, "velocity"), expected, rtol=1e-5)


@pytest.mark.each_backend
@pytest.mark.parametrize("accumulation_steps", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_averages_count_optimizer_steps_without_bias_to_the_first(accumulation_steps):
    many = accumulation_steps if accumulation_steps > 1 else None
    optimizer = TransformerAdam(
        0.1, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=many
    )
    model = dense_of_two(optimizer)
    seen = []
    for _ in range(3):
        for _ in range(accumulation_steps):
            model.train_on_batch(np.array([[3.0, 4.0]]), np.zeros((1, 1)))
        seen.append(model.get_weights()[0])
    assert len({weights.tobytes() for weights in seen}) == 3
    expected = (0.25 * seen[0] + 0.5 * seen[1] + seen[2]) / 1.75
    np.testing.assert_allclose(variable_of(optimizer, "average"), expected, rtol=1e-6)
    with ema_as_weights(model):
        np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(model.get_weights()[0], seen[-1])


@pytest.mark.each_backend
def test_fit_ends_with_the_averages_and_can_go_on():
    model = dense_of_two(TransformerAdam(0.1, use_ema=True, ema_momentum=0.5))
    for _ in range(2):
        model.fit(np.array([[3.0, 4.0]]), np.zeros((1, 1)), verbose=0)
        np.testing.assert_array_equal(
            model.get_weights()[0], variable_of(model.optimizer, "average")
        )


def dense_of_two(optimizer):
    """A model whose gradient is its input, summed over a batch."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    model.compile(optimizer, loss=lambda y_true, y_pred: keras.ops.sum(y_pred))
    return model


def variable_of(optimizer, name):
    """The first variable of an optimizer whose name ends like that."""
    variables = [v for v in optimizer.variables if v.name.endswith(name)]
    return keras.ops.convert_to_numpy(variables[0])


def three_steps(optimizer):
    """The values of a matrix, an embedding and a bias after each of three steps."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.EinsumDense("ab,bc->ac", 3, bias_axes="c")]
    )
    embedding = keras.layers.Embedding(4, 3)
    embedding.build()
    weights, draw = [*model.weights, *embedding.weights], np.random.default_rng(2)
    values = [list(map(keras.ops.convert_to_numpy, weights))]
    gradients = [[draw.normal(size=w.shape).astype("float32") for w in weights] for _ in range(3)]
    optimizer.build(weights)
    optimizer.exclude_from_weight_decay([weights[1]])
    for arrays in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(x) for x in arrays], weights)
        values.append(list(map(keras.ops.convert_to_numpy, weights)))
    return values, gradients


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("name", "class_name", "options"),
    [
        ("adamw", "AdamW", {"beta_2": 0.98, "epsilon": 1e-9}),
        ("muon", "Muon", {"adam_weight_decay": 0.3}),
        ("lion", "Lion", {}),
    ],
)
def test_steps_are_those_of_keras(name, class_name, options):
    options |= {"weight_decay": 0.3}
    ours, _ = three_steps(OPTIMIZERS[name](0.1, **options))
    of_keras, _ = three_steps(getattr(keras.optimizers, class_name)(0.1, **options))
    for found, expected in zip(ours, of_keras, strict=True):
        assert_same_arrays(found, expected, atol=1e-6)


@pytest.mark.each_backend
def test_a_step_is_that_of_the_paper_and_the_averages_are_its_means():
    optimizer = OPTIMIZERS["schedule_free"](0.1, weight_decay=0.3)
    values, gradients = three_steps(optimizer)
    averages = [x for x in optimizer.variables if x.name.endswith("average")]
    for i, average in enumerate(averages):
        y = z = x = values[0][i].astype("float64")
        second = np.zeros_like(y)
        for t in (1, 2, 3):
            gradient = gradients[t - 1][i]
            second = 0.999 * second + 0.001 * gradient**2
            step = gradient / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
            z = z - 0.1 * (step + (0.0 if i == 1 else 0.3) * y)
            x = x + (z - x) / t
            y = 0.1 * z + 0.9 * x
            np.testing.assert_allclose(values[t][i], y, atol=1e-5)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(average), x, atol=1e-5)
    assert len(averages) == 3


def test_muon_updates_the_matrices_of_linear_maps_alone():
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
    model = Transformer(9, position_encoding="t5", tie_word_embeddings=False, **sizes)
    optimizer = OPTIMIZERS["muon"](0.1)
    optimizer.build(model.trainable_variables)
    pairs = zip(model.trainable_variables, optimizer.adam_velocities, strict=True)
    by_muon = {weight.path for weight, velocity in pairs if velocity is None}
    kernels = {x.path for x in model.trainable_variables if x.path.endswith("kernel")}
    assert by_muon == kernels
    assert len(kernels) == 2 * 4 + 4 + 4


@pytest.mark.each_backend
@pytest.mark.parametrize(("global_clipnorm", "expected"), [(1.0, 0.02), *once((None, 0.08))])
def test_embedding_rows_used_twice_sum_before_they_are_squared(global_clipnorm, expected):
    # The gradient of a row that is looked up twice is 1 + 1, its second moment 0.02 * 2²; clipped
    # to a norm of 1 it is 0.02.
    inputs = keras.Input((2,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Embedding(3, 1)(inputs))
    optimizer = TransformerAdam(0.1, global_clipnorm=global_clipnorm)
    model.compile(optimizer, loss=lambda y_true, y_pred: keras.ops.sum(y_pred))
    model.fit(np.array([[1, 1]]), np.zeros((1, 2, 1)), verbose=0)
    assert float(model.optimizer.gradient_norm) == 2.0
    velocity = variable_of(model.optimizer, "velocity")
    np.testing.assert_allclose(velocity, [[0.0], [expected], [0.0]], rtol=1e-5)


@pytest.mark.each_backend
@pytest.mark.parametrize(
    "arguments, steps, expected",
    [
        # 64^-0.5 = 1/8 and 16^-1.5 = 1/64: step s of the warm-up has rate s/512.
        ({"d_model": 64, "warmup_steps": 16}, range(16), np.arange(1, 17) / 512),
        ({"d_model": 64, "warmup_steps": 16, "scale": 2.0}, [15, 63], np.array([1 / 16, 1 / 32])),
        ({"peak": 0.002, "warmup_steps": 100}, [0, 49, 99, 399], [0.00002, 0.001, 0.002, 0.001]),
    ],
)
def test_warms_up_linearly_and_decays_with_the_inverse_square_root(arguments, steps, expected):
    schedule = TransformerSchedule(**arguments)
    rates = [schedule(keras.ops.convert_to_tensor(step, dtype="int32")) for step in steps]
    assert {keras.backend.standardize_dtype(rate.dtype) for rate in rates} == {"float32"}
    found = [keras.ops.convert_to_numpy(rate) for rate in rates]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.each_backend
def test_the_cosine_is_that_of_keras():
    schedule = TransformerSchedule(peak=0.002, warmup_steps=3, cosine_steps=8)
    cosine = keras.optimizers.schedules.CosineDecay(0.0, 8, warmup_target=0.002, warmup_steps=3)
    for step in range(14):
        found, expected = (
            keras.ops.convert_to_numpy(x) for x in (schedule(step), cosine(step + 1))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
    config = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(config)
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize("arguments", [{}, {"d_model": 8, "peak": 0.1}])
def test_takes_exactly_one_of_d_model_and_peak(arguments):
    with pytest.raises(ValueError, match="Exactly one .* Received: d_model="):
        TransformerSchedule(**arguments)
