"""Translates training text by the models of other runs: distillation and back-translation."""

import itertools
import sys

from keras_transformer._files import as_line, resumable_file, sha256_of
from keras_transformer._progress import Bar
from keras_transformer.data.text_files import read_lines
from keras_transformer.decoding.options import SamplingOptions
from keras_transformer.formats.engines import open_translator
from keras_transformer.recipe.sections import Corpus
from keras_transformer.runs.run import Run
from keras_transformer.translation.base_translator import STREAMED_LINES


def translate_corpora(run: Run) -> None:
    """Translates each corpus of a run that names another run as `translated_by`, once.

    If it is stopped, the next call continues. The text is then the same.

    Source: Kim and Rush 2016, §3.2, for targets (distillation); Sennrich et al. 2016 for sources
        (back-translation).
    """
    for number, corpus in run.recipe.data.made_corpora().items():
        if not run.text.made_file(number).exists():
            _translate(run, number, corpus)


def _translate(run: Run, number: int, corpus: Corpus) -> None:
    teacher, seed = run.teacher(corpus), run.recipe.seed
    (given,) = filter(None, run.text.given_files("train", number))
    print(f"Translating {given} with {teacher.directory}.", file=sys.stderr)
    translator, made = open_translator(teacher), run.text.made_file(number)
    total = sum(1 for _ in read_lines(given))
    made_from = (sha256_of(given), teacher.hashes(), translator.options, corpus.sampled, seed)
    with resumable_file(made, STREAMED_LINES, made_from) as (write, finished):
        done = finished * STREAMED_LINES
        lines = itertools.islice(read_lines(given), done, None)
        settings = {"total": total, "initial": done, "unit": "sentence"}
        with Bar("translating", translator.waiting, **settings) as bar:
            while chunk := list(itertools.islice(lines, STREAMED_LINES)):
                if corpus.sampled:
                    drawn = translator.sample(chunk, SamplingOptions(), seed, done, bar.update)
                    texts = [hypothesis.text for (hypothesis,) in drawn]
                else:
                    texts = translator.translate(chunk, progress=bar.update)
                write("".join(f"{as_line(text)}\n" for text in texts))
                done += len(chunk)
