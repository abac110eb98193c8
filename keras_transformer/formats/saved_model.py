"""Exports a model, its tokenizer and its search as a SavedModel for TensorFlow Serving."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from google.protobuf.wrappers_pb2 import BytesValue

from keras_transformer._files import atomic_write, write_text
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import UserError
from keras_transformer.formats.comparison import Agreement, compare_translations, random_sentences
from keras_transformer.formats.exported_model import check_model
from keras_transformer.models.base import in_float32
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.translation.translator import Translator

TOLERANCE = 1e-3  # scores count as equal if they differ by at most this number of nats

# Operations of tensorflow-text that are in every tensorflow_model_server.
SENTENCEPIECE = {"SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"}

# Files for a server, with NAME for the model's name.
_TEMPLATES = Path(__file__).with_name("templates")


class Exported(NamedTuple):
    """Result of `export_run` and of `export_saved_model`."""

    directory: Path  # the new folder
    comparison: str  # of export and model; for a SavedModel, also what the server must support


def export_saved_model(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    name: str | None = None,
    options: SearchOptions | None = None,
    max_beam_size: int = 16,
    sentences: Sequence[str] = (),
    shortlist: Shortlist | None = None,
) -> Exported:
    """Writes a model as the next version of a SavedModel that takes and returns strings.

    The graph contains the tokenizer, the model and the beam search, for any batch size and length.
    It computes in float32, and decodes a limited number of tokens at a time. Before the version
    gets its name, it is loaded and translates a few sentences as `Translator` does.

    The signatures are `serving_default` and `translate_nbest`, which translate, `score` for pairs
    of texts, and `encode_tokens`, which returns logits. The page "Export to SavedModel" of the
    documentation has their inputs and outputs.

    A text of more than `model.max_length - 1` pieces is truncated. A blank text has one empty
    translation with score 0. Text without a known word is copied, with score 0. The graph uses the
    nearest possible value of an option: `beam_size` from 1 to `max_beam_size`, `length_penalty` up
    to 10, `max_length` from `options.min_length` to `model.max_length`.

    Example:

    >>> export_saved_model(open_model(run), run.tokenizer(), "exports/quickstart")

    Args:
        model: A `Transformer` or a model of another architecture, on the TensorFlow backend.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A folder that contains one folder per version of the model, numbered from 1. It
            also gets `models.config`, `batching_parameters.txt` and `docker-compose.yml`, unless
            they exist.
        name: The model's name on the server. Defaults to None, which means the name of `directory`.
        options: The default search options. If `options.max_length` is None, a translation can be
            50 tokens longer than its source. Defaults to None, which means `SearchOptions()`.
        max_beam_size: Maximum beam size of a request, or `options.beam_size` if that is larger.
            Defaults to 16.
        sentences: Source sentences for the comparison and for warm-up requests. Defaults to (),
            which means random sentences.
        shortlist: The tokens that are allowed in the translation of each sentence (see
            `Translator`). Defaults to None, which allows all tokens.

    Raises:
        UserError: If `name` cannot be a name on the server, if the graph needs an operation that a
            stock server lacks, if translations differ from the model's, or if the disk is full. The
            folder then has no new version.
        ValueError: If the backend is not TensorFlow, an option is out of range, the model is
            quantized, or the tokenizer belongs to another model.
        ImportError: If TensorFlow or tensorflow-text is not installed.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            "`export_saved_model` needs KERAS_BACKEND=tensorflow. `export_run` works on every "
            f"backend. Received: {keras.config.backend()!r}"
        )
    from keras_transformer.formats.translation_graph import TranslationGraph

    check_model(model, tokenizer)
    exact, options, directory = in_float32(model), options or SearchOptions(), Path(directory)
    name = name or directory.resolve().name
    check_name(name)
    sentences = list(sentences) or random_sentences(tokenizer)
    graph = TranslationGraph(exact, tokenizer, options, max_beam_size, shortlist)
    options = options.replace(n_best=options.beam_size)
    translator = Translator(exact, tokenizer, options, "truncate", shortlist=shortlist)
    versions = [int(path.name) for path in directory.glob("*") if path.name.isdecimal()]
    version = directory / str(max(versions, default=0) + 1)
    with atomic_write(version) as partial:
        min_consumer = _save(graph, partial)
        _write_warmup_requests(partial, name, sentences)
        comparison = _compare(partial, translator, sentences)
    write_serving_files(directory, name)
    needs = f"needs a server that reads GraphDef version {min_consumer} or newer"
    return Exported(version, f"{comparison}\n{needs}")


def _save(graph: Any, directory: Path) -> int:
    """Saves a `TranslationGraph`, and returns its `min_consumer`."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    # A server computes no gradients.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(graph.variables(), str(directory), graph.signatures(), options)
    saved = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    check_operations(saved.meta_graphs[0].graph_def)
    return saved.meta_graphs[0].graph_def.versions.min_consumer


def check_operations(graph_def: Any) -> None:
    """Raises UserError if a stock tensorflow_model_server lacks an operation of a graph.

    The server has the operations in `tf.raw_ops`, and those of tensorflow-text for SentencePiece.

    Source: https://www.tensorflow.org/tfx/serving/custom_op
    """
    import tensorflow as tf

    functions = graph_def.library.function
    nodes = [graph_def.node, *(function.node_def for function in functions)]
    known = {*SENTENCEPIECE, *dir(tf.raw_ops), *(x.signature.name for x in functions)}
    if unknown := sorted({node.op for part in nodes for node in part} - known):
        raise UserError(
            "the SavedModel needs operations that a stock tensorflow_model_server may not have: "
            f"{', '.join(unknown)}"
        )


def check_name(name: str) -> None:
    """Raises `UserError` if a model's name cannot be the name of a docker compose service."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise UserError(
            "the name of a served model may only have letters without accents, digits, '.', '_' "
            "and '-'. It is the name of the folder of the versions, so export to another folder "
            f"or give `name`. Received: {name!r}"
        )


def write_serving_files(directory: Path, name: str) -> None:
    """Writes the files of `templates`. Keeps existing ones, because the user may have edited them.

    Source: https://www.tensorflow.org/tfx/serving/serving_config
    """
    for template in _TEMPLATES.iterdir():
        if not (path := directory / template.name).exists():
            write_text(path, template.read_text("utf-8").replace("NAME", name))


def _compare(version: Path, translator: Translator, sentences: list[str]) -> Agreement:
    calls = [(name, {"text": sentences}) for name in ("serving_default", "translate_nbest")]
    best, nbest = run_signatures(version, calls)
    rows = zip(nbest["translations"], nbest["scores"], strict=True)
    answers = (
        [[pair] for pair in zip(best["translation"], best["score"], strict=True)],
        [list(zip(*row, strict=True)) for row in rows],
    )
    return compare_translations("SavedModel", translator, sentences, *answers, tolerance=TOLERANCE)


def run_signatures(
    model: str | Path, calls: Sequence[tuple[str, Mapping[str, Sequence[Any]]]]
) -> list[dict[str, Any]]:
    """Calls signatures of a SavedModel in a graph and session of its own, as a model server does.

    A call is the name of a signature and its inputs. Returns one dict for each call, from the names
    of outputs to nested lists.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  # registers the operations of SentencePiece

    decode = np.vectorize(lambda text: text.decode("utf-8", errors="replace"), otypes=[object])
    found = []
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(model))
        for name, inputs in calls:
            signature = loaded.signature_def[name]
            fetches = {key: info.name for key, info in signature.outputs.items()}
            feeds = {signature.inputs[key].name: values for key, values in inputs.items()}
            outputs = session.run(fetches, feeds).items()
            found.append({x: (decode(y) if y.dtype == object else y).tolist() for x, y in outputs})
    return found


def _write_warmup_requests(version: Path, name: str, sentences: Sequence[str]) -> None:
    """Writes requests that the server runs before a version is available, so that no user waits.

    Each is a PredictionLog with a PredictRequest, written without tensorflow-serving-api.

    Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup, and the messages in
    https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
    """
    import tensorflow as tf

    unset = {"beam_size": -1, "length_penalty": -1.0, "max_length": -1}
    options = {name: [value] * len(sentences) for name, value in unset.items()}
    requests: list[tuple[str, Mapping[str, Any]]] = [
        ("serving_default", {"text": sentences[:1]}),
        ("serving_default", {"text": sentences}),
        ("translate_nbest", {"text": sentences, **options}),
        ("score", {"source": sentences, "target": sentences}),
    ]
    folder = version / "assets.extra"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "tf_serving_warmup_requests")) as writer:
        for signature, inputs in requests:
            request = _field(1, _field(1, name.encode()) + _field(3, signature.encode()))
            for key, values in inputs.items():
                proto = tf.make_tensor_proto(values).SerializeToString()
                request += _field(2, _field(1, key.encode()) + _field(2, proto))
            writer.write(_field(6, _field(1, request)))


def _field(number: int, content: bytes) -> bytes:
    """Returns a length-delimited field of a protocol buffer."""
    _, *rest = BytesValue(value=content).SerializeToString()  # a field with the number 1
    return bytes([number << 3 | 2, *rest])
