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
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import _common
import numpy as np
from _engines import (
    BOS_ID,
    EOS_ID,
    OURS,
    PAD_ID,
    UNK_ID,
    Setting,
    Sizes,
    bytes_per_s,
    keras_hub_embed,
    keras_hub_model,
    matmul_flops,
    new_transformer,
)

MAX_POSITIONS = 1024
SCORED_AT_ONCE = 16
LAYER_NORM_EPSILON = 1e-6
# CTranslate2's 0 is off as well, but goes with another rule when to stop.
CTRANSLATE2_NO_PENALTY = 1e-9
ENGINES = (OURS, "keras_hub", "marian", "ctranslate2")
HUB_JIT = {"tensorflow": (True, False), "jax": (True,), "torch": (False,)}


@dataclass(frozen=True)
class Case(Sizes):
    """Sizes of a model, named `model`, and of a search; a beam of 1 is greedy search."""

    model: str = "base"
    beam_size: int = 1

    @property
    def flops(self) -> int:
        """Floating point operations of the matrix products of one search.

        A token sees each position so far. A multiply-add is 2 operations.
        """
        seen = self.target_length * (self.target_length + 1) // 2
        return 2 * self.multiply_adds(seen, self.beam_size)

    @property
    def weight_bytes(self) -> int:
        """What a step of the decoder reads of its float32 matrices, biases and norms left out."""
        d = self.d_model
        of_layer = 6 * d * d + 2 * d * self.d_ff  # cross-attention's keys and values are cached
        return 4 * (self.num_layers * of_layer + d * self.vocabulary_size)


_TINY = {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "vocabulary_size": 10_000}
_TINY |= {"model": "tiny", "source_length": 16, "target_length": 24}
_BASE = {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "vocabulary_size": 32_000}
_BASE |= {"model": "base", "source_length": 32, "target_length": 32}
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("tiny-32x4", **_TINY, batch_size=32, beam_size=4),
        Case("tiny-1x1", **_TINY, batch_size=1),
        Case("base-16x4", **_BASE, batch_size=16, beam_size=4),
        Case("base-1x1", **_BASE, batch_size=1),
    )
}


def groups_of(engines: Sequence[str], backends: Sequence[str]) -> list[list[Setting]]:
    """The settings of engines; of each group the fastest is kept.

    JAX without jit is far slower; so is torch.compile, which meets a new length at every step.
    """
    groups = {
        OURS: [[Setting(OURS, b, dtype)] for b in backends for dtype in ("float32", "int8")],
        "keras_hub": [
            [Setting("keras_hub", backend, jit_compile=jit) for jit in HUB_JIT[backend]]
            for backend in backends
        ],
        "marian": [[Setting("marian", "torch")]],
        "ctranslate2": [
            [Setting("ctranslate2", dtype=dtype, threads=threads) for threads in (1, 2)]
            for dtype in ("float32", "int8")
        ],
    }
    return [group for engine in engines for group in groups[engine]]


@dataclass(frozen=True)
class Engine:
    """What a worker times.

    `decode` takes a length and returns the best hypothesis of each sentence, ids `(B, length)`.
    Further actions are those that this package alone has.
    """

    decode: Callable[[int], np.ndarray]
    further_actions: Sequence[Callable[..., Any]] = ()


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

    keras.utils.set_random_seed(0)
    half_split = {"position_encoding": "sinusoidal_half_split", "max_length": MAX_POSITIONS}
    model = new_transformer(case, **half_split)
    # A fresh norm's output sums to 0, so a constant row meets nothing but the norm's shift: its
    # logit is -D / 4.
    embeddings = keras.ops.convert_to_numpy(model.target_embedding.embeddings).copy()
    embeddings[[PAD_ID, BOS_ID, EOS_ID]] = -0.5
    model.target_embedding.embeddings.assign(embeddings)
    last_norm = model.decoder.layers[-1].feed_forward_residual.norm
    last_norm.beta.assign(np.full(case.d_model, 0.5, "float32"))
    return model


def searching(model: Any, case: Case, is_compiled: bool = True) -> Callable[[int], np.ndarray]:
    """A search of a length, by the compiled function that `Translator` uses, or eagerly."""
    import keras

    from keras_transformer import SearchOptions, compile_function, search

    run = compile_function(search, model) if is_compiled else partial(search, model)
    options = SearchOptions(beam_size=case.beam_size, length_penalty=0.0)
    sources = source_ids(case)

    def decode(length: int) -> np.ndarray:
        ids = run(sources, max_length=length, options=options).ids
        return keras.ops.convert_to_numpy(ids)[:, 0]

    return decode


def load_keras_transformer(case: Case, setting: Setting, folder: Path) -> Engine:
    """The search, which itself decides on XLA."""
    from keras_transformer.runs.loading import load_model

    model = load_model(folder / "model.keras")
    if setting.dtype == "int8":
        model.quantize("int8")
    sources = source_ids(case)

    def log_probabilities(rows: list[int], targets: list[list[int]]) -> list[float]:
        """Of target ids, given the sources of these rows."""
        return model_log_probabilities(model, sources[rows].tolist(), targets)

    return Engine(searching(model, case), (log_probabilities, matmul_flops, bytes_per_s))


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


# --- KerasHub ------------------------------------------------------------------------------------


def hub_model(case: Case) -> Any:
    from keras_hub import layers as hub

    positions = hub.PositionEmbedding(MAX_POSITIONS, name="positions")
    return keras_hub_model(case, positions, layer_norm_epsilon=LAYER_NORM_EPSILON)


class KerasHubSearch:
    """KerasHub's samplers over its cached layers, called as its `Seq2SeqLM` calls them."""

    def __init__(self, model: Any, case: Case) -> None:
        self.model = model
        self.beam_size = case.beam_size
        self.heads = (case.num_heads, case.d_model // case.num_heads)
        self.embedding = model.get_layer("embedding")
        self.embed = partial(keras_hub_embed, self.embedding, model.get_layer("positions"))
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

    hub = hub_model(case)
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

    model = hub_model(case)
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


def load_marian(case: Case, setting: Setting, folder: Path, device: str = "cpu") -> Engine:
    """`generate` with PyTorch, eager, its caches on."""
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(setting.threads)
    dtype = getattr(torch, setting.dtype)
    model = MarianMTModel.from_pretrained(folder / "marian").to(device, dtype).eval()
    model.generation_config.bad_words_ids = None  # these weights never choose them
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    sources = torch.from_numpy(source_ids(case)).long().to(device)
    mask = torch.ones_like(sources)
    options = {"num_beams": case.beam_size, "do_sample": False}
    if case.beam_size > 1:
        options["length_penalty"] = 0.0

    def decode(length: int) -> np.ndarray:
        with torch.inference_mode():
            ids = model.generate(
                input_ids=sources, attention_mask=mask, max_new_tokens=length, **options
            )
        return ids[:, 1:].cpu().numpy()

    return Engine(decode)


# --- CTranslate2 ---------------------------------------------------------------------------------


def load_ctranslate2(case: Case, setting: Setting, folder: Path, device: str = "cpu") -> Engine:
    """CTranslate2 converts the weights to the setting's dtype when it loads them."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ctranslate2"),
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


# --- Files ---------------------------------------------------------------------------------------


class NumberedPieces:
    """What exports ask of a tokenizer; piece 17 is called "17"."""

    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    source_eos, joint = True, True
    frames: ClassVar = {"source_prefix": [], "target_prefix": [], "source_eos": True}
    source_model = target_model = b""
    source_prefix_ids = target_prefix_ids = ()

    def __init__(self, size: int) -> None:
        self.source_vocabulary_size = self.target_vocabulary_size = size
        pieces = ["<pad>", "<unk>", "<s>", "</s>", *map(str, range(4, size))]
        self.source_pieces = self.target_pieces = pieces

    def save(self, directory: Path) -> None:
        pass


def save(engine: str, model: Any, case: Case, folder: Path) -> None:
    """Writes what an engine loads."""
    from keras_transformer.formats import export_ctranslate2, export_hugging_face

    if engine == OURS:
        model.save(folder / "model.keras")
    elif engine == "keras_hub":
        save_keras_hub(model, case, folder)
    else:
        export = {"marian": export_hugging_face, "ctranslate2": export_ctranslate2}[engine]
        export(model, NumberedPieces(case.vocabulary_size), folder / engine)


# --- Workers -------------------------------------------------------------------------------------

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


def start_worker(case: Case, folder: Path, setting: Setting) -> _common.Worker:
    """Start a worker with the actions of `_decoding`."""
    specification = json.dumps([dataclasses.asdict(case), dataclasses.asdict(setting)])
    return _start("decode", folder, specification, KERAS_BACKEND=setting.backend or "torch")


def _start(role: str, folder: Path, *arguments: str, **environment: str) -> _common.Worker:
    return _common.Worker(Path(__file__), role, str(folder), *arguments, **environment)


def _preparing(folder: Path) -> dict[str, Callable[..., Any]]:
    def prepare(case: dict[str, Any], engines: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        model = new_model(Case(**case))
        for engine in engines:
            save(engine, model, Case(**case), folder)

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

    actions = (tokens, seconds_per_search, peak_memory_mib, *engine.further_actions)
    return {action.__name__: action for action in actions}


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
