"""Tables and JSON."""

import json

from keras_transformer.evaluation.evaluator import LengthBucket, Score, Significance
from keras_transformer.evaluation.report import (
    as_json,
    comparison_table,
    length_table,
    score_lines,
)

SCORES = [Score("BLEU", 41.234, "nrefs:1"), Score("chrF2", 66.0, "nrefs:1")]
COMPARISONS = [
    Significance("bootstrap", "BLEU", 40.0, 41.234, 0.01249, 1000, "12345", "nrefs:1|bs:1000"),
    Significance("bootstrap", "chrF2", 66.5, 66.0, 0.5, 1000, "12345", "nrefs:1|bs:1000"),
]
BUCKETS = [LengthBucket("0-5", 7, {"BLEU": 50.0}), LengthBucket("51+", 1, {"BLEU": 9.999})]


def test_scores_are_separated_by_tabs():
    assert score_lines(SCORES) == "BLEU\t41.23\tnrefs:1\nchrF2\t66.00\tnrefs:1"


def test_comparisons_are_a_table_with_seed_samples_and_signature():
    assert comparison_table(COMPARISONS, "runs/a").splitlines() == [
        "Paired bootstrap resampling, 1000 samples, seed 12345, against runs/a:",
        "metric      baseline    score    p-value  signature",
        "BLEU           40.00    41.23     0.0125  nrefs:1|bs:1000",
        "chrF2          66.50    66.00     0.5000  nrefs:1|bs:1000",
    ]


def test_lengths_are_a_table():
    assert length_table(BUCKETS, "source").splitlines() == [
        "words of the source      sentences    BLEU",
        "0-5                              7   50.00",
        "51+                              1   10.00",
    ]


def test_json_has_everything():
    content = json.loads(as_json(SCORES, COMPARISONS, BUCKETS))
    assert content["scores"][0] == {"metric": "BLEU", "score": 41.234, "signature": "nrefs:1"}
    assert content["comparisons"][1]["p_value"] == 0.5
    assert content["length_buckets"][0]["scores"] == {"BLEU": 50.0}
    assert json.loads(as_json(SCORES, [], []))["comparisons"] == []
