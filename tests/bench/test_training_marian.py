"""What Marian is told, and what is read from its log."""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import _training_marian as marian  # noqa: E402
from _training_engines import Case  # noqa: E402

CASE = Case("small", 2, 16, 2, 32, 50, 3, 5, 7)
LOG = """\
[2026-01-02 03:04:05] [memory] Reserving 9 MB, device cpu0
[2026-01-02 03:04:06] Ep. 1 : Up. 1 : Sen. 256 : Cost 9.55 * 4,096 after 4,096 : Time 2.40s : 17
[2026-01-02 03:04:08] Ep. 2 : Up. 2 : Sen. 9 : Cost 9.25 * 4,096 @ 4,096 after 8,192 : Time 1.25s
[2026-01-02 03:04:09] Saving model weights and runtime parameters to model.npz
"""


def test_costs_and_seconds_are_those_of_the_log():
    assert marian.steps_of(LOG) == [(9.55, 2.40), (9.25, 1.25)]


def test_a_batch_has_the_sizes_of_the_case(tmp_path):
    marian.write_batch(CASE, tmp_path)
    words = (tmp_path / "vocabulary.yml").read_text().splitlines()
    assert len(words) == CASE.vocabulary_size
    assert words[:3] == ["</s>: 0", "<unk>: 1", "w2: 2"]
    for name, length in (("source", 5), ("target", 7)):
        rows = [line.split() for line in (tmp_path / name).read_text().splitlines()]
        assert [len(row) + 1 for row in rows] == [length] * CASE.batch_size
        assert {f"{word}: {word[1:]}" for row in rows for word in row} <= set(words)


def test_the_model_is_that_of_the_case(tmp_path):
    options = marian.arguments_of(CASE, tmp_path, steps=4).split()
    given = dict(itertools.pairwise(options))
    expected = {"--dim-emb": "16", "--enc-depth": "2", "--transformer-dim-ffn": "32"}
    expected |= {"--after": "4u", "--mini-batch": "3", "--max-length": "8"}
    assert expected.items() <= given.items()
