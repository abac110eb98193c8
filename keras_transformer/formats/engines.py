"""Opens a translator, on one of two engines."""

import hashlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from keras_transformer._files import read_json_members, remove
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats.comparison import run_sentences
from keras_transformer.formats.ctranslate2_translator import (
    CTranslate2Translator,
    import_ctranslate2,
)
from keras_transformer.runs.run import Checkpoint, Run, Runs, opened_runs
from keras_transformer.translation.base_translator import CopyUnknown, Overlong
from keras_transformer.translation.word_forms import WordForms

Engine = Literal["keras", "ctranslate2"]
FOLDER = ".ctranslate2"
VERSION = 4  # Raise it if the conversion changes.


def open_translator(
    runs: Runs,
    options: SearchOptions | None = None,
    *,
    overlong: Overlong = "split",
    engine: Engine = "keras",
    use_shortlist: bool = False,
    checkpoint: Checkpoint | None = None,
    tokens_per_batch: int | None = None,
    copy_unknown: CopyUnknown = "lines",
    as_written: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
    adapters: Mapping[str, Run | str | Path] | None = None,
) -> Any:
    """Returns the translator of a run, or of an ensemble of several runs.

    Example:

    >>> translator = open_translator(Run.open("runs/quickstart"), engine="ctranslate2")
    >>> translator.translate(["twenty-six"])
    >>> translator = open_translator("runs/base", adapters={"medical": "runs/medical"})
    >>> translator.adapters["medical"].translate(["twenty-six"])

    Args:
        runs: A `Run`, a run folder, or the name of a run in the package. For the engine `"keras"`,
            also several runs with equal tokenizers, which translate as an ensemble.
        options: The options of beam search. Defaults to those of the (first) run's recipe.
        overlong: As for `Translator`.
        engine: `"keras"` returns a `Translator`. `"ctranslate2"` returns a
            `CTranslate2Translator`, which starts and translates faster on CPUs, but does not
            support all options. The first call with `"ctranslate2"` converts the model and keeps
            the conversion in the run's folder.
        use_shortlist: Whether to translate with `open_shortlist` of the (first) run, which is
            faster. This and the next two arguments are only for the engine `"keras"`.
        checkpoint: As in `open_model`.
        tokens_per_batch: As for `Translator`.
        copy_unknown: As for `Translator`. The engine ctranslate2 cannot copy characters.
        as_written: Whether to translate lines in upper case, titles and headings as they are
            written. Defaults to False, which means by the `WordForms` of the run, if it has them.
        source_language: Language of a multilingual model, as its vocabulary names it: "fr" of
            M2M100, "fra_Latn" of NLLB. Defaults to None, which means that of the run. `WordForms`
            are only for that of the run.
        target_language: As `source_language`, or the name in a tag of OPUS-MT, such as "por".
        adapters: Runs by name, trained from this one by `training.lora_rank` or `training.frozen`.
            Each becomes a translator in `adapters` of the result. All share one model, in which one
            of them translates at a time. For the engine `"keras"`. Defaults to None.

    Raises:
        UserError: If a run or its model is missing, if the tokenizers of the runs differ, if the
            engine does not support the model or an option, or if an adapter is that of another
            model.
    """
    opened = opened_runs(runs)
    of_keras: dict[str, Any] = {
        "use_shortlist": use_shortlist,
        "checkpoint": checkpoint,
        "tokens_per_batch": tokens_per_batch,
        "adapters": adapters,
    }
    languages = source_language, target_language
    if engine == "keras":
        # The other engine starts without Keras.
        from keras_transformer.translation.translator import Translator

        return Translator.from_run(
            opened,
            options,
            overlong=overlong,
            copy_unknown=copy_unknown,
            as_written=as_written,
            source_language=source_language,
            target_language=target_language,
            **of_keras,
        )
    run = opened[0]
    options = options or run.recipe.evaluation.search_options()
    run.require_transformer("The engine ctranslate2")
    # Raises errors before the slow conversion.
    import_ctranslate2(options, copy_unknown, ensemble=opened[1:], **of_keras)
    forms = WordForms.load(run.word_forms_path, as_written or source_language is not None)
    folder = converted(run)
    return CTranslate2Translator(folder, options, overlong, copy_unknown, forms, *languages)


def converted(run: Run) -> Path:
    """Converts a run's model for CTranslate2 if needed, and returns the folder of the result.

    Its name depends on the contents of the model and the tokenizer, so copies of the run share it.
    """
    read_json_members(run.model_place())  # Raises an error if the archive is damaged.
    with zipfile.ZipFile(run.model_path) as archive:
        parts = [(x.filename, x.file_size, x.CRC) for x in archive.infolist()]
    content = VERSION, parts, run.tokenizer().files
    name = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    folder = run.directory / FOLDER / name
    if not folder.exists():
        with run.writing():
            if not folder.exists():  # Another process may have converted the model.
                _convert(run, folder)
    return folder


def _convert(run: Run, folder: Path) -> None:
    from keras_transformer.formats.ctranslate2 import export_ctranslate2
    from keras_transformer.translation.open_run import open_model

    print(f"Converting {run.model_path} for CTranslate2; this is done once.", file=sys.stderr)
    model, tokenizer = open_model(run), run.tokenizer()
    remove(folder.parent)  # Conversions of former models.
    try:
        export_ctranslate2(model, tokenizer, folder, None, run_sentences(run))
    except ValueError as error:
        raise UserError(f"{error}; use the engine keras") from error
