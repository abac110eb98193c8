"""Learns word vectors, and starts a translator of 5,000 sentence pairs from them.

The vectors of a language come from text in this language alone: one side of Tatoeba, without the
sentences for validation and test. A small Transformer then learns to translate from 5,000 pairs.
Its `TokenEmbedding` layers start from random numbers, from the English vectors, or from the vectors
of both languages.

command:  KERAS_BACKEND=torch python recipes/word_vectors.py --data-dir FOLDER
data:     FOLDER/tatoeba/en-de.tsv.gz: in each line an English sentence, a tab and a German
          sentence, from tatoeba.org (CC-BY 2.0), as https://www.manythings.org/anki/ collected it
          on 2018-05-13. Newer collections are at the same address.
target:   a higher score with word vectors than without, with each of three seeds
hardware: 1 CPU core, PyTorch backend
time:     75 min on one core, beside other jobs on the other: 10 for the vectors, 7 per translator
steps:    4,000 of 4,096 pairs of words for each language, then 800 of 2,048 target tokens for each
          of nine translators
score:    mean of 3 seeds on 1,000 pairs: 11.8 BLEU and 30.7 chrF from random numbers, 13.6 and 33.2
          from the English vectors, 15.9 and 36.3 from both

Source: Mikolov et al. 2013b, Distributed Representations of Words and Phrases and their
Compositionality.
"""

import argparse
import gzip
import itertools
import json
import re
import time
from pathlib import Path

import keras
import numpy as np
from tabulate import tabulate

from keras_transformer import (
    BatchPlan,
    MaskedCrossentropy,
    SearchOptions,
    SlicedLogitsTrainer,
    TokenEmbedding,
    Tokenizer,
    TokenStore,
    Transformer,
    TransformerAdam,
    TransformerSchedule,
    Translator,
    UserError,
    fit,
)
from keras_transformer.data.held_out import hold_out
from keras_transformer.evaluation import Evaluator
from keras_transformer.training import check_same_options

SHOWN = {
    "en": "cat monday seven red doctor france buy quickly happy he swam beer",
    "de": "katze montag sieben rot arzt frankreich kaufen schnell glücklich er schwamm bier",
}

# 1. Options. The defaults are those of the tables that the program prints.


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path("runs/word_vectors"))
    parser.add_argument("--vocabulary-size", type=int, default=10_000, help="of each language")
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4_000, help="of the word vectors")
    parser.add_argument("--batch-size", type=int, default=4_096, help="pairs of words")
    parser.add_argument("--subsampling", type=float, default=1e-3, help="see skip_gram_batches")
    parser.add_argument("--pairs", type=int, default=5_000, help="sentence pairs to learn from")
    parser.add_argument("--held-out", type=int, default=1_000, help="test sentences")
    parser.add_argument("--translator-steps", type=int, default=800)
    parser.add_argument("--tokens-per-batch", type=int, default=2_048)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    return parser.parse_args()


# 2. Text. Words are lowercased, and separated from punctuation by spaces.


def read_tatoeba(data_dir):
    path = data_dir / "tatoeba" / "en-de.tsv.gz"
    if not path.is_file():
        raise UserError(
            f"{path} is missing; recipes/word_vectors.py says at its top where it is from"
        )
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [tuple(map(separated, line.split("\t")[:2])) for line in file]


def separated(sentence):
    return " ".join(re.findall(r"\w+(?:['’]\w+)*|[^\w\s]", sentence.lower()))


def load_tokenizer(directory, pairs, vocabulary_size):
    if not directory.exists():
        tokenizer = Tokenizer.train(
            pairs, vocabulary_size, model_type="word", joint=False, normalization="identity"
        )
        tokenizer.save(directory)
    return Tokenizer.load(directory)


# 3. Word vectors. The skip-gram model learns which words are neighbors in the text. A word has two
#    vectors: one as the center of a window, and one as a neighbor ("context"). The logit of a pair
#    is the dot product of the two. With negative sampling (§2.2), the model learns to tell pairs of
#    the text from pairs with a random word. The initial values are those of the authors' program.


def skip_gram(vocabulary_size, d_model):
    """Returns a model of one center and N contexts in each row, to logits `(B, N)`."""
    uniform = keras.initializers.RandomUniform(-0.5 / d_model, 0.5 / d_model)
    word_embedding, context_embedding = (
        TokenEmbedding(vocabulary_size, d_model, False, first, pad_id=None, name=name)
        for name, first in (("word_embedding", uniform), ("context_embedding", "zeros"))
    )
    centers = keras.Input((), dtype="int32", name="centers")
    contexts = keras.Input((None,), dtype="int32", name="contexts")
    logits = keras.layers.Dot(axes=(2, 1))([context_embedding(contexts), word_embedding(centers)])
    return keras.Model({"centers": centers, "contexts": contexts}, logits)


def skip_gram_batches(
    sentences, vocabulary_size, batch_size, window=5, negatives=5, subsampling=1e-3, seed=1
):
    """Returns the argument `batches` of `fit`: a function of the number of batches to skip.

    Each pass over the sentences, which are lists of ids, first removes words at random: a word with
    the share f of the text stays with the probability min(1, sqrt(subsampling / f)) (§2.3). Each
    remaining word is paired with its neighbors in a window whose radius is random, from 1 to
    `window`. Each pair gets random words in place of the neighbor, drawn with probabilities
    proportional to count^0.75 (§2.2). The first label of a row is 1, those of random words are 0.
    """
    words = np.concatenate(sentences).astype("int32")
    owners = np.repeat(np.arange(len(sentences)), list(map(len, sentences)))
    counts = np.bincount(words, minlength=vocabulary_size)
    keep = np.sqrt(subsampling * len(words) / np.maximum(counts, 1))[words]
    bounds = np.cumsum(counts**0.75)
    labels = np.zeros((batch_size, 1 + negatives), "float32")
    labels[:, 0] = 1.0

    def batch(pairs, rng):
        drawn = rng.random((batch_size, negatives)) * bounds[-1]
        negative_words = np.searchsorted(bounds, drawn, side="right")
        contexts = np.concatenate([pairs[:, 1:], negative_words.astype("int32")], axis=1)
        return {"centers": pairs[:, 0], "contexts": contexts}, labels

    def stream(skipped):
        for number in itertools.count():
            rng = np.random.default_rng([seed, number])
            kept = rng.random(len(words)) < keep
            pairs = pairs_of(words[kept], owners[kept], window, rng)
            count = len(pairs) // batch_size
            if count == 0:
                raise UserError(f"{len(pairs)} pairs of words are too few for a batch")
            for index in range(min(skipped, count), count):
                rows = pairs[index * batch_size : (index + 1) * batch_size]
                yield batch(rows, np.random.default_rng([seed, number, index]))
            skipped = max(0, skipped - count)

    return stream


def pairs_of(words, owners, window, rng):
    """Returns all pairs of a center and a neighbor, int32 `(P, 2)`, in random order.

    `owners` has the index of the sentence of each word.
    """
    radius = rng.integers(1, window + 1, len(words))
    pairs = []
    for distance in range(1, window + 1):
        left, right = words[:-distance], words[distance:]
        same_sentence = owners[:-distance] == owners[distance:]
        for center, neighbor, reach in (
            (left, right, radius[:-distance]),
            (right, left, radius[distance:]),
        ):
            chosen = same_sentence & (reach >= distance)
            pairs.append(np.stack([center[chosen], neighbor[chosen]], axis=1))
    return rng.permutation(np.concatenate(pairs))


def learn_vectors(options, language, sentences, directory):
    known = [[id for id in sentence if id != Tokenizer.unk_id] for sentence in sentences]
    batches = skip_gram_batches(
        known,
        options.vocabulary_size,
        options.batch_size,
        subsampling=options.subsampling,
    )
    keras.utils.set_random_seed(1)
    model = skip_gram(options.vocabulary_size, options.d_model)
    schedule = keras.optimizers.schedules.CosineDecay(0.003, options.steps)
    model.compile(
        keras.optimizers.Adam(schedule), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    fit(model, batches, directory, steps=options.steps, keep_checkpoints=1)
    model.save(directory / f"{language}.keras")
    return keras.ops.convert_to_numpy(model.get_layer("word_embedding").embeddings)


def print_neighbors(vectors, pieces, words):
    """Prints the six words whose vectors have the largest cosine with the vector of a word."""
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9)
    directions[:4] = 0  # pad, unk, bos and eos
    names = [piece.removeprefix("▁") for piece in pieces]
    rows = []
    for word in words:
        if word in names:
            cosines = directions @ directions[names.index(word)]
            nearest = np.argsort(-cosines)[1:7]
            rows.append([word, ", ".join(f"{names[i]} {cosines[i]:.2f}" for i in nearest)])
    print(tabulate(rows, ["word", "nearest words, with cosines"], "github"), flush=True)


# 4. A small translator. The words of both languages are in the order of the tokenizer's ids, so the
#    rows of the vectors are the rows of the embeddings. The four special tokens keep their rows.


def new_translator(options, start, vectors, seed):
    keras.utils.set_random_seed(seed)
    model = Transformer(
        options.vocabulary_size,
        options.vocabulary_size,
        num_layers=2,
        d_model=options.d_model,
        num_heads=4,
        d_ff=2 * options.d_model,
        dropout_rate=0.3,
        norm_first=True,
    )
    ids = np.arange(4, options.vocabulary_size)
    if start in ("English vectors", "both"):
        model.source_embedding.set_vectors(ids, vectors["en"][4:])
    if start == "both":
        model.target_embedding.set_vectors(ids, vectors["de"][4:])
    return model


def learn_to_translate(options, model, tokenizer, pairs, seed, directory):
    store = TokenStore.build(directory / "text", pairs, tokenizer, max_length=60, progress=False)
    plan = BatchPlan(store, options.tokens_per_batch, seed=seed, length_multiple=4)
    trainer = SlicedLogitsTrainer(model, MaskedCrossentropy(label_smoothing=0.1, reduction="sum"))
    warmup_steps = max(1, options.translator_steps // 4)
    trainer.compile(TransformerAdam(TransformerSchedule(warmup_steps=warmup_steps, peak=0.002)))
    steps = options.translator_steps
    fit(
        trainer,
        plan.batches,
        directory,
        steps=steps,
        checkpoint_every=max(1, steps // 4),
        keep_checkpoints=1,
        seed=seed,
        tokens=plan.tokens,
    )


def score(model, tokenizer, test):
    """Returns BLEU and chrF of the lowercased words."""
    sources, references = zip(*test, strict=True)
    translator = Translator(model, tokenizer, SearchOptions(beam_size=4, max_length=60))
    found = translator.translate(list(sources))
    return [x.score for x in Evaluator(references, tokenize="none").scores(found)]


def table(results):
    rows = [
        [f"{start}, {name}", *(f"{x:.1f}" for x in values[:, i]), f"{values[:, i].mean():.1f}"]
        for start, values in results.items()
        for i, name in enumerate(("BLEU", "chrF"))
    ]
    seeds = [f"run {i + 1}" for i in range(len(rows[0]) - 2)]
    return tabulate(rows, ["start", *seeds, "mean"], "github")


def main():
    options = parse_options()
    begin = time.time()
    split = hold_out(read_tatoeba(options.data_dir), options.held_out, options.held_out)
    may_change = ["data_dir", "output", "seeds"]
    check_same_options(options.output, vars(options), may_change)
    text = list(split.train())
    tokenizer = load_tokenizer(options.output / "tokenizer", text, options.vocabulary_size)
    vectors = {}
    for language, encode, pieces, side in (
        ("en", tokenizer.encode_source, tokenizer.source_pieces, 0),
        ("de", tokenizer.encode_target, tokenizer.target_pieces, 1),
    ):
        sentences = encode(list(dict.fromkeys(pair[side] for pair in text)))
        directory = options.output / language
        vectors[language] = learn_vectors(options, language, sentences, directory)
        print(f"vectors of {language} after {time.time() - begin:,.0f} s")
        print_neighbors(vectors[language], pieces, SHOWN[language].split())

    results = {}
    for seed in options.seeds:
        chosen = np.random.default_rng(seed).choice(len(text), options.pairs, replace=False)
        pairs = [text[i] for i in chosen]
        for start in ("random", "English vectors", "both"):
            model = new_translator(options, start, vectors, seed)
            directory = options.output / f"{start.lower().replace(' ', '_')}_{seed}"
            learn_to_translate(options, model, tokenizer, pairs, seed, directory)
            found = score(model, tokenizer, split.test)
            results.setdefault(start, []).append(found)
            print(f"{start}, seed {seed}: BLEU {found[0]:.2f}, chrF {found[1]:.2f}", flush=True)
    results = {start: np.array(values) for start, values in results.items()}
    for start in ("English vectors", "both"):
        results[f"difference of {start}"] = results[start] - results["random"]
    print(table(results))
    report = {
        "options": {name: str(value) for name, value in vars(options).items()},
        "results": {start: values.tolist() for start, values in results.items()},
        "seconds": round(time.time() - begin),
    }
    (options.output / "results.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
