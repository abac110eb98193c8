"""Layers of one's own in stacks and models: those of two pages, and others."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from support.cases import once
from support.contract import (
    Subclassed,
    assert_copies_are_equal,
    randomize,
    to_numpy,
)
from support.digits import Digits
from support.language_models import assert_steps_equal_call, new_model
from support.small_decoders import B, D, F, H, S, T, assert_steps_equal_the_whole, make_decoder

from keras_transformer import Transformer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.layers import Cache, Decoder, DecoderLayer, Encoder, SSRUDecoderLayer
from keras_transformer.translation.markup import Segment
from keras_transformer.translation.translator import Translator

V = 17
PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def of_page(page, name):
    """The class that the first program of a page defines."""
    program = re.search(r"^```python\n(.*?)^```", (PAGES / page).read_text("utf-8"), re.M | re.S)
    namespace: dict = {"__name__": "page"}
    exec(compile(program[1], page, "exec"), namespace)
    return namespace[name]


GatedBlock = of_page("own-block.md", "GatedBlock")
GatedDecoderLayer = of_page("gated-cross-attention.md", "GatedDecoderLayer")


@keras.saving.register_keras_serializable(package="tests")
class Summing(keras.layers.Layer):
    """Its state is no keys and values: the sum of all tokens so far, one for each hypothesis."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return x + self.factor * ops.cumsum(x, axis=1)

    def init_cache(self, size):
        return Cache(beam=ops.zeros((size.batch, size.beam_size, D)))

    def step(self, x, cache, step):
        state = cache.beam + x
        return x + self.factor * state, Cache(beam=state)


@keras.saving.register_keras_serializable(package="tests")
def wide_layer(d_model, **options):
    return DecoderLayer(d_model, **{**options, "d_ff": 23, "use_memory": True})


@keras.saving.register_keras_serializable(package="tests")
class Pooling(keras.layers.Layer):
    """Adds the mean of the real tokens. It has no `build`, and names no sizes but one."""

    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(d_model, dtype=self.dtype_policy)

    def call(self, x, padding_mask):
        weights = ops.cast(padding_mask, x.dtype)[..., None]
        mean = ops.sum(x * weights, axis=1, keepdims=True) / ops.sum(weights, 1, keepdims=True)
        return x + self.dense(mean)


def pairs():
    generator = np.random.default_rng(3)
    source_ids, target_ids = (generator.integers(1, V, (B, n)).astype("int32") for n in (S, T))
    source_ids[0, 4:] = 0
    return {"source_ids": source_ids, "target_ids": target_ids}


def test_a_block_of_ones_own_continues_prompts_as_it_reads_the_whole_text():
    assert_steps_equal_call(new_model("rotary", decoder_layer=GatedBlock))


@pytest.mark.parametrize(
    "layer, options, max_length",
    [
        (GatedDecoderLayer, {}, T - 2),
        *once(
            (GatedDecoderLayer, {"norm_first": True, "num_kv_heads": 1}, None),
            (wide_layer, {}, T),
            (Summing, {"use_memory": False, "factor": 0.3}, T - 2),
        ),
    ],
)
def test_layers_of_ones_own_decode_what_they_compute_at_once(layer, options, max_length):
    assert_steps_equal_the_whole(make_decoder(layer=layer, **options), max_length)


@pytest.mark.once
def test_a_model_with_layers_of_ones_own_is_saved_and_loaded(tmp_path):
    sizes = {"num_layers": 2, "d_model": D, "num_heads": H, "d_ff": F}
    model = Transformer(V, **sizes, encoder_layer=Pooling, decoder_layer=GatedDecoderLayer)
    randomize(model).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(loaded(pairs())), to_numpy(model(pairs())))
    assert loaded.get_config() == model.get_config()
    # The test of the page may have defined the class anew.
    names = {type(x).__name__ for x in (*loaded.encoder.layers, *loaded.decoder.layers)}
    assert names == {"Pooling", "GatedDecoderLayer"}


@pytest.mark.once
def test_sublayers_with_automatic_names_keep_what_was_changed(tmp_path):
    model, ids = new_model("rotary", decoder_layer=GatedBlock), np.array([[3, 5, 4]], "int32")
    model.enable_lora(2)
    for block in model.decoder.layers:
        block.linear[3].trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(loaded(ids)), to_numpy(model(ids)), atol=1e-6)
    flags = [[x.trainable for x in each._flatten_layers()] for each in (loaded, model)]
    assert flags[0] == flags[1] and not all(flags[1])


@pytest.mark.once
def test_what_calls_of_layers_do_not_take_is_refused_in_one_line():
    """Packing needs masks of attention, and alignments need its weights."""
    sizes = {"num_layers": 1, "d_model": D, "num_heads": H, "d_ff": F}
    own = Transformer(V, **sizes, decoder_layer=GatedDecoderLayer)
    for model in (
        own,
        Transformer(V, **sizes, encoder_layer=Pooling),
        Transformer(V, **sizes, decoder_layer=SSRUDecoderLayer),
        new_model("rotary", decoder_layer=GatedBlock),
    ):
        with pytest.raises(ValueError, match="packing.*an `attention_mask`. Received: .*layer="):
            model.check_packing()
    translator = Translator(own, Digits(), SearchOptions(beam_size=1, max_length=3))
    for use in (
        lambda: translator.translate_nbest(["1 2"], alignments=True),
        lambda: translator.translate_segments([Segment("1 2")]),
    ):
        with pytest.raises(UserError, match="need a model with attention"):
            use()
    with pytest.raises(ValueError, match="`coverage_penalty` needs a model with attention"):
        Translator(own, Digits(), SearchOptions(coverage_penalty=0.2))
    for options in ({"decoder_layer": wide_layer}, {"decoder_layer": SSRUDecoderLayer}):
        model = Transformer(V, **sizes, **options)
        ((found,),) = Translator(model, Digits(), SearchOptions(max_length=3)).translate_nbest(
            ["1 2"], alignments=True
        )
        assert found.alignment is not None
    Transformer(V, **sizes, decoder_layer=wide_layer).check_packing()


@pytest.mark.once
def test_a_stack_with_layers_of_ones_own_is_saved_with_their_options(tmp_path):
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
    stack = Decoder(2, D, H, F, layer=Summing, factor=0.3, norm_first=True)
    assert_copies_are_equal(Subclassed(stack), {"x": x}, tmp_path)
    assert stack.get_config()["layer"] == "tests>Summing" and stack.get_config()["factor"] == 0.3
    assert [layer.factor for layer in Decoder.from_config(stack.get_config()).layers] == [0.3] * 2


@pytest.mark.once
@pytest.mark.parametrize(
    "use, message",
    [
        (lambda: Decoder(1, D, H, F, layer=Summing, fator=0.3), "fator"),
        (lambda: Encoder(1, layer=Summing)(np.zeros((1, 2, D)), padding_mask=[[True]]), "padding_"),
        (lambda: Decoder.from_config({"layer": "tests>Lost"}), "Could not locate .*tests>Lost"),
        (
            lambda: Encoder.from_config(Encoder(1, D, layer=lambda d_model: None).get_config()),
            "Could not locate .*<lambda>",
        ),
        (lambda: Encoder.from_config({"layer": "load_model"}), "Could not locate .*load_model"),
    ],
)
def test_refusals(use, message):
    with pytest.raises((TypeError, ValueError), match=message):
        use()
