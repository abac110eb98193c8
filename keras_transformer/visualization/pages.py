"""Builds self-contained HTML pages from escaped text, without scripts and without requests."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

# Text in a cell, or HTML.
Cell = object


class Html(str):
    """Text that is already HTML. `html_of` escapes all other text."""


STYLE = """
:root { color-scheme: light dark; --ink: #1d2b3a; --muted: #5a6877; --line: #d9e0e7; --back: #fff;
  --panel: #f6f8fa; --first: #2b63ad; --second: #c2640c; --good: #21794a; --shade: 214, 110, 20; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --muted: #9dabb9; --line: #3a4652;
  --back: #14191e; --panel: #1c232a; --first: #7fb0ef; --second: #f0a35c; --good: #6cc795; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px 20px 64px; color: var(--ink);
  background: var(--back); font: 15px/1.5 system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 44px 0 12px; padding-top: 12px; border-top: 1px solid var(--line); }
h3 { font-size: 15px; margin: 20px 0 8px; }
p { margin: 8px 0; max-width: 75ch; }
p, summary { overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 12px 0 0; }
a { color: var(--first); }
.muted, figcaption, .note { color: var(--muted); }
.note { border-left: 3px solid var(--line); padding: 2px 12px; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; background: var(--panel);
  padding: 1px 5px; border-radius: 4px; overflow-wrap: anywhere; }
pre { background: var(--panel); padding: 12px 14px; border-radius: 6px; overflow: auto;
  margin: 8px 0; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
.note code { display: inline-block; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 4px 0; }
th, td { padding: 5px 14px 5px 0; text-align: start; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--muted); font-size: 13px; white-space: nowrap; }
td { white-space: nowrap; } td.wide { min-width: 24ch; white-space: normal; }
td.number, th.number { text-align: end; white-space: nowrap; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--first); }
:focus-visible { outline: 2px solid var(--first); outline-offset: 2px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr));
  gap: 22px 32px; }
figure { margin: 0; } figcaption { font-size: 13px; }
figure b { color: var(--ink); font-size: 15px; }
svg { display: block; width: 100%; height: auto; } .scroll svg { width: auto; max-width: none; }
svg text { fill: var(--muted); font: 11.5px system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
svg .strong { fill: var(--ink); } svg .grid { stroke: var(--line); stroke-width: 1; }
svg .axis { stroke: var(--muted); stroke-width: 1; }
svg .mark { fill: currentColor; stroke: none; } svg .hit { fill: transparent; }
svg .hit:hover { fill: currentColor; }
.first { color: var(--first); } .second { color: var(--second); } .good { color: var(--good); }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; margin-inline: 0 6px;
  vertical-align: middle; background: currentColor; } .key { margin-inline-start: 12px; }
.sentence { border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px; margin: 10px 0; }
.sentence dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 14px;
  margin: 0; } .sentence dt { color: var(--muted); font-size: 13px; }
.sentence dd { margin: 0; overflow-wrap: anywhere; }
.token { border-radius: 3px; background: rgba(var(--shade), var(--doubt)); }
@media (max-width: 560px) { body { padding: 16px 14px 48px; } .sentence dl { display: block; }
  .sentence dd { margin: 0 0 8px; } }
@media print { details > * { display: block; } body { max-width: none; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Returns a whole page. `parts` are HTML. Its content security policy forbids all requests."""
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            *parts,
            "</body>\n</html>\n",
        )
    )


def html_of(content: Cell) -> Html:
    """Returns text as escaped HTML, and `Html` unchanged."""
    return content if isinstance(content, Html) else Html(escape(str(content)))


def element(name: str, *content: Cell, **attributes: Cell) -> Html:
    """Returns an HTML element. Content and attributes are escaped. `class_` means "class"."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(x))}"' for key, x in attributes.items()
    )
    return Html(f"<{name}{given}>{''.join(map(html_of, content))}</{name}>")


def table(heads: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> Html:
    """Returns a table. Columns whose first cell is a number are aligned at the end."""
    lines = [list(row) for row in rows]
    classes = [
        {"class_": "number"} if isinstance(cell, int | float) else {}
        for cell in (lines[0] if lines else heads)
    ]

    def line(name: str, cells: Sequence[Cell], scope: Mapping[str, str]) -> Html:
        texts = (
            f"{x:,.2f}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) else x
            for x in cells
        )
        found = []
        for text, own in zip(map(html_of, texts), classes, strict=True):
            wide = {"class_": "wide"} if len(text) > 40 else {}
            found.append(element(name, text, dir="auto", **scope, **{**wide, **own}))
        return element("tr", *found)

    body = (line("td", row, {}) for row in lines)
    head = element("thead", line("th", heads, {"scope": "col"}))
    return scrollable(element("table", head, element("tbody", *body)), "Table")


def scrollable(content: Html, label: str) -> Html:
    """Returns content that scrolls sideways, also by keyboard."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def details(summary: str, *content: Cell) -> Html:
    """Returns content that is hidden until the reader opens it."""
    return element("details", element("summary", summary), *content)


def note(text: str, command: str | None = None) -> Html:
    """Returns a remark, such as that something is missing, and the command that makes it."""
    rest = (" ", element("code", command)) if command else ()
    return element("p", text, *rest, class_="note")


def tokens_html(tokens: Sequence[tuple[str, float]]) -> Html:
    """Returns pieces as text. The stronger the colour, the less probable the token."""
    shaded = []
    for index, (piece, probability) in enumerate(tokens):
        text = piece.replace("▁", " ")
        shaded.append(" " if index and text.startswith(" ") else "")
        style = f"--doubt: {0.75 * (1 - probability):.3f}"
        title = f"{probability:.4f}"
        shaded.append(element("span", text.strip(), class_="token", style=style, title=title))
    return element("bdi", *shaded, dir="auto")
