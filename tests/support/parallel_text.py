"""Small parallel texts, and a tokenizer whose ids can be told in advance."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from keras_transformer.data import Tokenizer, TokenStore
from keras_transformer.data.parallel_text import Corpora
from keras_transformer.data.tokenizer import DEFAULT_FRAMES

SENTENCES = [
    ("a dog runs over the green grass .", "ein hund rennt über das grüne gras ."),
    ("two men play chess in the park .", "zwei männer spielen schach im park ."),
    ("a woman reads a book on a bench .", "eine frau liest ein buch auf einer bank ."),
    ("children jump into the cold water .", "kinder springen in das kalte wasser ."),
    ("the man in the red shirt is cooking .", "der mann im roten hemd kocht ."),
    ("a black cat sleeps on the sofa .", "eine schwarze katze schläft auf dem sofa ."),
]
# Options of a tokenizer with one vocabulary and two models.
LOSSLESS_TARGET = {"normalization": "nmt_nfkc", "target_normalization": "identity"}


class RepeatingTokenizer:
    """Encodes "3 17" as [17, 17, 17], so that lengths and ids can be chosen."""

    fingerprint = "repeating"
    source_vocabulary_size = target_vocabulary_size = 65_000
    source_prefix_ids, target_prefix_ids, source_eos = [], [], True
    frames, tag_ids = DEFAULT_FRAMES, {}
    frame_source = Tokenizer.frame_source

    def encode_source(self, sentences: Sequence[str]) -> list[list[int]]:
        counts_and_ids = (map(int, sentence.split()) for sentence in sentences)
        return [[id] * count for count, id in counts_and_ids]

    encode_target = encode_source


def store_of_corpora(
    directory: Path, corpora: Iterable[Iterable[tuple[int, int]]], first_id: int = 10
) -> TokenStore:
    """A store whose pair i has the given numbers of pieces, all of them of the id first_id + i.

    Pairs are numbered on from one corpus to the next.
    """
    ids = itertools.count(first_id)
    parts = [
        [
            (f"{source} {id}", f"{target} {id}")
            for (source, target), id in zip(lengths, ids, strict=False)
        ]
        for lengths in corpora
    ]
    return TokenStore.build(directory, Corpora(parts), RepeatingTokenizer(), progress=False)
