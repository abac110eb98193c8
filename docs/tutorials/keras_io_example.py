"""
Title: Machine translation with beam search and visible attention
Author: The keras_transformer developers
Date created: 2026/11/29
Last modified: 2026/11/29
Description: Train a Transformer to translate, search with beams and look at attention.
Accelerator: GPU
"""

"""
## Introduction

Other examples train a Transformer that translates, and write one word after the
other, always the most probable one. This example goes on where they end. You'll learn
how to:

- train on batches of sentences of similar length, with `compile()` and `fit()`;
- translate with a cached beam search, and measure BLEU;
- see which words the model reads when it writes a word;
- keep model, tokenizer and search options in one `.keras` file, which every backend of
Keras opens.

We use [keras_transformer](https://pypi.org/project/keras3-transformer/), a package of
Keras layers and functional models. Compared with
[English-to-Spanish translation with KerasHub](https://keras.io/examples/nlp/neural_machine_translation_with_keras_hub/),
whose data we use, it adds the beam search and the views of attention, and it needs no
`tf.data`. KerasHub has many more models, and pretrained ones.
"""

"""
## Setup
"""

"""shell
pip install -q keras3-transformer
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # or "tensorflow", or "torch"

import pathlib
import random

import keras

from keras_transformer import (
    MaskedCrossentropy,
    ParallelDataset,
    SearchOptions,
    Tokenizer,
    Transformer,
    Translator,
)
from keras_transformer.evaluation import Evaluator
from keras_transformer.visualization import translation_attention

VOCABULARY_SIZE = 8000
EPOCHS = 3  # few, to be quick

keras.utils.set_random_seed(1)

"""
## Data

The sentence pairs come from [Tatoeba](https://tatoeba.org), as
[Anki](https://www.manythings.org/anki/) collects them: in each line an English
sentence, a tab and a Spanish sentence.
"""

folder = keras.utils.get_file(
    fname="spa-eng.zip",
    origin="http://storage.googleapis.com/download.tensorflow.org/data/spa-eng.zip",
    extract=True,
)
text = (pathlib.Path(folder) / "spa-eng" / "spa.txt").read_text(encoding="utf-8")
pairs = [tuple(line.split("\t")[:2]) for line in text.splitlines()]
print(f"{len(pairs):,} pairs, such as {pairs[len(pairs) // 2]}")

"""
An English sentence may have several translations. We split by the English sentence, so
that no test sentence is seen in training.
"""

sentences = sorted({source for source, _ in pairs})
random.shuffle(sentences)
held_out = set(sentences[: len(sentences) // 20])
train_pairs = [pair for pair in pairs if pair[0] not in held_out]
test_pairs = list({pair[0]: pair for pair in pairs if pair[0] in held_out}.values())
val_pairs, test_pairs = test_pairs[::2], test_pairs[1::2]

"""
Both languages share one vocabulary of subwords. Text keeps its case and punctuation.
"""

tokenizer = Tokenizer.train(train_pairs, vocabulary_size=VOCABULARY_SIZE)
(ids,) = tokenizer.encode_source(["Where is the nearest train station?"])
print([tokenizer.source_pieces[i] for i in ids])

"""
`ParallelDataset` is a `keras.utils.PyDataset`. A batch has sentences of similar length
and at most 4,096 target tokens, so little of it is padding. There are only four shapes
of batches, because JAX compiles each.
"""

train_data = ParallelDataset(train_pairs, tokenizer, batch_tokens=4096, max_length=64)
val_data = ParallelDataset(val_pairs, tokenizer, batch_tokens=4096, shuffle=False)
inputs, labels, weights = train_data[0]
print({name: value.shape for name, value in inputs.items()}, labels.shape)

"""
## Model

`Transformer` is a functional Keras model, the one of Figure 1 in
[Attention Is All You Need](https://arxiv.org/abs/1706.03762), with one matrix for both
embeddings and the output. `norm_first=True` is the variant that trains without a
careful warm-up. Padding counts neither in the loss nor in the metrics.
"""

model = Transformer(
    VOCABULARY_SIZE,
    num_layers=4,
    num_decoder_layers=2,
    d_model=192,
    num_heads=6,
    d_ff=512,
    norm_first=True,
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3, clipnorm=1.0),
    loss=MaskedCrossentropy(label_smoothing=0.1),
)
model.summary()

"""
## Training
"""

model.fit(train_data, epochs=EPOCHS, validation_data=val_data)

"""
## Translation

Greedy search takes the most probable token at each step. Beam search keeps the best
four beginnings of a translation, which together may lead to a more probable one. Both
keep the keys and values of earlier tokens instead of computing them again.
"""

greedy = Translator(model, options=SearchOptions(beam_size=1))
translator = Translator(model, options=SearchOptions(beam_size=4, length_penalty=1.0))

samples = [source for source, _ in test_pairs[:5]]
rows = zip(samples, greedy.translate(samples), translator.translate(samples))
for source, by_greedy, by_beams in rows:
    print(f"{source}\n    greedy: {by_greedy}\n    beams:  {by_beams}")

"""
## Evaluation

BLEU compares the words of the translations with those of references, on 500 test
sentences.
"""

scored = test_pairs[:500]
evaluator = Evaluator([target for _, target in scored], metrics=["bleu"])
for name, search in [("greedy", greedy), ("beams", translator)]:
    (bleu,) = evaluator.scores(search.translate([source for source, _ in scored]))
    print(f"{name}: {bleu.score:.2f} BLEU")

"""
## Attention

When the decoder writes a word, it attends to the words of the source. In a notebook,
the result below is a page: choose layer, head and view, and point at a word.
"""

translation_attention(translator, "My brother has never seen such a garden.")

"""
## One file for every backend

The file has weights, tokenizer and search options. A process with another backend opens
it in the same way.
"""

translator.save("translator.keras")
print(Translator.load("translator.keras").translate(samples[:1]))

"""
## Next steps

More epochs, a learning rate that falls at the end, and the mean of the last weights
improve the translations. In the package, `keras-transformer train` does all of this
from a file of settings, and `keras-transformer export` writes the model for TensorFlow
Serving, CTranslate2, ONNX Runtime and the browser.
"""
