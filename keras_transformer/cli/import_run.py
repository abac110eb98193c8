"""The commands `import` and `vocabulary`."""

from pathlib import Path

import click
from pydantic import Field

from keras_transformer._files import read_json
from keras_transformer.cli import parameters
from keras_transformer.data.languages import LanguageCode


class ImportOptions(parameters.Options):
    """The options of `import`."""

    revision: str | None = Field(None, title="NAME")
    """Branch, tag or commit of a model of the hub. Default: the newest at the first download."""
    vocabulary: tuple[str, ...] = Field((), title="FILE")
    """SentencePiece model of a Marian or CTranslate2 model. Repeat the option if source and target
    have their own. Default: the files that lie beside the model."""
    source_prefix: tuple[str, ...] = Field((), title="PIECE")
    """Piece that begins every source, such as ">>por<<" to translate to Portuguese. Repeatable."""
    source_language: LanguageCode | None = Field(None, title="CODE")
    """ISO 639-1 code of the source language. Default: that in the files, or und. M2M100 and NLLB
    need a language of theirs, such as fr or fra_Latn."""
    target_language: LanguageCode | None = Field(None, title="CODE")
    """ISO 639-1 code of the target language. Default: that in the files, or und. In a model of
    OPUS-MT with tags, its tag then begins every source."""
    text: parameters.ExistingFile = None
    """Text in the source language, one sentence per line. The run learns the usual case of words
    from it, which helps to translate lines in upper case, titles and headings."""
    keep: tuple[str, ...] = Field((), title="FILE")
    """Keep only the pieces of this text, as `vocabulary` does. Repeatable."""


@click.command("import")
@click.argument("source")
@click.argument("run", type=parameters.any_path)
@parameters.options_of(ImportOptions)
@parameters.backend_option
def import_command(source: str, run: Path, options: ImportOptions) -> None:
    """Make a run folder of a trained model of another toolkit.

    SOURCE is a folder or file, or hf://ORGANIZATION/NAME for a model of the Hugging Face hub.
    It is a model of Hugging Face (MarianMT such as OPUS-MT, M2M100, NLLB), a model of Marian (.npz,
    or .bin with float32 weights), or a model that a converter of CTranslate2 wrote. RUN is a new
    folder. All commands that need no text of a recipe work with it. Its origin.json names the
    source.

    \b
    keras-transformer import hf://Helsinki-NLP/opus-mt-en-de runs/opus_en_de
    echo "Hello." | keras-transformer translate runs/opus_en_de
    keras-transformer import hf://facebook/nllb-200-distilled-600M runs/nllb \\
        --source-language eng_Latn --target-language deu_Latn
    keras-transformer import hf://facebook/nllb-200-distilled-600M runs/small \\
        --source-language eng_Latn --target-language deu_Latn --keep text.en --keep text.de
    keras-transformer init corpus.en corpus.de --from runs/opus_en_de
    """
    from keras_transformer.formats.run_folder import import_run

    given = options.model_dump()
    imported = import_run(source, run, vocabularies=given.pop("vocabulary"), **given)
    data, sizes = imported.recipe.data, imported.recipe.tokenizer.vocabulary_size
    if licence := read_json(imported.origin_path)["licence"]:
        click.echo(f"The licence of the model is {licence}.")
    click.echo(
        f"{run}: {data.source_language} to {data.target_language}, {sizes:,} pieces. "
        f"{imported.origin_path} names the source."
    )


class VocabularyOptions(parameters.Options):
    """The options of `vocabulary`."""

    output: Path = Field(title="RUN2")
    """New run folder."""
    keep: tuple[str, ...] = Field((), title="FILE")
    """Keep only the pieces of this text, one sentence per line. Repeatable. The model translates
    the first text, which is in the source language, and keeps the pieces of these translations. A
    few hundred lines of it are enough if the others are long. Default: keep all pieces."""
    add: parameters.ExistingFile = None
    """Text with a word on each line that becomes a piece, or a language such as >>fra<< of OPUS-MT
    or fra_Latn of NLLB."""


@click.command("vocabulary")
@parameters.run_argument
@parameters.options_of(VocabularyOptions)
@parameters.backend_option
def vocabulary_command(run: Path, options: VocabularyOptions) -> None:
    """Make a run of RUN with fewer pieces, or with words and languages added.

    A model with fewer pieces is smaller, and translates what it keeps as before. A new piece begins
    as the mean of the pieces into which it was split, and needs training. The new run has no text;
    `init --from RUN2` writes a recipe that trains on from it.

    \b
    keras-transformer vocabulary runs/nllb --output runs/small --keep text.en --keep text.de
    keras-transformer vocabulary runs/small --output runs/mine --add words.txt
    """
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.formats.run_folder import change_vocabulary

    words = [*read_lines(options.add)] if options.add else []
    parameters.checked(change_vocabulary, run, options.output, options.keep, words)
    click.echo(f"{options.output}: the run with the new vocabulary.")
