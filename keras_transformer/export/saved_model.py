"""A Transformer with its tokenizer and search as a SavedModel for TensorFlow Serving."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_transformer._files import atomic_write
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding import Hypothesis, Translator
from keras_transformer.errors import UserError
from keras_transformer.export.checks import check_model, random_sentences, run_sentences
from keras_transformer.export.clean_process import run_signatures
from keras_transformer.export.operations import check_operations, operations
from keras_transformer.export.serving_files import write_serving_files, write_warmup_requests
from keras_transformer.models import Transformer
from keras_transformer.run import Run

# The largest difference of scores that rounding alone makes, in nats, by the compute dtype.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}

# How many sentences of a run's validation text the export translates to compare.
SENTENCES = 16


class SavedModelExport(NamedTuple):
    """What `export_saved_model` has written.

    Attributes:
        directory: The folder of the new version.
        operations: All operations of the graph, sorted.
        min_consumer: The oldest version of TensorFlow's graphs that can load it.
        compared: Number of sentences whose translations were compared.
        largest_difference: Of their scores, in nats.
    """

    directory: Path
    operations: list[str]
    min_consumer: int
    compared: int
    largest_difference: float


def export_saved_model(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    name: str | None = None,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    max_length: int | None = None,
    max_beam_size: int = 16,
    sentences: Sequence[str] = (),
) -> SavedModelExport:
    """Writes a model as the next version of a SavedModel that takes and gives strings.

    The graph holds the tokenizer, the model and the whole beam search, of any batch size and
    length, from operations of a stock `tensorflow_model_server` alone. It sorts the sentences of a
    request by length and decodes a bounded number of tokens at a time. It is loaded back in a new
    process without Keras and compared with `Translator` before the version appears.

    Signatures, each input with a leading batch axis, so that the server may join requests:

    - `serving_default`: `text` string `(B,)` gives `translation` string `(B,)` and `score` float32
      `(B,)`, that of `Hypothesis`.
    - `translate_nbest`: `text`, and for each of its rows `beam_size` int32, `length_penalty`
      float32 and `max_length` int32 `(B,)`; a negative value stands for what was exported, and so
      does an input that is left out, where the server knows default inputs. With N
      the largest beam size of the batch, gives `translations` string and `scores` float32 `(B,
      N)`, best first, "" and minus infinity where there is none; `pieces` string `(B, N, T)`,
      padded with ""; and `alignments` int32 `(B, N, T)`: for each target piece the source piece,
      counted from 0, that the decoder's last layer attended to most when it was chosen, -1 for
      padding. Each row gets what it would get alone.
    - `score`: `source` and `target` string `(B,)` give `log_probability` float32 `(B,)`, nats, eos
      included, NaN where source or target has more pieces than the model takes; and `length` int32
      `(B,)`, the target's tokens with eos.
    - `encode_tokens`: `source_ids` int32 `(B, S)` and `target_ids` int32 `(B, T)` as `Transformer`
      takes them give `logits` float32 `(B, T, V)`. A row with an id that is not in the vocabulary
      gets NaN; the request fails if no row is valid, or if S or T exceeds `model.max_length`.

    Of a text of more pieces than the model takes, `model.max_length - 1`, the beginning is
    translated, as by `Translator(overlong="cut")`. A blank text gives one empty translation of
    score 0. More than `max_beam_size` beams are not searched, nor more tokens than
    `model.max_length`: what goes beyond is set to these.

    Example:

    ```python
    export_saved_model(run.model(), run.tokenizer(), "saved_models/quickstart")
    ```

    Args:
        model: A `Transformer`, on the TensorFlow backend.
        tokenizer: The `Tokenizer` that it was trained with.
        directory: The folder of the model's versions; the new one is 1, or one more than the
            largest there is. `models.config`, `batching_parameters.txt` and `docker-compose.yml`
            are written beside it unless they are there.
        name: The model's name on the server. Defaults to None: that of the folder.
        beam_size: Beams per sentence. Defaults to 4.
        length_penalty: Exponent of the length penalty, at least 0. Defaults to 0.6.
        max_length: Most tokens of a translation, eos included. Defaults to None: 50 more than the
            source has.
        max_beam_size: Most beams that a request can ask for. Defaults to 16.
        sentences: What to compare, and to warm the server up by. Defaults to a few random ones.

    Returns:
        A `SavedModelExport`.

    Raises:
        UserError: If the graph needs an operation that a stock server lacks, the loaded model
            translates otherwise, or the disk is full. No version appears.
        ValueError: If the backend is not TensorFlow, an option is out of its range, the model is
            quantized, or the tokenizer is not the model's.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written with KERAS_BACKEND=tensorflow; `export_run_saved_model` "
            f"starts a process with it. Received: {keras.config.backend()!r}"
        )
    from keras_transformer.export.translation_graph import SearchOptions, TranslationGraph

    check_model(model, tokenizer)
    options = SearchOptions(beam_size, length_penalty, max_length, max_beam_size)
    options.check(model.max_length)
    directory = Path(directory)
    name = name or directory.resolve().name
    sentences = list(sentences) or random_sentences(tokenizer, SENTENCES)
    with atomic_write(directory / str(_next_version(directory))) as partial:
        names, min_consumer = _save(TranslationGraph(model, tokenizer, options), partial)
        write_warmup_requests(partial, name, _warmup(sentences))
        difference = _compare(model, tokenizer, partial, options, sentences)
    write_serving_files(directory, name)
    version = directory / str(_next_version(directory) - 1)
    return SavedModelExport(version, names, min_consumer, len(sentences), difference)


def export_run_saved_model(
    run_directory: str | Path,
    output: str | Path | None = None,
    *,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    max_beam_size: int = 16,
) -> SavedModelExport:
    """Exports the model of a run, from any backend.

    On JAX and PyTorch a new process with KERAS_BACKEND=tensorflow does it; TensorFlow is not loaded
    into this one.

    Args:
        run_directory: The folder of a run that has a model.
        output: The folder of the model's versions. Defaults to None: `saved_models/<run>`.
        beam_size: As in `export_saved_model`. Defaults to None: the recipe's.
        length_penalty: The same.
        max_length: As in `export_saved_model`.
        max_beam_size: As in `export_saved_model`.

    Returns:
        A `SavedModelExport`.

    Raises:
        UserError: As `export_saved_model`, or if there is no such run.
    """
    run = Run.open(run_directory)
    settings = run.recipe.evaluation
    output = Path("saved_models", run.directory.resolve().name) if output is None else Path(output)
    options: dict[str, Any] = {
        "beam_size": settings.beam_size if beam_size is None else beam_size,
        "length_penalty": settings.length_penalty if length_penalty is None else length_penalty,
        "max_length": max_length,
        "max_beam_size": max_beam_size,
    }
    if keras.config.backend() != "tensorflow":
        return _in_new_process(run, output, options)
    return export_saved_model(
        run.model(), run.tokenizer(), output, sentences=run_sentences(run, SENTENCES), **options
    )


def _next_version(directory: Path) -> int:
    versions = [int(path.name) for path in directory.glob("*") if path.name.isdecimal()]
    return max(versions, default=0) + 1


def _save(graph: Any, directory: Path) -> tuple[list[str], int]:
    """Saves the functions of a `TranslationGraph`: their operations and the oldest consumer."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    tf.saved_model.save(graph.variables(), str(directory), signatures=graph.signatures())
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((directory / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    names = operations(meta_graph.graph_def)
    check_operations(names)
    return names, meta_graph.graph_def.versions.min_consumer


def _nbest_inputs(sentences: Sequence[str]) -> dict[str, Any]:
    """Inputs of `translate_nbest` that ask for the search as it was exported."""
    count = len(sentences)
    return {
        "text": list(sentences),
        "beam_size": [-1] * count,
        "length_penalty": [-1.0] * count,
        "max_length": [-1] * count,
    }


def _warmup(sentences: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    import numpy as np

    dtypes: dict[str, Any] = {"text": object, "length_penalty": "float32"}
    nbest = {
        key: np.array(values, dtypes.get(key, "int32"))
        for key, values in _nbest_inputs(sentences).items()
    }
    text = nbest["text"]
    return [
        ("serving_default", {"text": text[:1]}),
        ("serving_default", {"text": text}),
        ("translate_nbest", nbest),
        ("score", {"source": text, "target": text}),
    ]


def _compare(
    model: Transformer,
    tokenizer: Tokenizer,
    version: Path,
    options: Any,
    sentences: list[str],
) -> float:
    """The largest difference of the scores of the SavedModel and of `Translator`.

    Raises:
        UserError: If a translation differs that is not a tie, or a score by more than rounding.
    """
    translator = Translator(
        model,
        tokenizer,
        beam_size=options.beam_size,
        length_penalty=options.length_penalty,
        max_length=options.max_length,
        overlong="cut",
    )
    expected = translator.translate_nbest(sentences, n_best=options.beam_size)
    best, nbest = run_signatures(
        version,
        [("serving_default", {"text": sentences}), ("translate_nbest", _nbest_inputs(sentences))],
    )
    tolerance = TOLERANCE[model.compute_dtype]
    differences = [0.0]
    for row, (sentence, hypotheses) in enumerate(zip(sentences, expected, strict=True)):
        received = [(best["translation"][row], best["score"][row])]
        if sentence.strip():
            received += zip(nbest["translations"][row], nbest["scores"][row], strict=True)
        for hypothesis, (text, score) in zip([hypotheses[0], *hypotheses], received, strict=False):
            difference = 0.0 if hypothesis.score == score else abs(hypothesis.score - score)
            if not difference <= tolerance or not _is_among(hypotheses, text, score, tolerance):
                raise UserError(
                    f"the SavedModel translates {sentence!r} to {text!r} with score {score:.4f}, "
                    f"the model to {hypothesis.text!r} with {hypothesis.score:.4f}"
                )
            differences.append(difference)
    return max(differences)


def _is_among(hypotheses: Sequence[Hypothesis], text: str, score: float, tolerance: float) -> bool:
    """Whether the hypotheses have a text with that score, or it ties with the last of several."""
    if len(hypotheses) > 1 and abs(hypotheses[-1].score - score) <= tolerance:
        return True
    return any(
        hypothesis.text == text
        and (hypothesis.score == score or abs(hypothesis.score - score) <= tolerance)
        for hypothesis in hypotheses
    )


def _in_new_process(run: Run, output: Path, options: dict[str, Any]) -> SavedModelExport:
    process = subprocess.run(
        [sys.executable, "-m", __name__, str(run.directory), str(output), json.dumps(options)],
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        raise RuntimeError(f"the process that writes the SavedModel ended by {process.returncode}")
    answer = json.loads(lines[-1])
    if "error" in answer:
        raise UserError(answer["error"])
    return SavedModelExport(**{**answer, "directory": Path(answer["directory"])})


def _main(run_directory: str, output: str, options: str) -> None:
    """What `_in_new_process` runs."""
    try:
        answer = export_run_saved_model(run_directory, output, **json.loads(options))._asdict()
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, default=str))


if __name__ == "__main__":
    _main(*sys.argv[1:])
