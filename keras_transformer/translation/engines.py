"""Opens the translator of a run, on one of two engines."""

from typing import Any, Literal

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Checkpoint, Runs, opened_runs
from keras_transformer.translation import ctranslate2_translator
from keras_transformer.translation.base_translator import CopyUnknown, Overlong
from keras_transformer.translation.word_forms import WordForms

Engine = Literal["keras", "ctranslate2"]


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
) -> Any:
    """Returns the translator of a run, or of an ensemble of several runs.

    Example:

    >>> translator = open_translator(Run.open("runs/quickstart"), engine="ctranslate2")
    >>> translator.translate(["twenty-six"])

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

    Raises:
        UserError: If a run or its model is missing, if the tokenizers of the runs differ, or if the
            engine does not support the model or an option.
    """
    opened = opened_runs(runs)
    if engine == "keras":
        # The other engine starts without Keras.
        from keras_transformer.translation.translator import Translator

        return Translator.from_run(
            opened,
            options,
            overlong=overlong,
            use_shortlist=use_shortlist,
            checkpoint=checkpoint,
            tokens_per_batch=tokens_per_batch,
            copy_unknown=copy_unknown,
            as_written=as_written,
        )
    run = opened[0]
    options = options or run.recipe.evaluation.search_options()
    if use_shortlist or checkpoint is not None or tokens_per_batch or len(opened) > 1:
        raise ValueError(
            "The engine ctranslate2 translates with the finished model of one run, and has no "
            f"shortlist. Received: {len(opened)} runs, checkpoint={checkpoint!r}, "
            f"use_shortlist={use_shortlist}, tokens_per_batch={tokens_per_batch}"
        )
    run.require_transformer("The engine ctranslate2")
    ctranslate2_translator.import_ctranslate2(options)  # Raises errors before the slow conversion.
    folder = ctranslate2_translator.converted(run)
    forms = WordForms.load(run.word_forms_path, as_written)
    settings = options, overlong, copy_unknown, forms
    return ctranslate2_translator.CTranslate2Translator(folder, *settings)
