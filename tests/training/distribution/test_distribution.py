"""What holds of one process on one device, and of the order in which several act."""

from keras_transformer.training.distribution import Distribution


class Worker(Distribution):
    """Writes down when it waits."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.done: list[str] = []

    def barrier(self) -> None:
        self.done.append("wait")


def test_the_chief_acts_first_and_the_others_when_it_has_left_its_files():
    done = {}
    for rank in (0, 1):
        worker = Worker(rank)
        worker.chief_first(lambda worker=worker: worker.done.append("act"))
        done[rank] = worker.done
    assert done == {0: ["act", "wait"], 1: ["wait", "act"]}


def test_only_the_chief_has_callbacks_that_write():
    assert Worker(0).on_chief(["writes"], local=None) == ["writes"]
    assert Worker(1).on_chief(["writes"], local=None) == []
