"""Exports a Transformer as two ONNX models, and translates with such an export."""

import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer._backend.types import Ids, Tensor
from keras_transformer._files import atomic_write, check_is_free, write_json
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.formats.comparison import Agreement, compare_translations, random_sentences
from keras_transformer.formats.export_options import OnnxWeights, check_quantization
from keras_transformer.formats.exported_model import check_supported
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.translation.base_translator import EXTRA_LENGTH, Overlong
from keras_transformer.translation.long_lines import INVISIBLE
from keras_transformer.translation.translator import Translator

# The constants of at least a page. Their offsets are multiples of it, for memory-mapping.
WEIGHTS = "weights.bin"

# What `config.json` has of the tokenizer.
_OF_TOKENIZER = (
    *("pad_id", "unk_id", "bos_id", "eos_id", "source_vocabulary_size", "target_vocabulary_size"),
    *("source_prefix_ids", "tag_ids", "target_prefix_ids", "source_eos"),
)

# Scores count as equal if they differ by at most this number of nats. On GPUs, matrix products can
# have relative errors of 1e-3.
TOLERANCE = 1e-2


def export_onnx(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: OnnxWeights = "float32",
    sentences: Sequence[str] | None = None,
    options: SearchOptions | None = None,
) -> Agreement:
    """Writes a model as two ONNX models, and compares their translations with the model's.

        encoder.onnx      the encoder, and the keys and values of cross-attention
        step.onnx         one step of the decoder, with a cache of keys and values
        weights.bin       large constants of both graphs; equal constants are stored once
        config.json       special ids, sizes, and search defaults
        tokenizer/        written by `Tokenizer.save`
        translate.py      a beam search that needs only NumPy, onnxruntime and sentencepiece

    `python translate.py < in.txt` does not need this package. The page "Export to ONNX" of the
    documentation lists the inputs and outputs of both graphs, for a search of your own.

    Example:

    >>> export_onnx(open_model(run), run.tokenizer(), "exports/quickstart/onnx")
    >>> onnx_translator("exports/quickstart/onnx").translate(["twenty-six"])

    Args:
        model: A `Transformer` with full attention.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If export or comparison fails, nothing is written.
        quantization: `"float32"` for no quantization, `"int8"` for dynamic quantization of
            linear layers and embeddings, which computes with integers, or `"int8_weights"` for the
            smallest file: each word or column of a matrix has its own scale, and all computation
            is float32. Defaults to `"float32"`.
        sentences: Source sentences for the comparison. Defaults to None, which means random
            sentences.
        options: The default beam size, length penalty and its form, and maximum length of
            `translate.py` and `onnx_translator`. Defaults to `SearchOptions()`. The export does not
            have the other options.

    Raises:
        ImportError: If onnx or onnxruntime is not installed.
        UserError: If `directory` is not empty, if the disk is full, or if the float32 export gives
            other translations or scores than the model.
        ValueError: If a part of the model or `quantization` is not supported. If the model is
            quantized, or the tokenizer belongs to another model.
    """
    from keras_transformer.formats import onnx_graph
    from keras_transformer.formats.onnx_program import StandaloneTranslator

    check_quantization("onnx", quantization)
    check_supported(model, tokenizer, "ONNX", onnx_graph.RULES)
    check_is_free(directory)
    model, options = in_float32(model), options or SearchOptions()
    graphs = {
        "encoder.onnx": onnx_graph.encoder_graph(model),
        "step.onnx": onnx_graph.step_graph(model),
    }
    if quantization == "int8":
        graphs = {name: _quantized(graph) for name, graph in graphs.items()}
    elif quantization == "int8_weights":
        for graph in graphs.values():
            onnx_graph.round_weights(graph)
    has_one_model = tokenizer.source_model == tokenizer.target_model
    config = {
        **{name: getattr(tokenizer, name) for name in _OF_TOKENIZER},
        "source_tokenizer": "source.model",
        "target_tokenizer": "source.model" if has_one_model else "target.model",
        "num_layers": model.decoder.num_layers,
        "num_heads": model.num_heads,
        "d_k": model.decoder.layers[0].self_attention.d_k,
        "max_length": model.max_length,
        "extra_length": EXTRA_LENGTH,
        "quantization": quantization,
        "beam_size": options.beam_size,
        "length_penalty": options.length_penalty,
        "length_penalty_form": options.length_penalty_form,
        "search_max_length": options.max_length,
        "invisible": INVISIBLE,
    }
    with atomic_write(directory) as partial:
        partial.mkdir()
        _save(graphs, partial)
        write_json(partial / "config.json", config)
        tokenizer.save(partial / "tokenizer")
        shutil.copyfile(Path(__file__).with_name("onnx_program.py"), partial / "translate.py")
        sentences = sentences or random_sentences(tokenizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no warnings about truncation
            pairs = StandaloneTranslator(partial).translate(sentences)
        return compare_translations(
            "ONNX model",
            Translator(model, tokenizer, _options(config), overlong="truncate"),
            sentences,
            [[pair] for pair in pairs],
            tolerance=TOLERANCE,
            is_exact=quantization == "float32",
        )


def _quantized(graph: Any) -> Any:
    import onnx
    from onnxruntime import quantization

    # Prevents a warning that asks for preprocessing, which these graphs do not need.
    onnx.helper.set_model_props(graph, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantization.quantize_dynamic(graph, path, per_channel=True)
        return onnx.load(path)


def _save(graphs: dict[str, Any], directory: Path) -> None:
    """Writes each graph to a file, and the large constants of all graphs to another file."""
    from onnx import numpy_helper
    from onnx.external_data_helper import set_external_data

    from keras_transformer.formats.onnx_graph import PAGE

    offsets: dict[bytes, int] = {}
    constants = [constant for graph in graphs.values() for constant in graph.graph.initializer]
    with (directory / WEIGHTS).open("wb") as file:
        for constant in constants:
            data = numpy_helper.to_array(constant).tobytes()
            if len(data) < PAGE:
                continue
            if data not in offsets:
                offsets[data] = -(-file.tell() // PAGE) * PAGE
                file.seek(offsets[data])
                file.write(data)
            constant.raw_data = data
            set_external_data(constant, WEIGHTS, offsets[data], len(data))
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                constant.ClearField(field)
    for name, graph in graphs.items():
        (directory / name).write_bytes(graph.SerializeToString())


def _options(config: dict[str, Any]) -> SearchOptions:
    own = {name: config[name] for name in ("beam_size", "length_penalty", "length_penalty_form")}
    return SearchOptions(max_length=config["search_max_length"], **own)


def onnx_translator(
    directory: str | Path,
    options: SearchOptions | None = None,
    overlong: Overlong = "split",
    tokens_per_batch: int | None = None,
    num_threads: int = 0,
) -> Translator:
    """Returns a `Translator` whose model runs in onnxruntime, on any backend.

    It has all search options except the coverage penalty, also those that `translate.py` in the
    folder lacks, such as n-best lists and sampling, but neither alignments nor shortlists.

    Example:

    >>> onnx_translator("exports/quickstart/onnx").translate(["twenty-six"])

    Args:
        directory: A folder written by `export_onnx`.
        options: The search options. Defaults to None, which means the exported options.
        overlong: As for `Translator`.
        tokens_per_batch: As for `Translator`.
        num_threads: Number of threads per operation. Defaults to 0, which means one per core.

    Raises:
        OSError: If the folder does not exist.
    """
    from keras_transformer.formats.onnx_program import OnnxModel

    model = OnnxSearchable(OnnxModel(directory, num_threads))
    tokenizer = Tokenizer.load(Path(directory) / "tokenizer")
    return Translator(
        model, tokenizer, options or _options(model.config), overlong, tokens_per_batch
    )


class OnnxSearchable:
    """An exported ONNX model, an `OnnxModel`, as a `Searchable` (`models/protocol.py`)."""

    compiles = False  # Search runs its loop in Python.
    variables = ()

    def __init__(self, model: Any) -> None:
        self._model, self.config = model, model.config
        self.max_length, self.pad_id = self.config["max_length"], self.config["pad_id"]
        self.vocabulary_size = self.config["source_vocabulary_size"]
        self.target_vocabulary_size = self.config["target_vocabulary_size"]

    def init_cache(self, source_ids: Ids, max_length: int | None, beam_size: int = 1) -> Cache:
        """Returns the cache. Search reorders only the parents of the hypotheses in it.

        `step.onnx` then reorders the keys and values.
        """
        ids = ops.convert_to_numpy(source_ids)
        parents = np.zeros((len(ids), beam_size), "int32")
        return Cache(beam=parents, sentence=self._model.encode(ids))

    def step(self, token_ids: Ids, cache: Cache, position: Tensor | int) -> tuple[Any, Cache]:
        """Returns the logits, float32 `(B, N, V)`, and the cache."""
        state = {name: ops.convert_to_numpy(x) for name, x in cache.sentence.items()}
        token_ids, parents = map(ops.convert_to_numpy, (token_ids, cache.beam))
        (logits,), state = self._model.step(token_ids, parents, state, ["logits"])
        own = np.broadcast_to(np.arange(parents.shape[1], dtype="int32"), parents.shape)
        return logits, Cache(beam=own, sentence=state)
