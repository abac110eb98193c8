"""The sentences that a report chooses."""

from types import SimpleNamespace

from keras_transformer.evaluation import Evaluator
from keras_transformer.visualization.report import (
    COUNT,
    System,
    attention_of_sentences,
    best_and_worst,
    most_changed,
    shown_sentences,
)

REFERENCES = ["a b c d", "a b", "a", "x y", "x y z", "u v", "p q r"]


def system(chrf, name="a"):
    return System(name, REFERENCES, chrf, None)


def test_best_and_worst_prefer_long_sentences_and_share_none():
    best, worst = best_and_worst([100, 100, 20, 0, 0, 50, 60], REFERENCES)
    assert best == [0, 1, 6, 5, 2] and len(best) == COUNT
    assert worst == [4, 3]


def test_most_changed_leaves_out_what_is_equal():
    first = system([10, 50, 30, 30, 30, 30, 30])
    second = system([10, 20, 35, 30, 30, 30, 90])
    assert most_changed(first, second) == [6, 1, 2]


def test_a_text_that_is_too_long_for_the_model_is_not_shaded():
    def encode(texts):
        return [[1, 2, 3]] * len(texts)

    scorer = SimpleNamespace(
        model=SimpleNamespace(max_length=3, source_attention=encode),
        tokenizer=SimpleNamespace(
            encode_source=encode,
            encode_target=encode,
            frame_source=lambda ids: [*ids, 3],
            frame_target=lambda ids: ([2, *ids], [*ids, 3]),
            target_pieces=[],
            unk_id=1,
        ),
        token_log_probabilities=lambda sources, texts: [[]] * len(texts),
    )
    long = system([1.0] * 7, "<run>")._replace(scorer=scorer)
    (shown,) = shown_sentences([1], Evaluator(REFERENCES, REFERENCES), [long])
    assert [x[0] for x in shown["texts"]] == ["reference", "<run> chrF 1.0"]
    assert not any(tokens for _, _, tokens, _ in shown["texts"])
    assert attention_of_sentences(long, REFERENCES) == []
