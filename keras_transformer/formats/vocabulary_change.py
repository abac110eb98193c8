"""Takes pieces out of the vocabulary of a trained model, and adds words and languages to it."""

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from keras_transformer._backend import without_tensorflow
from keras_transformer._backend.operations import assign
from keras_transformer.data.text_files import read_lines
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import NewIds, changed
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats.exported_model import array
from keras_transformer.layers.saving import placeholder_weights
from keras_transformer.models.transformer import Transformer
from keras_transformer.translation.translator import Translator

_LINES = 10_000  # that are encoded together


def with_vocabulary(
    model: Transformer,
    tokenizer: Tokenizer,
    options: SearchOptions,
    keep: Sequence[Path],
    add: Iterable[str],
) -> tuple[Transformer, Tokenizer]:
    """Returns a model in float32 and its tokenizer with another vocabulary.

    `keep` and `add` are as for `change_vocabulary`. `options` are those of the search that
    translates the first text of `keep`. Prints the sizes before and after.
    """
    words = [x for x in map(str.strip, add) if x]
    has_text = any(line.strip() for file in keep for line in read_lines(file))
    if not has_text and (keep or not words):
        raise UserError("a change of the vocabulary needs a text to keep, or words to add")
    models = [tokenizer.source_model, tokenizer.target_model]
    sides = _used(model, tokenizer, options, keep) if keep else (None, None)
    if tokenizer.joint:
        (source, converted), target = changed(models, words, sides[0]), None
    else:
        both = [*zip(models, sides, strict=True)]
        size = max(len(changed([x], words, used)[0].pieces) for x, used in both)
        (source, one), (target, other) = (changed([x], words, used, size) for x, used in both)
        converted = one + other
    new = _with_rows(model, source, target or source)
    now = Tokenizer(*dict.fromkeys(converted), **tokenizer.frames)
    for when, x, pieces in (("before", model, tokenizer), ("now", new, now)):
        count, size = pieces.target_vocabulary_size, 4 * x.count_params()
        print(f"{when}: {count:,} pieces, {size:,} bytes of weights", file=sys.stderr)
    return new, now


def _used(
    model: Transformer, tokenizer: Tokenizer, options: SearchOptions, keep: Sequence[Path]
) -> tuple[set[int], set[int]]:
    """Returns the ids of the texts and of the translations of the first text, by side."""
    source, target = {*tokenizer.source_prefix_ids}, {*tokenizer.target_prefix_ids}
    for file in keep:
        lines = read_lines(file)
        while some := [*islice(lines, _LINES)]:
            source.update(id for ids in tokenizer.encode_source(some) for id in ids)
            target.update(id for ids in tokenizer.encode_target(some) for id in ids)
    translator = Translator(model, tokenizer, options.replace(n_best=options.beam_size))
    for found in translator.translate_nbest([*read_lines(keep[0])], progress=True):
        target.update(id for hypothesis in found for id in hypothesis.ids)
    return (source | target,) * 2 if tokenizer.joint else (source, target)


def _with_rows(model: Transformer, source: NewIds, target: NewIds) -> Transformer:
    """Returns a copy of a model whose embeddings and bias have the rows of new ids."""
    config = {**model.get_config(), "vocabulary_size": len(source.pieces)}
    if model.target_vocabulary_size is not None:
        config["target_vocabulary_size"] = len(target.pieces)
    config["use_logits_bias"] = model.use_logits_bias or bool(target.is_absent.any())
    with without_tensorflow(), placeholder_weights():
        new = Transformer.from_config(config)
    old = {weight.path: weight for weight in model.weights}
    for weight in new.weights:
        path, ids = weight.path, source if weight.path.startswith("source_") else target
        if "embedding/" not in path:
            weight.assign(old[path])
        elif weight.ndim == 1:
            weight.assign(ids.bias(array(old[path]) if path in old else None))
        else:
            assign(weight, ids.gathered(array(old[path])))
    return new
