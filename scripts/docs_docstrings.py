"""Extension of Griffe: prepares the docstrings of this package for the documentation."""

import ast
import re
import textwrap
from typing import Any

import griffe


class KerasDocstrings(griffe.Extension):
    """Formats the sections that only Keras has, and documents the fields of pydantic models."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _with_code_blocks(_with_call_arguments(obj.docstring.value))

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "Field":
            options = {x.name: x for x in call.arguments if isinstance(x, griffe.ExprKeyword)}
            positional = [x for x in call.arguments if not isinstance(x, griffe.ExprKeyword)]
            attr.value = positional[0] if positional else None
            if "description" in options:
                text = ast.literal_eval(str(options["description"].value))
                attr.docstring = griffe.Docstring(text.replace("*", r"\*"), parent=attr)


def _with_code_blocks(text: str) -> str:
    """Replaces examples, which Markdown takes for quotations within quotations, by code blocks."""

    def code(match: re.Match) -> str:
        is_prompt = re.compile(r"(>>>|\.\.\.)( |$)")
        lines = (x[4:] if is_prompt.match(x) else f"# {x}" for x in match[0].splitlines())
        return "\n".join(["```python", *lines, "```"])

    return re.sub(r"^>>> .+(?:\n.+)*", code, text, flags=re.MULTILINE)


def _with_call_arguments(text: str) -> str:
    """Replaces the sections "Call arguments" and "Source" by Markdown."""

    def call_arguments(match: re.Match) -> str:
        lines = textwrap.dedent(match[1])
        items = re.sub(r"^(\w+(?:, \w+)*): ", r"- **\1** – ", lines, flags=re.MULTILINE)
        return f"**Call arguments:**\n\n{items}"

    section = r"(?:\n|\Z)((?:    .*\n?|\n)+)"
    text = re.sub(rf"^Call arguments:{section}", call_arguments, text, flags=re.MULTILINE)
    return re.sub(
        rf"^Source:{section}",
        lambda match: f"Source: {' '.join(match[1].split())}\n",
        text,
        flags=re.MULTILINE,
    )
