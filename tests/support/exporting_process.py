"""What tests of the SavedModel need TensorFlow for, on any backend: one process for all of them.

`python -m support.exporting_process FOLDER first` exports a small model with random weights to
FOLDER/model/1, saves it as FOLDER/model.keras and FOLDER/tokenizer, and writes FOLDER/first.json.
`other` instead of `first` writes FOLDER/other.json, for slow tests. tests/ must be in PYTHONPATH.
"""

import json
import random
import sys
from pathlib import Path
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import SearchOptions
from keras_transformer.data import Tokenizer
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import UserError
from keras_transformer.formats import saved_model
from keras_transformer.formats.saved_model import run_signatures
from keras_transformer.formats.translation_graph import (
    GraphTokenizer,
    map_length_chunks,
)
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.translation.scoring import Scorer
from keras_transformer.translation.translator import Translator
from support.contract import randomize
from support.parallel_text import LOSSLESS_TARGET

WORDS = "a bad cab fed a deaf face add bead cafe dab each fad".split()
PAIRS = [(word, word[::-1].upper()) for word in WORDS]
SENTENCES = ["a bad cab", "\u00ad", "fed a deaf face", " dab\u3000", "each fad add bead", "zzz 😀"]
BEAM_SIZE, LONGEST = 3, 24
SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 11, "max_length": LONGEST}

TEXTS = [
    "",
    " \t\n",
    "a bad cab",
    "\u3000 a\u2003bad  cab\x85\x1f",
    "\x1c a \u200b\ufeff",
    "😀👩‍👩‍👧 a",
    "한국어 텍스트",
    "العربية \u202eabc\u202c",
    "a\x00b\x07c",
    "é e\u0301 ﬁ ① ½",
    "▁a ▁ <s> </s> <unk> <pad>",
    "ba" * 5000,
]
BYTES = [b"\xff\xfe a \xc3", b"\xed\xa0\x80bad", b"a\xe2\x82", b"\x80 cab \x80"]


def random_texts():
    """Strings of characters from all over Unicode, but for the halves of surrogate pairs."""
    generator = random.Random(0)
    for limit in (0x80, 0x3100, 0x110000):
        for _ in range(30):
            codes = [generator.randrange(1, limit) for _ in range(generator.randrange(1, 9))]
            yield "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def tokenizer_answers(tokenizer):
    """Ids of texts and of bytes, and texts and pieces of random ids, by the operations."""
    graph = GraphTokenizer(tokenizer)
    texts = [*TEXTS, *random_texts()]
    generator = np.random.default_rng(0)
    ids = generator.integers(1, tokenizer.target_vocabulary_size, (20, 7))
    ids[np.arange(7) >= generator.integers(0, 8, (20, 1))] = tokenizer.pad_id
    ids = ids.astype("int32")
    return {
        "texts": texts,
        "source_ids": graph.encode_source(tf.constant(texts)).to_list(),
        "target_ids": graph.encode_target(tf.constant(texts)).to_list(),
        "bytes": [text.hex() for text in BYTES],
        "bytes_ids": graph.encode_source(tf.constant(BYTES)).to_list(),
        "ids": ids.tolist(),
        "decoded": [text.decode() for text in graph.decode_target(tf.constant(ids)).numpy()],
        "pieces": [[piece.decode() for piece in row] for row in graph.pieces(ids).numpy()],
    }


def chunk_answers():
    """Rows doubled up to the greatest length of their chunk, and this length."""

    def double(rows, longest):
        widths = [[0, 0], [0, 9 - longest]]
        return [tf.pad(2 * rows[:, :longest], widths), tf.fill(tf.shape(rows)[:1], longest)]

    @tf.function(autograph=False)
    def chunked(rows, lengths):
        empty = [tf.zeros([0, 9], tf.int32), tf.zeros([0], tf.int32)]
        return map_length_chunks(double, [rows], lengths, 8, empty)

    lengths = tf.constant([1, 4, 2, 5, 2, 1, 9])
    rows = tf.reshape(tf.range(63), (7, 9))
    found = [values.numpy().tolist() for values in chunked(rows, lengths)]
    empty = [values.numpy().shape for values in chunked(rows[:0], lengths[:0])]
    return {"rows": rows.numpy().tolist(), "found": found, "empty": empty}


def failing_answers(model, tokenizer, folder):
    """What is left and said where the SavedModel would translate otherwise than the model."""
    wrong = {"score": [0.5], "translation": ["nonsense"]}
    nbest = {"scores": [[0.5] * 4], "translations": [["nonsense"] * 4]}
    with (
        patch.object(saved_model, "run_signatures", lambda *_: [wrong, nbest]),
        patch.object(saved_model, "_save", lambda _, version: version.mkdir() or 0),
    ):
        message = error_of(
            saved_model.export_saved_model, model, tokenizer, folder / "model", sentences=["a"]
        )
    return {"error": message, "left": [path.name for path in (folder / "model").iterdir()]}


def error_of(function, *arguments, **options):
    """The message of the error, or None."""
    try:
        function(*arguments, **options)
    except (UserError, tf.errors.InvalidArgumentError) as error:
        return getattr(error, "message", str(error))


def other_answers(folder):
    """What an export gives that is made of all that the first one has not.

    The model has mixed precision, a vocabulary for each side, an output matrix of its own, a bias
    of the logits, other positions, prefixes, sources without eos, a minimum length, which a smaller
    maximum becomes, and a shortlist. The export compares itself with the model. It is also loaded
    without a session, as in TensorFlow 2.
    """
    tokenizer = Tokenizer.load(folder / "separate_tokenizer")
    models, prefixes = (tokenizer.source_model, tokenizer.target_model), ["a", "b"]
    frames = {"source_prefix": prefixes, "target_prefix": ["D", "B"], "source_eos": False}
    tokenizer = Tokenizer(*models, **frames)
    sizes = tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size
    model = Transformer(
        *sizes,
        **SIZES,
        position_encoding="sinusoidal_fairseq",
        tie_word_embeddings=False,
        use_logits_bias=True,
        dtype="mixed_bfloat16",
    )
    randomize(model)
    shortlist, options = shortlist_of(tokenizer), SearchOptions(beam_size=2, min_length=6)
    exported = saved_model.export_saved_model(
        model,
        tokenizer,
        folder / "other",
        options=options,
        sentences=SENTENCES,
        shortlist=shortlist,
    )
    signatures = tf.saved_model.load(str(exported.directory)).signatures
    _, least = nbest(SENTENCES, *([value] * len(SENTENCES) for value in (-1, -1.0, 3)))
    least = {name: tf.constant(values) for name, values in least.items()}
    found = (
        signatures["serving_default"](text=least["text"])["translation"],
        signatures["translate_nbest"](**least)["translations"][:, 0],
    )
    exact = in_float32(model)
    translators = (
        Translator(exact, tokenizer, each, shortlist=shortlist)
        for each in (options, options.replace(max_length=6))
    )
    ids = {"source_ids": tf.constant([[5, 6, 3]]), "target_ids": tf.constant([[2, 7]])}
    pair = SENTENCES[:1], [SENTENCES[0].upper()]
    scored = signatures["score"](source=tf.constant(pair[0]), target=tf.constant(pair[1]))
    return {
        "scored": [float(scored[x][0]) for x in ("log_probability", "length")],
        "expected scores": Scorer(exact, tokenizer).score(*pair)[0],
        "comparison": exported.comparison,
        "found": [[text.decode() for text in texts.numpy()] for texts in found],
        "expected": [translator.translate(SENTENCES) for translator in translators],
        "logits": signatures["encode_tokens"](**ids)["logits"].numpy().tolist(),
        "expected logits": exact(ids).numpy().tolist(),
        "refused": refused_answers(signatures["encode_tokens"]),
    }


def refused_answers(request):
    """The messages of requests for logits that fail."""
    calls = [
        ([[5, 18, 3]], [[2, 6]]),
        ([[5, -1, 3]], [[2, 6]]),
        ([[5, 3]], [[2, 18]]),
        ([[5] * (LONGEST + 1)], [[2, 6]]),
        ([[5, 3]], [[2] * (LONGEST + 2)]),
    ]
    given = (map(tf.constant, call) for call in calls)
    return [error_of(request, source_ids=x, target_ids=y) for x, y in given]


def first_answers(folder):
    joint = Tokenizer.train(PAIRS, 40)
    separate = Tokenizer.train(PAIRS, 18, "unigram", joint=False, normalization="identity")
    normalized = Tokenizer.train([*PAIRS, ("ﬁ", "½ e\u0301 b\u200cc")], 40, **LOSSLESS_TARGET)
    model = Transformer(40, **SIZES)
    randomize(model)
    model.save(folder / "model.keras")
    joint.save(folder / "tokenizer")
    separate.save(folder / "separate_tokenizer")
    normalized.save(folder / "normalized_tokenizer")
    options = SearchOptions(beam_size=BEAM_SIZE)
    exported = saved_model.export_saved_model(
        model, joint, folder / "model", options=options, sentences=SENTENCES
    )
    return {
        "exported": {**exported._asdict(), "directory": str(exported.directory)},
        "joint": tokenizer_answers(joint),
        "separate": tokenizer_answers(separate),
        "normalized": tokenizer_answers(normalized),
        "chunks": chunk_answers(),
        "signatures": signature_answers(exported.directory),
        "defaults": default_answers(exported.directory),
        "served": served_answers(exported.directory),
        "failing": failing_answers(model, joint, folder),
        "lacking": error_of(saved_model.check_operations, lacking_graph()),
    }


def lacking_graph():
    """A graph with operations that a stock server lacks, one of them in a function."""
    graph = graph_pb2.GraphDef()
    for name in ("XlaDynamicUpdateSlice", "MatMul", "SentencepieceOp", "body"):
        graph.node.add(op=name)
    function = graph.library.function.add()
    function.signature.name = "body"
    function.node_def.add(op="RoundRobinTrimmer")
    return graph


def shortlist_of(tokenizer):
    """The reversed word alone, of which nothing is frequent but the letters A and B."""
    sources = tokenizer.encode_source([source for source, _ in PAIRS])
    targets = tokenizer.encode_target([target for _, target in PAIRS])
    translations = np.full((tokenizer.source_vocabulary_size, 4), -1, "int32")
    for source, target in zip(sources, targets, strict=True):
        translations[source[0], : len(target[:4])] = target[:4]
    return Shortlist(np.array([5, 9], "int32"), translations, tokenizer.fingerprint)


def default_answers(version):
    """What the signatures put where a request leaves an input out."""
    saved = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    return {
        name: {key: values_of(proto) for key, proto in signature.defaults.items()}
        for name, signature in saved.meta_graphs[0].signature_def.items()
        if signature.defaults
    }


def served_answers(version):
    """What TensorFlow Serving's own classes read; None where they are not installed."""
    try:
        from tensorflow_serving.apis import prediction_log_pb2
        from tensorflow_serving.config import model_server_config_pb2
    except ImportError:
        return None
    config = text_format.Parse(
        (version.parent / "models.config").read_text(), model_server_config_pb2.ModelServerConfig()
    )
    records = tf.data.TFRecordDataset(version / "assets.extra" / "tf_serving_warmup_requests")
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    requests = [log.predict_log.request for log in logs]
    return {
        "models": [
            [x.name, x.base_path, x.model_platform] for x in config.model_config_list.config
        ],
        "warmup": [
            [request.model_spec.name, request.model_spec.signature_name] for request in requests
        ],
    }


def values_of(proto):
    values = tf.make_ndarray(proto).tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def nbest(texts, *options):
    names = ("beam_size", "length_penalty", "max_length")
    return "translate_nbest", {"text": texts, **dict(zip(names, options, strict=True))}


def signature_answers(version):
    """Calls of the exported model by their names."""
    options = [1, 2, -1, 4, 2, 99], [0.0, 1.0, -1.0, 0.6, 2.0, -1.0], [-1, 5, 4, 2, -1, 999]
    rows = list(zip(SENTENCES, *options, strict=True))
    source_ids, target_ids = [[5, 9, 3, 0], [7, 8, 11, 3]], [[2, 6, 7], [2, 9, 0]]
    calls = {
        "default": ("serving_default", {"text": SENTENCES}),
        "nbest": nbest(SENTENCES, *([value] * len(SENTENCES) for value in (-1, -1.0, -1))),
        "long": ("serving_default", {"text": ["bad " * 2000, "bad " * 30]}),
        "together": nbest(SENTENCES, *options),
        **{f"alone {i}": nbest(*([value] for value in rows[i])) for i in (0, 2, 3, 5)},
        "left out": ("translate_nbest", {"text": SENTENCES}),
        "negative": nbest(SENTENCES, *([x] * len(SENTENCES) for x in (-7, float("nan"), -9))),
        "penalty 10": nbest(SENTENCES[:1], [2], [10.0], [-1]),
        "penalty 1e9": nbest(SENTENCES[:1], [2], [1e9], [-1]),
        "score": (
            "score",
            {"source": ["a bad cab", "fed", "fed"], "target": ["A", "BA" * 500, ""]},
        ),
        "logits": ("encode_tokens", {"source_ids": source_ids, "target_ids": target_ids}),
        "some invalid": (
            "encode_tokens",
            {"source_ids": [source_ids[0], [5, 40, 3, 0]], "target_ids": [[2, 6, 7], [2, -1, 0]]},
        ),
    }
    found = run_signatures(version, list(calls.values()))
    return {
        name: {"inputs": call[1], "outputs": outputs}
        for (name, call), outputs in zip(calls.items(), found, strict=True)
    }


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    folder, part = Path(sys.argv[1]), sys.argv[2]
    answers = {"first": first_answers, "other": other_answers}[part](folder)
    (folder / f"{part}.json").write_text(json.dumps(answers), encoding="utf-8")
