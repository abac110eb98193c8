"""Describes the keys of a recipe in words: values, default and meaning."""

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keras_transformer.recipe.settings import Recipe, may_change

_TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Key(NamedTuple):
    """A key of a recipe, such as "training.steps"."""

    name: str
    value: str  # type and range, such as "integer, > 0", or "section"
    default: str  # "required", or "" if there is no default
    meaning: str
    may_change: bool  # when a run resumes
    section: type[BaseModel] | None  # the class of a section


def keys_of(section: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[Key]:
    """Yields the keys of a section, without the keys of sections inside it."""
    for name, field in section.model_fields.items():
        inner = _section_of(field)
        summary = (inspect.getdoc(inner) or "").partition("\n")[0] if inner else ""
        yield Key(
            prefix + name,
            "section" if inner else _value(field),
            _default(field),
            " ".join((field.description or summary).split()),
            may_change(prefix + name),
            inner,
        )


def all_keys(section: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[Key]:
    """Yields all keys of a recipe. The keys of a section follow the section."""
    for key in keys_of(section, prefix):
        yield key
        if key.section is not None:
            yield from all_keys(key.section, f"{key.name}.")


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    kinds = (field.annotation, *get_args(field.annotation))
    return next((x for x in kinds if isinstance(x, type) and issubclass(x, BaseModel)), None)


def _value(field: FieldInfo) -> str:
    kind, limits = field.annotation, list(field.metadata)
    if get_origin(kind) is dict:
        return "mapping"
    is_union = get_args(kind) and get_origin(kind) is not Literal
    parts: list[Any] = [x for x in get_args(kind) if x is not type(None)] if is_union else [kind]
    words = []
    for part in parts:
        if get_origin(part) is Annotated:
            part, info = get_args(part)
            limits += info.metadata
        words.append(", ".join(map(str, get_args(part))) or part.__name__.lower())
    bounds = {key: getattr(x, key) for x in limits for key in _SIGNS if hasattr(x, key)}
    ranges = (f", {_SIGNS[key]} {bound:,}" for key, bound in bounds.items())
    return " or ".join(_TYPES.get(word, word) for word in words) + "".join(ranges)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel) or field.default in (None, ""):
        return ""
    return str(field.default).lower() if field.default in (True, False) else str(field.default)
