"""The language model against NumPy, and its cached steps against itself."""

import keras
import numpy as np
import pytest
from support import reference
from support.cases import most_once
from support.contract import compiled, to_numpy, weights_of
from support.language_models import (
    LAYERS,
    LONGEST,
    VARIANTS,
    assert_steps_equal_call,
    new_model,
    prompts_of,
    small_model,
)

from keras_transformer import LanguageModel, MaskedCrossentropy, SlicedLogitsTrainer, search

STEPS = 4


@pytest.mark.parametrize("variant", most_once(VARIANTS, "llama"))
def test_agrees_with_reference(variant):
    model = small_model(variant)
    _, token_ids = prompts_of(model, [9, 9])
    expected = reference.language_model(weights_of(model), model.get_config(), token_ids)
    np.testing.assert_allclose(to_numpy(compiled(model)(token_ids)), expected, atol=1e-5)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "variant",
    [pytest.param(x, marks=[pytest.mark.slow] * (x != "rotary")) for x in VARIANTS],
)
def test_a_prompt_and_steps_equal_the_whole_text(variant):
    assert_steps_equal_call(small_model(variant))


@pytest.mark.once
def test_padding_of_prompts_may_be_anywhere():
    model = small_model("rotary")
    _, at_end = prompts_of(model, [3, 5])
    pad = model.pad_id
    elsewhere = np.array([[pad, at_end[0, 0], pad, *at_end[0, 1:3]], at_end[1]])
    expected, found = (search(model, ids, max_length=STEPS) for ids in (at_end, elsewhere))
    np.testing.assert_array_equal(to_numpy(found.ids), to_numpy(expected.ids))
    np.testing.assert_allclose(to_numpy(found.scores), to_numpy(expected.scores), atol=1e-5)


@pytest.mark.once
def test_initial_weights_are_those_of_gpt2():
    model = LanguageModel(300, num_layers=LAYERS, d_model=60, num_heads=2, d_ff=200)
    for weight in model.trainable_weights:
        is_last = "output/kernel" in weight.path or "outer/kernel" in weight.path
        expected = 0.02 * (2 * LAYERS) ** -0.5 if is_last else 0.02
        if len(weight.shape) == 2:
            assert to_numpy(weight).std() == pytest.approx(expected, rel=0.1), weight.path
        else:
            assert weight.name == "gamma" or not to_numpy(weight).any()


@pytest.mark.each_backend_if_slow
def test_saved_is_loaded_and_trains_on_with_sliced_logits(tmp_path):
    model = new_model(name="a_name", dropout_rate=0.0, attention_dropout_rate=0.0)
    _, token_ids = prompts_of(model, [9, 9, 5, 2])
    x, y = token_ids[:, :-1], token_ids[:, 1:]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
    assert loaded.get_config() == model.get_config()
    loss = MaskedCrossentropy(pad_id=-1)
    trainer = SlicedLogitsTrainer(loaded, loss)
    trainer.compile(keras.optimizers.SGD(0.05))
    losses = [float(trainer.train_on_batch(x, y, return_dict=True)["loss"]) for _ in range(4)]
    assert losses[0] == pytest.approx(float(loss(y, model(x))), rel=1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.once
def test_prompts_that_are_too_long_or_without_tokens_are_refused():
    model = small_model()
    source_ids = prompts_of(model, [5])[1]
    cache = model.init_cache(source_ids, LONGEST - 4)  # The model does not read the last token.
    message = f"Received: max_length={LONGEST}, length={LONGEST + 1}"
    with pytest.raises(ValueError, match=message):
        model.init_cache(source_ids, LONGEST - 3)
    with pytest.raises(ValueError, match=message):
        model.extend_cache(cache, LONGEST - 3)
    with pytest.raises(ValueError, match="`prompt_length` must be an integer of at least 1"):
        model.init_cache(np.zeros((2, 0), "int32"), 4)
