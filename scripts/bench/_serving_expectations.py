"""What a run's own model makes of sentences. As a program: a worker that says so."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _common import serve

from keras_transformer.translation.open_run import open_model

# Best first: text and score of each hypothesis of a sentence.
Expected = list[tuple[str, float]]


def prepare() -> Mapping[str, Callable[..., Any]]:
    from keras_transformer import Run, Translator

    run = Run.open(sys.argv[1])
    beam_size = run.recipe.evaluation.beam_size
    options = run.recipe.evaluation.search_options(n_best=beam_size)
    translator = Translator(open_model(run), run.tokenizer(), options)

    def translate_nbest(sentences: Sequence[str]) -> list[Expected]:
        found = translator.translate_nbest(sentences)
        return [[(hypothesis.text, hypothesis.score) for hypothesis in best] for best in found]

    return {"translate_nbest": translate_nbest}


if __name__ == "__main__":
    serve(prepare)
