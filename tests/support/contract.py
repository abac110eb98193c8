"""The contract that every layer of the package keeps, and help to compare layers with NumPy."""

import inspect
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

# Bits of the significand, and what one rounding after another may add up to.
HALF_PRECISION_TOLERANCE = {"bfloat16": 2.0**-4, "float16": 2.0**-7}


def to_numpy(tensor: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(tensor)


def compiled(function: Any) -> Any:
    """On JAX, one program for the function, which takes a tenth of the time of one an operation."""
    if keras.config.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def assert_same_arrays(found: Any, expected: Any, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Compares two lists of arrays, tensors or variables, by default bit for bit."""
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(own), to_numpy(other), rtol, atol)


def randomize(layer: Any, seed: int = 0, shape: Any = None) -> Any:
    """Draws every weight anew, biases and gains too: a zero bias hides what is done with it.

    The same numbers on every backend. With `shape`, builds the layer first. Returns the layer.
    """
    if shape:
        layer.build(shape)
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        noise = generator.normal(size=weight.shape)
        if weight.name in ("gamma", "scale"):
            value = 1 + noise / 5
        elif weight.name == "moving_variance":
            value = 8 * np.exp(noise)
        elif len(weight.shape) <= 1:
            value = noise / 5
        else:
            value = noise * weight.shape[0 if weight.name == "kernel" else -1] ** -0.5
        weight.assign(value.astype("float32"))
    return layer


def weights_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """The float64 weights of a layer, nested by sublayer, as `reference` takes them."""
    if isinstance(layer, keras.Model):
        return {part.name: weights_of(part) for part in layer.layers if part.weights}
    members = vars(layer) | vars(layer).get("_modules", {})  # where PyTorch keeps its modules
    parts = {name: x for name, x in members.items() if isinstance(x, keras.layers.Layer)}
    if found := {name: weights_of(x) for name, x in parts.items() if x.weights}:
        return found
    return {weight.name: to_numpy(weight).astype("float64") for weight in layer.weights}


def assert_layer_contract(
    layer_class: type[keras.layers.Layer],
    arguments: dict[str, Any],
    inputs: dict[str, np.ndarray],
    output_shape: tuple[int, ...],
    folder: Path,
) -> None:
    """Holds a layer to what Keras users expect of one.

    Args:
        layer_class: Class of the layer.
        arguments: Constructor arguments.
        inputs: Arrays by call argument; every axis but the last of a float one may vary in size.
        output_shape: Shape of the output for `inputs`.
        folder: Where files may be written.
    """
    assert_config_round_trip(layer_class, arguments)
    layer = layer_class(**arguments)
    model = functional_model(layer, inputs)
    randomize(model)
    assert_symbolic_shape_is_eager_shape(model, inputs, output_shape)
    assert_half_precision_is_close(layer_class, arguments, model, inputs)
    assert_saved_is_loaded(layer, model, inputs, folder)
    assert_compiled_fit_works(model, inputs)


def functional_model(layer: keras.layers.Layer, inputs: dict[str, np.ndarray]) -> keras.Model:
    """A model of this one layer, with every axis left open that may vary."""
    symbolic = {}
    for name, array in inputs.items():
        is_vector = array.dtype.kind == "f"
        shape = (*(None,) * (array.ndim - 2), array.shape[-1]) if is_vector else (None,)
        symbolic[name] = keras.Input(shape, dtype=str(array.dtype), name=name)
    return keras.Model(symbolic, layer(**symbolic))


def assert_config_round_trip(layer_class: type, arguments: dict[str, Any]) -> None:
    layer = layer_class(**arguments, name="a_name")
    config = json.loads(json.dumps(layer.get_config()))  # no object hides in it
    clone = layer_class.from_config(config)
    assert clone.get_config() == layer.get_config()
    for name, parameter in inspect.signature(layer_class.__init__).parameters.items():
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            assert name in config, f"{layer_class.__name__}: {name} is not in the config"
            assert hasattr(layer, name), f"{layer_class.__name__}: {name} is no attribute"


def assert_symbolic_shape_is_eager_shape(
    model: keras.Model, inputs: dict[str, np.ndarray], output_shape: tuple[int, ...]
) -> None:
    output = model(inputs)
    assert tuple(output.shape) == output_shape
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert model.output.dtype == "float32"
    for symbolic, eager in zip(model.output.shape, output_shape, strict=True):
        assert symbolic in (None, eager)
    assert model.output.shape[-1] == output_shape[-1]
    vectors = {x: y for x, y in inputs.items() if y.dtype.kind == "f"} or inputs
    layer = model.layers[-1]  # without shapes of masks, as in `keras.layers.TimeDistributed`
    assert layer.compute_output_shape(*(x.shape for x in vectors.values())) == output_shape


def assert_half_precision_is_close(
    layer_class: type,
    arguments: dict[str, Any],
    model: keras.Model,
    inputs: dict[str, np.ndarray],
) -> None:
    """In float16, whose range is narrow; models are held to the values of bfloat16."""
    half = functional_model(layer_class(**arguments, dtype="mixed_float16"), inputs)
    half.set_weights(model.get_weights())
    assert {str(weight.dtype) for weight in half.weights} <= {"float32"}
    output = half.predict_on_batch(inputs)
    assert output.dtype == "float16"
    tolerance = HALF_PRECISION_TOLERANCE["float16"]
    expected = to_numpy(model(inputs))
    np.testing.assert_allclose(output.astype("float32"), expected, rtol=tolerance, atol=tolerance)


@keras.saving.register_keras_serializable(package="contract")
class Subclassed(keras.Model):
    """A user's own model that holds one layer. Keras builds a loaded one with float tensors."""

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, inputs: Any) -> Any:
        return self.layer(**inputs) if isinstance(inputs, dict) else self.layer(inputs)

    def get_config(self) -> dict[str, Any]:
        return {"layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(keras.saving.deserialize_keras_object(config["layer"]))


def assert_saved_is_loaded(
    layer: Any, model: keras.Model, inputs: dict[str, np.ndarray], folder: Path
) -> None:
    """Holds functional, subclassed and Sequential models of the layer to equal outputs."""
    assert_copies_are_equal(model, inputs, folder)
    assert_copies_are_equal(Subclassed(layer), inputs, folder)
    if len(inputs) == 1:  # without an `Input`
        (array,) = inputs.values()
        assert_copies_are_equal(keras.Sequential([layer]), array, folder)


def assert_copies_are_equal(model: keras.Model, inputs: Any, folder: Path) -> None:
    """Holds a model that is loaded, cloned, or made of its config to equal outputs."""
    expected = to_numpy(model(inputs))
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    loaded = keras.saving.load_model(folder / "model.keras", safe_mode=True)
    config = json.loads(json.dumps(model.get_config()))
    made = type(model).from_config(config)
    made(inputs)
    made.load_weights(folder / "model.weights.h5")
    clone = keras.models.clone_model(model)
    clone(inputs)
    clone.set_weights(model.get_weights())
    for copy in (loaded, made, clone):
        np.testing.assert_array_equal(to_numpy(copy(inputs)), expected)


def assert_compiled_fit_works(model: keras.Model, inputs: dict[str, np.ndarray]) -> None:
    target = np.zeros(model(inputs).shape, "float32")
    before = [to_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    batch_size = len(target)
    history = model.fit(inputs, target, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    if before:
        first, second = history.history["loss"]
        assert second < first
    for old, weight in zip(before, model.trainable_weights, strict=True):
        assert np.isfinite(to_numpy(weight)).all(), weight.path
        # A key bias adds the same to all scores of a query: softmax is blind to it.
        if not weight.path.endswith("key/bias"):
            assert not np.array_equal(to_numpy(weight), old), f"{weight.path} was not trained"


def assert_cached_equals_full_decoding(
    model: Any, source: Any, beams: np.ndarray, name: str = "source_ids"
) -> None:
    """Holds steps to the model's own call, also after hypotheses changed places.

    Args:
        model: A model of the inputs `name` and `target_ids`.
        source: The first input.
        beams: Target ids (B, N, T), other ones in each hypothesis.
        name: Name of the first input.
    """
    step, whole = compiled(model.step), compiled(model)
    count, length = beams.shape[1:]

    def whole_targets() -> np.ndarray:
        inputs = ({name: source, "target_ids": beams[:, n]} for n in range(count))
        return np.stack([to_numpy(whole(each)) for each in inputs], axis=1)

    expected, order = whole_targets(), [count - 1, *[0] * (count - 1)]
    cache = model.init_cache(source, max_length=length + 2, beam_size=count)
    for position in range(length):
        if position == 3:
            cache = cache.reorder(keras.ops.convert_to_tensor([order] * len(beams), "int32"))
            beams = np.concatenate([beams[:, order, :3], beams[:, :, 3:]], axis=-1)
            expected = whole_targets()
        logits, cache = step(beams[:, :, position], cache, position)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        np.testing.assert_allclose(to_numpy(logits), expected[:, :, position], atol=1e-5)
