"""A trained model of another toolkit as its files have it, and how it becomes a `Transformer`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._backend import without_tensorflow
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import NewIds, Vocabulary, converted, new_ids
from keras_transformer.errors import UserError
from keras_transformer.exchange.model_files import Arrays
from keras_transformer.exchange.source_model import array
from keras_transformer.layers import SinusoidalPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import (
    POSITION_ENCODINGS,
    new_position_encoding,
)
from keras_transformer.layers.saving import placeholder_weights
from keras_transformer.models.transformer import Transformer

# Stack, number of the layer or None, sublayer and weight in the path of a weight of `Transformer`,
# such as encoder_layer_1/self_attention/query/kernel and decoder_norm/gamma.
_IN_LAYER = re.compile(r"(encoder|decoder)_(?:layer_(\d+)/(.+)|(norm))/(\w+)")
NameInLayer = Callable[[str, int | None, str, str], str]


@dataclass(frozen=True)
class ForeignModel:
    """What the files of another toolkit say about a trained Transformer.

    Attributes:
        path: The file of the weights, for messages.
        files: All files of the model that may exist.
        arguments: Constructor arguments of `Transformer`, without vocabularies.
        weights: All weights by the names of the file, each once. Embeddings are `(V, D)`.
        names: The names of "source", "target", "output_embeddings", "bias" and
            "position_embeddings" in `weights`. Without "output_embeddings", the output matrix is
            that of the target. If source and target have one name, they are one matrix.
        name_in_layer: Returns the name in `weights` of a weight in a layer: the arguments are the
            stack, the number of the layer from 0 on (None for the norm after the stack), the
            sublayer and the weight.
        vocabularies: Those of source and target.
        source_eos: Whether the encoder's input ends with eos.
        kernels_are_transposed: Whether the kernels of dense layers are (out, in).
        evaluation: Search options of the toolkit's own configuration.
        languages: Source and target language, or "und" if they are not known.
        notes: What the conversion to this format has lost, or other remarks.
    """

    path: Path
    files: Sequence[Path]
    arguments: dict[str, Any]
    weights: Arrays
    names: dict[str, str]
    name_in_layer: NameInLayer
    vocabularies: Sequence[Vocabulary]
    source_eos: bool = True
    kernels_are_transposed: bool = False
    evaluation: dict[str, Any] = field(default_factory=dict)
    languages: tuple[str, ...] = ("und", "und")
    notes: tuple[str, ...] = ()

    @property
    def is_joint(self) -> bool:
        """Whether source and target share one embedding."""
        return self.names["source"] == self.names["target"]

    def convert(self, source_prefix: Sequence[str] = ()) -> tuple[Transformer, Tokenizer]:
        """Returns the model and its tokenizer (see `Tokenizer`), with the ids of this package.

        Raises `UserError` if a weight is missing, not needed, of another shape, or not finite.
        """
        self._check_sizes()
        ids = self._new_ids()
        tokenizer = self._tokenizer(*ids, source_prefix)
        bias = self.weights.get(self.names.get("bias", ""))
        has_bias = bool(ids[1].is_absent.any() or (bias is not None and np.any(bias)))
        with without_tensorflow(), placeholder_weights():
            model = Transformer(
                len(ids[0].pieces),
                target_vocabulary_size=None if self.is_joint else len(ids[1].pieces),
                use_logits_bias=has_bias,
                tie_word_embeddings="output_embeddings" not in self.names,
                **self.arguments,
            )
        names = {
            weight.path: name_of(weight.path, self.names, self.name_in_layer)
            for weight in model.weights
        }
        unused = self.weights.keys() - {*names.values(), self.names.get("bias")}
        if unused:
            some = ", ".join(sorted(unused)[:8])
            raise UserError(f"{self.path} has weights that a Transformer does not have: {some}")
        for weight in model.weights:
            weight.assign(self._converted(weight, names[weight.path], *ids))
        return model, tokenizer

    def _check_sizes(self) -> None:
        """Compares the sizes with the weights, so that a model is never larger than its file."""
        width, inner = self.arguments["d_model"], self.arguments["d_ff"]
        for stack, depth in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
            for number in range(self.arguments[depth]):
                for layer, size in (("self_attention/query", width), ("feed_forward/inner", inner)):
                    name = self.name_in_layer(stack, number, layer, "kernel")
                    if {*(found := self._weight(name).shape)} != {width, size}:
                        raise UserError(
                            f"{self.path}: {name} must have the sizes {width} and {size}. "
                            f"Received: {found}"
                        )

    def _weight(self, name: str) -> np.ndarray:
        if name not in self.weights:
            raise UserError(f"{self.path} has no weight {name}, which its settings need")
        return self.weights[name]

    def _new_ids(self) -> tuple[NewIds, NewIds]:
        sides = []
        for name, side in zip(("source", "target"), self.vocabularies, strict=True):
            count, rows = len(side.pieces), len(self._weight(self.names[name]))
            if count > rows:
                raise UserError(
                    f"the vocabulary has {count} pieces, but {self.names[name]} in {self.path} has "
                    f"only {rows} rows"
                )
            unnamed = [f"<unused row {row}>" for row in range(count, rows)]
            sides.append(side._replace(pieces=[*side.pieces, *unnamed]))
        models = [[side.model] for side in sides]
        if sides[0]._replace(model=b"") == sides[1]._replace(model=b""):  # one id space
            models = [models[0] + models[1]] * 2
        elif self.is_joint:
            raise UserError(f"{self.path} has one embedding, but the vocabularies differ")
        found = [new_ids(*x) for x in zip(sides, models, strict=True)]
        # A recipe has one vocabulary size for both.
        size = max(len(x.pieces) for x in found)
        source, target = (new_ids(*x, size) for x in zip(sides, models, strict=True))
        return source, target

    def _tokenizer(self, source: NewIds, target: NewIds, prefix: Sequence[str] = ()) -> Tokenizer:
        sides = zip(self.vocabularies, (source, target), strict=True)
        models = dict.fromkeys(converted(side.model, ids.pieces) for side, ids in sides)
        return Tokenizer(*models, source_prefix=prefix, source_eos=self.source_eos)

    def _converted(self, weight: Any, name: str, source: NewIds, target: NewIds) -> np.ndarray:
        kind = weight.path.rpartition("/")[2]
        if kind == "bias" and "embedding/" in weight.path:
            found = self.weights.get(name)
            value = target.bias(None if found is None else found.reshape(-1))
        else:
            value = self._weight(name)
            if kind in ("embeddings", "output_embeddings"):
                is_source = weight.path.startswith("source_")
                value = (source if is_source else target).gathered(value)
            elif kind == "kernel" and self.kernels_are_transposed:
                value = value.T
            elif weight.ndim == 1:
                value = value.reshape(-1)
        if value.shape != tuple(weight.shape):
            needed = tuple(weight.shape)
            raise UserError(f"{self.path}: {name} must be {needed}. Received: {value.shape}")
        value = value.astype("float32", copy=False)
        if not np.isfinite(value).all():
            raise UserError(f"{self.path}: {name} has values that are not finite")
        return value


def name_of(path: str, names: Mapping[str, str], name_in_layer: NameInLayer) -> str:
    """Returns a format's name of a weight of `Transformer`, or "" (see `ForeignModel`)."""
    if match := _IN_LAYER.fullmatch(path):
        stack, number, sublayer, norm, weight = match.groups()
        index = None if number is None else int(number) - 1
        return name_in_layer(stack, index, sublayer or norm, weight)
    layer, _, kind = path.partition("/")
    if kind == "embeddings":
        kind = "source" if layer == "source_embedding" else "target"
    return names.get(kind, "")


def name_positions(
    arguments: dict[str, Any], weights: Arrays, names: dict[str, str], place: str, default: str
) -> None:
    """Sets `position_encoding` to the sinusoids that the file has as tables, or to "learned".

    `place` has the name of the tables of encoder and decoder, with "{}" for the stack. Without
    tables, the encoding is `default`.
    """
    arguments["position_encoding"] = default
    tables = {x: weights.pop(x) for x in map(place.format, ("encoder", "decoder")) if x in weights}
    if not tables:
        return
    name, table = next(iter(tables.items()))
    if any(not np.array_equal(table, other) for other in tables.values()):
        raise UserError(f"encoder and decoder must have the same positions: {', '.join(tables)}")
    arguments["max_length"], zeros = len(table), np.zeros((1, *table.shape), "float32")
    for encoding, (kind, _) in POSITION_ENCODINGS.items():
        if issubclass(kind, SinusoidalPositionalEncoding):
            known = array(new_position_encoding(encoding, {})(zeros))[0]
            if np.allclose(known, table, atol=1e-3):
                arguments["position_encoding"] = encoding
                return
    arguments["position_encoding"] = "learned"
    weights[name], names["position_embeddings"] = table, name
