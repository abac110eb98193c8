"""Exports a Transformer as a CTranslate2 model, for fast translation on CPUs without Keras."""

from collections.abc import Sequence
from pathlib import Path

from keras_transformer._files import atomic_write, check_is_free
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.exchange.ctranslate2 import write_ctranslate2
from keras_transformer.models.base import in_float32
from keras_transformer.models.transformer import Transformer
from keras_transformer.translation.comparison import Agreement
from keras_transformer.translation.ctranslate2_translator import compare_ctranslate2


def export_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: str | None = None,
    sentences: Sequence[str] | None = None,
) -> Agreement | None:
    """Writes a model as a folder that `ctranslate2.Translator` loads.

    The folder also contains the tokenizer, in `tokenizer/`. CTranslate2 takes and returns subword
    pieces. It adds eos to the source and bos to the target. As in this package, the exported model
    never predicts padding or bos. CTranslate2 divides the probabilities of all other tokens by
    1 - p(padding) - p(bos), so that their sum is 1. This package does not divide them.

    The search options of CTranslate2 differ from those of this package. CTranslate2 divides the
    log-probability of a hypothesis by n ** length_penalty (default 1), where n is the number of
    tokens without eos. For the same translations as `length_penalty=0` in this package, set
    `length_penalty=1e-9` and `min_decoding_length=0` in CTranslate2. Also use the same beam size
    and maximum length. Then the translations differ only if hypotheses have equal scores, or if
    the model gives padding or bos a considerable probability, as before training. With
    `length_penalty=0`, CTranslate2 would not stop after `beam_size` finished hypotheses. It would
    search until the most probable hypothesis is finished.

    Example:

    >>> export_ctranslate2(open_model(run), run.tokenizer(), "exports/quickstart/int8", "int8")
    >>> translator = ctranslate2.Translator("exports/quickstart/int8")
    >>> translator.translate_batch([["▁A", "▁dog", "▁runs", "."]], beam_size=4)[0].hypotheses[0]

    Args:
        model: A `Transformer` with full attention. The position encodings `alibi`, `t5` and
            `*_concatenated` are not supported.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If the export fails, nothing is written.
        quantization: Type of the stored weights: `"float32"`, `"float16"`, `"bfloat16"` (needs
            PyTorch), `"int16"` or `"int8"`. Only the weights of linear layers and embeddings are
            stored as integers. `"int8_float32"`, `"int8_float16"` and `"int8_bfloat16"` also set
            the type of the other weights. Defaults to None, which means float32. When
            `ctranslate2.Translator` loads the weights, it converts them to its `compute_type`, or
            to a type that the processor supports.
        sentences: Source sentences. CTranslate2 and the model translate them by greedy search, and
            the translations are compared. Defaults to None, which means no comparison.

    Returns:
        An `Agreement`, or None if `sentences` is None or empty.

    Raises:
        ImportError: If ctranslate2 is not installed, or if `quantization` needs PyTorch and PyTorch
            is not installed.
        UserError: If `directory` is not empty, or the disk is full. If a translation by the float32
            export differs from the model's translation in text and in score.
        ValueError: If CTranslate2 does not support `quantization` or a part of the model. If the
            model is already quantized. If the tokenizer belongs to another model.
    """
    check_is_free(directory)
    model = in_float32(model)
    with atomic_write(directory) as partial:
        write_ctranslate2(model, tokenizer, partial, quantization)
        if not sentences:
            return None
        is_exact = quantization in (None, "float32")
        return compare_ctranslate2(partial, model, tokenizer, sentences, is_exact)
