"""A trained model of another toolkit: what it calls its weights, and how it becomes ours."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._backend import without_tensorflow
from keras_transformer._backend.operations import assign
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import NewIds, Vocabulary, converted, new_ids
from keras_transformer.formats.exported_model import array
from keras_transformer.formats.model_files import Arrays
from keras_transformer.layers import SinusoidalPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import POSITION_ENCODINGS
from keras_transformer.layers.saving import check_finite, merged_weights, placeholder_weights
from keras_transformer.models.transformer import Transformer

# Stack, number of the layer, sublayer and weight in the path of a weight of `Transformer`, such as
# encoder_layer_1/self_attention/query/kernel. The norm after a stack has no number.
_IN_LAYER = re.compile(r"(encoder|decoder)_(?:layer_(\d+)/(.+)|(norm))/(\w+)")
# Names in a layer: here, in Hugging Face, in Marian, and in CTranslate2, some of whose layers have
# the weights of several, here with "#", one after another. "*" stands for the name of the weight.
_TABLE = """
self_attention/query           self_attn.q_proj         self_*q          self_attention/linear_0#q
self_attention/key             self_attn.k_proj         self_*k          self_attention/linear_0#k
self_attention/value           self_attn.v_proj         self_*v          self_attention/linear_0#v
self_attention/output          self_attn.out_proj       self_*o          self_attention/linear_1
self_attention/forget_gate     -                        rnn_*f           -
self_attention/candidate       -                        rnn_*            -
self_attention_residual/norm   self_attn_layer_norm     self_Wo_ln_*     self_attention/layer_norm
cross_attention/query          encoder_attn.q_proj      context_*q       attention/linear_0
cross_attention/key            encoder_attn.k_proj      context_*k       attention/linear_1#k
cross_attention/value          encoder_attn.v_proj      context_*v       attention/linear_1#v
cross_attention/output         encoder_attn.out_proj    context_*o       attention/linear_2
cross_attention_residual/norm  encoder_attn_layer_norm  context_Wo_ln_*  attention/layer_norm
feed_forward/inner             fc1                      ffn_*1           ffn/linear_0
feed_forward/outer             fc2                      ffn_*2           ffn/linear_1
feed_forward_residual/norm     final_layer_norm         ffn_ffn_ln_*     ffn/layer_norm
"""
_SUBLAYERS = {row[0]: row for row in map(str.split, _TABLE.strip().splitlines())}


@dataclass(frozen=True)
class Format:
    """A format's names of the weights of a `Transformer`.

    Attributes:
        column: Of the table of sublayers.
        layer: Name of a weight in a layer, with {stack}, {number} (of the layer, from 1 on) or
            {index} (from 0 on), {sublayer} and "*".
        norm: Name of the norm after a stack, with {stack} and "*".
        weights: What "*" is for kernel, bias, gamma and beta.
        matrices: Names of what is not in a layer: "source", "target", "output_embeddings", "bias"
            and "position_embeddings". Of several names, the first that a file has counts.
    """

    column: int
    layer: str
    norm: str
    weights: Mapping[str, str]
    matrices: Mapping[str, Sequence[str]]

    def name(self, path: str, matrices: Mapping[str, str]) -> str:
        """Returns the name of a weight, or "" for one outside layers that `matrices` lacks."""
        if match := _IN_LAYER.fullmatch(path):
            stack, number, sublayer, norm, weight = match.groups()
            place = {"number": number, "index": int(number or 0) - 1}
            place["sublayer"] = norm or _SUBLAYERS[sublayer][self.column]
            name = (self.norm if norm else self.layer).format(stack=stack, **place)
            return name.replace("*", self.weights[weight])
        layer, _, kind = path.partition("/")
        if kind == "embeddings":
            kind = "source" if layer == "source_embedding" else "target"
        return matrices.get(kind, "")


HUGGING_FACE = Format(
    column=1,
    layer="model.{stack}.layers.{index}.{sublayer}.*",
    norm="model.{stack}.layer_norm.*",
    weights={"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"},
    matrices={
        "source": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
        "target": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
        "output_embeddings": ("lm_head.weight",),
        "bias": ("final_logits_bias",),
        "position_embeddings": (
            "model.encoder.embed_positions.weight",
            "model.decoder.embed_positions.weight",
        ),
    },
)
MARIAN = Format(
    column=2,
    layer="{stack}_l{number}_{sublayer}",
    norm="{stack}_top_ln_*",
    weights={"kernel": "W", "bias": "b", "gamma": "scale", "beta": "bias"},
    matrices={
        "source": ("Wemb", "encoder_Wemb"),
        "target": ("Wemb", "decoder_Wemb"),
        "output_embeddings": ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W"),
        "bias": ("decoder_ff_logit_out_b",),
    },
)
CTRANSLATE2 = Format(
    column=3,
    layer="{stack}/layer_{index}/{sublayer}/*",
    norm="{stack}/layer_norm/*",
    weights={"kernel": "weight", "bias": "bias", "gamma": "gamma", "beta": "beta"},
    matrices={
        "source": ("encoder/embeddings_0/weight", "encoder/embeddings/weight"),
        "target": ("decoder/embeddings/weight",),
        "output_embeddings": ("decoder/projection/weight",),
        "bias": ("decoder/projection/bias",),
        "position_embeddings": (
            "encoder/position_encodings/encodings",
            "decoder/position_encodings/encodings",
        ),
    },
)


@dataclass(frozen=True)
class ForeignModel:
    """What the files of another toolkit say about a trained Transformer.

    Attributes:
        path: The file of the weights.
        format: The names of the weights.
        weights: All weights by the names of the file. Kernels are `(out, in)`, embeddings `(V, D)`.
        arguments: Constructor arguments of `Transformer`. Sizes that the weights show may be left
            out.
        vocabularies: Those of source and target.
        frames: Those of the `Tokenizer`, as far as the files tell them.
        evaluation: Search options of the toolkit's own configuration.
        languages: Source and target language, or "und" if they are not known.
        is_multilingual: Whether sources and targets begin with the piece of their language.
        notes: What the conversion to this format has lost.
    """

    path: Path
    format: Format
    weights: Arrays
    arguments: dict[str, Any]
    vocabularies: Sequence[Vocabulary]
    frames: Mapping[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    languages: tuple[str, ...] = ("und", "und")
    is_multilingual: bool = False
    notes: tuple[str, ...] = ()

    def convert(self, source_prefix: Sequence[str] = ()) -> tuple[Transformer, Tokenizer]:
        """Returns the model and its tokenizer (see `Tokenizer`), with the ids of this package.

        Raises `ValueError` if a weight is missing, not needed, of another shape, or not finite.
        """
        names, copies = self._matrices()
        ids = self._new_ids(names)
        sides = zip(self.vocabularies, ids, strict=True)
        models = dict.fromkeys(converted(side.model, new.pieces) for side, new in sides)
        own = {"source_prefix": source_prefix} if source_prefix else {}
        tokenizer = Tokenizer(*models, **{**self.frames, **own})
        has_bias = ids[1].is_absent.any() or np.any(self.weights.get(names.get("bias", ""), 0))
        is_joint = names["source"] == names["target"]
        # Further rows of embeddings, and their bias.
        most = sum(x.size for x in self.weights.values())
        most += sum(len(new.pieces) * (1 + self.weights[names["source"]].shape[-1]) for new in ids)
        given = set()

        def matrix(path: str, shape: tuple[int, ...]) -> np.ndarray | None:
            """Returns a value with which a weight begins, so that no zeros take memory."""
            name = self.format.name(path, names)
            if len(shape) != 2 or name not in self.weights:
                return None
            value = self._converted(path, shape, name, *ids)
            if value.shape != shape:
                return None
            given.add(path)
            return value

        with without_tensorflow(), placeholder_weights(most, matrix):
            model = Transformer(
                len(ids[0].pieces),
                target_vocabulary_size=None if is_joint else len(ids[1].pieces),
                use_logits_bias=bool(has_bias),
                tie_word_embeddings=names.get("output_embeddings") in (None, names["target"]),
                **self._arguments(names),
            )
        named = [(weight, self.format.name(weight.path, names)) for weight in model.weights]
        unused = self.weights.keys() - {name for _, name in named} - copies
        kinds = {x.dtype.name for x in self.weights.values() if x.dtype.kind != "f"}
        if unused or kinds:
            what = f"{sorted(unused)[:8]}" if unused else f"of {sorted(kinds)}"
            raise ValueError(f"a Transformer does not have the weights {what}")
        for weight, name in named:
            if weight.path not in given:
                assign(weight, self._converted(weight.path, weight.shape, name, *ids))
        check_finite(model, self.path)
        return model, tokenizer

    def _matrices(self) -> tuple[dict[str, str], set[str]]:
        """Returns the names of what is not in a layer, and all names of the same matrices."""
        weights, candidates = self.weights, self.format.matrices
        there = [name for names in candidates.values() for name in names if name in weights]
        same = {x: next(y for y in there if _equal(weights[x], weights[y])) for x in there}
        names = {
            role: next((same[name] for name in names if name in same), names[0])
            for role, names in candidates.items()
            if role in ("source", "target") or same.keys() & {*names}
        }
        return names, {name for name, first in same.items() if first in names.values()}

    def _arguments(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Returns the arguments with the sizes of the weights, so that no model exceeds its file.

        Positions that the file has as tables are sinusoids, if they equal them, else "learned".
        """
        inner = "{}_layer_{}/feed_forward/inner/kernel"
        kernel = self.weights[self.format.name(inner.format("encoder", 1), {})]
        d_ff, d_model = kernel.shape
        sizes = {"d_model": d_model, "d_ff": d_ff}
        for key, stack in (("num_layers", "encoder"), ("num_decoder_layers", "decoder")):
            layers = (self.format.name(inner.format(stack, x), {}) for x in count(1))
            sizes[key] = sum(1 for _ in takewhile(self.weights.__contains__, layers))
        given = {key: self.arguments.get(key, size) for key, size in sizes.items()}
        if given != sizes:
            raise ValueError(f"the sizes of the weights are {sizes}, those of settings {given}")
        arguments = {**self.arguments, **sizes}
        if "position_embeddings" in names:
            table = self.weights[names["position_embeddings"]]
            arguments |= {"max_length": len(table), "position_encoding": _encoding_of(table)}
        return arguments

    def _new_ids(self, names: Mapping[str, str]) -> tuple[NewIds, NewIds]:
        sides = []
        for name, side in zip(("source", "target"), self.vocabularies, strict=True):
            rows = range(len(side.pieces), len(self.weights[names[name]]))
            unnamed = [f"<unused row {row}>" for row in rows]
            sides.append(side._replace(pieces=[*side.pieces, *unnamed]))
        models = [[side.model] for side in sides]
        if sides[0]._replace(model=b"") == sides[1]._replace(model=b""):  # one id space
            models = [models[0] + models[1]] * 2
        elif names["source"] == names["target"]:
            raise ValueError("there is one embedding, but the vocabularies differ")
        # A recipe has one vocabulary size for both.
        size = max(len(new_ids(*x).pieces) for x in zip(sides, models, strict=True))
        source, target = (new_ids(*x, size) for x in zip(sides, models, strict=True))
        return source, target

    def _converted(
        self, path: str, shape: tuple[int, ...], name: str, source: NewIds, target: NewIds
    ) -> np.ndarray:
        kind = path.rpartition("/")[2]
        if kind == "bias" and "embedding/" in path:
            value = target.bias(self.weights.get(name))
        else:
            value = self.weights[name]
            if kind in ("embeddings", "output_embeddings"):
                is_source = path.startswith("source_")
                value = (source if is_source else target).gathered(value)
            elif kind == "kernel":
                value = value.T
            elif len(shape) == 1:
                value = value.reshape(-1)
        with np.errstate(over="ignore"):  # `convert` finds what is not finite afterwards.
            return value.astype("float32", copy=False)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one is other or np.array_equal(one, other)


def _encoding_of(table: np.ndarray) -> str:
    """Returns the name of the sinusoids in a table `(T, D)`, or "learned"."""
    zeros = np.zeros((1, *table.shape), "float32")
    for name, (kind, _) in POSITION_ENCODINGS.items():
        if issubclass(kind, SinusoidalPositionalEncoding):
            known = array(POSITION_ENCODINGS.new(name)(zeros))[0]
            if np.allclose(known, table, atol=1e-3):
                return name
    return "learned"


def named_weights(
    model: Transformer, format: Format, matrices: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Returns the weights of a model, with kernels `(out, in)`, by the names of a format.

    `matrices` are the names of those outside layers; others are left out. Kernels include LoRA.
    """
    weights = merged_weights(model)
    named = [(format.name(path, matrices), path, weight) for path, weight in weights]
    return {
        name: array(weight).T if path.endswith("kernel") else array(weight)
        for name, path, weight in named
        if name
    }
