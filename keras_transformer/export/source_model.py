"""Checks a model, reads its weights and tests its export. All exporters use these functions."""

import itertools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.layers import PositionalEncoding
from keras_transformer.layers.changes import layer_changes
from keras_transformer.models import Transformer
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.runs.run import Run
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.translator import Translator

# Pairs of translation and score of one sentence, best first.
Scored = Sequence[tuple[str, float]]


def check_model(model: Seq2Seq, tokenizer: Tokenizer) -> None:
    """Checks that `model` is a `Seq2Seq`, is not quantized, and matches the tokenizer.

    Raises:
        ValueError: If one of these checks fails.
    """
    if not isinstance(model, Seq2Seq):
        raise ValueError(f"`model` must be a Seq2Seq, such as Transformer. Received: model={model}")
    if any("quantization" in changes for changes in layer_changes(model).values()):
        raise ValueError(
            "`model` must not be quantized. Export the model as it was before `quantize`. "
            "The exporters of ONNX and CTranslate2 have a quantization of their own. "
            f"Received: model={model}"
        )
    target_size = model.target_vocabulary_size or model.vocabulary_size
    sizes = (model.vocabulary_size, target_size, model.pad_id)
    source, target = tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size
    if sizes != (source, target, tokenizer.pad_id):
        raise ValueError(
            "`tokenizer` must be the model's tokenizer: source vocabulary size, target vocabulary "
            f"size and `pad_id` are {sizes} in the model, but {source, target, tokenizer.pad_id} "
            "in the tokenizer"
        )


def check_attention(model: Seq2Seq, format: str) -> None:
    """Raises ValueError unless `model` is a `Transformer` with full attention.

    Position encodings that add to the attention scores are refused too.
    """
    if not isinstance(model, Transformer):
        raise ValueError(
            f"{format} supports only the architecture transformer; a SavedModel supports all. "
            f"Received: a model of the architecture {model.architecture}"
        )
    if model.attention_pattern not in (None, "full"):
        raise ValueError(
            f"{format} does not support local, strided or fixed attention; a SavedModel does. "
            f"Received: model.attention_pattern={model.attention_pattern!r}"
        )
    if model.positions.has_score_bias:
        raise ValueError(
            f"{format} does not support position encodings that add to attention scores; a "
            f"SavedModel does. Received: model.position_encoding={model.position_encoding!r}"
        )


def array(tensor: Any) -> np.ndarray:
    """Converts a weight or tensor of any dtype and backend to a float32 NumPy array."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def position_table(model: Transformer) -> np.ndarray | None:
    """Returns the position table that is added to embeddings, float32 `(model.max_length, D)`.

    If the model concatenates positions and embeddings, the table contains the projected positions.
    The result is None if positions do not change the embeddings. `model` must compute in float32.
    """
    if type(model.positions).call is PositionalEncoding.call:
        return None
    return array(model.positions(ops.zeros((1, model.max_length, model.d_model)))[0])


class Comparison(NamedTuple):
    """Tells how closely the translations of an export match the translations of its model."""

    sentences: int  # number of compared sentences
    identical: int  # number of sentences with the same best translation
    largest_difference: float  # in nats, between export's and model's score of equal translations
    are_same: bool = False  # whether the model translates every sentence to the same text

    def __str__(self) -> str:
        share = self.identical / self.sentences if self.sentences else 1.0
        same = ". But all translations are the same text, so check that the model is trained"
        return (
            f"{share:.1%} of {self.sentences} translations equal the model's; their scores differ "
            f"by at most {self.largest_difference:.1g} nats{same if self.are_same else ''}"
        )


def compare(
    format: str,
    translator: Translator,
    sentences: Sequence[str],
    *answers: Sequence[Scored],
    tolerance: float,
    is_exact: bool = True,
    compares_scores: bool = True,
) -> Comparison:
    """Compares the translations of an export with the translations of its model.

    Args:
        format: Name of the format, for the message.
        translator: The `Translator` of the model, with the search options of the export.
        sentences: Source sentences.
        *answers: Translations by the export, one argument per signature.
            `Comparison.identical` counts only the first of these arguments.
        tolerance: Scores count as equal if they differ by at most this number of nats.
        is_exact: Whether to raise an error if results differ. Pass False for quantized weights.
        compares_scores: If True, each score and each translation must equal the model's. Other
            translations are also accepted if several hypotheses have equal scores. If False, it is
            enough that the score or the translation is equal.

    Raises:
        UserError: If `is_exact` is True and a result does not equal the model's result.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no warnings about truncation: the export also truncates
        expected = translator.translate_nbest(sentences)
    identical, differences = 0, [0.0]
    for sentence, hypotheses, *rows in zip(sentences, expected, *answers, strict=True):
        identical += rows[0][0][0] == hypotheses[0].text
        for row in rows:
            scored = row if sentence.strip() else row[:1]  # a blank text has one translation
            for hypothesis, (text, score) in zip(hypotheses, scored, strict=False):
                difference = _difference(hypothesis, score)
                is_near = difference <= tolerance
                if compares_scores:
                    is_right = is_near and _is_among(hypotheses, text, score, tolerance)
                else:
                    is_right = is_near or text == hypothesis.text
                if is_exact and not is_right:
                    raise UserError(
                        f"the {format} translates {sentence!r} to {text!r} with score {score:.4f}, "
                        f"but the model translates it to {hypothesis.text!r} with score "
                        f"{hypothesis.score:.4f}; nothing was written"
                    )
                if text == hypothesis.text:
                    differences.append(difference)
    best = {
        text: row[0].text for text, row in zip(sentences, expected, strict=True) if text.strip()
    }
    are_same = len(set(best.values())) == 1 and (len(best) > 1 or "" in best.values())
    return Comparison(len(sentences), identical, max(differences), are_same)


def _difference(hypothesis: Hypothesis, score: float) -> float:
    """Returns the absolute difference of two scores, or 0 if both are minus infinity."""
    return 0.0 if hypothesis.score == score else abs(hypothesis.score - score)


def _is_among(hypotheses: Sequence[Hypothesis], text: str, score: float, tolerance: float) -> bool:
    """Returns True if one of `hypotheses` has the text `text` and the score `score`.

    Also returns True if the last of several hypotheses has the score `score`. The model's search
    may have kept this hypothesis and dropped a translation with the same score.
    """
    if len(hypotheses) > 1 and abs(hypotheses[-1].score - score) <= tolerance:
        return True
    return any(
        hypothesis.text == text and _difference(hypothesis, score) <= tolerance
        for hypothesis in hypotheses
    )


def run_sentences(run: Run, count: int) -> list[str]:
    """Returns the run's first validation sentences, or random texts if the run has none."""
    try:
        sources = (source.strip() for source, _ in run.text.pairs("validation"))
        return list(itertools.islice(filter(None, sources), count))
    except UserError:
        return random_sentences(run.tokenizer(), count)


def random_sentences(tokenizer: Tokenizer, count: int, longest: int = 20) -> list[str]:
    """Returns texts of 2 to `longest` random source pieces. Every call returns the same texts."""
    random, pieces = np.random.default_rng(0), tokenizer.source_pieces
    numbers = tokenizer.eos_id + 1, len(pieces)
    drawn = (random.integers(*numbers, random.integers(2, longest + 1)) for _ in range(count))
    return ["".join(pieces[id] for id in ids).replace("▁", " ").strip() for ids in drawn]
