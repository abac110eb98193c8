"""What a format does not have is refused, and an export that computes otherwise is not kept."""

import pytest
from support.contract import randomize
from support.language_models import small_model as small_language_model
from support.parallel_text import SENTENCES

from keras_transformer import Transformer, UserError
from keras_transformer.formats import export_ctranslate2, export_hugging_face, export_onnx
from keras_transformer.formats.exported_model import position_table
from keras_transformer.layers import SSRUDecoderLayer

SIZES = {"num_layers": 1, "d_model": 24, "num_heads": 4, "d_ff": 67, "max_length": 19}
# Those of `check_supported` stand in one format, for all.
REFUSED = {
    "onnx": [
        ({"position_encoding": "alibi"}, "only positions without scores.*'alibi'"),
        ({"activation": "mish"}, "supports only the activations.*'mish'"),
        ({"use_bias": False}, "ONNX supports only linear maps with biases.*use_bias=False"),
        ({"normalization": "rms"}, "ONNX supports only layer normalization.*'rms'"),
        ({"num_kv_heads": 1}, "only as many heads of keys as of queries.*num_kv_heads=1"),
        ({"qk_norm": True}, "only queries and keys without norms.*qk_norm=True"),
        ({"attention_soft_cap": 5.0}, "scores without a bound.*attention_soft_cap=5.0"),
        ({"decoder_layer": SSRUDecoderLayer}, "only `DecoderLayer`.*decoder_layer="),
        ({"pad_id": 5}, "must be the model's tokenizer"),
    ],
    "ctranslate2": [
        ({"position_encoding": "index_concatenated"}, "'index_concatenated'"),
        ({"attention_pattern": "local", "attention_window": 3}, "attention_pattern='local'"),
        ({"d_k": 5}, "only keys as wide as the values.*d_k=5"),
        ({"normalization": "batch"}, "only layer normalization.*normalization='batch'"),
        ({"activation": "softplus"}, "supports only the activations.*'softplus'"),
        (None, "must be a Transformer .*Received: LanguageModel"),
    ],
    "hugging_face": [
        ({"d_k": 5}, "keys as wide"),
        ({"activation": "geglu"}, "activations"),
        ({"norm_first": True, "target_vocabulary_size": 60}, "post-norm with two vocabularies"),
    ],
}
EXPORTS = {
    "onnx": export_onnx,
    "ctranslate2": export_ctranslate2,
    "hugging_face": export_hugging_face,
}


@pytest.mark.parametrize(
    ("format", "arguments", "message"),
    [(format, *case) for format, cases in REFUSED.items() for case in cases],
)
def test_what_a_format_does_not_have_is_refused(format, arguments, message, tokenizer, tmp_path):
    if format != "hugging_face":
        pytest.importorskip(format, reason=f"{format} is an optional dependency")
    model = Transformer(60, **{**SIZES, **arguments}) if arguments else small_language_model()
    with pytest.raises(ValueError, match=message):
        EXPORTS[format](model, tokenizer, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format", "writer", "name"),
    [("onnx", "onnx_graph", "ONNX"), ("ctranslate2", "ctranslate2", "CTranslate2")],
)
def test_an_export_that_computes_something_else_is_not_kept(
    format, writer, name, tokenizer, tmp_path, monkeypatch
):
    pytest.importorskip(format, reason=f"{format} is an optional dependency")
    place = f"keras_transformer.formats.{writer}.position_table"
    monkeypatch.setattr(place, lambda model: position_table(model)[::-1])
    model, sentences = randomize(Transformer(60, **SIZES)), [source for source, _ in SENTENCES]
    with pytest.raises(UserError, match=f"the {name} model translates .*nothing was written"):
        EXPORTS[format](model, tokenizer, tmp_path / "model", sentences=sentences)
    assert list(tmp_path.iterdir()) == []
