"""A model server for tests whose model says the words backwards; small, exact and quick.

`python -m support.reversing_model FOLDER [FLAGS]` saves the model, with the signatures of an
exported one, to FOLDER/model/1. It saves two copies that a test can move beside it: FOLDER/2 works,
the warm-up requests of FOLDER/3 fail. The stand-in server serves FOLDER/model; FLAGS are the
server's.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

DEFAULT_BEAM_SIZE = 4
VOCABULARY_SIZE = 5


def save(path: Path) -> None:
    """Best translation: the words backwards, and minus their number as score.

    The k-th of a beam has k words "again" more, and its score is k less.
    """
    import tensorflow as tf

    text = tf.TensorSpec([None], tf.string, name="text")
    numbers = {
        name: tf.TensorSpec([None], dtype, name=name)
        for name, dtype in (
            ("beam_size", tf.int32),
            ("length_penalty", tf.float32),
            ("max_length", tf.int32),
        )
    }
    ids = {
        name: tf.TensorSpec([None, None], tf.int32, name=name)
        for name in ("source_ids", "target_ids")
    }
    target = {n: tf.TensorSpec([None], tf.string, name=n) for n in ("source", "target")}
    module = tf.Module()
    tf.saved_model.save(
        module,
        str(path),
        signatures={
            "serving_default": tf.function(_translate).get_concrete_function(text),
            "translate_nbest": tf.function(_translate_nbest).get_concrete_function(text, **numbers),
            "score": tf.function(_score).get_concrete_function(**target),
            "encode_tokens": tf.function(_logits).get_concrete_function(**ids),
        },
    )


def _translate(text: Any) -> dict[str, Any]:
    import tensorflow as tf

    words = tf.strings.split(text)
    backwards = tf.strings.reduce_join(words[:, ::-1], axis=1, separator=" ")
    return {"translation": backwards, "score": -tf.cast(words.row_lengths(), tf.float32)}


def _translate_nbest(
    text: Any, beam_size: Any, length_penalty: Any, max_length: Any
) -> dict[str, Any]:
    import tensorflow as tf

    del length_penalty, max_length
    best = _translate(text)
    beam_size = tf.where(beam_size < 0, DEFAULT_BEAM_SIZE, beam_size)
    ranks = tf.range(tf.reduce_max(beam_size))[tf.newaxis]
    is_there = ranks < beam_size[:, tf.newaxis]
    suffixes = tf.map_fn(
        lambda k: tf.strings.reduce_join(tf.fill([k], " again")),
        ranks[0],
        fn_output_signature=tf.string,
    )
    texts = tf.where(is_there, best["translation"][:, tf.newaxis] + suffixes, "")
    scores = best["score"][:, tf.newaxis] - tf.cast(ranks, tf.float32)
    return {
        "translations": texts,
        "scores": tf.where(is_there, scores, -float("inf")),
        "pieces": texts[..., tf.newaxis],
        "alignments": tf.zeros_like(texts[..., tf.newaxis], tf.int32),
    }


def _score(source: Any, target: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {
        "log_probability": -tf.cast(tf.strings.length(source), tf.float32),
        "length": tf.strings.length(target),
    }


def _logits(source_ids: Any, target_ids: Any) -> dict[str, Any]:
    import tensorflow as tf

    del source_ids
    return {"logits": tf.one_hot(target_ids, VOCABULARY_SIZE)}


def write_warmup(path: Path, signature: str) -> None:
    """A file of one warm-up request."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = signature
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(["warm up"]))
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(log.SerializeToString())


def main(folder: Path) -> None:
    first = folder / "model" / "1"
    save(first)
    write_warmup(first, "serving_default")
    for version, signature in (("2", "serving_default"), ("3", "absent")):
        shutil.copytree(first, folder / version, ignore=shutil.ignore_patterns("assets.extra"))
        write_warmup(folder / version, signature)

    from support.stand_in_server import __main__ as stand_in_server

    flags = ["--model_name", "model", "--model_base_path", str(folder / "model")]
    sys.argv[1:] = [*flags, "--port", "0", "--rest_api_port", "0", *sys.argv[2:]]
    stand_in_server.main()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
