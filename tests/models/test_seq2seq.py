"""What the architectures other than the Transformer have in common."""

import inspect

import keras
import numpy as np
import pytest
from support import reference
from support.contract import to_numpy, weights_of
from support.searching import eagerly, quick_search
from support.seq2seq_models import SIZES, new_model, small_model
from support.small_models import TARGET_V, B, T, inputs_of
from support.small_models import small_model as small_transformer

from keras_transformer import Ensemble, MaskedCrossentropy, SearchOptions
from keras_transformer._backend.compile_function import compile_function, makes_graphs
from keras_transformer.decoding import Request
from keras_transformer.decoding.decoding_loop import make_strategy, run_stages
from keras_transformer.models import ARCHITECTURES
from keras_transformer.models.protocol import Searchable, SlicesLogits

N, LONGEST = 3, 7
REFERENCES = {
    "recurrent": reference.recurrent_seq2seq,
    "attentional_recurrent": reference.attentional_recurrent_seq2seq,
    "convolutional": reference.convolutional_seq2seq,
}
each_architecture = pytest.mark.parametrize("name", SIZES)
with_attention = pytest.mark.parametrize("name", ["attentional_recurrent", "convolutional"])


def expected_logits(name, model, inputs):
    logits = REFERENCES[name](weights_of(model), model.get_config(), **inputs)
    return np.where((inputs["target_ids"] != model.pad_id)[..., None], logits, 0)


def real_logits(model, inputs):
    """The model's logits, and 0 for padding."""
    is_real = inputs["target_ids"] != model.pad_id
    return np.where(is_real[..., None], to_numpy(model(inputs)), 0)


def beams_of(model):
    """Every beam has its own tokens."""
    return np.random.default_rng(3).integers(4, TARGET_V, (B, N, T)).astype("int32")


def assert_steps_equal_call(model, tolerance=1e-5):
    source_ids, beams = inputs_of(model)["source_ids"], beams_of(model)
    full = [
        to_numpy(model({"source_ids": source_ids, "target_ids": beams[:, n]})) for n in range(N)
    ]
    cache = model.init_cache(source_ids, max_length=T, beam_size=N)
    for leaf in keras.tree.flatten(cache.beam):
        assert leaf.shape[:2] == (B, N)
    for position in range(T):
        logits, cache = model.step(beams[:, :, position], cache, position)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        for n in range(N):
            expected = full[n][:, position]
            np.testing.assert_allclose(to_numpy(logits[:, n]), expected, atol=tolerance)


def test_all_architectures_are_here():
    assert {"transformer", *SIZES} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_recipe_sets_the_sizes_of_a_model_and_not_what_the_tokenizer_says(name):
    settings, presets = ARCHITECTURES[name].settings(), ARCHITECTURES[name].presets
    assert {"d_model", "dropout_rate", "max_length"} <= settings
    assert not settings & {"self", "vocabulary_size", "target_vocabulary_size", "pad_id", "kwargs"}
    assert all(sizes.keys() <= settings for sizes in presets.values())
    assert {"tiny", "base"} <= presets.keys()


@each_architecture
def test_the_defaults_are_the_base_preset(name):
    arguments = inspect.signature(ARCHITECTURES[name].__init__).parameters
    base = ARCHITECTURES[name].presets["base"]
    assert {size: arguments[size].default for size in base} == base


@pytest.mark.parametrize("pad_id", [-1, TARGET_V])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_padding_is_in_both_vocabularies(name, pad_id):
    arguments = {"vocabulary_size": 99, "target_vocabulary_size": TARGET_V, "pad_id": pad_id}
    with pytest.raises(ValueError, match=f"`pad_id` must be an integer from 0.*pad_id={pad_id}"):
        ARCHITECTURES[name](**arguments)


@each_architecture
@pytest.mark.parametrize("batch, source, target", [(B, 7, T), (1, 1, 1)])
def test_agrees_with_reference(name, batch, source, target):
    """The reference computes each sentence alone and without padding."""
    model = small_model(name)
    inputs = inputs_of(model, batch, source, target)
    expected = expected_logits(name, model, inputs)
    np.testing.assert_allclose(real_logits(model, inputs), expected, atol=1e-5)


@each_architecture
def test_padding_changes_nothing(name):
    model = small_model(name)
    inputs = inputs_of(model)
    padded = {key: np.pad(ids, ((0, 0), (0, 3))) for key, ids in inputs.items()}
    found = to_numpy(model(padded))[:, :T]
    np.testing.assert_allclose(found, to_numpy(model(inputs)), atol=1e-5)


@each_architecture
def test_rows_of_padding_are_finite(name):
    model = small_model(name)
    inputs = inputs_of(model)
    for ids in inputs.values():
        ids[1] = model.pad_id
    assert np.isfinite(to_numpy(model(inputs))).all()


@each_architecture
def test_cached_equals_full_decoding(name):
    assert_steps_equal_call(small_model(name))


@each_architecture
def test_reordered_beams_go_on_as_the_hypotheses_they_now_are(name):
    model, beams, order = small_model(name), beams_of(small_model(name)), [2, 0, 0]
    source_ids = inputs_of(model)["source_ids"]
    cache = model.init_cache(source_ids, max_length=T, beam_size=N)
    for position in range(T):
        if position == 3:
            cache = cache.reorder(keras.ops.convert_to_tensor([order] * B, "int32"))
            beams = np.concatenate([beams[:, order, :3], beams[:, :, 3:]], axis=-1)
        logits, cache = model.step(beams[:, :, position], cache, position)
    for n in range(N):
        full = to_numpy(model({"source_ids": source_ids, "target_ids": beams[:, n]}))
        np.testing.assert_allclose(to_numpy(logits[:, n]), full[:, -1], atol=1e-5)


@with_attention
def test_attention_of_steps_and_of_whole_targets(name):
    model, beams = small_model(name), beams_of(small_model(name))
    source_ids = inputs_of(model)["source_ids"]
    whole = to_numpy(model.source_attention(source_ids, beams))
    assert whole.shape == (B, N, T, source_ids.shape[1])
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, atol=1e-5)
    assert (whole[np.broadcast_to((source_ids == 0)[:, None, None], whole.shape)] == 0).all()
    cache = model.init_cache(source_ids, max_length=T, beam_size=N)
    for position in range(T):
        tokens = beams[:, :, position]
        _, cache, own = model.step(tokens, cache, position, return_attention_weights=True)
        np.testing.assert_allclose(to_numpy(own), whole[:, :, position], atol=1e-5)


@pytest.mark.parametrize("protocol", [Searchable, SlicesLogits])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_keeps_the_protocol(name, protocol):
    model = small_transformer() if name == "transformer" else small_model(name)
    assert all(hasattr(model, attribute) for attribute in protocol.__annotations__)
    for method, function in inspect.getmembers(protocol, inspect.isfunction):
        if not method.startswith("_"):
            optional = [] if hasattr(model, "source_attention") else ["return_attention_weights"]
            expected = [x for x in inspect.signature(function).parameters if x not in optional]
            assert list(inspect.signature(getattr(type(model), method)).parameters) == expected


@each_architecture
def test_search_in_a_graph_for_all_shapes_is_the_same(name):
    """Lengths are known only at run time, as in a SavedModel. Other backends have no such graph."""
    model, options = small_model(name), SearchOptions(beam_size=2)
    source_ids = inputs_of(model)["source_ids"]
    with eagerly():
        expected = quick_search(model, source_ids, LONGEST, options)
    assert model.accepts_any_shape and np.isfinite(expected.scores).all()
    if makes_graphs():
        run = compile_function(run_stages, model, any_shape=True)
        strategy = make_strategy(model, options)
        found = run(Request(source_ids), np.int32(LONGEST), strategy=strategy)
        np.testing.assert_array_equal(to_numpy(found.ids), expected.ids)
        np.testing.assert_allclose(to_numpy(found.scores), expected.scores, atol=1e-4)


def test_an_ensemble_of_all_architectures_is_searched():
    sizes = {"target_vocabulary_size": TARGET_V}
    models = [small_transformer("separate_vocabularies"), *map(small_model, SIZES)]
    assert all(getattr(model, name) == size for model in models for name, size in sizes.items())
    source_ids = inputs_of(models[0])["source_ids"]
    with eagerly():
        found = quick_search(Ensemble(models), source_ids, LONGEST, SearchOptions(beam_size=2))
    assert np.isfinite(found.scores).all()


@each_architecture
def test_a_shortlist_limits_the_tokens(name):
    model = small_model(name)
    source_ids = inputs_of(model)["source_ids"]
    cache = model.init_cache(source_ids, max_length=T, beam_size=N)
    allowed = np.array([[0, 3, 5, 9]] * B, "int32")
    columns = np.full((B, N), 2, "int32")
    limited, _ = model.step(columns, model.limit_vocabulary(cache, allowed), 0)
    logits, _ = model.step(np.full((B, N), 5, "int32"), cache, 0)
    expected = to_numpy(logits)[:, :, [3, 5, 9]]
    np.testing.assert_allclose(to_numpy(limited)[:, :, 1:], expected, atol=1e-5)
    assert (to_numpy(limited)[:, :, 0] == -np.inf).all()


@each_architecture
def test_saved_is_loaded_and_trains_on(name, tmp_path):
    model = new_model(name, name="a_name")
    inputs = inputs_of(model, batch=12)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(model(inputs)))
    assert loaded.get_config() == model.get_config()
    before = [to_numpy(weight) for weight in loaded.trainable_weights]
    loaded.compile(keras.optimizers.SGD(0.05), MaskedCrossentropy())
    losses = [loaded.train_on_batch(inputs, inputs["target_ids"]) for _ in range(4)]
    assert losses[-1] < losses[0]
    for old, weight in zip(before, loaded.trainable_weights, strict=True):
        assert np.abs(to_numpy(weight) - old).max() > 1e-7, weight.path


@each_architecture
def test_mixed_precision(name):
    full, half = small_model(name), new_model(name, dtype="mixed_bfloat16")
    assert {str(weight.dtype) for weight in half.trainable_weights} == {"float32"}
    assert half.output.dtype == "bfloat16" and not half.accepts_any_shape
    inputs = inputs_of(full)
    logits = half.predict_on_batch(inputs).astype("float32")
    np.testing.assert_allclose(logits, to_numpy(full(inputs)), rtol=0, atol=0.25)
    assert_steps_equal_call(half, tolerance=0.1)


@each_architecture
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_quantized_steps_equal_the_quantized_call(name):
    model = new_model(name)
    before = to_numpy(model(inputs_of(model)))
    model.quantize("int8")
    after = to_numpy(model(inputs_of(model)))
    assert 1e-3 < np.abs(after - before).max() < 0.5
    assert_steps_equal_call(model, tolerance=0.05)


@each_architecture
def test_lora_steps_equal_the_call(name):
    model = new_model(name)
    before = to_numpy(model(inputs_of(model)))
    generator = np.random.default_rng(0)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(2)
            layer.lora_kernel_b.assign(generator.normal(size=layer.lora_kernel_b.shape) / 2)
    assert np.abs(to_numpy(model(inputs_of(model))) - before).max() > 0.1
    assert_steps_equal_call(model)
