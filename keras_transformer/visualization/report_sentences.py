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
    found: list[dict[str, Any]] = [{"source": sources[i], "texts": []} for i in indices]
    chosen = [sources[index] for index in indices]
    for row, text in enumerate(_with_tokens(systems[0], chosen, [references[i] for i in indices])):
        found[row]["texts"].append(("reference", *text))
    for system in systems:
        hypotheses = [system.hypotheses[index] for index in indices]
        for row, text in enumerate(_with_tokens(system, chosen, hypotheses)):
            label = f"{system.name} chrF {system.chrf[indices[row]]:.1f}"
            found[row]["texts"].append((label, *text))
    return found


def _with_tokens(
    system: System, sources: Sequence[str], texts: Sequence[str]
) -> list[tuple[str, list[tuple[str, float]], bool]]:
    tokenizer = system.scorer.tokenizer
    pieces, unk_id = tokenizer.target_pieces, tokenizer.unk_id
    encoded = tokenizer.encode_target([text.strip() for text in texts])
    short = _that_fit(system, range(len(texts)), sources, texts)
    scored = system.scorer.token_log_probabilities(
        [sources[i] for i in short], [texts[i] for i in short]
    )
    tokens: list[list[tuple[str, float]]] = [[] for _ in texts]
    for index, log_probabilities in zip(short, scored, strict=True):
        names = ["▁<unk>" if id == unk_id else pieces[id] for id in encoded[index]]
        tokens[index] = list(zip(names, np.exp(log_probabilities).tolist(), strict=False))
    return [(text, tokens[index], unk_id not in encoded[index]) for index, text in enumerate(texts)]


def _that_fit(
    system: System, indices: Sequence[int], sources: Sequence[str], texts: Sequence[str]
) -> list[int]:
    """Returns the indices of the sentences whose tokens fit into the model on both sides."""
    tokenizer, longest = system.scorer.tokenizer, system.scorer.model.max_length
    of_source = tokenizer.encode_source([sources[index].strip() for index in indices])
    of_target = tokenizer.encode_target([texts[index].strip() for index in indices])
    pairs = zip(indices, of_source, of_target, strict=True)
    return [index for index, a, b in pairs if fits(a, longest) and fits(b, longest)]


def attention_of_sentences(system: System, sources: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the attention from the translations to the sources, for 3 sentences.

    The sentences are those at a quarter, the half and three quarters of the ranking by chrF, from
    the longer half of the sentences with at most `MOST_CHARACTERS` characters. Sentences with too
    many tokens for the model are left out. Each row of a map has the weights of the step that
    predicts a target piece. Rows and columns end with eos.
    """
    short = [index for index, text in enumerate(sources) if 0 < len(text) <= MOST_CHARACTERS]
    short = _that_fit(system, short, sources, system.hypotheses)
    short.sort(key=lambda index: len(sources[index]))
    ranked = sorted(short[len(short) // 2 :], key=lambda index: system.chrf[index])
    chosen = [ranked[len(ranked) * quarter // 4] for quarter in (3, 2, 1)] if ranked else []
    tokenizer, model = system.scorer.tokenizer, system.scorer.model
    maps = []
    for index in dict.fromkeys(chosen):
        (source,) = tokenizer.encode_source([sources[index].strip()])
        (target,) = tokenizer.encode_target([system.hypotheses[index].strip()])
        source_ids = tokenizer.frame_source(source)
        target_ids, labels = tokenizer.frame_target(target)
        attention = model.source_attention(np.array([source_ids]), np.array([[target_ids]]))
        keys = [tokenizer.source_pieces[id] for id in source_ids]
        rows = [
            (tokenizer.target_pieces[id], list(zip(keys, weights, strict=True)))
            for id, weights in zip(
                labels, ops.convert_to_numpy(attention)[0, 0].tolist(), strict=True
            )
        ]
        maps.append(
            {"number": index + 1, "chrf": system.chrf[index], "columns": keys, "rows": rows}
        )
    return maps
