"""Trains a small GPT on the works of Shakespeare, character by character.

The model predicts the next character of a text. The score is the mean cross-entropy in nats per
character of the last 10 % of the text. That text is cut into windows of the model's context, one
after the other, and every character counts once. So a character is predicted from the characters
before it in its window, as in nanoGPT.

command:  KERAS_BACKEND=torch OMP_NUM_THREADS=1 python recipes/shakespeare_gpt.py
          KERAS_BACKEND=torch OMP_NUM_THREADS=1 python recipes/shakespeare_gpt.py --preset hour
data:     tinyshakespeare (github.com/karpathy/char-rnn), 1,115,394 characters, downloaded or read
          from DATA_DIR/tinyshakespeare/input.txt
target:   1.88 nats (preset cpu: the size, the steps and the score of nanoGPT on a CPU), 1.55 nats
          (preset hour)
hardware: 1 CPU core, with bfloat16 instructions for preset hour
time:     5 minutes (cpu), 49 minutes (hour), beside other jobs on another core
steps:    2,000 of 12 windows of 64 characters (cpu), 5,000 of 8 windows of 256 (hour)
score:    1.73 nats (cpu), 1.47 nats (hour)

The preset long has a context of 1,024. `shakespeare_sparse.py` trains it with several attention
patterns.

Two settings of preset cpu were tried, and scored on the same text: with nanoGPT's own learned
positions and learning rate, 0.001, it reaches 1.90 nats.

Sources: Radford et al. 2019, Language Models are Unsupervised Multitask Learners; nanoGPT
(github.com/karpathy/nanoGPT).
"""

import argparse
import itertools
from pathlib import Path

import ablation_layers  # noqa: F401  registers the strided and the fixed pattern
import keras
import numpy as np

from keras_transformer import (
    Generator,
    LanguageModel,
    MaskedCrossentropy,
    SamplingOptions,
    UserError,
    fit,
)
from keras_transformer.data.text_files import download
from keras_transformer.training import check_same_options

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# 1. Options. Each option of a preset is also an option of the command.

PRESETS = {
    "cpu": {
        "num_layers": 4,
        "num_heads": 4,
        "d_model": 128,
        "context": 64,
        "position_encoding": "rotary",
        "dropout_rate": 0.0,
        "batch_size": 12,
        "steps": 2_000,
        "warmup_steps": 100,
        "learning_rate": 3e-3,
        "dtype": "float32",
    },
    "hour": {
        "num_layers": 6,
        "num_heads": 6,
        "d_model": 192,
        "context": 256,
        "position_encoding": "rotary",
        "dropout_rate": 0.1,
        "batch_size": 8,
        "steps": 5_000,
        "warmup_steps": 200,
        "learning_rate": 2e-3,
        "dtype": "mixed_bfloat16",
    },
    "long": {
        "num_layers": 4,
        "num_heads": 4,
        "d_model": 128,
        "context": 1024,
        "position_encoding": "rotary",
        "dropout_rate": 0.1,
        "batch_size": 4,
        "steps": 1_400,
        "warmup_steps": 100,
        "learning_rate": 3e-3,
        "dtype": "mixed_bfloat16",
    },
}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data")
    parser.add_argument("--output", type=Path, help="folder of the run")
    parser.add_argument("--checkpoint-every", type=int, default=500, help="steps per checkpoint")
    parser.add_argument("--sample-length", type=int, default=500, help="characters to print")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attention-pattern", choices=["full", "local", "strided", "fixed"])
    parser.add_argument("--attention-window", type=int, help="in characters; see LanguageModel")
    for name, value in PRESETS["cpu"].items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if value is not None}
    output = Path(f"runs/shakespeare_gpt_{options.preset}")
    pattern = {"attention_pattern": None, "attention_window": None}
    options = argparse.Namespace(
        **{"output": output, **pattern, **PRESETS[options.preset], **given}
    )
    if options.steps <= options.warmup_steps:
        parser.error(f"--steps must be more than --warmup-steps, {options.warmup_steps}")
    return options


options = parse_options()
may_change = ["data_dir", "output", "preset", "checkpoint_every", "sample_length"]
try:
    check_same_options(options.output, vars(options), may_change)
except UserError as error:
    raise SystemExit(f"Error: {error}") from None
keras.utils.set_random_seed(options.seed)
keras.config.set_dtype_policy(options.dtype)

# 2. The text. Ids are the numbers of the characters; there is no padding, so `pad_id` is -1.


class Characters:
    """Converts a text to ids and back."""

    def __init__(self, text):
        self.characters = sorted(set(text))
        self.ids = {character: id for id, character in enumerate(self.characters)}

    def encode(self, text):
        return [self.ids[character] for character in text]

    def decode(self, ids):
        return "".join(self.characters[id] for id in ids)


PAD_ID = -1
path = options.data_dir / "tinyshakespeare" / "input.txt"
try:
    text = (path if path.is_file() else download("input.txt", URL, SHA256)).read_text("utf-8")
except (UserError, OSError) as error:
    raise SystemExit(f"Error: {error}") from None
tokenizer = Characters(text)
ids = np.array(tokenizer.encode(text), "int32")
train_ids, validation_ids = np.split(ids, [len(ids) * 9 // 10])


def batches(first):
    """Yields windows at random places, from batch number `first` on."""
    for number in itertools.count(first):
        generator = np.random.default_rng([options.seed, number])
        starts = generator.integers(len(train_ids) - options.context, size=options.batch_size)
        windows = train_ids[starts[:, None] + np.arange(options.context + 1)]
        yield windows[:, :-1], windows[:, 1:]


def windows_of(ids):
    """Cuts a text into batches of windows. The last batch is filled up with padding."""
    size = options.batch_size * options.context
    count = -(-(len(ids) - 1) // size)
    shape = (count, options.batch_size, options.context)
    padded = np.pad(ids, (0, count * size + 1 - len(ids)), constant_values=PAD_ID)
    return zip(padded[:-1].reshape(shape), padded[1:].reshape(shape), strict=True)


# 3. The model, GPT-2 made small.

model = LanguageModel(
    len(tokenizer.characters),
    num_layers=options.num_layers,
    d_model=options.d_model,
    num_heads=options.num_heads,
    d_ff=4 * options.d_model,
    dropout_rate=options.dropout_rate,
    attention_dropout_rate=0.0,
    position_encoding=options.position_encoding,
    max_length=options.context,
    attention_pattern=options.attention_pattern,
    attention_window=options.attention_window,
    pad_id=PAD_ID,
)
model.summary()

# 4. Training, with the optimizer of nanoGPT, but a higher learning rate.

optimizer = keras.optimizers.AdamW(
    keras.optimizers.schedules.CosineDecay(
        0.0,
        options.steps - options.warmup_steps,
        alpha=0.1,
        warmup_target=options.learning_rate,
        warmup_steps=options.warmup_steps,
    ),
    weight_decay=0.1,
    beta_2=0.99,
    global_clipnorm=1.0,
)
optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
model.compile(optimizer, MaskedCrossentropy(pad_id=PAD_ID))
total_loss = MaskedCrossentropy(pad_id=PAD_ID, reduction="sum")


def validate(model, step):
    """Returns the mean cross-entropy of the validation text, in nats per character."""
    losses = [total_loss(y, model.predict_on_batch(x)) for x, y in windows_of(validation_ids)]
    loss = float(sum(map(keras.ops.convert_to_numpy, losses))) / (len(validation_ids) - 1)
    print(f"step {step:,}: {loss:.4f} nats per character of the validation text", flush=True)
    return {"loss": loss}


fit(
    model,
    batches,
    options.output,
    steps=options.steps,
    checkpoint_every=options.checkpoint_every,
    keep_checkpoints=1,
    validation=validate,
    seed=options.seed,
    tokens=lambda step: options.batch_size * options.context,
)
model.save(options.output / "model.keras")
score = validate(model, options.steps)["loss"]

# 5. A sample. When the context is full, its second half becomes the next prompt.

generator = Generator(model, tokenizer)
written = "\n"
while len(written) <= options.sample_length:
    prompt = written[-(options.context // 2) :]
    length = options.context + 1 - len(prompt)
    sampling = SamplingOptions(max_length=length, temperature=0.8)
    written += generator.generate([prompt], sampling, seed=len(written))[0][0].text
print(written[: options.sample_length].strip())
print(f"\n{score:.4f} nats per character")
