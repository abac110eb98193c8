"""Shows single sentences in a report: the best, the worst, the most changed, and attention."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import ops
from sacrebleu.metrics import CHRF

from keras_transformer.data.tokenizer import fits
from keras_transformer.translation.scoring import Scorer
from keras_transformer.visualization.report_charts import heat_map
from keras_transformer.visualization.report_page import Html, element, scrollable, tokens_html

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


def sentences_html(
    indices: Sequence[int],
    sources: Sequence[str],
    references: Sequence[str],
    systems: Sequence[System],
) -> Html:
    """Returns each sentence with its reference and its translations.

    The tokens of a translation are shaded by their probability under the model that made it, and
    those of the reference by their probability under the model of the first system.
    """
    chosen = [sources[index] for index in indices]
    shown = [("reference", "", _shaded(systems[0], chosen, [references[i] for i in indices]))]
    for system in systems:
        own = _shaded(system, chosen, [system.hypotheses[index] for index in indices])
        shown.append((system.name, "chrF {:.1f}", own))
    blocks = []
    for row, index in enumerate(indices):
        lines = [element("dt", "source"), element("dd", sources[index], dir="auto")]
        chrf = [0.0, *(system.chrf[index] for system in systems)]
        for (name, score, texts), value in zip(shown, chrf, strict=True):
            label = f"{name} {score.format(value)}".strip()
            lines += [element("dt", label), element("dd", texts[row], dir="auto")]
        blocks.append(element("div", element("dl", *lines), class_="sentence"))
    return Html("".join(blocks))


def _shaded(system: System, sources: Sequence[str], texts: Sequence[str]) -> list[Html]:
    """Returns the texts with shaded tokens. Texts too long for the model have no shades.

    A text with words that the model does not know also stands there as it is.
    """
    shown = [element("bdi", text) for text in texts]
    tokenizer = system.scorer.tokenizer
    encoded = tokenizer.encode_target([text.strip() for text in texts])
    short = _that_fit(system, range(len(texts)), sources, texts)
    pairs = [sources[i] for i in short], [texts[i] for i in short]
    found = system.scorer.token_log_probabilities(*pairs)
    pieces, unk_id = tokenizer.target_pieces, tokenizer.unk_id
    for index, log_probabilities in zip(short, found, strict=True):
        names = ["▁<unk>" if id == unk_id else pieces[id] for id in encoded[index]]
        tokens = tokens_html(list(zip(names, np.exp(log_probabilities), strict=False)))
        is_known = unk_id not in encoded[index]
        shown[index] = (
            tokens
            if is_known
            else element(
                "div", element("div", tokens), element("div", shown[index], class_="muted")
            )
        )
    return shown


def _that_fit(
    system: System, indices: Sequence[int], sources: Sequence[str], texts: Sequence[str]
) -> list[int]:
    """Returns the indices of the sentences whose tokens fit into the model on both sides."""
    tokenizer, longest = system.scorer.tokenizer, system.scorer.model.max_length
    of_source = tokenizer.encode_source([sources[index].strip() for index in indices])
    of_target = tokenizer.encode_target([texts[index].strip() for index in indices])
    pairs = zip(indices, of_source, of_target, strict=True)
    return [index for index, a, b in pairs if fits(a, longest) and fits(b, longest)]


def attention_html(system: System, sources: Sequence[str]) -> Html:
    """Returns heat maps of the attention from the translations to the sources, for 3 sentences.

    The sentences are those at a quarter, the half and three quarters of the ranking by chrF, from
    the longer half of the sentences with at most `MOST_CHARACTERS` characters. Sentences with too
    many tokens for the model are left out.
    """
    short = [index for index, text in enumerate(sources) if 0 < len(text) <= MOST_CHARACTERS]
    short = _that_fit(system, short, sources, system.hypotheses)
    short.sort(key=lambda index: len(sources[index]))
    ranked = sorted(short[len(short) // 2 :], key=lambda index: system.chrf[index])
    chosen = [ranked[len(ranked) * quarter // 4] for quarter in (3, 2, 1)] if ranked else []
    maps = []
    for index in dict.fromkeys(chosen):
        rows, columns, weights = attention_of(system, sources[index], system.hypotheses[index])
        label = f"Attention of sentence {index + 1}"
        chart = scrollable(heat_map(label, rows, columns, weights), label)
        caption = f"Sentence {index + 1}, chrF {system.chrf[index]:.1f}"
        maps.append(element("figure", element("figcaption", caption), chart))
    return element("div", *maps, class_="charts")


def attention_of(system: System, source: str, text: str) -> tuple[list[str], list[str], np.ndarray]:
    """Returns the target pieces, the source pieces and the attention weights between them.

    Both lists end with eos. Row t has the weights of the step that predicts target piece t.
    """
    tokenizer, model = system.scorer.tokenizer, system.scorer.model
    (source_ids,) = (tokenizer.frame_source(x) for x in tokenizer.encode_source([source.strip()]))
    (pieces,) = tokenizer.encode_target([text.strip()])
    target_ids, labels = tokenizer.frame_target(pieces)
    attention = model.source_attention(np.array([source_ids]), np.array([[target_ids]]))
    weights = ops.convert_to_numpy(attention)[0, 0]
    rows = [tokenizer.target_pieces[id] for id in labels]
    return rows, [tokenizer.source_pieces[id] for id in source_ids], weights
