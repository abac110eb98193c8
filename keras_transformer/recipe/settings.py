"""Defines a recipe, and lists its keys."""

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, model_validator

from keras_transformer.data.languages import bleu_tokenization
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.recipe.sections import (
    MAY_CHANGE,
    Data,
    MayChange,
    ModelSettings,
    Section,
    Steps,
    TokenizerSettings,
    Training,
)

# Types and ranges of a JSON schema in words.
_TYPES = {"string": "text", "object": "mapping", "array": "list of texts"}
_TYPES |= {"boolean": "true or false", **{name: name for name in ("integer", "number", "path")}}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


class Evaluation(SearchOptions):
    """Settings of checkpoint averaging, and of search and scoring with the finished model."""

    average_last: Steps = 5
    """Number of checkpoints to average: the newest or, with early stopping, the best."""
    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab"] | None = None
    """Tokenization of BLEU, as in sacrebleu. Default: zh for Chinese, char for other scripts
    without spaces between words, such as Japanese and Thai, otherwise 13a."""
    lowercase: bool = False
    """Whether BLEU ignores case."""

    def search_options(self, **changes: Any) -> SearchOptions:
        """Returns the search options, updated with `changes`."""
        own = self.model_dump(include={*SearchOptions.model_fields})
        return SearchOptions(**{**own, **changes})


class Task(NamedTuple):
    """What a recipe trains."""

    name: str
    commands: tuple[str, ...]  # that follow the training; the first uses the model


TRANSLATION = Task("translation model", ("translate", "evaluate", "info"))
LANGUAGE_MODEL = Task("language model", ("generate", "info"))
# The keys that a language model does not use.
_OF_PAIRS = re.compile(
    r"data\.(filters|both_directions)|tokenizer\.(joint|target_normalization)|evaluation\.(?!average_)|"
    r"training\.(length_multiple|subword_regularization|text_noise|validation_bleu_sentences)|"
    r".*\.(target|tag|translated_by)$"
)


class Recipe(Section):
    """Holds all settings of a run except the backend.

    Example:

    ```python
    recipe = load_recipe("quickstart", overrides=["training.steps=100"])
    recipe.training.warmup_steps
    ```
    """

    name: Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")]
    """Name of the run folder."""
    description: MayChange[str] = ""
    """A sentence about the task."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of all random numbers of the training."""
    data: Data
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings.model_construct()  # The defaults need no check.
    training: Training = Training()
    evaluation: MayChange[Evaluation] = Evaluation()

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        training, tokenizer = self.training, self.tokenizer
        kept, averaged = training.keep_checkpoints, self.evaluation.average_last
        decay, momentum = training.weight_decay, training.ema_momentum
        sampled, kind = training.subword_regularization is not None, tokenizer.model_type
        architecture, optimizer = self.model.architecture, training.optimizer
        given = dict(_leaves(self.model_dump(exclude_defaults=True)))
        unused = [key for key in given if self.data.documents and _OF_PAIRS.match(key)]
        # What breaks each rule, or something false.
        rules = {
            "model.architecture: language_model and data.documents need each other": (
                (architecture == "language_model") != bool(self.data.documents)
                and f"{architecture} and documents={self.data.documents}"
            ),
            "a language model does not use these keys": ", ".join(unused),
            "training.keep_checkpoints must be at least evaluation.average_last": (
                kept < averaged and f"{kept} and {averaged}"
            ),
            "data.both_directions needs tokenizer.joint": (
                self.data.both_directions and not tokenizer.joint and "false"
            ),
            "training.lora_parts needs training.lora_rank": (
                training.lora_rank is None and training.lora_parts
            ),
            "training.lora_rank needs training.initial_run": (
                training.initial_run is None and training.lora_rank
            ),
            "training.subword_regularization needs tokenizer.model_type: unigram": (
                sampled and kind != "unigram" and kind
            ),
            "training.optimizer: adamw needs training.weight_decay above 0": (
                optimizer == "adamw" and not decay and f"weight_decay={decay}"
            ),
            "training.optimizer: schedule_free has a mean of its own, so no ema_momentum": (
                optimizer == "schedule_free" and momentum and f"ema_momentum={momentum}"
            ),
            "training.text_noise needs more training.steps than training.warmup_steps": (
                training.text_noise
                and training.steps <= training.warmup_steps
                and f"{training.steps} and {training.warmup_steps}"
            ),
        }
        for rule, received in rules.items():
            if received:
                raise ValueError(f"{rule}. Received: {received}")
        return self

    @property
    def task(self) -> Task:
        """What the recipe trains."""
        return LANGUAGE_MODEL if self.data.documents else TRANSLATION

    @property
    def length_multiple(self) -> int:
        """Number of which lengths of batches are multiples: of a language model, their length."""
        return self.data.max_length if self.data.documents else self.training.length_multiple

    @property
    def bleu_settings(self) -> dict[str, Any]:
        """The arguments `tokenize` and `lowercase` of `Evaluator`."""
        tokenize = self.evaluation.tokenize or bleu_tokenization(self.data.target_language)
        return {"tokenize": tokenize, "lowercase": self.evaluation.lowercase}

    @property
    def longest_lengths(self) -> tuple[int, int]:
        """The lengths, with eos and padding, of the batch that needs most memory."""
        if self.data.documents:
            return 0, self.data.max_length
        multiple = self.training.length_multiple
        source = -(-(self.data.max_length + 1) // multiple) * multiple
        return source, -(-source // (2 * multiple)) * multiple

    def to_yaml(self) -> str:
        """Returns the recipe, with all defaults, as YAML that `load_recipe` can read."""
        tree = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)

    def settings(self) -> dict[str, Any]:
        """Returns all settings by key, such as "training.steps"."""
        return dict(_leaves(self.model_dump(mode="json")))

    def differences(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """Returns the keys whose values differ, with the values of this recipe and of `other`."""
        mine, others = self.settings(), other.settings()
        pairs = {key: (mine.get(key), others.get(key)) for key in mine | others}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _leaves(tree: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from _leaves(dict(enumerate(value)), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Key(NamedTuple):
    """A key of a recipe, such as "training.steps", in words."""

    name: str
    value: str  # type and range, such as "integer, > 0", or "section"
    default: str  # "required", or "" if there is no default
    meaning: str
    may_change: bool  # when a run resumes
    section: type[BaseModel] | None  # the class of a section


def all_keys(
    section: type[BaseModel] = Recipe, prefix: str = "", inherited: bool = False
) -> Iterator[Key]:
    """Yields all keys of a recipe. The keys of a section follow the section."""
    properties = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        kinds = [*_types(field.annotation)]
        inner = next((x for x in kinds if isinstance(x, type) and issubclass(x, BaseModel)), None)
        may_be_list = any(get_origin(x) is list for x in kinds)
        section_in_words = "section" + ", or a list of sections" * may_be_list
        summary = (inspect.getdoc(inner) or "").partition("\n")[0]
        may_change = inherited or field.json_schema_extra == MAY_CHANGE
        default = "" if inner or field.default is None else str(field.default)
        yield Key(
            prefix + name,
            section_in_words if inner else _value(properties[name]),
            "required" if field.is_required() else default.lower(),
            " ".join((field.description or summary).split()),
            may_change,
            inner,
        )
        if inner:
            yield from all_keys(inner, f"{prefix}{name}.", may_change)


def _types(annotation: object) -> Iterator[Any]:
    """Yields a type, and the types of which it is made."""
    yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def _value(schema: dict[str, Any]) -> str:
    """Returns the types and the range in a part of a JSON schema in words."""
    parts = [part for part in schema.get("anyOf", [schema]) if part["type"] != "null"]
    words = [part.get("const") or _TYPES[part.get("format", part["type"])] for part in parts]
    words = [", ".join(part.get("enum", [word])) for part, word in zip(parts, words, strict=True)]
    signs = [(part[key], sign) for part in parts for key, sign in _SIGNS.items() if key in part]
    bounds = [(int(x) if x == int(x) else x, sign) for x, sign in signs]
    return " or ".join(words) + "".join(f", {sign} {bound:,}" for bound, sign in bounds)
