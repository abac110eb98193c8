"""A Transformer as two ONNX models, for onnxruntime and whatever else reads ONNX."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from keras import ops

from keras_transformer._files import atomic_write
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.buckets import padded
from keras_transformer.decoding.translator import EXTRA_LENGTH
from keras_transformer.errors import UserError
from keras_transformer.export.checks import (
    check_attention,
    check_is_free,
    check_model,
    random_sentences,
)
from keras_transformer.export.weights import in_float32
from keras_transformer.models import Transformer

QUANTIZATIONS = ("float32", "int8")
WEIGHTS = "weights.bin"

# Constants of fewer bytes stay in the graphs; larger ones begin at multiples of it, to be mapped.
PAGE = 4096

# The largest difference of logits, as a share of the largest logit; GPUs round to 1e-3 by default.
TOLERANCE = 1e-2

# What is checked: sentences, hypotheses of each, candidates of which one is drawn, most tokens.
SENTENCES, BEAMS, CANDIDATES, STEPS = 16, 2, 3, 24


def export_onnx(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: Literal["float32", "int8"] = "float32",
    sentences: Sequence[str] | None = None,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> float:
    """Writes a model as a folder of ONNX models, and compares them with it.

        encoder.onnx      the encoder, and what the decoder needs of it
        step.onnx         one step of the decoder, with its cache
        weights.bin       the constants of both, each once
        config.json       special ids, sizes, and how to search by default
        tokenizer/        as `Tokenizer.save` leaves it
        translate.py      beam search by NumPy, onnxruntime and sentencepiece, see `OnnxTranslator`

    `python translate.py < in.txt` needs nothing of this package. Those who write a search of their
    own find these inputs and outputs, ids int64 and the rest float32 but for the mask; B, S, N,
    N' and T may be anything; `{i}` is each layer's number from 1 on.

    `encoder.onnx`, from source ids (pieces and eos, padded at the end):

    - `source_ids` `(B, S)`
    - gives `source_mask`, bool `(B, 1, 1, S)`, `memory_key_{i}` `(B, H, K, S)` and
      `memory_value_{i}` `(B, H, S, K)`, all of them inputs of the step by the same names.

    `step.onnx`, from the newest tokens of N hypotheses a sentence, all at the same position:

    - `token_ids` `(B, N)`, bos at first
    - `parents` `(B, N)`: which of the N' hypotheses of the last step each one continues; 0 at first
    - `num_candidates` `(1,)`: how many next tokens C to name
    - `past_key_{i}`, `past_value_{i}` `(B, N', H, T, K)`: at first empty, with N' = 1 and T = 0;
      then `key_{i}` and `value_{i}` of the last step
    - gives `logits` `(B, N, V)`; `candidate_ids` and `candidate_log_probabilities` `(B, N, C)`,
      the most probable next tokens but padding and bos, descending, in nats; `key_{i}`,
      `value_{i}` `(B, N, H, T + 1, K)`.

    The graphs are written from the weights, on any backend; nothing is traced, no other exporter
    is needed. Positions are a table of `model.max_length` rows.

    Example:

    ```python
    export_onnx(run.model(), run.tokenizer(), "runs/quickstart/onnx")
    OnnxTranslator("runs/quickstart/onnx").translate(["twenty-six"])
    ```

    Args:
        model: A `Transformer` with any positions but ALiBi and T5, without local or strided
            attention. Of one in mixed precision the float32 weights are exported.
        tokenizer: The `Tokenizer` that it was trained with.
        directory: A new or empty folder; it appears complete and compared, or not at all.
        quantization: `"float32"`, or `"int8"`: the matrices of linear maps and embeddings in 8
            bits, with a scale for each column where onnxruntime has one; activations are quantized
            as they come. Defaults to `"float32"`.
        sentences: Source sentences to compare by, some of them. Defaults to None: random ones.
        beam_size: Default of `OnnxTranslator`. Defaults to 4.
        length_penalty: Default of `OnnxTranslator`. Defaults to 0.6.

    Returns:
        The share of next tokens, along hypotheses drawn at random, of which model and export find
        the same one most probable.

    Raises:
        ImportError: If onnx or onnxruntime is not installed.
        UserError: If `directory` is a folder with something in it, the disk is full, or logits of
            the float32 export differ from the model's.
        ValueError: If ONNX has no counterpart for activation or attention or there is no such
            `quantization`, the model is quantized already, or the tokenizer is not the model's.
    """
    onnx_graph = _import_graphs()
    _check(model, tokenizer, onnx_graph, quantization)
    check_is_free(directory)
    graphs = {
        "encoder.onnx": onnx_graph.encoder_graph(model),
        "step.onnx": onnx_graph.step_graph(model, tokenizer.bos_id),
    }
    if quantization == "int8":
        graphs = {name: _quantized(graph) for name, graph in graphs.items()}
    config = {
        **_config(model, tokenizer),
        "quantization": quantization,
        "beam_size": beam_size,
        "length_penalty": length_penalty,
    }
    with atomic_write(directory) as partial:
        partial.mkdir()
        _save(graphs, partial)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        tokenizer.save(partial / "tokenizer")
        shutil.copyfile(Path(__file__).with_name("onnx_translator.py"), partial / "translate.py")
        source_ids = _source_ids(model, tokenizer, sentences)
        return _compare(partial, model, source_ids, is_exact=quantization == "float32")


def _import_graphs() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401

        from keras_transformer.export import onnx_graph
    except ImportError as error:
        raise ImportError(
            "export_onnx needs onnx and onnxruntime: pip install 'keras3-transformer[onnx]'"
        ) from error
    return onnx_graph


def _check(model: Transformer, tokenizer: Tokenizer, onnx_graph: Any, quantization: str) -> None:
    check_model(model, tokenizer)
    check_attention(model, "The ONNX export")
    if model.activation not in onnx_graph.ACTIVATIONS:
        raise ValueError(
            f"The ONNX export has no such activation, only {list(onnx_graph.ACTIVATIONS)}. "
            f"Received: model.activation={model.activation!r}"
        )
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"`quantization` must be one of {list(QUANTIZATIONS)}. "
            f"Received: quantization={quantization!r}"
        )


def _config(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "pad_id": tokenizer.pad_id,
        "unk_id": tokenizer.unk_id,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "source_vocabulary_size": tokenizer.source_vocabulary_size,
        "target_vocabulary_size": tokenizer.target_vocabulary_size,
        "source_tokenizer": "source.model",
        "target_tokenizer": "source.model" if tokenizer.joint else "target.model",
        "num_layers": model.decoder.num_layers,
        "num_heads": model.num_heads,
        "d_k": model.d_model // model.num_heads,
        "max_length": model.max_length,
        "extra_length": EXTRA_LENGTH,
    }


def _quantized(graph: Any) -> Any:
    import onnx
    from onnxruntime import quantization

    # onnxruntime's preparation would fold constants and infer shapes; there is nothing to do here.
    onnx.helper.set_model_props(graph, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantization.quantize_dynamic(graph, path, per_channel=True)
        return onnx.load(path)


def _save(graphs: dict[str, Any], directory: Path) -> None:
    """Writes the graphs, and their large constants beside them into one file, each once."""
    from onnx import numpy_helper
    from onnx.external_data_helper import set_external_data

    offsets: dict[bytes, int] = {}
    with (directory / WEIGHTS).open("wb") as file:
        for constant in (c for graph in graphs.values() for c in graph.graph.initializer):
            data = numpy_helper.to_array(constant).tobytes()
            if len(data) < PAGE:
                continue
            digest = hashlib.sha256(data).digest()
            if digest not in offsets:
                offsets[digest] = -(-file.tell() // PAGE) * PAGE
                file.seek(offsets[digest])
                file.write(data)
            constant.raw_data = data
            set_external_data(constant, WEIGHTS, offsets[digest], len(data))
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                constant.ClearField(field)
    for name, graph in graphs.items():
        (directory / name).write_bytes(graph.SerializeToString())


# --- Comparison ----------------------------------------------------------------------------------


def _source_ids(
    model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str] | None
) -> np.ndarray:
    """Some of the sentences, or random ones, padded."""
    longest = model.max_length - 1
    texts = sentences or random_sentences(tokenizer, SENTENCES)
    sources = [ids[:longest] for ids in tokenizer.encode_source(texts) if ids][:SENTENCES]
    rows, width = len(sources), 1 + max(map(len, sources))
    return padded([[*ids, tokenizer.eos_id] for ids in sources], rows, width, tokenizer.pad_id)


def _compare(directory: Path, model: Transformer, source_ids: np.ndarray, is_exact: bool) -> float:
    """The share of equal most probable tokens; an exact export has the logits of the model."""
    ids, logits = _random_hypotheses(directory, source_ids, min(STEPS, model.max_length))
    rows = {
        "source_ids": np.repeat(source_ids, BEAMS, axis=0),
        "target_ids": ids.reshape(-1, ids.shape[-1]).astype("int32"),
    }
    expected = ops.convert_to_numpy(in_float32(model)(rows)).reshape(logits.shape)
    difference = np.max(np.abs(logits - expected)) / np.max(np.abs(expected))
    # Not a number is no small difference either.
    if is_exact and not difference <= TOLERANCE:
        raise UserError(
            "the ONNX model does not compute what the model computes, nothing was written: logits "
            f"differ by {difference:.1%} of the largest"
        )
    return float(np.mean(np.argmax(logits, axis=-1) == np.argmax(expected, axis=-1)))


def _random_hypotheses(
    directory: Path, source_ids: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hypotheses that continue one another at random, by the exported model.

    Returns:
        A tuple of their ids, bos first, `(B, N, steps)`, and of the logits that were seen on the
        way to each, `(B, N, steps, V)`.
    """
    from keras_transformer.export.onnx_translator import OnnxModel

    exported = OnnxModel(directory)
    random, batch = np.random.default_rng(0), len(source_ids)
    row = np.arange(batch)[:, None]
    ids = np.full((batch, BEAMS, steps), exported.config["bos_id"])
    logits = np.zeros((*ids.shape, exported.config["target_vocabulary_size"]), "float32")
    parents = np.zeros((batch, BEAMS), "int64")
    state = exported.encode(source_ids)
    for position in range(steps):
        step = exported.step(ids[:, :, position], parents, CANDIDATES, state)
        state = step.state
        logits[:, :, position] = step.logits.numpy()
        if position + 1 < steps:
            parents = random.integers(BEAMS, size=(batch, BEAMS))
            ids, logits = ids[row, parents], logits[row, parents]
            drawn = random.integers(CANDIDATES, size=(batch, BEAMS))
            ids[:, :, position + 1] = step.ids[row, parents, drawn]
    return ids, logits
