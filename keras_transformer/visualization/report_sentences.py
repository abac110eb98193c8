"""Chooses single sentences for a report: the best, the worst, the most changed, and attention."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from sacrebleu.metrics import CHRF

from keras_transformer.data.tokenizer import fits
from keras_transformer.translation.scoring import Scorer

# Number of sentences in each list.
COUNT = 5
# Longer sentences make heat maps that are hard to read.
MOST_CHARACTERS = 100


class System(NamedTuple):
    """A run whose translations are shown."""

    name: str
    hypotheses: Sequence[str]
    chrf: Sequence[float]  # sentence chrF of each hypothesis, 0 to 100
    scorer: Scorer


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Returns the sentence chrF of each hypothesis, 0 to 100."""
    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def best_and_worst(chrf: Sequence[float], references: Sequence[str]) -> tuple[list[int], list[int]]:
    """Returns the indices of the best and the worst sentences. No index is in both.

    Among equal scores, longer references come first.
    """
    by_length = sorted(range(len(chrf)), key=lambda index: -len(references[index]))
    best = sorted(by_length, key=lambda index: -chrf[index])[:COUNT]
    worst = sorted(by_length, key=lambda index: chrf[index])
    return best, [index for index in worst if index not in best][:COUNT]


def most_changed(first: System, second: System) -> list[int]:
    """Returns the sentences whose chrF differs most between two systems, largest change first."""
    changes = np.abs(np.subtract(first.chrf, second.chrf))
    order = np.argsort(-changes, kind="stable")[: 2 * COUNT]
    return [int(index) for index in order if changes[index] > 0]


def shown_sentences(
    indices: Sequence[int],
    sources: Sequence[str],
    references: Sequence[str],
    systems: Sequence[System],
) -> list[dict[str, Any]]:
    """Returns the source of each sentence, and its reference and translations as texts.

    A text is a tuple of a label, the text, its tokens with their probabilities, and whether the
    model knows all its words. The probabilities of a translation are those of the model that made
    it, and those of the reference are of the first model. A text too long for the model has no
    tokens.
    """
    chosen = [sources[index] for index in indices]
    found: list[dict[str, Any]] = [{"source": source, "texts": []} for source in chosen]
    own = [(f"{x.name} chrF ", x, x.hypotheses) for x in systems]
    for label, system, all_texts in [("reference", systems[0], references), *own]:
        texts = _with_tokens(system, chosen, [all_texts[index] for index in indices])
        for index, shown, text in zip(indices, found, texts, strict=True):
            number = "" if label == "reference" else f"{system.chrf[index]:.1f}"
            shown["texts"].append((label + number, *text))
    return found


def _with_tokens(
    system: System, sources: Sequence[str], texts: Sequence[str]
) -> list[tuple[str, list[tuple[str, float]], bool]]:
    tokenizer = system.scorer.tokenizer
    short, _, encoded = _encoded(system, sources, texts)
    scored = system.scorer.token_log_probabilities(
        [sources[index] for index in short], [texts[index] for index in short]
    )
    tokens: list[list[tuple[str, float]]] = [[] for _ in texts]
    for index, log_probabilities in zip(short, scored, strict=True):
        names = [
            "▁<unk>" if id == tokenizer.unk_id else tokenizer.target_pieces[id]
            for id in encoded[index]
        ]
        tokens[index] = list(zip(names, np.exp(log_probabilities).tolist(), strict=False))
    is_known = [tokenizer.unk_id not in ids for ids in encoded]
    return list(zip(texts, tokens, is_known, strict=True))


def _encoded(
    system: System, sources: Sequence[str], texts: Sequence[str]
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Returns the indices of the sentences that fit into the model, and the pieces of all."""
    tokenizer, longest = system.scorer.tokenizer, system.scorer.model.max_length
    of_sources = tokenizer.encode_source([text.strip() for text in sources])
    of_texts = tokenizer.encode_target([text.strip() for text in texts])
    pairs = enumerate(zip(of_sources, of_texts, strict=True))
    short = [index for index, pair in pairs if all(fits(ids, longest) for ids in pair)]
    return short, of_sources, of_texts


def attention_of_sentences(system: System, sources: Sequence[str]) -> list[dict[str, Any]] | None:
    """Returns the attention from the translations to the sources, for 3 sentences.

    The sentences are those at a quarter, the half and three quarters of the ranking by chrF, from
    the longer half of the sentences with at most `MOST_CHARACTERS` characters. Sentences with too
    many tokens for the model are left out. Each row of a map has the weights of the step that
    predicts a target piece. Rows and columns end with eos. If the model has no such attention, the
    result is None.
    """
    tokenizer, model = system.scorer.tokenizer, system.scorer.model
    if not hasattr(model, "source_attention"):
        return None
    short, of_sources, of_targets = _encoded(system, sources, system.hypotheses)
    short = [index for index in short if 0 < len(sources[index]) <= MOST_CHARACTERS]
    short.sort(key=lambda index: len(sources[index]))
    ranked = sorted(short[len(short) // 2 :], key=lambda index: system.chrf[index])
    chosen = [ranked[len(ranked) * quarter // 4] for quarter in (3, 2, 1)] if ranked else []
    maps = []
    for index in dict.fromkeys(chosen):
        source_ids = tokenizer.frame_source(of_sources[index])
        target_ids, labels = tokenizer.frame_target(of_targets[index])
        attention = model.source_attention(np.array([source_ids]), np.array([[target_ids]]))
        weights = ops.convert_to_numpy(attention)[0, 0].tolist()
        keys = [tokenizer.source_pieces[id] for id in source_ids]
        rows = [
            (tokenizer.target_pieces[id], list(zip(keys, row, strict=True)))
            for id, row in zip(labels, weights, strict=True)
        ]
        found = {"number": index + 1, "chrf": system.chrf[index], "columns": keys, "rows": rows}
        maps.append(found)
    return maps
