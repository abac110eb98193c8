"""Other dropout in every replica."""

from typing import Any


def use_own_seeds(trainer: Any, replica: Any) -> None:
    """Make the dropout of a replica draw other masks than its neighbours'.

    The state of the seed generators stays the same in all; a replica adds its number to what
    they give. The masks of replica 0 are those of a single process.

    Args:
        trainer: The model in training.
        replica: Integer, or a function that returns an integer tensor.
    """
    for layer in trainer._flatten_layers():
        generator = getattr(layer, "seed_generator", None)
        if generator is not None:
            generator.next = _with_replica(generator.next, replica)


def _with_replica(draw: Any, replica: Any) -> Any:
    def draw_own(ordered: bool = True) -> Any:
        from keras import ops

        own = replica() if callable(replica) else replica
        seed = draw(ordered)
        return seed + ops.cast(own, seed.dtype)

    return draw_own
