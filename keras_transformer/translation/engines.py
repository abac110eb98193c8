"""Opens the translator of a run with one of the engines: Keras or CTranslate2."""

from collections.abc import Sequence
from typing import Any

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Checkpoint, Engine, Run
from keras_transformer.translation.long_sentences import Overlong


def open_translator(
    runs: Run | Sequence[Run],
    options: SearchOptions | None = None,
    *,
    overlong: Overlong = "split",
    engine: Engine = "keras",
    use_shortlist: bool = False,
    checkpoint: Checkpoint | None = None,
    tokens_per_batch: int | None = None,
) -> Any:
    """Returns the translator of a run, or of an ensemble of several runs.

    Example:

    >>> translator = open_translator(Run.open("runs/quickstart"), engine="ctranslate2")
    >>> translator.translate(["twenty-six"])

    Args:
        runs: A `Run`. For the engine `"keras"`, also several runs, which translate as an ensemble.
        options: As in `Translator.from_run`.
        overlong: As in `Translator.from_run`.
        engine: `"keras"` returns a `Translator`. `"ctranslate2"` returns a
            `CTranslate2Translator`, which starts and translates faster on CPUs, but does not
            support all options. The first call with `"ctranslate2"` converts the model and keeps
            the conversion in the run's folder. Defaults to `"keras"`.
        use_shortlist: As in `Translator.from_run`. Only for the engine `"keras"`.
        checkpoint: As in `Translator.from_run`. Only for the engine `"keras"`.
        tokens_per_batch: As in `Translator.from_run`. Only for the engine `"keras"`.

    Raises:
        UserError: As by `Translator.from_run`, and if the engine does not support the model or an
            option.
    """
    if engine == "keras":
        from keras_transformer.translation.translator import Translator

        return Translator.from_run(
            runs,
            options,
            overlong=overlong,
            use_shortlist=use_shortlist,
            checkpoint=checkpoint,
            tokens_per_batch=tokens_per_batch,
        )
    runs = [runs] if isinstance(runs, Run) else runs
    if use_shortlist or checkpoint is not None or tokens_per_batch or len(runs) > 1:
        raise ValueError(
            "The engine ctranslate2 translates with the finished model of one run, and has no "
            f"shortlist. Received: {len(runs)} runs, checkpoint={checkpoint!r}, "
            f"use_shortlist={use_shortlist}, tokens_per_batch={tokens_per_batch}"
        )
    (run,) = runs
    options = options or run.recipe.evaluation.search_options()
    run.require_transformer("The engine ctranslate2")
    from keras_transformer.translation import ctranslate2_translator as ctranslate2
    from keras_transformer.translation.ctranslate2_run import converted

    ctranslate2.import_ctranslate2()  # Raises errors before the slow conversion.
    ctranslate2.check_options(options)
    return ctranslate2.CTranslate2Translator(converted(run), options, overlong)
