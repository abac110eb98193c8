"""The scores of a run."""

from multiprocessing import get_context

from keras_transformer.decoding.options import SearchOptions


def test_scores_of_several_processes_are_all_kept(run):
    given = {"metric": "BLEU", "signature": ""}

    def add():
        for number in range(20):
            run.scores.add(score=number, split="test", options=SearchOptions(), **given)

    run.model_path.write_bytes(b"weights")
    children = [get_context("fork").Process(target=add) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert sorted(entry["score"] for entry in run.scores.entries()) == sorted([*range(20)] * 2)
