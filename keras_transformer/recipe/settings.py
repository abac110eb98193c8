"""Defines the keys of a recipe. The defaults are the paper's settings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from keras_transformer._files import is_plain_name
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.models import ARCHITECTURES

# Sizes and counts must fit into int32. Names of checkpoints have eight digits.
_MOST, _MOST_STEPS = 2**31 - 1, 10**8 - 1
_HIGHEST_LEARNING_RATE = 10.0
# The suffixes of files that a run writes.
_LANGUAGE = r"^[A-Za-z][\w-]{0,34}$"
# Marks a key or section whose value may change when a run resumes, because the weights that the run
# has so far would be the same, up to rounding.
_MAY_CHANGE: dict[str, Any] = {"may_change": True}


class _Section(BaseModel):
    """Base class of recipe sections, which are immutable and reject unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TextPair(_Section):
    """The text of one split: two line-aligned files or one TSV file. Files may be gzipped."""

    source: str = Field(description="Name or path of the source file, or of the TSV file.")
    target: str | None = Field(
        None, description="Name or path of the target file. Omit this key for a TSV file."
    )


class Download(_Section):
    """Address and SHA-256 of the files to download if `data.directory` is not set."""

    url: str = Field(description="Address (http or https) of the folder that has the files.")
    sha256: dict[str, str] = Field(description="SHA-256 (64 hex digits) of each file, by name.")

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not re.match("https?://[^/?#]", url, re.IGNORECASE):
            raise ValueError(f"must begin with http:// or https://. Received: {url!r}")
        return url

    @field_validator("sha256")
    @classmethod
    def _are_plain_names_and_digests(cls, digests: dict[str, str]) -> dict[str, str]:
        for name, digest in digests.items():
            if not is_plain_name(name):
                raise ValueError(
                    "a file name must have no folder, no leading dot, only printable characters "
                    f"and at most 200 bytes. Received: {name!r}"
                )
            if not re.fullmatch("[0-9a-fA-F]{64}", digest):
                raise ValueError(f"SHA-256 of {name} must have 64 hex digits. Received: {digest!r}")
        return {name: digest.lower() for name, digest in digests.items()}


class Generator(_Section):
    """Number of generated sentence pairs per split. The pairs are numbers and dates in words."""

    train: int = Field(40_000, gt=0, le=_MOST, description="Training pairs.")
    validation: int = Field(500, gt=0, le=_MOST, description="Validation pairs.")
    test: int = Field(1_000, gt=0, le=_MOST, description="Test pairs. No pair is in two splits.")


class HeldOutCounts(_Section):
    """Number of sentence pairs that `data.train` gives to validation and test.

    No sentence is in two splits.
    """

    validation: int = Field(1_000, gt=0, le=_MOST, description="Validation pairs.")
    test: int = Field(1_000, gt=0, le=_MOST, description="Test pairs.")


class Data(_Section):
    """Text for training, validation and test."""

    source_language: str = Field("en", pattern=_LANGUAGE, description="ISO 639-1 code.")
    target_language: str = Field("de", pattern=_LANGUAGE, description="ISO 639-1 code.")
    train: TextPair | None = None
    validation: TextPair | None = None
    test: TextPair | None = None
    held_out: HeldOutCounts | None = None
    generator: Generator | None = None
    directory: Path | None = Field(
        None,
        description="Folder of the files. The option --data-dir sets this key.",
        json_schema_extra=_MAY_CHANGE,
    )
    download: Download | None = None
    max_length: int = Field(
        256,
        gt=0,
        le=2**20,
        description="Drop pairs in which a sentence has more pieces than this number.",
    )

    @model_validator(mode="after")
    def _files_or_generator(self) -> "Data":
        files = (self.train, self.validation, self.test)
        if self.generator is None and self.held_out is None and None in files:
            raise ValueError(
                "give files for train, validation and test, or files for train and held_out, or a "
                "generator"
            )
        if self.held_out is not None and (self.train is None or files[1:] != (None, None)):
            raise ValueError("held_out needs files for train, and no validation and test")
        if self.generator is not None and (self.held_out, *files) != (None,) * 4:
            raise ValueError("give files or a generator, not both")
        if self.generator is not None and (self.directory, self.download) != (None, None):
            raise ValueError("directory and download have no effect with a generator: remove them")
        writes_text = self.generator is not None or self.held_out is not None
        if writes_text and self.source_language == self.target_language:
            raise ValueError(
                "target_language must differ from source_language. "
                f"Received: {self.target_language!r} for both"
            )
        return self


class TokenizerSettings(_Section):
    """Settings of the SentencePiece model, which is trained on the training split."""

    model_type: Literal["bpe", "unigram", "word"] = Field(
        "bpe", description="Kind of pieces: subwords, or the most frequent whole words."
    )
    vocabulary_size: int = Field(
        37_000, gt=4, le=_MOST, description="Number of pieces, including pad, unk, bos and eos."
    )
    joint: bool = Field(True, description="One vocabulary and one embedding for both languages.")
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = Field(
        "nmt_nfkc",
        description="Normalization of text by SentencePiece. With identity, no character changes; "
        "names with cf also lowercase it.",
    )


class ModelSettings(_Section):
    """Settings of the model. A setting that is not None replaces the value of the preset.

    An architecture refuses the keys that it does not have.
    """

    architecture: str = Field(
        "transformer",
        description="One of transformer, recurrent, attentional_recurrent, convolutional.",
    )
    preset: Literal["tiny", "base", "big"] = Field(
        "base", description="Sizes of a published model, for the keys that are not given."
    )
    num_layers: int | None = Field(None, gt=0, le=1_000, description="Encoder layers.")
    num_decoder_layers: int | None = Field(
        None, gt=0, le=1_000, description="Decoder layers. Default: num_layers."
    )
    d_model: int | None = Field(None, gt=0, le=_MOST, description="Width of the layers.")
    d_embedding: int | None = Field(
        None, gt=0, le=_MOST, description="Width of the embeddings, if it may differ from d_model."
    )
    kernel_size: int | None = Field(
        None, gt=0, le=1_000, description="Width of the convolutions, in tokens. Default: 3."
    )
    num_heads: int | None = Field(
        None, gt=0, le=_MOST, description="Attention heads. Must divide d_model."
    )
    d_ff: int | None = Field(
        None, gt=0, le=_MOST, description="Width of the feed-forward networks."
    )
    d_k: int | None = Field(
        None,
        gt=0,
        le=_MOST,
        description="Width of queries and keys in each head. Default: d_model / num_heads.",
    )
    dropout_rate: float | None = Field(
        None, ge=0, lt=1, description="Dropout on sublayer outputs and on embeddings (§5.4)."
    )
    attention_dropout_rate: float | None = Field(
        None, ge=0, lt=1, description="Dropout on attention weights. Default: 0."
    )
    use_scale: bool | None = Field(
        None, description="Divide attention scores by the square root of d_k. Default: true."
    )
    position_encoding: str | None = Field(
        None,
        description="One of sinusoidal, sinusoidal_half_split, learned, rotary, alibi, t5, index, "
        "normalized_index, binary, the last three also with _concatenated, or none. Default: "
        "sinusoidal.",
    )
    activation: str | None = Field(
        None, description="Activation of the feed-forward networks. Default: relu."
    )
    norm_first: bool | None = Field(
        None, description="Pre-norm instead of the paper's post-norm. Default: false."
    )
    norm_epsilon: float | None = Field(
        None, gt=0, le=1, description="Added to the variance in the norms. Default: 1e-6."
    )
    normalization: Literal["layer", "batch"] | None = Field(
        None, description="Batch instead of layer normalization, to compare. Default: layer."
    )
    max_length: int | None = Field(
        None,
        gt=0,
        le=_MOST,
        description="Maximum tokens per sentence in search and in some position encodings.",
    )
    attention_pattern: Literal["full", "local", "strided", "fixed"] | None = Field(
        None, description="Pattern of attention that saves memory on long sequences. Default: none."
    )
    attention_window: int | None = Field(
        None,
        gt=0,
        le=_MOST,
        description="Window of local, stride of strided or block of fixed attention, in tokens.",
    )

    @field_validator("architecture")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in ARCHITECTURES:
            raise ValueError(f"must be one of {', '.join(ARCHITECTURES)}. Received: {name!r}")
        return name

    @model_validator(mode="after")
    def _check_architecture(self) -> "ModelSettings":
        model_class = ARCHITECTURES[self.architecture]
        settings, presets = model_class.settings(), model_class.presets
        if self.preset not in presets:
            raise ValueError(
                f"the architecture {self.architecture} has the presets {', '.join(presets)}. "
                f"Received: preset={self.preset}"
            )
        if unknown := self.overrides.keys() - settings:
            raise ValueError(
                f"the architecture {self.architecture} has only the keys "
                f"{', '.join(sorted(settings))}. Received: {', '.join(sorted(unknown))}"
            )
        return self

    @model_validator(mode="after")
    def _check_window(self) -> "ModelSettings":
        needs_window = self.attention_pattern in ("local", "strided", "fixed")
        if needs_window != (self.attention_window is not None):
            raise ValueError(
                "attention_window is required for attention_pattern local, strided or fixed, and "
                f"must be omitted otherwise. Received: attention_pattern={self.attention_pattern}, "
                f"attention_window={self.attention_window}"
            )
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelSettings":
        heads, width = self.sizes.get("num_heads", 1), self.sizes["d_model"]
        if width % heads:
            raise ValueError(
                f"num_heads must divide d_model. Received: num_heads={heads}, d_model={width}"
            )
        return self

    @property
    def sizes(self) -> dict[str, Any]:
        """Returns the settings of the preset, updated with `overrides`."""
        return {**ARCHITECTURES[self.architecture].presets[self.preset], **self.overrides}

    @property
    def overrides(self) -> dict[str, Any]:
        """Returns the settings that are not None, as arguments for the model's class."""
        return self.model_dump(exclude={"architecture", "preset"}, exclude_none=True)


class Training(_Section):
    """Settings of optimization (§5.3, §5.4) and checkpoints. All steps are optimizer steps."""

    initial_run: Path | None = Field(
        None,
        description="Finished run to fine-tune. Training starts with the tokenizer and weights of "
        "this run. Keys of the section tokenizer may be omitted, or have the values of this run.",
    )
    steps: int = Field(
        100_000,
        gt=0,
        le=_MOST_STEPS,
        description="Total number of optimizer steps.",
        json_schema_extra=_MAY_CHANGE,
    )
    tokens_per_batch: int = Field(
        25_000,
        gt=0,
        le=_MOST,
        description="Maximum target tokens per micro-batch, including eos and padding.",
    )
    accumulation_steps: int = Field(
        1, gt=0, le=10_000, description="Micro-batches per optimizer step."
    )
    length_multiple: int = Field(
        8, gt=0, le=2**20, description="Pad batches to lengths that are multiples of this number."
    )
    warmup_steps: int = Field(
        4_000, gt=0, le=_MOST_STEPS, description="Optimizer steps of learning-rate warm-up."
    )
    learning_rate_scale: float = Field(1.0, gt=0, description="Multiplies the learning rate.")
    peak_learning_rate: float | None = Field(
        None, gt=0, description="Highest learning rate. Default: the peak of the formula in §5.3."
    )
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="Probability ε that is spread over all pieces (§5.4)."
    )
    r_drop: float = Field(
        0.0,
        ge=0,
        description="Weight of R-Drop, a loss that compares the outputs under two dropout masks.",
    )
    adam_beta_1: float = Field(0.9, ge=0, lt=1, description="β₁ of Adam (§5.3).")
    adam_beta_2: float = Field(0.98, ge=0, lt=1, description="β₂ of Adam (§5.3).")
    adam_epsilon: float = Field(1e-9, gt=0, le=1, description="ε of Adam (§5.3).")
    global_clipnorm: float | None = Field(
        None, gt=0, description="Clip gradients to this global norm. Default: no clipping."
    )
    ema_momentum: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Decay per step of an exponential moving average (EMA) of the weights. "
        "Validation and checkpoint averaging use the EMA weights. Default: no EMA.",
    )
    dtype_policy: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="Keras dtype policy of the model."
    )
    jit_compile: bool | Literal["auto"] = Field(
        "auto",
        description="Whether XLA compiles the training step, or CUDA graphs replay it on PyTorch "
        "with a GPU. With auto, both happen where that is possible.",
        json_schema_extra=_MAY_CHANGE,
    )
    logits_mebibytes: int | None = Field(
        None,
        ge=0,
        le=2**20,
        description="Memory in MiB for the logits of one slice. The loss splits the tokens of each "
        "batch into slices. Default: 16 on a CPU, 256 on other devices.",
        json_schema_extra=_MAY_CHANGE,
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Recompute activations in the backward pass: less memory, more time.",
        json_schema_extra=_MAY_CHANGE,
    )
    distribution: Literal["none", "data_parallel", "model_parallel"] = Field(
        "none",
        description="Parallel training on several devices or processes.",
        json_schema_extra=_MAY_CHANGE,
    )
    model_shards: int = Field(
        1,
        gt=0,
        le=_MOST,
        description="Number of devices over which model_parallel splits weights.",
        json_schema_extra=_MAY_CHANGE,
    )
    checkpoint_every: int = Field(
        1_000,
        gt=0,
        le=_MOST_STEPS,
        description="Optimizer steps between checkpoints.",
        json_schema_extra=_MAY_CHANGE,
    )
    keep_checkpoints: int = Field(
        5,
        gt=0,
        le=_MOST_STEPS,
        description="Number of newest checkpoints to keep. With early stopping, "
        "evaluation.average_last checkpoints with the lowest losses are kept too.",
        json_schema_extra=_MAY_CHANGE,
    )
    early_stopping_patience: int | None = Field(
        None,
        gt=0,
        le=_MOST_STEPS,
        description="Stop after this many checkpoints without a lower validation loss. The final "
        "model averages the checkpoints with the lowest losses. Default: no early stopping.",
        json_schema_extra=_MAY_CHANGE,
    )
    validation_bleu_sentences: int = Field(
        100,
        ge=0,
        le=_MOST,
        description="Number of validation sentences to translate for BLEU at each checkpoint.",
        json_schema_extra=_MAY_CHANGE,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_old_key(cls, tree: Any) -> Any:
        """Renames the key `recomputation` of old recipes to `gradient_checkpointing`."""
        if isinstance(tree, dict) and "recomputation" in tree:
            tree = {"gradient_checkpointing": tree["recomputation"], **tree}
            del tree["recomputation"]
        return tree


class Evaluation(SearchOptions):
    """Settings of checkpoint averaging, and of search and scoring with the finished model."""

    average_last: int = Field(
        5,
        gt=0,
        le=_MOST_STEPS,
        description="Number of checkpoints to average: the newest or, "
        "with early stopping, the best.",
    )
    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab"] = Field(
        "13a", description="Tokenization of BLEU, as in sacrebleu."
    )
    lowercase: bool = Field(False, description="Whether BLEU ignores case.")

    def search_options(self, **changes: Any) -> SearchOptions:
        """Returns the search options, updated with `changes`."""
        own = {name: getattr(self, name) for name in SearchOptions.model_fields}
        return SearchOptions(**{**own, **changes})


class Recipe(_Section):
    """Holds all settings of a run except the backend.

    Example:

    ```python
    recipe = load_recipe("quickstart", overrides=["training.steps=100"])
    recipe.training.warmup_steps
    ```
    """

    name: str = Field(pattern=r"^[\w-][\w.-]*$", description="Name of the run folder.")
    description: str = Field(
        "", description="A sentence about the task.", json_schema_extra=_MAY_CHANGE
    )
    seed: int = Field(1, ge=0, lt=2**31, description="Seed of all random numbers of the training.")
    data: Data
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    evaluation: Evaluation = Field(Evaluation(), json_schema_extra=_MAY_CHANGE)

    @model_validator(mode="after")
    def _check_kept_checkpoints(self) -> "Recipe":
        kept, averaged = self.training.keep_checkpoints, self.evaluation.average_last
        if kept < averaged:
            raise ValueError(
                "training.keep_checkpoints must be at least evaluation.average_last. "
                f"Received: keep_checkpoints={kept}, average_last={averaged}"
            )
        return self

    @model_validator(mode="after")
    def _check_learning_rate(self) -> "Recipe":
        training = self.training
        peak = training.peak_learning_rate
        if peak is None:
            peak = (self.model.sizes["d_model"] * training.warmup_steps) ** -0.5
        if peak * training.learning_rate_scale > _HIGHEST_LEARNING_RATE:
            raise ValueError(
                "training.peak_learning_rate (default: the paper's value) times "
                f"training.learning_rate_scale must be at most {_HIGHEST_LEARNING_RATE:g}. "
                f"Received: {peak:g} times {training.learning_rate_scale:g}"
            )
        return self

    def to_yaml(self) -> str:
        """Returns the recipe, with all defaults, as YAML that `load_recipe` can read."""
        tree = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)

    def settings(self) -> dict[str, Any]:
        """Returns all settings by key, such as "training.steps"."""
        return _flat(self.model_dump(mode="json"))

    def differences(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """Returns the keys whose values differ in two recipes, such as "training.steps".

        The values of the dictionary are the value of this recipe and the value of `other`.
        """
        mine, others = self.settings(), other.settings()
        pairs = {key: (mine.get(key), others.get(key)) for key in mine | others}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def known_keys(section: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    """Yields all keys of a recipe, such as "training.steps"."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        for annotation in (field.annotation, *get_args(field.annotation)):
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                yield from known_keys(annotation, f"{prefix}{name}.")


def may_change(key: str) -> bool:
    """Returns whether a key, such as "training.steps", may change when a run resumes."""
    fields = Recipe.model_fields
    for name in key.split("."):
        if name not in fields:
            return False
        if fields[name].json_schema_extra == _MAY_CHANGE:
            return True
        fields = getattr(fields[name].annotation, "model_fields", {})
    return False


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, dict)
        leaves |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return leaves
