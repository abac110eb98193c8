"""What all models have in common; test_equivalence.py and test_seq2seq.py have the rest."""

import copy
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support import small_models
from support.command_line import run_python
from support.contract import randomize, to_numpy
from support.fake_models import BigramModel
from support.html_page import Page

from keras_transformer import (
    BertEncoder,
    Ensemble,
    LanguageModel,
    MaskedLanguageModel,
)
from keras_transformer.capabilities import Capabilities
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.portability.inputs import random_inputs
from keras_transformer.training import SlicedLogitsTrainer


@pytest.mark.once
def test_a_subclass_of_a_model_is_saved_with_its_own_arguments():
    class Narrow(Transformer):
        pass

    model = Narrow(13, num_layers=1, d_model=4, num_heads=2, d_ff=3)
    assert Narrow.from_config(model.get_config()).d_model == 4


@pytest.mark.once
def test_a_notebook_lists_the_layers_that_have_weights():
    model = Transformer(13, num_layers=1, d_model=4, num_heads=2, d_ff=3)
    model.encoder.trainable = False
    shown = Page(model._repr_html_())
    assert shown.texts("b") == ["Transformer"]
    assert f"{model.count_params()} parameters, of which" in shown.texts("p")[0]
    assert shown.texts("td")[:3] == ["embedding", "TokenEmbedding", str(13 * 4)]
    assert len(shown.texts("td")) == 3 * 3  # embedding, encoder layer, decoder layer


@pytest.mark.once
def test_config_contains_the_model_that_is_an_argument_and_all_changes_once():
    encoder = BertEncoder(13, num_layers=1, d_model=4, num_heads=2, d_ff=6, max_length=5)
    encoder.embedding.trainable = False
    model = MaskedLanguageModel(encoder)
    model.quantize("int8")
    config = json.loads(json.dumps(model.get_config()))
    assert config["changes"] and "changes" not in config["encoder"]["config"]
    loaded = MaskedLanguageModel.from_config(config)
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert not loaded.encoder.embedding.trainable


MODELS = {
    "transformer": lambda: small_models.new_model(),
    "language_model": lambda: LanguageModel(13, 1, 4, 2, 6, max_length=8),
    "masked_language_model": lambda: MaskedLanguageModel(BertEncoder(13, 1, 4, 2, 6, max_length=5)),
}
each_model = pytest.mark.parametrize("name", MODELS)


@pytest.mark.once
@each_model
def test_unknown_arguments_are_refused(name):
    model = MODELS[name]()
    config = {**model.get_config(), "dropuot_rate": 0.5}
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropuot_rate'"):
        type(model).from_config(config)


@pytest.mark.once
@each_model
@pytest.mark.parametrize(
    "mode", ["int8", *(pytest.param(x, marks=pytest.mark.slow) for x in ("int4", "float8"))]
)
def test_every_model_can_be_quantized(name, mode):
    model = MODELS[name]()
    model.quantize(mode)
    again = type(model).from_config(json.loads(json.dumps(model.get_config())))
    assert [x.dtype for x in again.variables] == [x.dtype for x in model.variables]


@pytest.mark.once
@each_model
def test_results_do_not_depend_on_floatx(name):
    model = randomize(MODELS[name]())
    inputs = random_inputs(model)
    expected = to_numpy(model(inputs))
    floatx = keras.config.floatx()
    try:
        keras.config.set_floatx("float16")
        again = type(model).from_config(model.get_config())
        again.set_weights(model.get_weights())
        found = to_numpy(again(inputs))
    finally:
        keras.config.set_floatx(floatx)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("pad_id", [-2, -1, 13])
def test_padding_is_in_the_vocabulary_or_for_a_language_model_minus_1(pad_id):
    message = f"`pad_id` must be an integer from .*pad_id={pad_id}"
    with pytest.raises(ValueError, match=message):
        Transformer(99, target_vocabulary_size=13, pad_id=pad_id)
    with pytest.raises(ValueError, match=message):
        BertEncoder(13, pad_id=pad_id)
    if pad_id != -1:
        with pytest.raises(ValueError, match=message):
            LanguageModel(13, 1, 4, 2, 6, pad_id=pad_id)


@pytest.mark.once
@pytest.mark.slow
def test_the_twin_is_made_without_tensorflow_on_other_backends():
    code = (
        "import sys; from keras_transformer.models.base import in_float32; "
        "from keras_transformer.models import Transformer; "
        "sizes = {'num_layers': 1, 'd_model': 4, 'num_heads': 2, 'd_ff': 4}; "
        "in_float32(Transformer(7, **sizes, dtype='mixed_bfloat16')); "
        "print('tensorflow' in sys.modules)"
    )
    assert run_python(code, KERAS_BACKEND="jax") == "False"


def test_a_model_in_mixed_precision_gets_a_twin_in_float32():
    model = small_models.new_model()
    assert in_float32(model) is model
    half = small_models.new_model(dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    twin = in_float32(half)
    inputs = small_models.inputs_of(model)
    np.testing.assert_allclose(to_numpy(twin(inputs)), to_numpy(model(inputs)), atol=1e-5)
    assert twin.compute_dtype == "float32"


@pytest.mark.once
def test_a_model_within_a_model_gets_a_twin_in_float32_too():
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}
    model = MaskedLanguageModel(BertEncoder(7, **sizes, dtype="mixed_bfloat16"))
    layers = in_float32(model)._flatten_layers()
    assert {layer.compute_dtype for layer in layers if layer.weights} == {"float32"}


@pytest.mark.once
def test_class_weights_and_copies_of_a_trainer_are_refused():
    """Keras would take one token for the class of a row, and copy the states without the loss."""
    model = MODELS["transformer"]()
    trainer = SlicedLogitsTrainer(model)
    for each in (model, trainer):
        with pytest.raises(ValueError, match="by `sample_weight`.*class_weight={1: 2.0}"):
            each.fit([], class_weight={1: 2.0})
    with pytest.raises(ValueError, match="copy of its `model`"):
        copy.deepcopy(trainer)


@pytest.mark.once
def test_what_a_model_lacks_has_a_default():
    assert Capabilities.of(object()) == Capabilities()
    found = Capabilities.of(SimpleNamespace(compiles=False, vocabulary_size=7))
    assert found == Capabilities(compiles=False, vocabulary_size=7)
    assert found.vocabulary_sizes == (7, 7)


@pytest.mark.once
def test_an_ensemble_has_the_methods_that_all_its_models_have():
    transformer, other = small_models.new_model(num_layers=1), BigramModel({}, 13)
    for name in ("extend_cache", "limit_vocabulary", "source_attention"):
        of_one, of_both = (Ensemble([transformer, x]) for x in (transformer, other))
        assert callable(getattr(Capabilities.of(of_one), name))
        assert getattr(Capabilities.of(of_both), name) is None
