"""What a model can do besides what it must. Needs no Keras, so that every room can ask for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class Capabilities:
    """The optional members of a model, with defaults for those that it lacks.

    `Searchable` (`models/protocol.py`) describes the first six. A method that the model lacks is
    None.
    """

    extend_cache: Callable[..., Any] | None = None
    limit_vocabulary: Callable[..., Any] | None = None
    source_attention: Callable[..., Any] | None = None
    reads_prompt: bool = False
    accepts_any_shape: bool = False
    compiles: bool = True
    jit_compile: bool = False  # of a Keras model: whether PyTorch compiles its searches
    init_cache: Callable[..., Any] | None = None  # None: the model can't be searched
    pad_id: int = 0
    vocabulary_size: int | None = None  # number of source ids; None: the model does not tell
    target_vocabulary_size: int | None = None  # None: the same as `vocabulary_size`
    tokenizer_files: Mapping[str, bytes] | None = None  # see `ConfiguredModel`
    inputs: Sequence[Any] | None = None  # the symbolic inputs of a functional model
    models: Sequence[Any] = ()  # of an `Ensemble`

    @classmethod
    def of(cls, model: object) -> Self:
        """Returns the capabilities of a model of any class."""
        members: dict[str, Any] = {x.name: getattr(model, x.name, x.default) for x in fields(cls)}
        return cls(**members)

    @property
    def vocabulary_sizes(self) -> tuple[int | None, int | None]:
        """The sizes of the source and target vocabulary, or None if the model does not tell."""
        return self.vocabulary_size, self.target_vocabulary_size or self.vocabulary_size
