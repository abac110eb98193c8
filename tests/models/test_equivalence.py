"""Whatever is done to a model, each way to use it equals the model's own call, or is refused."""

import copy
import itertools
import pickle

import keras
import numpy as np
import pytest
from support.contract import HALF_PRECISION_TOLERANCE, randomize, to_numpy
from support.parallel_text import SENTENCES

from keras_transformer import (
    MaskedCrossentropy,
    SearchOptions,
    SlicedLogitsTrainer,
    Transformer,
    TransformerAdam,
    Translator,
    compile_function,
    search,
)
from keras_transformer.data import Tokenizer

V, B, S, T, BOS = 60, 2, 7, 5, 2
OPTIONS = SearchOptions(beam_size=2, max_length=4)
HALF = tuple(HALF_PRECISION_TOLERANCE)
QUANTIZATION_MODES = ("int8", "int4", "float8")
QUANTIZED = ("int8", "own_output_int8", "int4", "float8", "int8_lora")
QUANTIZED += tuple(f"bfloat16_{x}" for x in QUANTIZATION_MODES)
# Half precision: two units in the last place of a logit from 4 to 8, where the largest logits are.
# Quantized: rounding may turn a number over to the next integer of 8 or 4 bits, or to the next
# float8, which is 1/8 away. Of numbers rounded differently to bfloat16, 1 in 32 then differs in
# float8: changing gains by one unit in the last place changes logits by 0.25.
TOLERANCES = {
    **HALF_PRECISION_TOLERANCE,
    **{change: 0.1 if change.startswith("bfloat16") else 0.02 for change in QUANTIZED},
    "bfloat16_float8": 0.5,
}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V)


def new_model(change):
    dtype = next((dtype for dtype in HALF if change.startswith(dtype)), "float32")
    sizes = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 11}
    if change.startswith("own_output"):
        sizes |= {"tie_word_embeddings": False, "use_logits_bias": True}
        sizes |= {"target_vocabulary_size": V}
    return randomize(Transformer(V, **sizes, dropout_rate=0.0, dtype=dtype))


def enable_lora(model):
    generator = np.random.default_rng(0)
    model.enable_lora(2, lora_alpha=3)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.lora_kernel_b.assign(generator.normal(size=layer.lora_kernel_b.shape) / 2)


def load_merged_lora(model, folder):
    adapted = copy.deepcopy(model)
    enable_lora(adapted)
    adapted.save_weights(folder / "merged.weights.h5")
    model.load_weights(folder / "merged.weights.h5")
    np.testing.assert_allclose(logits_of(model), logits_of(adapted), atol=1e-4)


def train_with_ema(model):
    optimizer = TransformerAdam(0.01, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, MaskedCrossentropy())
    model.fit(INPUTS, LABELS, epochs=2, verbose=0)


def freeze(model):
    model.encoder.trainable = False
    model.target_embedding.trainable = False


def quantize(mode):
    return lambda model, folder: model.quantize(mode)


CHANGES = {
    **{dtype: lambda model, folder: None for dtype in ("float32", *HALF)},
    **{mode: quantize(mode) for mode in QUANTIZATION_MODES},
    **{f"bfloat16_{mode}": quantize(mode) for mode in QUANTIZATION_MODES},
    "lora": lambda model, folder: enable_lora(model),
    "int8_lora": lambda model, folder: (model.quantize("int8"), enable_lora(model)),
    "lora_merged": load_merged_lora,
    "frozen": lambda model, folder: freeze(model),
    "ema": lambda model, folder: train_with_ema(model),
    "own_output": lambda model, folder: None,
    "own_output_int8": quantize("int8"),
}
QUIET = pytest.mark.filterwarnings("ignore:.*(quantize|stays in float32)")


def save_and_load(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def of_its_config(model, folder):
    twin = type(model).from_config(model.get_config())
    twin.set_weights(model.get_weights())
    return twin


COPIES = {
    "saved": save_and_load,
    "deep_copied": lambda model, folder: copy.deepcopy(model),
    "pickled": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "of_its_config": of_its_config,
}
QUICK = [("lora", "saved"), ("lora_merged", "saved")]


def ids_of(length, begin=()):
    ids = np.random.default_rng(length).integers(4, V, (B, length)).astype("int32")
    ids[0, -2:] = 0
    ids[:, : len(begin)] = begin
    return ids


INPUTS = {"source_ids": ids_of(S), "target_ids": ids_of(T, begin=[BOS])}
LABELS = np.where(INPUTS["target_ids"], np.roll(INPUTS["target_ids"], -1, axis=1), 0)


def logits_of(model, inputs=INPUTS):
    return np.asarray(model.predict_on_batch(inputs), "float32")


def log_probabilities_of(logits, ids):
    """Of the ids, summed over each row; 0 is padding."""
    logits = logits.astype("float64")
    normalized = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    of_ids = np.take_along_axis(normalized, ids[..., None], axis=-1)[..., 0]
    return np.where(ids != 0, of_ids, 0).sum(axis=-1)


# --- Ways to use a model; each takes the model, its tolerance and a tokenizer --------------------


def all_steps(model, source_ids, target_ids):
    cache, steps = model.init_cache(source_ids, max_length=T), []
    for position in range(T):
        logits, cache = model.step(target_ids[:, position, None], cache, position)
        steps.append(logits)
    return keras.ops.concatenate(steps, axis=1)


def assert_steps(model, tolerance):
    steps = compile_function(all_steps, model)(*INPUTS.values())
    np.testing.assert_allclose(to_numpy(steps), logits_of(model), atol=tolerance)


def assert_hypotheses(model, source_ids, ids, log_probabilities, tolerance):
    targets = np.concatenate([np.full((len(ids), 1), BOS, "int32"), ids[:, :-1]], axis=1)
    logits = logits_of(model, {"source_ids": source_ids, "target_ids": targets})
    expected = log_probabilities_of(logits, ids)
    np.testing.assert_allclose(log_probabilities, expected, atol=tolerance * ids.shape[1])


def assert_search(model, tolerance):
    compiled = compile_function(search, model)
    found = compiled(INPUTS["source_ids"], max_length=4, options=OPTIONS)
    ids, log_probabilities = to_numpy(found.ids)[:, 0], to_numpy(found.log_probabilities)[:, 0]
    assert_hypotheses(model, INPUTS["source_ids"], ids, log_probabilities, tolerance)


def assert_translator(translator, model, tolerance):
    tokenizer, sentence = translator.tokenizer, SENTENCES[0][0][:12]
    (hypothesis,) = translator.translate_nbest([sentence])[0]
    ids = [*hypothesis.ids, tokenizer.eos_id][: hypothesis.length]
    source = tokenizer.frame_source(tokenizer.encode_source([sentence])[0])
    rows = (np.array([row], "int32") for row in (source, ids))
    assert_hypotheses(model, *rows, [hypothesis.log_probability], tolerance)


def new_trainer(model):
    trainer = SlicedLogitsTrainer(model)
    trainer.compile("sgd")
    return trainer


def assert_evaluation(trainer, model, change):
    if "int8" in change:  # the output matrix is int8
        with pytest.raises(ValueError, match="does not support a quantized output matrix"):
            trainer.evaluate(INPUTS, LABELS, verbose=0)
        return
    total = log_probabilities_of(logits_of(model), LABELS).sum()
    loss = trainer.evaluate(INPUTS, LABELS, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, -total / (LABELS != 0).sum(), rtol=1e-2)


# --- The table -----------------------------------------------------------------------------------


@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_as_made(change, tokenizer, tmp_path):
    """Call, step, search, and Translator and evaluation made before and after the change."""
    tolerance = TOLERANCES.get(change, 1e-4)
    model = new_model(change)
    original = logits_of(model)
    before, trainer_before = Translator(model, tokenizer, OPTIONS), new_trainer(model)
    before.translate(["a"])
    trainer_before.evaluate(INPUTS, LABELS, verbose=0)
    CHANGES[change](model, tmp_path)
    changed = logits_of(model)
    eager = to_numpy(keras.ops.cast(model(INPUTS), "float32"))
    np.testing.assert_allclose(eager, changed, atol=tolerance)
    has_effect = change not in ("float32", *HALF, "frozen", "own_output")
    assert has_effect == (np.abs(changed - original).max() > 0.02)
    assert_steps(model, tolerance)
    assert_search(model, tolerance)
    for translator in (before, Translator(model, tokenizer, OPTIONS)):
        assert_translator(translator, model, tolerance)
    for trainer in (trainer_before, new_trainer(model)):
        assert_evaluation(trainer, model, change)


def assert_same_model(model, other, tolerance):
    """The copy answers and steps like the model, and what can be trained is the same."""
    np.testing.assert_allclose(logits_of(other), logits_of(model), atol=tolerance / 10)
    shapes = [[weight.shape for weight in x.trainable_weights] for x in (other, model)]
    assert shapes[0] == shapes[1]
    for own, others in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(*(np.asarray(to_numpy(x), "float32") for x in (own, others)))


@QUIET
@pytest.mark.parametrize(
    "change, way",
    [
        pytest.param(*cell, marks=[] if cell in QUICK else pytest.mark.slow)
        for cell in itertools.product(CHANGES, COPIES)
    ],
)
def test_a_copy_is_the_same_model(change, way, tmp_path):
    model = new_model(change)
    CHANGES[change](model, tmp_path)
    assert_same_model(model, COPIES[way](model, tmp_path), TOLERANCES.get(change, 1e-4))


@pytest.mark.each_backend_if_slow
@QUIET
@pytest.mark.parametrize("change", ["lora", pytest.param("int8", marks=pytest.mark.slow)])
def test_keras_own_export_equals_the_model(change, tmp_path):
    model = new_model(change)
    CHANGES[change](model, tmp_path)
    if keras.backend.backend() == "torch":
        return  # Keras exports from PyTorch only models whose sequence length is known.
    model.export(tmp_path / "export", verbose=False)
    import tensorflow as tf

    exported = tf.saved_model.load(tmp_path / "export")  # holds the variables that `serve` reads
    logits = np.asarray(exported.serve(INPUTS), "float32")
    np.testing.assert_allclose(logits, logits_of(model), atol=TOLERANCES.get(change, 1e-4))
