"""`keras-transformer score`."""

import math

import numpy as np
from support.command_line import fails, invoke, succeeds

from keras_transformer.translation.scoring import Scorer


def test_score_gives_a_line_a_pair_and_the_figures_of_all(run, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("one two\nthree\n\n")
    target.write_text("eins zwei\ndrei\nnull\n")
    result = invoke("score", run, source, target)
    assert result.exit_code == 0
    scores = [line.split("\t") for line in result.stdout.splitlines()]
    assert len(scores) == 3 and all(float(score) < 0 for score, _ in scores)
    nats, tokens = -sum(float(score) for score, _ in scores), sum(int(n) for _, n in scores)
    figures = succeeds("score", run, source, target, "--summary")
    assert figures in result.stderr
    figures = dict(line.split("\t") for line in figures.splitlines())
    assert (figures["pairs"], figures["tokens"]) == ("3", str(tokens))
    assert math.isclose(float(figures["nats per token"]), nats / tokens, abs_tol=2e-4)
    assert math.isclose(float(figures["perplexity"]), math.exp(nats / tokens), rel_tol=2e-4)


def test_batch_tokens_limit_the_batches(run, tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("one two\nthree\n" * 9)
    target.write_text("eins zwei\ndrei\n" * 9)
    seen = []
    score = Scorer.score

    def record(scorer, *arguments):
        seen.append(scorer.tokens_per_batch)
        return score(scorer, *arguments)

    monkeypatch.setattr(Scorer, "score", record)
    whole, parts = (
        [
            float(line.split("\t")[0])
            for line in succeeds("score", run, source, target, *more).split("\n")[:-1]
        ]
        for more in ((), ("--batch-tokens", 16))
    )
    np.testing.assert_allclose(parts, whole, atol=2e-4)
    assert (seen[0], seen[-1]) == (1024, 16)


def test_a_checkpoint_scores(run, tmp_path):
    (tmp_path / "text").write_text("one\n")
    (run / "model.keras").unlink()
    score = ("score", run, tmp_path / "text", tmp_path / "text")
    assert "best, last or a step (2, 4)" in fails(*score)
    first, second = (succeeds(*score, "--checkpoint", which) for which in (2, "last"))
    assert float(first.split("\t")[0]) != float(second.split("\t")[0])
