"""Checks the model that a writer of another format reads, and reads its weights."""

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.layers import PositionalEncoding
from keras_transformer.layers.saving import layer_changes
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer

# Name of an attribute of a model, whether a format refuses its value, and what it supports instead.
Rule = tuple[str, Callable[[Transformer], bool], str]
_PLAIN_BLOCKS: tuple[Rule, ...] = (
    ("encoder_layer", lambda x: x.encoder_layer, "`EncoderLayer`"),
    ("decoder_layer", lambda x: x.decoder_layer, "`DecoderLayer`"),
    ("normalization", lambda x: x.normalization == "rms", "layer normalization"),
    ("use_bias", lambda x: not x.use_bias, "linear maps with biases"),
    (
        "num_kv_heads",
        lambda x: x.num_kv_heads not in (None, x.num_heads),
        "as many heads of keys as of queries",
    ),
    ("qk_norm", lambda x: x.qk_norm, "queries and keys without norms"),
    ("attention_soft_cap", lambda x: x.attention_soft_cap, "attention scores without a bound"),
    ("attention_pattern", lambda x: x.attention_pattern not in (None, "full"), "full attention"),
    ("position_encoding", lambda x: x.positions.has_score_bias, "positions without scores"),
    ("position_encoding", lambda x: not _adds(x.positions, x.d_model), "added positions"),
)
# Rules of the formats of toolkits that have the paper's layers.
PLAIN_LAYERS: tuple[Rule, ...] = (
    ("d_k", lambda x: x.d_k not in (None, x.d_model // x.num_heads), "keys as wide as the values"),
    ("normalization", lambda x: x.normalization != "layer", "layer normalization"),
)


def _adds(positions: PositionalEncoding, d_model: int) -> bool:
    """Returns whether an encoding adds the same vectors to any embeddings."""
    zeros, ones = (array(positions(ops.full((1, 2, d_model), x))) for x in (0.0, 1.0))
    return np.allclose(ones - zeros, 1, atol=1e-2)  # bfloat16 rounds


def check_model(model: Seq2Seq, tokenizer: Tokenizer, kind: type[Seq2Seq] = Seq2Seq) -> None:
    """Raises ValueError if a model is not of a kind, is quantized, or has another tokenizer."""
    if not isinstance(model, kind):
        raise ValueError(
            f"`model` must be a {kind.__name__} for this format. Received: {type(model).__name__}"
        )
    if any("quantization" in changes for changes in layer_changes(model).values()):
        raise ValueError(
            "`model` must not be quantized. Export the model as it was before `quantize`. "
            "The exporters of ONNX and CTranslate2 have a quantization of their own. "
            f"Received: model={model}"
        )
    target_size = model.target_vocabulary_size or model.vocabulary_size
    sizes = (model.vocabulary_size, target_size, model.pad_id)
    source, target = tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size
    if sizes != (found := (source, target, tokenizer.pad_id)):
        raise ValueError(
            "`tokenizer` must be the model's tokenizer: source vocabulary size, target vocabulary "
            f"size and `pad_id` are {sizes} in the model, but {found} in the tokenizer"
        )


def check_supported(
    model: Transformer, tokenizer: Tokenizer, format: str, rules: Sequence[Rule]
) -> None:
    """Raises ValueError by `check_model`, `_PLAIN_BLOCKS`, and the rules of a format."""
    check_model(model, tokenizer, Transformer)
    for name, is_refused, supported in (*_PLAIN_BLOCKS, *rules):
        if is_refused(model):
            raise ValueError(
                f"{format} supports only {supported}. A SavedModel has no such limit. "
                f"Received: model.{name}={getattr(model, name)!r}"
            )


def array(tensor: Tensor) -> np.ndarray:
    """Converts a weight or tensor of any dtype and backend to a float32 NumPy array."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def position_table(model: Transformer) -> np.ndarray | None:
    """Returns the position table that is added to embeddings, float32 `(model.max_length, D)`.

    The result is None if positions do not change the embeddings. `model` must compute in float32.
    """
    if type(model.positions).call is PositionalEncoding.call:
        return None
    return array(model.positions(ops.zeros((1, model.max_length, model.d_model)))[0])
