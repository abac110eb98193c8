"""The arithmetic of the benchmarks; what they measure is no test's affair."""

from pathlib import Path

import architectures
import pytest
import serving_load
from _common import Worker
from support import tiny_run

from keras_transformer.translation.open_run import open_model

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_worker_answers_in_spite_of_what_libraries_print_and_says_why_it_dies(tmp_path):
    program = tmp_path / "worker.py"
    program.write_text("""
from _common import serve

def prepare():
    print("library says hello")
    return {"add": lambda a, b: a + b, "fail": lambda: 1 / 0}

serve(prepare)
""")
    with Worker(program, PYTHONPATH=str(BENCH)) as worker:
        assert [worker.ask("add", 1, 2), worker.ask("add", 3, 4)] == [3, 7]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            worker.ask("fail")


@pytest.mark.slow
def test_architectures_have_the_scores_and_the_speeds_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(architectures, "FEWEST_SENTENCES", 1)
    run = tiny_run.begin(tmp_path)
    (row,) = architectures.compare([run.directory], rounds=1)
    assert (row["architecture"], row["steps"]) == ("transformer", tiny_run.STEPS)
    assert row["parameters"] == open_model(run).count_params()
    assert min(row[name] for name in ("training", "greedy", "beam", "minutes")) > 0
    assert all(0 <= row[name] <= 100 for name in ("greedy_bleu", "beam_bleu"))
    assert list(row["by_length"]) == ["0-5"]


@pytest.mark.parametrize(
    ("text", "score", "kind"),
    [
        ("ein Hund", -1.0005, "identical"),
        ("ein Hund", -1.1, "wrong"),
        ("der Hund", -1.00005, "tied"),
        ("Hund", -2.0, "wrong"),
        ("eine Katze", -1.0, "wrong"),
    ],
)
def test_a_servers_answer_must_be_the_models_own_or_tie_with_it(text, score, kind):
    expected = [("ein Hund", -1.0), ("der Hund", -1.00005), ("Hund", -2.0)]
    assert serving_load.outcome(serving_load.Answer(text, score), expected) == kind
