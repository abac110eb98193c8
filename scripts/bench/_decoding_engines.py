"""One search with one set of weights in four engines. As a program: a worker that decodes.

The weights are random and made such that neither padding nor bos nor eos can win: every hypothesis
is as long as it is allowed to be, in all engines alike. Each engine loads them from a file of its
own kind, which a worker of the action `prepare` has written. Sources are ids, results are ids.

What the engines can and cannot do: KerasHub's sampler reorders its whole cache at every step,
rounds log-probabilities through a softmax, has no length penalty, and needs one more pass of the
decoder, for bos, to fill the cache of the cross-attention; its cross-attention's cache is kept out
of the sampler here, so that at least this is not reordered. CTranslate2 takes and gives strings.
"""

import dataclasses
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import _common
import numpy as np

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
MAX_POSITIONS = 1024
MATRIX_SIZE = 2048
WIDE_SIZE = 8192  # 256 MiB, more than any cache
SCORED_AT_ONCE = 16
LAYER_NORM_EPSILON = 1e-6
# CTranslate2's 0 is off as well, but goes with another rule when to stop.
CTRANSLATE2_NO_PENALTY = 1e-9


@dataclass(frozen=True)
class Case:
    """Sizes of a model and of what is decoded with it; a beam of 1 is greedy search."""

    name: str
    model: str
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocabulary_size: int
    source_length: int
    batch_size: int
    beam_size: int
    target_length: int

    @property
    def target_tokens(self) -> int:
        return self.batch_size * self.target_length

    @property
    def flops(self) -> int:
        """Floating point operations of the matrix products of one search.

        The encoder reads each sentence once; every hypothesis pays for each of its tokens the
        decoder's layers and the projection, and for attention 2 D for each position seen so far
        and each of the source. A multiply-add is 2 operations. Nothing else is counted.
        """
        d, source, target = self.d_model, self.source_length, self.target_length
        feed_forward = 2 * d * self.d_ff
        encoder = source * (4 * d * d + feed_forward + 2 * source * d)
        memory = source * 2 * d * d  # cross-attention's keys and values
        seen = target * (target + 1) // 2
        decoder = target * (6 * d * d + feed_forward + 2 * source * d) + 2 * seen * d
        projection = target * d * self.vocabulary_size
        of_sentence = self.num_layers * (encoder + memory)
        of_hypothesis = self.num_layers * decoder + projection
        return 2 * self.batch_size * (of_sentence + self.beam_size * of_hypothesis)

    @property
    def weight_bytes(self) -> int:
        """What a step of the decoder reads of its float32 matrices, biases and norms left out."""
        d = self.d_model
        of_layer = 6 * d * d + 2 * d * self.d_ff  # cross-attention's keys and values are cached
        return 4 * (self.num_layers * of_layer + d * self.vocabulary_size)


_TINY = ("tiny", 4, 128, 4, 256, 10_000, 16)
_BASE = ("base", 6, 512, 8, 2048, 32_000, 32)
CASES = {
    case.name: case
    for case in (
        Case("tiny-32x4", *_TINY, batch_size=32, beam_size=4, target_length=24),
        Case("tiny-1x1", *_TINY, batch_size=1, beam_size=1, target_length=24),
        Case("base-16x4", *_BASE, batch_size=16, beam_size=4, target_length=32),
        Case("base-1x1", *_BASE, batch_size=1, beam_size=1, target_length=32),
    )
}


@dataclass(frozen=True)
class Setting:
    """An engine and how it is run."""

    engine: str
    backend: str | None = None
    dtype: str = "float32"
    jit_compile: bool = False
    threads: int = _common.THREADS
    shortlist: bool = False

    def __str__(self) -> str:
        where = f" on {self.backend}" if self.backend else ""
        jit = ", jit" if self.jit_compile else ""
        shortlist = ", shortlist" if self.shortlist else ""
        return f"{self.engine}{where}, {self.dtype}{jit}{shortlist}, {self.threads} threads"


def comparable(ours: Setting, peer: Setting) -> bool:
    """8-bit weights are compared with 8-bit weights only, float32 with everything."""
    return ours.dtype in ("float32", peer.dtype)


OURS = "keras_transformer"
ENGINES = (OURS, "keras_hub", "marian", "ctranslate2")


def groups_of(engines: Sequence[str], backends: Sequence[str]) -> list[list[Setting]]:
    """The settings of engines; of each group the fastest is kept.

    JAX without jit is far slower; so is torch.compile, which meets a new length at every step.
    """
    groups = {
        OURS: [[Setting(OURS, b, dtype)] for b in backends for dtype in ("float32", "int8")],
        "keras_hub": [
            [Setting("keras_hub", backend, jit_compile=jit) for jit in _HUB_JIT[backend]]
            for backend in backends
        ],
        "marian": [[Setting("marian", "torch")]],
        "ctranslate2": [
            [Setting("ctranslate2", dtype=dtype, threads=threads) for threads in (1, 2)]
            for dtype in ("float32", "int8")
        ],
    }
    return [group for engine in engines for group in groups[engine]]


_HUB_JIT = {"tensorflow": (True, False), "jax": (True,), "torch": (False,)}


@dataclass(frozen=True)
class Engine:
    """What a worker times.

    `decode` takes a length and returns the best hypothesis of each sentence, ids `(B, length)`.
    Further actions are those that this package alone has.
    """

    decode: Callable[[int], np.ndarray]
    further_actions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def source_ids(case: Case) -> np.ndarray:
    """Random pieces, then eos; no padding."""
    random = np.random.default_rng(0)
    shape = (case.batch_size, case.source_length)
    ids = random.integers(EOS_ID + 1, case.vocabulary_size, shape, dtype="int32")
    ids[:, -1] = EOS_ID
    return ids


# --- This package --------------------------------------------------------------------------------


def new_model(case: Case) -> Any:
    """A `Transformer` with random weights that never ends a sentence.

    Half-split sinusoids are those that Marian has.
    """
    import keras

    from keras_transformer.models import Transformer

    keras.utils.set_random_seed(0)
    model = Transformer(
        case.vocabulary_size,
        num_layers=case.num_layers,
        d_model=case.d_model,
        num_heads=case.num_heads,
        d_ff=case.d_ff,
        position_encoding="sinusoidal_half_split",
        max_length=MAX_POSITIONS,
    )
    # A fresh norm's output sums to 0, so a constant row meets nothing but the norm's shift: its
    # logit is -D / 4.
    embeddings = keras.ops.convert_to_numpy(model.target_embedding.embeddings).copy()
    embeddings[[PAD_ID, BOS_ID, EOS_ID]] = -0.5
    model.target_embedding.embeddings.assign(embeddings)
    last_norm = model.decoder.layers[-1].feed_forward_residual.norm
    last_norm.beta.assign(np.full(case.d_model, 0.5, "float32"))
    return model


def save_keras_transformer(model: Any, case: Case, folder: Path) -> None:
    model.save(folder / "model.keras")


def load_keras_transformer(case: Case, setting: Setting, folder: Path) -> Engine:
    """The compiled functions that `Translator` uses; they themselves decide on XLA."""
    import keras

    from keras_transformer import SearchOptions, compile_function, search
    from keras_transformer.runs.loading import load_model

    model = load_model(folder / "model.keras")
    if setting.dtype == "int8":
        model.quantize("int8")
    sources = source_ids(case)
    compiled = compile_function(search, model)
    options = SearchOptions(beam_size=case.beam_size, length_penalty=0.0)

    def decode(length: int) -> np.ndarray:
        return keras.ops.convert_to_numpy(
            compiled(sources, max_length=length, options=options).ids
        )[:, 0]

    def log_probabilities(rows: list[int], targets: list[list[int]]) -> list[float]:
        """Of target ids, given the sources of these rows."""
        return model_log_probabilities(model, sources[rows].tolist(), targets)

    actions = {
        "log_probabilities": log_probabilities,
        "matmul_flops": keras_matmul_flops,
        "bytes_per_s": keras_bytes_per_s,
    }
    return Engine(decode, actions)


def model_log_probabilities(
    model: Any, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> list[float]:
    """Log-probability of each target by teacher forcing.

    Args:
        model: A `Transformer`.
        sources: Source ids, eos included.
        targets: Target ids without bos, eos included where there is one.
    """
    from keras import ops

    source_ids, labels = padded(sources), padded(targets)
    target_ids = np.insert(labels[:, :-1], 0, BOS_ID, axis=1)
    totals: list[float] = []
    for start in range(0, len(labels), SCORED_AT_ONCE):
        rows = slice(start, start + SCORED_AT_ONCE)
        logits = model({"source_ids": source_ids[rows], "target_ids": target_ids[rows]})
        log_probabilities = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        chosen = ops.take_along_axis(log_probabilities, labels[rows, :, None], axis=-1)
        real = labels[rows] != PAD_ID
        totals += (
            (ops.convert_to_numpy(chosen)[..., 0] * real).sum(axis=-1, dtype="float64").tolist()
        )
    return totals


def padded(sentences: Sequence[list[int]]) -> np.ndarray:
    """int32, with at least one row."""
    ids = np.full((len(sentences), max(map(len, sentences))), PAD_ID, "int32")
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids


def keras_matmul_flops(repeats: int) -> float:
    """Operations per second of the backend's best product of two float32 matrices."""
    shape = (MATRIX_SIZE, MATRIX_SIZE)
    return 2 * MATRIX_SIZE**3 / _seconds_of_product(shape, shape, repeats)


def keras_bytes_per_s(repeats: int) -> float:
    """Bytes per second that the backend's best product of a vector and a large matrix reads."""
    shape = (WIDE_SIZE, WIDE_SIZE)
    return 4 * WIDE_SIZE**2 / _seconds_of_product((1, WIDE_SIZE), shape, repeats)


def _seconds_of_product(left: tuple[int, int], right: tuple[int, int], repeats: int) -> float:
    """Of the fastest of several, after a first one."""
    from keras import ops

    matrices = [ops.ones(shape) for shape in (left, right)]
    seconds = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        ops.convert_to_numpy(ops.matmul(*matrices)[0, 0])  # JAX waits only so
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# --- KerasHub ------------------------------------------------------------------------------------


def keras_hub_model(case: Case) -> Any:
    """The same model from KerasHub's layers."""
    import keras
    from keras_hub import layers as hub

    sizes = {
        "intermediate_dim": case.d_ff,
        "num_heads": case.num_heads,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
    }
    embedding = hub.ReversibleEmbedding(case.vocabulary_size, case.d_model, name="embedding")
    positions = hub.PositionEmbedding(MAX_POSITIONS, name="positions")
    source = keras.Input((case.source_length,), dtype="int32")
    target = keras.Input((case.target_length,), dtype="int32")
    mask = keras.ops.not_equal(source, PAD_ID)
    memory, x = (_hub_embed(embedding, positions, ids) for ids in (source, target))
    for i in range(case.num_layers):
        memory = hub.TransformerEncoder(**sizes, name=f"encoder_{i}")(memory, padding_mask=mask)
    for i in range(case.num_layers):
        layer = hub.TransformerDecoder(**sizes, name=f"decoder_{i}")
        x = layer(x, memory, encoder_padding_mask=mask)
    return keras.Model([source, target], embedding(x, reverse=True))


def _hub_embed(embedding: Any, positions: Any, ids: Any, start: Any = 0) -> Any:
    vectors = embedding(ids) * math.sqrt(embedding.output_dim)
    return vectors + positions(vectors, start_index=start)


class KerasHubSearch:
    """KerasHub's samplers over its cached layers, called as its `Seq2SeqLM` calls them."""

    def __init__(self, model: Any, case: Case) -> None:
        self.model = model
        self.beam_size = case.beam_size
        self.heads = (case.num_heads, case.d_model // case.num_heads)
        self.embedding = model.get_layer("embedding")
        self.embed = partial(_hub_embed, self.embedding, model.get_layer("positions"))
        self.encoder = [model.get_layer(f"encoder_{i}") for i in range(case.num_layers)]
        self.decoder = [model.get_layer(f"decoder_{i}") for i in range(case.num_layers)]

    def __call__(self, model: Any, source_ids: Any, *, max_length: int) -> Any:
        """Ids `(B, max_length)` of the best hypotheses."""
        from keras import ops
        from keras_hub import samplers

        batch = source_ids.shape[0]
        caches, sentence = self.start(source_ids, max_length)

        def next(prompt: Any, caches: Any, index: Any) -> Any:
            ids = ops.slice(prompt, (0, index - 1), (batch * self.beam_size, 1))
            x, caches, _ = self.decode(ids, index - 1, caches, *sentence)
            return self.embedding(x, reverse=True)[:, 0], x, caches

        if self.beam_size == 1:
            sampler = samplers.GreedySampler()
        else:
            sampler = samplers.BeamSampler(num_beams=self.beam_size)
        bos = ops.full((batch, 1), BOS_ID, "int32")
        prompt = ops.concatenate([bos, ops.zeros((batch, max_length), "int32")], axis=1)
        return sampler(next, prompt, cache=caches, index=1, model=model)[:, 1:]

    def start(self, source_ids: Any, max_length: int) -> tuple[Any, Any]:
        """The decoder's caches, and what all beams of a sentence share, once for each beam."""
        from keras import ops

        batch, source_length = source_ids.shape
        mask = ops.not_equal(source_ids, PAD_ID)
        memory = self.embed(source_ids)
        for layer in self.encoder:
            memory = layer(memory, padding_mask=mask)
        own, cross = (
            [ops.zeros((batch, 2, length, *self.heads))] * len(self.decoder)
            for length in (max_length, source_length)
        )
        bos = ops.full((batch, 1), BOS_ID, "int32")
        _, own, cross = self.decode(bos, 0, own, cross, memory, mask, fill_cross=True)
        each = partial(ops.repeat, repeats=self.beam_size, axis=0)
        return own, ([each(cache) for cache in cross], each(memory), each(mask))

    def decode(
        self,
        ids: Any,
        position: Any,
        caches: Any,
        crosses: Any,
        memory: Any,
        mask: Any,
        fill_cross: bool = False,
    ) -> tuple[Any, Any, Any]:
        x, new_caches, new_crosses = self.embed(ids, position), [], []
        for layer, cache, cross in zip(self.decoder, caches, crosses, strict=True):
            x, cache, cross = layer(
                x,
                memory,
                encoder_padding_mask=mask,
                self_attention_cache=cache,
                self_attention_cache_update_index=position,
                cross_attention_cache=cross,
                cross_attention_cache_update_index=0 if fill_cross else None,
            )
            new_caches.append(cache)
            new_crosses.append(cross)
        return x, new_caches, new_crosses


def save_keras_hub(model: Any, case: Case, folder: Path) -> None:
    from keras import ops

    hub = keras_hub_model(case)
    copy_weights(hub.get_layer("embedding"), model.target_embedding)
    table = model.positions(ops.zeros((1, MAX_POSITIONS, case.d_model)))
    hub.get_layer("positions").set_weights([ops.convert_to_numpy(table)[0]])
    for i in range(case.num_layers):
        copy_layer(hub.get_layer(f"encoder_{i}"), model.get_layer(f"encoder_layer_{i + 1}"))
        copy_layer(hub.get_layer(f"decoder_{i}"), model.decoder.layers[i])
    hub.save_weights(folder / "keras_hub.weights.h5")


def copy_layer(hub: Any, ours: Any) -> None:
    copy_weights(hub._self_attention_layer, ours.self_attention)
    copy_weights(hub._self_attention_layer_norm, ours.self_attention_residual.norm)
    copy_weights(hub._feedforward_intermediate_dense, ours.feed_forward.inner)
    copy_weights(hub._feedforward_output_dense, ours.feed_forward.outer)
    copy_weights(hub._feedforward_layer_norm, ours.feed_forward_residual.norm)
    if hasattr(ours, "cross_attention"):
        copy_weights(hub._cross_attention_layer, ours.cross_attention)
        copy_weights(hub._cross_attention_layer_norm, ours.cross_attention_residual.norm)


def copy_weights(hub: Any, ours: Any) -> None:
    """Both list their weights in the same order; KerasHub keeps the heads on an axis."""
    pairs = zip(hub.weights, ours.get_weights(), strict=True)
    hub.set_weights([weight.reshape(variable.shape) for variable, weight in pairs])


def load_keras_hub(case: Case, setting: Setting, folder: Path) -> Engine:
    import keras

    from keras_transformer import compile_function

    model = keras_hub_model(case)
    model.load_weights(folder / "keras_hub.weights.h5")
    search = KerasHubSearch(model, case)
    if setting.backend == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(partial(search, model), jit_compile=setting.jit_compile)
    else:
        compiled = compile_function(search, model)
    sources = keras.ops.convert_to_tensor(source_ids(case))

    def decode(length: int) -> np.ndarray:
        return keras.ops.convert_to_numpy(compiled(sources, max_length=length))

    return Engine(decode)


# --- Hugging Face Marian -------------------------------------------------------------------------


def marian_config(case: Case) -> Any:
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=case.vocabulary_size,
        d_model=case.d_model,
        encoder_layers=case.num_layers,
        decoder_layers=case.num_layers,
        encoder_attention_heads=case.num_heads,
        decoder_attention_heads=case.num_heads,
        encoder_ffn_dim=case.d_ff,
        decoder_ffn_dim=case.d_ff,
        max_position_embeddings=MAX_POSITIONS,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
        forced_eos_token_id=None,
    )


def save_marian(model: Any, case: Case, folder: Path) -> None:
    from transformers import MarianMTModel

    marian = MarianMTModel(marian_config(case))
    _fill(marian.model.shared, [model.target_embedding.embeddings])
    for i in range(case.num_layers):
        _fill_layer(marian.model.encoder.layers[i], model.get_layer(f"encoder_layer_{i + 1}"))
        layer, ours = marian.model.decoder.layers[i], model.decoder.layers[i]
        _fill_layer(layer, ours)
        _fill_attention(layer.encoder_attn, ours.cross_attention)
        _fill(layer.encoder_attn_layer_norm, ours.cross_attention_residual.norm.weights)
    marian.save_pretrained(folder / "marian")


def _fill_layer(marian: Any, ours: Any) -> None:
    _fill_attention(marian.self_attn, ours.self_attention)
    _fill(marian.self_attn_layer_norm, ours.self_attention_residual.norm.weights)
    _fill(marian.fc1, ours.feed_forward.inner.weights)
    _fill(marian.fc2, ours.feed_forward.outer.weights)
    _fill(marian.final_layer_norm, ours.feed_forward_residual.norm.weights)


def _fill_attention(marian: Any, ours: Any) -> None:
    _fill(marian.q_proj, ours.query_projection.weights)
    _fill(marian.k_proj, ours.key_projection.weights)
    _fill(marian.v_proj, ours.value_projection.weights)
    _fill(marian.out_proj, ours.output_projection.weights)


def _fill(module: Any, weights: Sequence[Any]) -> None:
    """Weight, then bias; PyTorch stores the matrix of a linear map as (out, in)."""
    import torch
    from keras import ops

    for parameter, weight in zip(module.parameters(), weights, strict=True):
        array = ops.convert_to_numpy(weight)
        if isinstance(module, torch.nn.Linear) and array.ndim == 2:
            array = array.T
        parameter.data.copy_(torch.from_numpy(array.copy()))


def load_marian(case: Case, setting: Setting, folder: Path) -> Engine:
    """`generate` with PyTorch, eager, its caches on."""
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(setting.threads)
    model = MarianMTModel.from_pretrained(folder / "marian").eval()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    sources = torch.from_numpy(source_ids(case)).long()
    mask = torch.ones_like(sources)
    options = {"num_beams": case.beam_size, "do_sample": False}
    if case.beam_size > 1:
        options["length_penalty"] = 0.0

    def decode(length: int) -> np.ndarray:
        with torch.inference_mode():
            ids = model.generate(
                input_ids=sources, attention_mask=mask, max_new_tokens=length, **options
            )
        return ids[:, 1:].numpy()

    return Engine(decode)


# --- CTranslate2 ---------------------------------------------------------------------------------


class NumberedPieces:
    """What `export_ctranslate2` asks of a tokenizer; piece 17 is called "17"."""

    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    source_eos = True

    def __init__(self, size: int) -> None:
        self.source_vocabulary_size = self.target_vocabulary_size = size
        names = ["<pad>", "<unk>", "<s>", "</s>"]
        self.source_pieces = self.target_pieces = names + [str(id) for id in range(4, size)]

    def save(self, directory: Path) -> None:
        pass


def save_ctranslate2(model: Any, case: Case, folder: Path) -> None:
    from keras_transformer.export import export_ctranslate2

    tokenizer: Any = NumberedPieces(case.vocabulary_size)
    for dtype in ("float32", "int8"):
        export_ctranslate2(model, tokenizer, folder / f"ctranslate2_{dtype}", dtype)


def load_ctranslate2(case: Case, setting: Setting, folder: Path, device: str = "cpu") -> Engine:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / f"ctranslate2_{setting.dtype}"),
        device=device,
        compute_type=setting.dtype,
        inter_threads=1,
        intra_threads=setting.threads,
    )
    sources = [[str(id) for id in ids[:-1]] for ids in source_ids(case)]  # it adds eos by itself

    def decode(length: int) -> np.ndarray:
        results = translator.translate_batch(
            sources,
            beam_size=case.beam_size,
            length_penalty=CTRANSLATE2_NO_PENALTY,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        unknown = {"<unk>": UNK_ID}
        best = [result.hypotheses[0] for result in results]
        return np.array([[unknown.get(piece) or int(piece) for piece in row] for row in best])

    return Engine(decode)


# --- Workers -------------------------------------------------------------------------------------

SAVE = {
    "keras_transformer": save_keras_transformer,
    "keras_hub": save_keras_hub,
    "marian": save_marian,
    "ctranslate2": save_ctranslate2,
}
LOAD = {
    "keras_transformer": load_keras_transformer,
    "keras_hub": load_keras_hub,
    "marian": load_marian,
    "ctranslate2": load_ctranslate2,
}


def prepare(case: Case, engines: Sequence[str], folder: Path, backend: str) -> None:
    """Write the files that the engines load, in a process of its own."""
    with _start("prepare", folder, KERAS_BACKEND=backend) as worker:
        worker.ask("prepare", dataclasses.asdict(case), list(engines))


def start_worker(case: Case, setting: Setting, folder: Path) -> _common.Worker:
    """Start a worker with the actions of `_decoding`."""
    specification = json.dumps([dataclasses.asdict(case), dataclasses.asdict(setting)])
    return _start("decode", folder, specification, KERAS_BACKEND=setting.backend or "torch")


def _start(role: str, folder: Path, *arguments: str, **environment: str) -> _common.Worker:
    program = _common.ROOT / "scripts" / "bench" / "_decoding_engines.py"
    return _common.Worker(program, role, str(folder), *arguments, **environment)


def _preparing(folder: Path) -> dict[str, Callable[..., Any]]:
    def prepare(case: dict[str, Any], engines: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        model = new_model(Case(**case))
        for engine in engines:
            SAVE[engine](model, Case(**case), folder)

    return {"prepare": prepare}


def _decoding(case: Case, setting: Setting, folder: Path) -> dict[str, Callable[..., Any]]:
    engine = LOAD[setting.engine](case, setting, folder)

    def tokens(length: int) -> list[list[int]]:
        return engine.decode(length).tolist()

    def seconds_per_search(length: int, at_least: float) -> float:
        """Mean of as many searches as take `at_least` seconds together, one or more."""
        start, searches = time.perf_counter(), 0
        while not searches or time.perf_counter() - start < at_least:
            engine.decode(length)
            searches += 1
        return (time.perf_counter() - start) / searches

    actions = (tokens, seconds_per_search, peak_memory_mib)
    return {**engine.further_actions, **{action.__name__: action for action in actions}}


def peak_memory_mib() -> float:
    """Largest resident size of this process so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main() -> None:
    role, folder, *specification = sys.argv[1:]
    if role == "prepare":
        _common.serve(lambda: _preparing(Path(folder)))
    else:
        case, setting = json.loads(specification[0])
        _common.serve(lambda: _decoding(Case(**case), Setting(**setting), Path(folder)))


if __name__ == "__main__":
    main()
