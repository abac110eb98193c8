"""Takes pieces out of the vocabulary of a trained model, and adds words and languages to it."""

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

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
from keras_transformer.translation.hypothesis import NBest, SourcePart
from keras_transformer.translation.translator import Translator
from keras_transformer.translation.word_forms import WordForms

_LINES = 10_000  # that are encoded together


def with_vocabulary(
    model: Transformer,
    tokenizer: Tokenizer,
    options: SearchOptions,
    keep: Sequence[Path],
    add: Iterable[str],
    forms: WordForms,
) -> tuple[Transformer, Tokenizer]:
    """Returns a model in float32 and its tokenizer with another vocabulary.

    `keep` and `add` are as for `change_vocabulary`. The first text of `keep` is translated with the
    search `options` and the `forms` of words. Prints the sizes before and after.
    """
    words = [x for x in map(str.strip, add) if x]
    has_text = any(line.strip() for file in keep for line in read_lines(file))
    if not has_text and (keep or not words):
        raise UserError("a change of the vocabulary needs a text to keep, or words to add")
    models = [tokenizer.source_model, tokenizer.target_model]
    sides = _used(model, tokenizer, options, keep, forms) if keep else (None, None)
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


class _Observed(Translator):
    """A translator that notes the ids of all that it reads and of all hypotheses that it finds."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.source_ids = {*self.tokenizer.source_prefix_ids}
        self.target_ids = {*self.tokenizer.target_prefix_ids}

    def _search_parts(
        self, parts: list[SourcePart], options: Any, *arguments: Any, **sampling: Any
    ) -> NBest:
        n_best = options.replace(n_best=options.beam_size)
        found = super()._search_parts(parts, n_best, *arguments, **sampling)
        self.source_ids.update(id for part in parts for id in part.ids)
        self.target_ids.update(id for of_part in found for x in of_part for id in x.ids)
        return [of_part[: options.n_best] for of_part in found]


def _used(
    model: Transformer,
    tokenizer: Tokenizer,
    options: SearchOptions,
    keep: Sequence[Path],
    forms: WordForms,
) -> tuple[set[int], set[int]]:
    """Returns the ids of the texts and of the translations of the first text, by side."""
    translator = _Observed(model, tokenizer, options, word_forms=forms)
    source, target = translator.source_ids, translator.target_ids
    for texts in ([*forms.names, *forms.numbers], *map(read_lines, keep)):
        lines = iter(texts)
        while some := [*islice(lines, _LINES)]:
            source.update(id for ids in tokenizer.encode_source(some) for id in ids)
            target.update(id for ids in tokenizer.encode_target(some) for id in ids)
    translator.translate([*read_lines(keep[0])], progress=True)
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
