"""Pretrains a small BERT on short English texts, and measures what this gains on two tasks.

Each task is learned from the same labels twice, from the pretrained encoder and from random
weights. The tasks are the sentiment of film reviews (SST-2) and entities in social media (WNUT-17).

command:  KERAS_BACKEND=torch python recipes/bert.py --data-dir FOLDER
data:     FOLDER/tatoeba/en-de.tsv.gz: in each line an English sentence, a tab and a German
          sentence, from tatoeba.org (CC-BY 2.0), as https://www.manythings.org/anki/ collected
          it on 2018-05-13. Newer collections are at the same address. The English captions of
          Multi30k (no licence stated), SST-2 (no licence stated) and WNUT-17 (CC-BY 4.0) are
          read from FOLDER/multi30k, FOLDER/sst2 and FOLDER/wnut17 if they are there, and
          otherwise downloaded.
target:   a higher test score with pretraining, outside of the confidence intervals
hardware: 2 CPU cores with bfloat16 instructions, PyTorch backend
time:     24 min of pretraining, 7 to 9 min per run of SST-2 and at most 5 min per run of
          WNUT-17, each in a process of its own on one core, beside other jobs
steps:    6,000 of 2,048 tokens, then 6 (SST-2) and 10 (WNUT-17) passes over the labels
score:    test: F1 of entities (WNUT-17), three seeds: 7.8 ± 0.8 from scratch and
          19.2 ± 1.6 pretrained, the difference 11.4 ± 1.1. Accuracy on SST-2 in percent, five
          seeds (--seeds 1 2 3 4 5): 77.8 ± 1.1 from scratch and 80.7 ± 0.8 pretrained, the
          difference 2.8 ± 1.5. Three seeds give 2.5 ± 3.9

Source: Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding.
"""

import argparse
import functools
import gzip
import itertools
import json
import math
import statistics
import time
from pathlib import Path

import keras
import numpy as np
from tabulate import tabulate

from keras_transformer import (
    BertEncoder,
    MaskedAccuracy,
    MaskedCrossentropy,
    MaskedLanguageModel,
    Tokenizer,
    UserError,
    array_batches,
    fit,
    padding_mask,
)
from keras_transformer.data import mask_tokens
from keras_transformer.data.text_files import download
from keras_transformer.training import check_same_options

# 1. Options. The defaults are those of the table that the program prints.


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path("runs/bert"), help="folder of the runs")
    parser.add_argument("--dtype", default="mixed_bfloat16", help="dtype policy")
    parser.add_argument("--vocabulary-size", type=int, default=8_000)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="tokens per row")
    parser.add_argument("--steps", type=int, default=6_000, help="optimizer steps of pretraining")
    parser.add_argument("--batch-size", type=int, default=32, help="rows per step of pretraining")
    parser.add_argument("--learning-rate", type=float, default=5e-3, help="of pretraining")
    parser.add_argument("--mask-rate", type=float, default=0.4, help="share of masked tokens")
    parser.add_argument(
        "--task-copies", type=int, default=10, help="copies of the tasks' own sentences in the text"
    )
    parser.add_argument("--sst2-labels", type=int, default=6_920, help="sentences to learn from")
    parser.add_argument("--sst2-epochs", type=int, default=6)
    parser.add_argument("--wnut17-epochs", type=int, default=10)
    parser.add_argument("--fine-tuning-batch-size", type=int, default=32)
    parser.add_argument("--sst2-learning-rate", type=float, default=1e-3)
    parser.add_argument("--wnut17-learning-rate", type=float, default=5e-4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="at most 10")
    options = parser.parse_args()
    if len(options.seeds) > 10:
        parser.error("at most 10 seeds: the table of Student's t ends there")
    return options


# 2. Data.

MULTI30K = "https://github.com/multi30k/dataset/raw/a3d2e0d/data/task1/raw"
SST2 = "https://github.com/clairett/pytorch-sentiment-classification/raw/master/data/SST2"
WNUT17 = "https://github.com/leondz/emerging_entities_17/raw/master"
SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.tsv": "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
    "dev.tsv": "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
    "test.tsv": "831169c7e2e429d6026e1bdbb542f33b636e3e596caad9602ebc953c205928b7",
    "wnut17train.conll": "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
    "emerging.dev.conll": "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
    "emerging.test.annotated": "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
}


def find(path, url):
    return path if path.is_file() else download(path.name, url, SHA256[path.name])


def read_english(data_dir):
    """Returns the different English sentences of Tatoeba and Multi30k."""
    tatoeba = data_dir / "tatoeba" / "en-de.tsv.gz"
    if not tatoeba.is_file():
        raise UserError(f"{tatoeba} is missing; recipes/bert.py says at its top where it is from")
    sentences = set()
    for path in (tatoeba, find(data_dir / "multi30k" / "train.en.gz", MULTI30K)):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            sentences |= {line.split("\t")[0].strip() for line in lines}
    return sorted(sentences)


def read_sst2(data_dir):
    """Returns (sentences, labels) of train, dev and test. The labels are 0 and 1."""
    splits = []
    for split in ("train", "dev", "test"):
        path = find(data_dir / "sst2" / f"{split}.tsv", SST2)
        rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
        splits.append(([row[0] for row in rows], np.array([int(row[1]) for row in rows])))
    return splits


def read_wnut17(data_dir):
    """Returns (sentences, tags) of train, dev and test, as lists of words and of BIO tags."""
    splits = []
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        text = find(data_dir / "wnut17" / name, WNUT17).read_text("utf-8")
        lines = [line.strip() for line in text.split("\n")]
        groups = [list(group) for is_text, group in itertools.groupby(lines, bool) if is_text]
        rows = [[line.split("\t") for line in group] for group in groups]
        splits.append(tuple([[pair[side] for pair in row] for row in rows] for side in (0, 1)))
    return splits


# 3. Tokenizer. Tokenizer and pretraining also read the text of both training sets, without labels:
#    posts have characters and words that the other texts do not have.


def load_tokenizer(folder, texts, vocabulary_size):
    if not folder.exists():
        pairs = zip(texts[::2], texts[1::2], strict=False)  # a joint vocabulary reads both sides
        Tokenizer.train(pairs, vocabulary_size).save(folder)
    return Tokenizer.load(folder)


# 4. Pretraining. All sentences, with bos before and eos after each, become one sequence, which is
#    cut into rows of equal length. Each batch gets new masks, which depend on seed and step only,
#    so that a stopped training resumes with the same batches. The mask token is the last id.
#    More masks than BERT's 15 % are more to learn from in each step (Wettig et al. 2023, Should You
#    Mask 15 % in Masked Language Modeling?). So short a pretraining needs no dropout.


def pack(tokenizer, texts, length):
    """Returns int32 rows `(N, length)`."""
    sentences = tokenizer.encode_source(texts)
    ids = [[tokenizer.bos_id, *pieces, tokenizer.eos_id] for pieces in sentences]
    flat = np.fromiter(itertools.chain.from_iterable(ids), "int32")
    return flat[: len(flat) // length * length].reshape(-1, length)


def masked_batches(rows, batch_size, mask, seed):
    """Returns the argument `batches` of `fit`: a function of the number of batches to skip."""
    batches = array_batches(rows, batch_size=batch_size, seed=seed)

    def stream(first):
        for step, (ids,) in enumerate(batches(first), first):
            generator = np.random.default_rng([seed, step])
            yield mask(ids, generator)

    return stream


def learning_rates(peak, steps):
    """A linear warm-up over a tenth of the steps, and cosine decay."""
    warmup = max(1, steps // 10)
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warmup), warmup_target=peak, warmup_steps=warmup
    )


def muon(peak, steps):
    """Muon for the matrices, and Adam for all other weights."""
    return keras.optimizers.Muon(
        learning_rates(peak, steps), weight_decay=0.01, global_clipnorm=1.0
    )


def pretrain(options, tokenizer, english, task_texts):
    """Writes the encoder to `encoder.keras`, and returns the validation results."""
    vocabulary_size = tokenizer.source_vocabulary_size + 1  # with the mask token
    keras.utils.set_random_seed(0)
    model = MaskedLanguageModel(
        BertEncoder(
            vocabulary_size,
            num_layers=options.num_layers,
            d_model=options.d_model,
            num_heads=options.num_heads,
            d_ff=4 * options.d_model,
            max_length=options.length,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
        )
    )
    model.compile(
        muon(options.learning_rate, options.steps),
        MaskedCrossentropy(),
        weighted_metrics=[MaskedAccuracy()],
    )
    rows = pack(tokenizer, english, options.length)
    held_out, rows = np.split(rows, [max(1, len(rows) // 100)])
    task_rows = pack(tokenizer, task_texts, options.length)
    rows = np.concatenate([rows, *[task_rows] * options.task_copies])
    mask = functools.partial(
        mask_tokens,
        vocabulary_size=vocabulary_size,
        mask_id=vocabulary_size - 1,
        rate=options.mask_rate,
    )
    batches = masked_batches(rows, options.batch_size, mask, seed=0)
    validation = mask(held_out, np.random.default_rng(0))
    fit(
        model,
        batches,
        options.output / "pretraining",
        steps=options.steps,
        checkpoint_every=max(1, options.steps // 6),
        keep_checkpoints=1,
        validation=[validation],
    )
    model.encoder.save(options.output / "encoder.keras")
    return model.evaluate(*validation, verbose=0, return_dict=True)


# 5. Fine-tuning. A new layer on the encoder classifies sentences or tags words. Muon is better for
#    the former, and AdamW for the latter. Both starts see the same batches. The score on the
#    development set chooses the pass whose weights count.


def load_encoder(options, pretrained):
    """Returns an encoder with dropout, with the pretrained weights or with random ones."""
    trained = keras.models.load_model(options.output / "encoder.keras")
    dropout = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    encoder = BertEncoder.from_config(trained.get_config() | dropout)
    if pretrained:
        encoder.set_weights(trained.get_weights())
    return encoder


def adamw(peak, steps):
    return keras.optimizers.AdamW(
        learning_rates(peak, steps), weight_decay=0.01, global_clipnorm=1.0
    )


def fine_tune(options, model, data, loss, new_optimizer, epochs, score, directory, seed):
    """Trains on the arrays `data`, and returns the model with the best `score`."""
    steps_per_epoch = math.ceil(len(data[0]) / options.fine_tuning_batch_size)
    steps = epochs * steps_per_epoch
    optimizer = new_optimizer(steps)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(optimizer, loss)
    batches = array_batches(*data, batch_size=options.fine_tuning_batch_size, seed=seed)
    history = fit(
        model,
        lambda first: map(shortened, batches(first)),
        directory,
        steps=steps,
        checkpoint_every=steps_per_epoch,
        keep_checkpoints=1,
        keep_best=1,
        validation=lambda model, step: {"loss": 1.0 - score(model)},
        seed=seed,
    )
    (best,) = history.best(1)
    path = directory / "checkpoints" / f"step-{best:08}" / "model.keras"
    return keras.models.load_model(path, compile=False)


def shortened(batch):
    """Removes columns that are padding in all rows, in steps of 16 so that few shapes occur."""
    ids, labels = batch
    length = 16 * math.ceil((ids != 0).sum(axis=1).max() / 16)
    return ids[:, :length], labels[:, :length] if labels.ndim == 2 else labels


def padded(rows, length, value=0):
    array = np.full((len(rows), length), value, "int32")
    for row, ids in zip(array, rows, strict=True):
        row[: len(ids)] = ids
    return array


# 5a. Classification: the mean of the encoder's vectors, then a dense layer.


def sentence_arrays(tokenizer, sentences, length):
    pieces = tokenizer.encode_source(sentences)
    ends = tokenizer.bos_id, tokenizer.eos_id
    return padded([[ends[0], *ids[: length - 2], ends[1]] for ids in pieces], length)


def new_classifier(encoder):
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = encoder(token_ids)
    x = keras.layers.GlobalAveragePooling1D()(x, mask=padding_mask(token_ids))
    x = keras.layers.Dropout(0.1)(x)
    return keras.Model(token_ids, keras.layers.Dense(2, dtype="float32")(x))


def classify(options, tokenizer, splits, pretrained, seed, directory):
    """Returns the accuracy on the development set and on the test set."""
    arrays = [(sentence_arrays(tokenizer, x, options.length), y) for x, y in splits]
    (ids, labels), dev, test = arrays
    chosen = np.random.default_rng(seed).permutation(len(labels))[: options.sst2_labels]
    keras.utils.set_random_seed(seed)
    model = new_classifier(load_encoder(options, pretrained))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def accuracy(model, ids, labels):
        return float(np.mean(model.predict(ids, batch_size=128, verbose=0).argmax(-1) == labels))

    model = fine_tune(
        options,
        model,
        (ids[chosen], labels[chosen]),
        loss,
        functools.partial(muon, options.sst2_learning_rate),
        options.sst2_epochs,
        lambda model: accuracy(model, *dev),
        directory,
        seed,
    )
    return accuracy(model, *dev), accuracy(model, *test)


# 5b. Tagging: a dense layer on each vector. The vector of a word's first piece tells its tag. The
#     labels of all other pieces are -1, which the loss does not count.


def word_arrays(tokenizer, sentences, tags, names, length):
    """Returns ids and labels `(N, length)`."""
    rows, labels = [], np.full((len(sentences), length), -1, "int32")
    for label, words, word_tags in zip(labels, sentences, tags, strict=True):
        ids = [tokenizer.bos_id]
        for pieces, tag in zip(tokenizer.encode_source(words), word_tags, strict=True):
            if len(ids) < length - 1:
                label[len(ids)] = names.index(tag)
            ids += pieces or [tokenizer.unk_id]
        rows.append([*ids[: length - 1], tokenizer.eos_id])
    return padded(rows, length), labels


def new_tagger(encoder, num_tags):
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Dropout(0.1)(encoder(token_ids))
    return keras.Model(token_ids, keras.layers.Dense(num_tags, dtype="float32")(x))


def entities(tags):
    """Returns the entities (first word, end, class) of one sentence's BIO tags.

    As in CoNLL's scorer, a tag I-* that does not continue an entity begins one.
    """
    found, start, current = set(), 0, None
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if current and (prefix != "I" or name != current):
            found.add((start, index, current))
            current = None
        if prefix != "O" and current is None:
            start, current = index, name
    return found


def entity_f1(tags, predicted):
    """Returns the F1 score of the entities of all sentences."""
    pairs = [(entities(x), entities(y)) for x, y in zip(tags, predicted, strict=True)]
    correct = sum(len(x & y) for x, y in pairs)
    total = sum(len(x) + len(y) for x, y in pairs)
    return 2 * correct / total if total else 0.0


def tag(options, tokenizer, splits, pretrained, seed, directory):
    """Returns the F1 score of entities on the development set and on the test set."""
    names = sorted({name for row in splits[0][1] for name in row})
    arrays = [word_arrays(tokenizer, *split, names, options.length) for split in splits]
    keras.utils.set_random_seed(seed)
    model = new_tagger(load_encoder(options, pretrained), len(names))

    def f1(model, split):
        ids, labels = arrays[split]
        choices = model.predict(ids, batch_size=128, verbose=0).argmax(-1)
        predicted = []
        for row, label, tags in zip(choices, labels, splits[split][1], strict=True):
            known = [names[choice] for choice in row[label >= 0]]
            predicted.append(known + ["O"] * (len(tags) - len(known)))  # words that were cut off
        return entity_f1(splits[split][1], predicted)

    model = fine_tune(
        options,
        model,
        arrays[0],
        MaskedCrossentropy(pad_id=-1),
        functools.partial(adamw, options.wnut17_learning_rate),
        options.wnut17_epochs,
        lambda model: f1(model, 1),
        directory,
        seed,
    )
    return f1(model, 1), f1(model, 2)


# 6. The table: mean and 95 % confidence interval over the seeds (Student's t).

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def summary(values):
    """Returns the mean in percent, and half the width of the interval or None for one seed."""
    percent = [100 * value for value in values]
    count, width = len(percent), None
    if count > 1:
        width = T_95[count] * statistics.stdev(percent) / math.sqrt(count)
    return {"mean": statistics.mean(percent), "interval": width, "values": percent}


def table(results):
    def text(found):
        width = "" if found["interval"] is None else f" ± {found['interval']:.1f}"
        return f"{found['mean']:.1f}{width}"

    rows = [
        [task, found["score"], start, text(found[start]["dev"]), text(found[start]["test"])]
        for task, found in results.items()
        for start in ("from scratch", "pretrained", "difference")
    ]
    return tabulate(rows, ["task", "score", "start", "dev", "test"], "github")


def main():
    options = parse_options()
    begin = time.time()
    keras.config.set_dtype_policy(options.dtype)
    sst2, wnut17 = read_sst2(options.data_dir), read_wnut17(options.data_dir)
    task_texts = [*sst2[0][0], *(" ".join(words) for words in wnut17[0][0])]
    english = read_english(options.data_dir)
    may_change = ["data_dir", "output", "seeds", "sst2_labels"]
    check_same_options(options.output, vars(options), may_change)
    english = [english[i] for i in np.random.default_rng(1).permutation(len(english))]
    texts = english + task_texts * options.task_copies
    tokenizer = load_tokenizer(options.output / "tokenizer", texts, options.vocabulary_size)
    pretraining = pretrain(options, tokenizer, english, task_texts)
    print(f"pretraining: {pretraining} after {time.time() - begin:,.0f} s", flush=True)

    results = {}
    for task, score, learn, splits in (
        (f"SST-2 {options.sst2_labels}", "accuracy", classify, sst2),
        ("WNUT-17", "F1 of entities", tag, wnut17),
    ):
        scores = {}
        for start, seed in itertools.product(("from scratch", "pretrained"), options.seeds):
            directory = options.output / f"{task} {start} {seed}".lower().replace(" ", "-")
            pretrained = start == "pretrained"
            found = learn(options, tokenizer, splits, pretrained, seed, directory)
            scores.setdefault(start, []).append(found)
            print(
                f"{task}, {start}, seed {seed}: dev {found[0]:.3f}, test {found[1]:.3f}", flush=True
            )
        scores = {start: np.array(values) for start, values in scores.items()}
        scores["difference"] = scores["pretrained"] - scores["from scratch"]
        results[task] = {
            start: {name: summary(values[:, i]) for i, name in enumerate(("dev", "test"))}
            for start, values in scores.items()
        } | {"score": score}
    print(table(results))
    report = {
        "options": {name: str(value) for name, value in vars(options).items()},
        "pretraining": pretraining,
        "results": results,
        "seconds": round(time.time() - begin),
    }
    (options.output / "results.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
