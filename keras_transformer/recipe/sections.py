"""Defines the sections of a recipe and their keys. The defaults are the paper's settings.

The text below a key is its description in the recipe reference, in `keras-transformer schema` and
in the JSON schema.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    model_validator,
)

from keras_transformer.data.languages import LanguageCode
from keras_transformer.decoding.options import DecodingOptions

# The context of validation for the recipe of a run, which does not check the section `model`: its
# class would be imported, with Keras.
OF_RUN = "of a run"
# The forms of `data.train`, which pydantic names in the places of errors.
FORMS = ("one corpus", "several corpora")
T = TypeVar("T")
# Marks a key or section whose value may change when a run resumes, because the weights that the run
# has so far would be the same, up to rounding.
MAY_CHANGE: dict[str, Any] = {"may_change": True}
MayChange = Annotated[T, Field(json_schema_extra=MAY_CHANGE)]

# Sizes and counts must fit into int32. Names of checkpoints have eight digits.
Size = Annotated[int, Field(gt=0, le=2**31 - 1)]
Steps = Annotated[int, Field(gt=0, le=10**8 - 1)]
Layers = Annotated[int, Field(gt=0, le=1_000)]
Length = Annotated[int, Field(gt=0, le=2**20)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
LearningRate = Annotated[float, Field(gt=0, le=10)]
Epsilon = Annotated[float, Field(gt=0, le=1)]
# A file name without a folder, not hidden, and no longer than file systems allow.
PlainName = Annotated[str, StringConstraints(pattern=r"^[^./\\:\x00-\x1f][^/\\:\x00-\x1f]{0,199}$")]
# SentencePiece writes "▁" for a space.
Word = Annotated[str, StringConstraints(pattern=r"^[^\s▁\x00]{1,100}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True)]
# The name of a run, or its folder: an absolute path, so that training resumes from any folder.
OtherRun = Annotated[
    Path, AfterValidator(lambda x: x.absolute() if (x / "recipe.yaml").is_file() else x)
]


class Section(BaseModel):
    """Base class of recipe sections, which are immutable and reject unknown keys."""

    model_config = DecodingOptions.model_config


class TextPair(Section):
    """The text of one split: two line-aligned files, or one file with both sides."""

    source: str
    """Name or path of the source file, or of the file with both sides: TSV, or by its suffix csv,
    jsonl, parquet, tmx, xlf or po. Files may be compressed (gz, xz, bz2, zst)."""
    target: str | None = None
    """Name or path of the target file. Omit this key for a file with both sides."""
    tag: Word | None = None
    """Word before every source sentence, such as `<news>`, by which the model knows the kind of
    text. A tokenizer that the run trains has it as one piece. A tag such as `>>deu<<` is that of a
    target language, which `translate --target-language` chooses. Default: none."""


class Corpus(TextPair):
    """Text for training: two line-aligned files, or one file with both sides.

    Or a list of several corpora, each with these keys.
    """

    source: str | None = None  # type: ignore[assignment]
    """Name or path of the source file, or of the file with both sides: TSV, or by its suffix csv,
    jsonl, parquet, tmx, xlf or po. Files may be compressed (gz, xz, bz2, zst). Omit this key if a
    model makes the sources."""
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    """Number of times that a pass over the data uses each pair. With 0.5, a pass uses half of the
    pairs, and the next pass the other half."""
    translated_by: OtherRun | None = None
    """Finished run whose model makes the side that is not given: targets from sources
    (distillation), or sources from targets (back-translation). The run folder keeps them."""
    sampled: bool = False
    """Draw the translations by sampling. Default: beam search, with the options of the run."""

    @model_validator(mode="after")
    def _check(self) -> "Corpus":
        has_source, has_target = self.source is not None, self.target is not None
        is_complete = has_source and not self.sampled
        if not (has_source != has_target if self.translated_by else is_complete):
            raise ValueError(
                "give source, and target unless the source file has both sides. With translated_by "
                "(and sampled), give either source or target"
            )
        return self


OneOrMore = Annotated[
    Annotated[Corpus, Tag(FORMS[0])] | Annotated[list[Corpus], Field(min_length=1), Tag(FORMS[1])],
    Discriminator(lambda value: FORMS[isinstance(value, list)]),
]


class Filters(Section):
    """Which pairs of each corpus for training to drop, before pairs are held out. Default: none."""

    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """Drop pairs with a side of more than this number of times the UTF-8 bytes of the other."""
    identical: bool = False
    """Drop pairs whose sides are the same text."""
    repeated: bool = False
    """Drop pairs that occurred before."""
    wrong_language: bool = False
    """Drop pairs with a sentence of surely another language. Needs the extra language-id."""


class Download(Section):
    """Address and SHA-256 of the files to download if `data.directory` is not set."""

    url: Annotated[str, Field(pattern="^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]")]
    """Address (http or https) of the folder that has the files."""
    sha256: dict[PlainName, Sha256]
    """SHA-256 (64 hex digits) of each file, by name."""


class Generator(Section):
    """Number of generated sentence pairs per split. The pairs are numbers and dates in words."""

    train: Size = 40_000
    """Training pairs."""
    validation: Size = 500
    """Validation pairs."""
    test: Size = 1_000
    """Test pairs. No pair is in two splits."""


class HeldOutCounts(Section):
    """Number of sentence pairs that `data.train` gives to validation and test.

    No sentence is in two splits.
    """

    validation: Size = 1_000
    """Validation pairs. For a language model, the last documents of the text (lines of a file)."""
    test: Size = 1_000
    """Test pairs. A language model has no test text."""


class Data(Section):
    """Text for training, validation and test."""

    source_language: LanguageCode = "en"
    """Code of BCP 47 or ISO 639, such as en, zh-Hant or deu."""
    target_language: LanguageCode = "de"
    """Code of BCP 47 or ISO 639, such as en, zh-Hant or deu."""
    documents: Literal["lines", "paragraphs", "files"] | None = None
    """What a language model reads as one text: lines, paragraphs (up to an empty line) or files.
    The key source of each split names the file. Default: none, for sentence pairs."""
    train: OneOrMore | None = None
    validation: TextPair | None = None
    test: TextPair | None = None
    held_out: HeldOutCounts | None = None
    generator: Generator | None = None
    directory: MayChange[Path | None] = None
    """Folder of the files. The option --data-dir sets this key."""
    download: Download | None = None
    filters: Filters = Filters()
    both_directions: bool = False
    """Train also from the target language to the source language, in the same model. A run with
    initial_run can then go on in one direction."""
    max_length: Length = 256
    """Drop pairs in which a sentence has more pieces than this number. The rows of a language model
    have this length; longer documents continue in another row."""

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "Data":
        forms = [{"train", "validation", "test"}, {"train", "held_out"}, {"generator"}]
        given = {name for name in set.union(*forms) if getattr(self, name) is not None}
        known = "train, validation and test, or files for train and held_out, or a generator"
        if self.documents:
            forms = [{"train", "validation"}, {"train", "held_out"}]
            known = "train and validation, or files for train and held_out"
        if not given and info.context == OF_RUN:
            return self  # An imported model has no text.
        if given not in forms:
            raise ValueError(
                f"give files for {known}. Received: {', '.join(sorted(given)) or 'none of them'}"
            )
        unused = (self.directory, self.download, self.filters)
        if self.generator is not None and unused != (None, None, Filters()):
            raise ValueError(
                "directory, download and filters have no effect with a generator: remove them"
            )
        if self.held_out and (len(corpora := self.corpora("train")) > 1 or self.made_corpora()):
            raise ValueError(
                "held_out needs one corpus in train, without translated_by. "
                f"Received: {len(corpora)}, made by models: {len(self.made_corpora())}"
            )
        if self.generator is not None and self.source_language == self.target_language:
            raise ValueError("target_language must differ from source_language")
        return self

    def corpora(self, split: str) -> list[Any]:
        """Returns each `Corpus` of the training text, or the `TextPair` of another split in a list.

        Held-out text is like the training text. The list is empty for text that is generated.
        """
        given = getattr(self, split) or (self.held_out and self.train)
        return given if isinstance(given, list) else [given] if given else []

    def made_corpora(self) -> dict[int, Corpus]:
        """Returns the corpora for training of which a model makes a side, by their numbers."""
        return {i: x for i, x in enumerate(self.corpora("train")) if x.translated_by}


Normalization = Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"]


class TokenizerSettings(Section):
    """Settings of the SentencePiece model, which is trained on the training split."""

    model_type: Literal["bpe", "unigram", "word"] = "bpe"
    """Kind of pieces: subwords, or the most frequent whole words."""
    vocabulary_size: Annotated[int, Field(gt=4, le=2**31 - 1)] = 37_000
    """Number of pieces, including pad, unk, bos and eos."""
    joint: bool = True
    """One vocabulary and one embedding for both languages."""
    normalization: Normalization = "nmt_nfkc"
    """Normalization of text by SentencePiece. With identity, no character changes; names with cf
    also lowercase it."""
    target_normalization: Normalization | None = None
    """Normalization of target text. A translation never has a character that it replaces, so init
    writes identity. Default: normalization."""


class ModelSettings(Section):
    """Settings of the model. A setting that is not None replaces the value of the preset.

    An architecture that a program registers can have other keys than these.
    """

    model_config = ConfigDict(extra="allow")

    architecture: str = "transformer"
    """transformer, language_model (see `data.documents`), or a name that a program registers."""
    preset: str = "base"
    """Sizes of a published model, for the keys that are not given: tiny, base or big."""
    num_layers: Layers | None = None
    """Encoder layers."""
    num_decoder_layers: Layers | None = None
    """Decoder layers. Default: num_layers."""
    d_model: Size | None = None
    """Width of the layers."""
    num_heads: Size | None = None
    """Attention heads. Must divide d_model."""
    d_ff: Size | None = None
    """Width of the feed-forward networks."""
    d_k: Size | None = None
    """Width of queries and keys in each head. Default: d_model / num_heads."""
    dropout_rate: Rate | None = None
    """Dropout on sublayer outputs and on embeddings (§5.4)."""
    attention_dropout_rate: Rate | None = None
    """Dropout on attention weights. Default: 0."""
    use_scale: bool | None = None
    """Divide attention scores by the square root of d_k. Default: true."""
    position_encoding: str | None = None
    """One of sinusoidal, sinusoidal_half_split, sinusoidal_marian, sinusoidal_opennmt,
    sinusoidal_fairseq, learned, rotary, alibi, t5, none, or a name that a program registers.
    Default: sinusoidal."""
    activation: str | None = None
    """Activation of the feed-forward networks: one of Keras, swiglu or geglu (both gated), or a
    name that a program registers. Default: relu."""
    norm_first: bool | None = None
    """Pre-norm instead of the paper's post-norm. Default: false."""
    norm_epsilon: Epsilon | None = None
    """Added to the variance in the norms. Default: 1e-6."""
    normalization: str | None = None
    """Norm: layer, rms, or a name that a program registers. Default: layer."""
    tie_word_embeddings: bool | None = None
    """One matrix for target embedding and output projection. Default: true."""
    use_logits_bias: bool | None = None
    """Add a learned bias to the logits. Default: false."""
    use_bias: bool | None = None
    """Biases in the linear maps of the layers. Default: true."""
    num_kv_heads: Size | None = None
    """Heads of keys and values. Must divide num_heads. Default: num_heads."""
    qk_norm: bool | None = None
    """RMS norms on queries and keys. Default: false."""
    attention_soft_cap: Positive | None = None
    """Bound of the attention scores. Default: none."""
    encoder_layer: str | None = None
    """Registered name of a class of encoder layers. Default: EncoderLayer."""
    decoder_layer: str | None = None
    """Registered name of a class of decoder layers, such as keras_transformer>SSRUDecoderLayer
    (recurrence instead of self-attention). Default: DecoderLayer."""
    max_length: Size | None = None
    """Maximum tokens per sentence in search and in some position encodings."""
    attention_pattern: str | None = None
    """Pattern of attention that saves memory on long sequences: full, local, or a name that a
    program registers. Default: none."""
    attention_window: Size | None = None
    """Window of local attention in tokens, or the size that another pattern needs."""

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "ModelSettings":
        if info.context != OF_RUN:
            self.check()
        return self

    def check(self) -> None:
        """Raises `ValueError` if the architecture does not exist or lacks the preset or a key."""
        from keras_transformer.models import ARCHITECTURES

        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture must be one of {', '.join(ARCHITECTURES)}. A program registers "
                "others, and its command is such as `python recipes/before_transformers.py train "
                f"RECIPE`. Received: {self.architecture!r}"
            )
        model_class = ARCHITECTURES[self.architecture]
        if self.preset not in model_class.presets:
            known = f"the architecture {self.architecture} has the presets"
            names = ", ".join(model_class.presets)
            raise ValueError(f"{known} {names}. Received: preset={self.preset}")
        if unknown := self.overrides.keys() - (settings := model_class.settings()):
            raise ValueError(
                f"the architecture {self.architecture} has only the keys "
                f"{', '.join(sorted(settings))}. Received: {', '.join(sorted(unknown))}"
            )

    @property
    def sizes(self) -> dict[str, Any]:
        """Returns the settings of the preset, updated with `overrides`."""
        from keras_transformer.models import ARCHITECTURES

        return {**ARCHITECTURES[self.architecture].presets[self.preset], **self.overrides}

    @property
    def overrides(self) -> dict[str, Any]:
        """Returns the settings that are not None, as arguments for the model's class."""
        return self.model_dump(exclude={"architecture", "preset"}, exclude_none=True)


class Training(Section):
    """Settings of optimization (§5.3, §5.4) and checkpoints. All steps are optimizer steps."""

    initial_run: OtherRun | None = None
    """Finished run to fine-tune. Training starts with the tokenizer and weights of this run. Keys
    of the section tokenizer may be omitted, or have the values of this run."""
    lora_rank: Size | None = None
    """Freeze the weights and train LoRA of this rank in the linear maps, and their biases. Files
    then have only what differs from initial_run. Exports merge adapters. Default: no LoRA."""
    lora_parts: list[str] | None = None
    """Parts of the names of the linear maps with LoRA, such as decoder, self_attention or
    feed_forward. Default: all."""
    frozen: list[str] = []
    """Parts of the names of layers that are not trained, such as encoder or embedding. Files then
    have only what differs from the model of initial_run."""
    steps: MayChange[Steps] = 100_000
    """Total number of optimizer steps."""
    tokens_per_batch: Size = 25_000
    """Maximum target tokens per micro-batch, including eos and padding."""
    accumulation_steps: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Micro-batches per optimizer step."""
    length_multiple: Length = 8
    """Pad batches to lengths that are multiples of this number."""
    packing: bool = False
    """Put several sentence pairs, which do not see each other, into each row: less padding."""
    warmup_steps: Steps = 4_000
    """Optimizer steps of learning-rate warm-up."""
    learning_rate_scale: LearningRate = 1.0
    """Multiplies the learning rate."""
    peak_learning_rate: LearningRate | None = None
    """Highest learning rate. Default: the peak of the formula in §5.3."""
    cosine_steps: Steps | None = None
    """Optimizer steps after warm-up in which the learning rate falls to 0 along a cosine. Default:
    it falls with the inverse square root of the step (§5.3)."""
    label_smoothing: Rate = 0.1
    """Probability ε that is spread over all pieces (§5.4)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Weight of R-Drop, a loss that compares the outputs under two dropout masks."""
    simcut: Annotated[float, Field(ge=0)] = 0.0
    """Weight of SimCut, a loss that compares the outputs for the text and for a text in which some
    tokens are cut. Not together with R-Drop."""
    simcut_rate: Rate = 0.05
    """Probability that SimCut cuts a token."""
    teacher: OtherRun | None = None
    """Finished run whose predictions are part of the targets (distillation). Training starts with
    its tokenizer, so keys of the section tokenizer may be omitted. Its model's sizes may differ."""
    teacher_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the teacher in the target distribution of each token."""
    subword_regularization: Annotated[float, Field(ge=0)] | None = None
    """Draw the pieces of the training text in each pass anew, by probabilities to this power, such
    as 0.2. Default: the most probable pieces. Needs tokenizer.model_type unigram."""
    text_noise: Rate = 0.0
    """Share of the training sentences that are changed at random, in each pass anew and from the
    end of the warmup on: a source with typos, in lower case, or without its final mark
    (`TextNoise`)."""
    optimizer: Literal["adam", "adamw", "muon", "schedule_free", "lion"] = "adam"
    """Optimizer. adamw needs weight_decay. muon updates matrices of linear maps, and Adam the rest.
    schedule_free keeps its peak rate without cosine_steps, and its result is the mean of steps."""
    adam_beta_1: Rate = 0.9
    """β₁ of Adam (§5.3), also for the other optimizers."""
    adam_beta_2: Rate = 0.98
    """β₂ of Adam (§5.3), also for the other optimizers."""
    adam_epsilon: Epsilon = 1e-9
    """ε of Adam (§5.3). lion has none."""
    weight_decay: Rate = 0.0
    """Fraction of each matrix that a step subtracts, times the learning rate, as in AdamW."""
    global_clipnorm: Positive | None = None
    """Clip gradients to this global norm. Default: no clipping."""
    ema_momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay per step of an exponential moving average (EMA) of the weights. Validation and
    checkpoint averaging use the EMA weights. Default: no EMA."""
    dtype_policy: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Keras dtype policy of the model."""
    jit_compile: MayChange[bool | Literal["auto"]] = "auto"
    """Whether XLA compiles the training step. On PyTorch with a GPU, torch.compile compiles it, for
    auto only that of models with 20 million weights or more, and CUDA graphs replay it."""
    logits_mebibytes: MayChange[Annotated[int, Field(ge=0, le=2**20)] | None] = None
    """Memory in MiB for the logits of one slice. The loss splits the tokens of each batch into
    slices. Default: 16 on a CPU; on a GPU a twelfth of its memory, at most 4096."""
    gradient_checkpointing: MayChange[bool] = False
    """Recompute activations in the backward pass: less memory, more time."""
    distribution: MayChange[Literal["none", "data_parallel", "model_parallel"]] = "none"
    """Parallel training on several devices or processes."""
    model_shards: MayChange[Size] = 1
    """Number of devices over which model_parallel splits weights."""
    checkpoint_every: MayChange[Steps] = 1_000
    """Optimizer steps between checkpoints."""
    keep_checkpoints: MayChange[Steps] = 5
    """Number of newest checkpoints to keep. With early stopping, evaluation.average_last
    checkpoints with the lowest losses are kept too."""
    early_stopping_patience: MayChange[Steps | None] = None
    """Stop after this many checkpoints without a lower validation loss. The final model averages
    the checkpoints with the lowest losses. Default: no early stopping."""
    validation_bleu_sentences: MayChange[Annotated[int, Field(ge=0, le=2**31 - 1)]] = 100
    """Number of validation sentences to translate for BLEU at each checkpoint."""
