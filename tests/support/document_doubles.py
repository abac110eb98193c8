"""A translator of segments and documents without a model."""

import numpy as np

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.translation import WordForms
from keras_transformer.translation.alignment import tokens
from keras_transformer.translation.base_translator import BaseTranslator
from keras_transformer.translation.hypothesis import Hypothesis

NAMES, NUMBERS = ("Tom", "Rom", "Kim"), ("22", "44")


class Vocabulary:
    """A tokenizer with a piece for each word and mark; "▁" is the space before it."""

    pad_id, unk_id, bos_id, eos_id = range(4)
    source_prefix_ids, target_prefix_ids, source_eos, tag_ids = [], [], True, {}
    frame_source = staticmethod(lambda ids: [*ids, 3])
    split_tag = staticmethod(lambda text: ([], text))

    def __init__(self):
        self.source_pieces = ["<pad>", "<unk>", "<s>", "</s>"]

    def ids(self, texts):
        texts = list(texts)
        for text in texts:
            if text not in self.source_pieces:
                self.source_pieces.append(text)
        return [self.source_pieces.index(text) for text in texts]

    def encode_source(self, texts):
        return [self.ids(text[a:b] for a, b in tokens(text)) for text in texts]

    encode_target = encode_source

    def source_offsets(self, text):
        return tokens(text)

    def decode_target(self, rows):
        texts = ("".join(self.source_pieces[id] for id in ids) for ids in rows)
        return [text.replace("▁", " ").strip() for text in texts]

    def target_offsets(self, ids):
        return tokens(*self.decode_target([ids]))


class Double(BaseTranslator):
    """Writes each word but those that it copies in upper case, perhaps in reverse order.

    Words are apart as in the source. In reverse order, each has a space before it, and no mark has.
    """

    copied, is_reversed = (), False

    def _search_parts(self, parts, options, constraints, advance, aligned):
        advance(range(len(parts)))
        return [[self._hypothesis(part.text)] for part in parts]

    def _order(self, text):
        count = len(tokens(text))
        last = count - (not text[-1].isalnum())
        return [*reversed(range(last)), *range(last, count)] if self.is_reversed else range(count)

    def _pieces(self, text):
        for start, end in tokens(text):
            word = text[start:end]
            is_apart = word[0].isalnum() if self.is_reversed else text[:start].endswith(" ")
            yield "▁" * is_apart + (word if word in self.copied else word.upper())

    def _hypothesis(self, text):
        found = [*self._pieces(text)]
        ids = self.tokenizer.ids(found[n] for n in self._order(text))
        return Hypothesis(
            *self.tokenizer.decode_target([ids]), tuple(ids), -1.0, -1.0, len(ids) + 1
        )

    def _attention(self, parts, found):
        return (
            (n, np.eye(len(self._order(x.text)))[None, self._order(x.text)])
            for n, x in enumerate(parts)
        )

    def _token_scores(self, pairs):
        return [[-float(k) for k in range(len(x.ids))] for _, x in pairs]


def new_double(names=NAMES, numbers=NUMBERS, is_reversed=False, forms=(), max_length=50, **known):
    forms = WordForms(forms, ".", names, numbers, **known)
    double = Double(Vocabulary(), max_length, SearchOptions(), word_forms=forms)
    double.copied, double.is_reversed = {*names, *numbers}, is_reversed
    return double
