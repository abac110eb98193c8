"""Writes spoken digits, and strings of spoken digits (Free Spoken Digit Dataset).

A Transformer reads 80 log-mel filter banks of each 10 ms, as patches of time and frequency, and
writes the digits. It is trained on strings of one to six recordings. Beam search reads the test
set as single digits and as strings of joined recordings.

command:  KERAS_BACKEND=torch OMP_NUM_THREADS=1 python recipes/fsdd_speech.py --data-dir FOLDER
data:     3,000 recordings of 6 speakers (CC BY-SA 4.0): a clone of
          github.com/Jakobovski/free-spoken-digit-dataset, or a folder with its folder `recordings`
          as recordings.tar.gz. Test: the recordings 0 to 4 of each digit and speaker, as
          published; validation: 5 to 7.
target:   97 % of the test digits (published for a CNN on MFCC)
hardware: 1 CPU core with bfloat16 instructions, PyTorch backend
time:     28 min on one core, beside other jobs on the other
steps:    6,000 of 64 recordings on average
score:    99.33 % of the 300 test digits; word error rate 3.81 % on 300 strings of 2 to 6 digits;
          1.4M parameters

Source: Vaswani et al. 2017; Gong et al. 2021, AST: Audio Spectrogram Transformer, for the patches;
Park et al. 2019, SpecAugment, for the masks.
"""

import argparse
import io
import itertools
import json
import tarfile
import time
import wave
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import layers, ops

from keras_transformer import (
    Decoder,
    Encoder,
    MaskedAccuracy,
    MaskedCrossentropy,
    SearchOptions,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
    UserError,
    compile_function,
    fit,
    search,
)
from keras_transformer.models import ConfiguredModel
from keras_transformer.training import check_same_options
from keras_transformer.visualization import AttentionExample, attention_maps, attention_page

RATE, BANDS = 8_000, 80
STRIDE, WINDOW = RATE // 100, RATE // 40  # a frame each 10 ms, of 25 ms
PAD, BOS, EOS, ZERO = 0, 2, 3, 4  # token ids; digit d has the id ZERO + d
LONGEST = 6  # digits of a string
PATCH = 8, 20  # frames and bands of a patch

# 1. Options.


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--output", type=Path, default=Path("runs/fsdd_speech"))
    parser.add_argument("--dtype", default="mixed_bfloat16", help="dtype policy")
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--checkpoint-every", type=int, default=500, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=64, help="recordings, on average")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="the highest")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--strings", type=int, default=300, help="joined strings to test")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


# 2. Data: recordings, and their log-mel filter banks.


class Recording(NamedTuple):
    digit: int
    speaker: str
    index: int
    samples: np.ndarray  # float32 (N,), in [-1, 1]


def files(data_dir):
    """Yields the name and the bytes of each wav file."""
    if (data_dir / "recordings").is_dir():
        for path in (data_dir / "recordings").glob("*.wav"):
            yield path.stem, path.read_bytes()
        return
    path = data_dir / "recordings.tar.gz"
    if not path.is_file():
        raise UserError(
            f"{path} is missing; recipes/fsdd_speech.py says at its top where it is from"
        )
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".wav"):
                yield Path(member.name).stem, archive.extractfile(member).read()


def load_recordings(data_dir):
    recordings = []
    for name, data in files(data_dir):
        digit, speaker, index = name.split("_")
        with wave.open(io.BytesIO(data)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(2**15)
        recordings.append(Recording(int(digit), speaker, int(index), samples))
    return sorted(recordings, key=lambda each: each[:3])


def filter_banks(sounds):
    """Returns the log-mel filter banks, float32 `(T, 80)`, of each sound, in decibels.

    -60 dB is the lowest value. The layer's own limit, 80 dB below the loudest sound of a batch,
    would make the result depend on the other sounds.
    """
    layer = keras.layers.MelSpectrogram(
        num_mel_bins=BANDS,
        sampling_rate=RATE,
        sequence_stride=STRIDE,
        sequence_length=WINDOW,
        fft_length=512,
        min_freq=20.0,
        max_freq=RATE / 2,
        min_power=1e-6,
        top_db=float("inf"),
        dtype="float32",
    )
    found, waves = [], padded(sounds, 1)
    for begin in range(0, len(sounds), 50):
        banks = keras.ops.convert_to_numpy(layer(waves[begin : begin + 50]))
        found += list(banks.transpose(0, 2, 1))
    return [x[: 1 + len(sound) // STRIDE] for x, sound in zip(found, sounds, strict=True)]


def padded(rows, multiple):
    """Returns rows `(T,)` or `(T, F)` as one array, with zeros at the end."""
    width = multiple * -(-max(map(len, rows)) // multiple)
    return keras.utils.pad_sequences(rows, width, rows[0].dtype, padding="post")


def with_tokens(features, digits):
    """Returns inputs and labels of the model, for strings of digits."""
    ids = [np.array([BOS, *(ZERO + digit for digit in string), EOS], "int32") for string in digits]
    ids = padded(ids, LONGEST + 2)
    inputs = {"features": padded(features, 64), "target_ids": ids[:, :-1]}
    return inputs, ids[:, 1:]


# 3. Strings of recordings, with masked bands and frames. The first batches have one recording a
#    string, and half of all batches up to six: where the digits begin is learned last. A batch
#    depends on seed and step only, so that a stopped training resumes with the same batches.


def masked(features, generator):
    """Sets a range of bands and a range of frames to the mean, which is 0."""
    features = features.copy()
    for axis, most in ((0, 12), (1, 16)):
        width = generator.integers(0, most + 1)
        start = generator.integers(0, max(1, features.shape[axis] - width))
        np.moveaxis(features, axis, 0)[start : start + width] = 1e-3  # frames of 0 are padding
    return features


def strings(banks, digits, count, longest, generator):
    """Returns the filter banks and the digits of `count` random strings."""
    rows = [
        generator.integers(len(banks), size=generator.integers(1, longest + 1))
        for _ in range(count)
    ]
    return [np.concatenate([banks[i] for i in row]) for row in rows], [digits[row] for row in rows]


def batches_of(banks, digits, options):
    """Returns the argument `batches` of `fit`: a function of the number of batches to skip."""

    def stream(first):
        for step in itertools.count(first):
            generator = np.random.default_rng([options.seed, step])
            longest = min(LONGEST, 1 + 2 * LONGEST * step // options.steps)
            count = max(1, round(2 * options.batch_size / (1 + longest)))
            features, said = strings(banks, digits, count, longest, generator)
            yield with_tokens([masked(each, generator) for each in features], said)

    return stream


# 4. The model. The encoder reads patches of time and frequency, so its heads attend along both. The
#    decoder is that of `Transformer`, with pre-norm. With `init_cache` and `step`, `search` decodes
#    with the model, from spectrograms instead of source ids.


@keras.saving.register_keras_serializable(package="fsdd_speech")
class SpectrogramPatches(layers.Layer):
    """Maps each patch of a spectrogram to a vector, and adds the patch's time and band.

    Returns the vectors `(B, S, D)` of spectrograms `(B, T, 80)`, and a bool mask `(B, S)`. Frames
    of zeros at the end are padding. The patches of the same time are neighbours. T is a multiple of
    the frames of a patch.
    """

    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False  # float16 has no numbers below 6e-8 but 0, which is padding
        self.d_model = d_model
        self.projection = layers.Conv2D(
            d_model, PATCH, strides=PATCH, data_format="channels_last", dtype=self.dtype_policy
        )
        self.times = SinusoidalPositionalEncoding(dtype=self.dtype_policy)

    def build(self, input_shape):
        # As large as the patches and times: with 0.05, a model needs twice the steps.
        self.band_embeddings = self.add_weight(
            (BANDS // PATCH[1], self.d_model),
            keras.initializers.RandomNormal(stddev=1.0),
            name="band_embeddings",
        )
        self.projection.build((None, None, BANDS, 1))
        self.times.build((None, None, self.d_model))

    def call(self, spectrograms):
        batch, frames = ops.shape(spectrograms)[:2]
        groups = frames // PATCH[0]
        vectors = self.projection(ops.cast(spectrograms, self.compute_dtype)[..., None])
        vectors = vectors + ops.cast(self.band_embeddings, vectors.dtype)
        times = self.times(ops.zeros((1, groups, self.d_model), vectors.dtype))
        vectors = ops.reshape(vectors + times[:, :, None], (batch, -1, self.d_model))
        is_real = ops.any(spectrograms != 0, axis=-1)
        is_real = ops.any(ops.reshape(is_real, (batch, groups, PATCH[0])), axis=-1)
        numbers = ops.arange(1, groups + 1, dtype="int32")
        ends = ops.max(ops.where(is_real, numbers, 1), axis=-1, keepdims=True)
        is_real = numbers <= ends  # Silence within a recording is not padding.
        return vectors, ops.repeat(is_real, BANDS // PATCH[1], axis=1)

    def compute_output_shape(self, input_shape):
        batch, frames, _ = input_shape
        count = frames and frames // PATCH[0] * (BANDS // PATCH[1])
        return (batch, count, self.d_model), (batch, count)

    def compute_output_spec(self, spectrograms):
        vectors, mask = self.compute_output_shape(spectrograms.shape)
        return keras.KerasTensor(vectors, self.compute_dtype), keras.KerasTensor(mask, "bool")

    def get_config(self):
        return {**super().get_config(), "d_model": self.d_model}


@keras.saving.register_keras_serializable(package="fsdd_speech")
class SpeechTransformer(ConfiguredModel):
    """Maps spectrograms and the tokens so far to logits of the next tokens (see `Searchable`)."""

    max_length = LONGEST + 2
    pad_id = PAD

    def __init__(self, num_layers, d_model, **kwargs):
        sizes = {"d_model": d_model, "num_heads": 4, "d_ff": 4 * d_model, "norm_first": True}
        patches, dropout = SpectrogramPatches(d_model, name="patches"), layers.Dropout(0.1)
        positions = SinusoidalPositionalEncoding(name="positions")
        encoder = Encoder(num_layers, name="encoder", **sizes)
        decoder = Decoder(num_layers, name="decoder", **sizes)
        embedding = TokenEmbedding(ZERO + 10, d_model, pad_id=None, name="embedding")

        features = keras.Input((None, BANDS), dtype="float32", name="features")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        vectors, mask = patches(features)
        memory = encoder(dropout(vectors), padding_mask=mask)
        y = dropout(positions(embedding(target_ids)))
        states = decoder(y, memory, memory_padding_mask=mask)
        inputs = {"features": features, "target_ids": target_ids}
        super().__init__(inputs, embedding(states, reverse=True), **kwargs)

        self.num_layers, self.d_model = num_layers, d_model
        self.positions, self.embedding, self.decoder = positions, embedding, decoder
        self._encode = keras.Function(features, (memory, mask))

    def init_cache(self, features, max_length, beam_size=1):
        memory, mask = self._encode(features)
        return self.decoder.init_cache(ops.shape(features)[0], beam_size, max_length, memory, mask)

    def extend_cache(self, cache, max_length):
        return self.decoder.extend_cache(cache, max_length)

    def step(self, token_ids, cache, position):
        x = self.embedding(ops.reshape(token_ids, (-1, 1)))
        x = ops.reshape(self.positions(x, offset=position), (-1, self.d_model))
        x, cache, _ = self.decoder.step(x, cache, position)
        logits = ops.cast(self.embedding(x, reverse=True), "float32")
        return ops.reshape(logits, (*ops.shape(token_ids), ZERO + 10)), cache


# 5. Training: AdamW with a linear warm-up and cosine decay.


def new_model(options):
    keras.utils.set_random_seed(options.seed)
    model = SpeechTransformer(options.num_layers, options.d_model)
    warmup = max(1, options.steps // 10)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(1, options.steps - warmup),
        warmup_target=options.learning_rate,
        warmup_steps=warmup,
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(optimizer, MaskedCrossentropy(0.1), weighted_metrics=[MaskedAccuracy()])
    return model


# 6. Test: beam search, and the errors of its strings.


def written(model, features, beam_size):
    """Returns the digits that the model writes for each spectrogram."""
    compiled = compile_function(search, model)
    options, found = SearchOptions(beam_size=beam_size), []
    spectrograms = padded(features, 64)
    for begin in range(0, len(features), 50):
        batch = spectrograms[begin : begin + 50]
        result = compiled(batch, max_length=LONGEST + 2, options=options)
        ids = keras.ops.convert_to_numpy(result.ids)[:, 0]
        found += [[int(id) - ZERO for id in row if id >= ZERO] for row in ids]
    return found


def errors(said, found):
    """Returns the least number of insertions, deletions and substitutions (Levenshtein)."""
    row = list(range(len(found) + 1))
    for i, digit in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            cost = min(row[j] + 1, row[j - 1] + 1, before + (digit != other))
            before, row[j] = row[j], cost
    return row[-1]


def attention_of(model, features, digits):
    """Returns the attention of one string, with the seconds and the bands of the patches."""
    bands = BANDS // PATCH[1]
    seconds = PATCH[0] * STRIDE / RATE
    features = padded([features], PATCH[0])
    times = features.shape[1] // PATCH[0]
    patches = [f"{i * seconds:.2f} s, band {j + 1}" for i in range(times) for j in range(bands)]
    ids = np.array([[BOS, *(ZERO + digit for digit in digits)]], "int32")
    maps = attention_maps(model, {"features": features, "target_ids": ids})
    names = list(map(str, digits))
    read, predicted = ["<s>", *names], [*names, "</s>"]
    tokens = {"encoder": (patches, patches), "decoder": (read, read), "cross": (predicted, patches)}
    return AttentionExample(maps, tokens, [" ".join(names)])


def draw_attention(model, example, features, path):
    """Draws a spectrogram, and where each head of the last layer attends for each digit."""
    try:
        import matplotlib
    except ImportError:
        print("For a picture of the attention, install matplotlib.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    digits = example.tokens["cross"][0][:-1]
    weights = example.layers("cross")[-1][:, : len(digits)]  # (H, L, S)
    weights = weights.reshape(*weights.shape[:2], -1, BANDS // PATCH[1])
    heads, extent = len(weights), (0, len(features) * STRIDE / RATE, 0, BANDS)
    figure, axes = pyplot.subplots(
        heads + 1, len(digits), figsize=(2.6 * len(digits), 1.5 * (heads + 1)), squeeze=False
    )
    for column, digit in enumerate(digits):
        axes[0, column].set_title(f"writes {digit}")
        for row in range(heads + 1):
            picture = features if row == 0 else weights[row - 1, column]
            colours = "Greys" if row == 0 else "inferno"
            axes[row, column].imshow(
                picture.T, colours, aspect="auto", origin="lower", extent=extent
            )
            axes[row, column].set_yticks([])
    for row in range(heads + 1):
        axes[row, 0].set_ylabel("mel bands" if row == 0 else f"head {row}")
    figure.supxlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main():
    options = parse_options()
    begin = time.time()
    keras.config.set_dtype_policy(options.dtype)
    recordings = load_recordings(options.data_dir)
    check_same_options(options.output, vars(options), ["data_dir", "output", "strings"])
    banks = filter_banks([each.samples for each in recordings])
    digits = np.array([each.digit for each in recordings])
    indices = np.array([each.index for each in recordings])
    train, validation, test = (
        np.flatnonzero(x) for x in (indices >= 8, (indices >= 5) & (indices < 8), indices < 5)
    )
    frames = np.concatenate([banks[i] for i in train])
    mean, deviation = frames.mean(axis=0), frames.std(axis=0)  # of each band
    banks = [(each - mean) / deviation for each in banks]

    model = new_model(options)
    print(f"{model.count_params():,} parameters", flush=True)
    held_out = strings(
        [banks[i] for i in validation], digits[validation], 128, LONGEST, np.random.default_rng(0)
    )
    fit(
        model,
        batches_of([banks[i] for i in train], digits[train], options),
        options.output,
        steps=options.steps,
        checkpoint_every=options.checkpoint_every,
        keep_checkpoints=1,
        validation=[with_tokens(*held_out)],
        seed=options.seed,
    )
    model.save(options.output / "model.keras")

    single = written(model, [banks[i] for i in test], options.beam_size)
    accuracy = np.mean([x == [digits[i]] for x, i in zip(single, test, strict=True)])
    generator = np.random.default_rng(0)
    rows = [
        generator.choice(test, generator.integers(2, LONGEST + 1)) for _ in range(options.strings)
    ]
    joined = filter_banks([np.concatenate([recordings[i].samples for i in row]) for row in rows])
    joined = [(each - mean) / deviation for each in joined]
    found = written(model, joined, options.beam_size)
    wrong = sum(errors(digits[row].tolist(), x) for row, x in zip(rows, found, strict=True))
    rate = wrong / sum(map(len, rows))
    print(f"test: {accuracy:.2%} of single digits, word error rate of strings {rate:.2%}")
    example = attention_of(model, joined[0], digits[rows[0]].tolist())
    (options.output / "attention.html").write_text(attention_page(example), "utf-8")
    draw_attention(model, example, joined[0], options.output / "attention.png")
    report = {
        "parameters": model.count_params(),
        "accuracy": float(accuracy),
        "word_error_rate": rate,
        "seconds": round(time.time() - begin),
    }
    (options.output / "results.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
