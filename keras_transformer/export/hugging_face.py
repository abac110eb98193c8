"""Exports a Transformer as a MarianMT model of Hugging Face."""

from collections.abc import Sequence
from pathlib import Path

from keras_transformer._files import atomic_write, check_is_free
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.exchange.hugging_face import read_hugging_face, write_hugging_face
from keras_transformer.models.transformer import Transformer
from keras_transformer.translation.comparison import (
    Agreement,
    compare_translations,
    scored_translations,
)
from keras_transformer.translation.translator import Translator


def export_hugging_face(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    options: SearchOptions | None = None,
    languages: tuple[str, str] = ("und", "und"),
    sentences: Sequence[str] | None = None,
) -> Agreement | None:
    """Writes a folder that `AutoTokenizer` and `AutoModelForSeq2SeqLM` of transformers open.

    Neither transformers nor PyTorch is needed. Models of Hugging Face add 1e-5 to the variance in
    the norms, whatever `norm_epsilon` is. A pre-norm model has the type Pegasus.

    Example:

    >>> export_hugging_face(open_model(run), run.tokenizer(), "exports/quickstart")
    >>> model = transformers.AutoModelForSeq2SeqLM.from_pretrained("exports/quickstart")

    Args:
        model: A `Transformer` with full attention and with positions that are added to embeddings.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If the export fails, nothing is written.
        options: Beam size and length penalty of `generate`. Default to greedy search.
        languages: Codes of the source and the target language.
        sentences: Source sentences, which the model and the imported export translate.

    Returns:
        An `Agreement`, or None without `sentences`.

    Raises:
        UserError: If `directory` is not empty, or the disk is full. If a translation differs.
        ValueError: If Hugging Face has no such model, or the model is quantized.
    """
    check_is_free(directory)
    options = options or SearchOptions(beam_size=1, length_penalty=0)
    with atomic_write(directory) as partial:
        write_hugging_face(model, tokenizer, partial, options, languages)
        if not sentences:
            return None
        copy = Translator(*read_hugging_face(partial).convert(), options)
        return compare_translations(
            "export",
            Translator(model, tokenizer, options),
            sentences,
            scored_translations(copy, sentences),
            tolerance=1e-3,
        )
