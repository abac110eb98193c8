"""Draws the tree of hypotheses of a beam search as an HTML page."""

import math
from collections.abc import Sequence

from keras_transformer.translation.beam_tree import BeamNode, BeamTree
from keras_transformer.visualization.report_charts import text_width
from keras_transformer.visualization.report_page import (
    Html,
    details,
    element,
    note,
    page,
    scrollable,
    table,
    tokens_html,
)

ROW, NODE, GAP = 38, 26, 26


def beam_page(tree: BeamTree) -> str:
    """Returns a beam tree as one HTML page that loads nothing else.

    The page has the results, the tree of all hypotheses that were live or finished, a table that
    tells why each finished hypothesis won or lost, and the candidates of each step.

    Example:

    >>> Path("beam.html").write_text(beam_page(translator.beam_tree("A man sleeps.")), "utf-8")
    """
    options = tree.options.model_dump(exclude_defaults=True)
    options = {"length_penalty": tree.options.length_penalty, **options}
    options.pop("beam_size", None)
    search = ", ".join(f"{name} {x}" for name, x in options.items())
    finished = sorted(_with(tree, "finished"), key=lambda node: -(node.score or 0.0))
    return page(
        f"Beam search: {tree.source}",
        [
            element("h1", tree.source, dir="auto"),
            note(f"Beam search with {tree.options.beam_size} beams; {search}. {_PROBABILITIES}"),
            element("h2", "Tree"),
            element("p", _READING, class_="muted"),
            scrollable(_drawing(tree), "Tree of hypotheses"),
            element("h2", "Finished hypotheses"),
            table(
                ("score", "hypothesis", "tokens", "log-probability", "result"),
                [_finished_row(tree, node) for node in finished],
            ),
            element("h2", "Candidates of each step"),
            *_steps(tree),
        ],
    )


_READING = (
    "Each column is a step, with the live hypotheses from the most probable down, and below them "
    "those that ended. The stronger the colour of a token, the less probable it was. The green "
    "path is the best translation. Hypotheses with a dashed border were not continued. The mouse "
    "shows more."
)


_PROBABILITIES = (
    "The probability of a token is that of the model. The log-probability of a hypothesis includes "
    "the penalties of the search, if there are any."
)


def _with(tree: BeamTree, outcome: str) -> list[BeamNode]:
    return [node for node in tree.nodes if node.outcome == outcome and node.length > 0]


def _probability(node: BeamNode) -> float:
    return min(math.exp(node.token_log_probability), 1.0)


def _shaded(tree: BeamTree, node: BeamNode) -> Html:
    return tokens_html([(x.piece, _probability(x)) for x in tree.path(node)])


def _finished_row(tree: BeamTree, node: BeamNode) -> list[object]:
    number = "" if node.result is None else f"result {node.result}, "
    reason = f"{number}{node.reason}; ended at step {node.length}"
    return [node.score, _shaded(tree, node), node.length, node.log_probability, reason]


def _steps(tree: BeamTree) -> list[Html]:
    """Returns the candidates of each step, hidden until the reader opens the step."""
    found = []
    heads = ["rank", "hypothesis", "token", "probability", "log-probability", "outcome"]
    has_groups = tree.options.num_beam_groups > 1
    if has_groups:
        heads.insert(0, "group")
    for length in range(1, 1 + max(node.length for node in tree.nodes)):
        nodes = [node for node in tree.nodes if node.length == length]
        rows = [
            [
                *([node.group + 1] if has_groups else []),
                node.rank,
                element("bdi", tree.text(node), dir="auto"),
                element("code", node.piece),
                f"{_probability(node):.4f}",
                f"{node.log_probability:.3f}",
                f"{node.outcome}: {node.reason}" if node.reason else node.outcome,
            ]
            for node in nodes
        ]
        found.append(details(f"Step {length}: {len(rows)} candidates", table(heads, rows)))
    return found


def _drawing(tree: BeamTree) -> Html:
    """Returns the tree of all hypotheses that were live or finished, one column per step."""
    shown = [0, *(i for i, node in enumerate(tree.nodes) if i and node.outcome != "dropped")]
    places = _places(tree, shown)
    best = next((node for node in tree.nodes if node.result == 1), tree.nodes[0])
    on_path = {id(node) for node in tree.path(best)}
    edges: list[Html] = []
    boxes: list[Html] = []
    for index in shown[1:]:
        node = tree.nodes[index]
        x, y, width = places[index]
        px, py, parent_width = places[node.parent or 0]
        begin, middle = px + parent_width, x - GAP / 2
        path = f"M{begin} {py} C{middle} {py} {middle} {y} {x} {y}"
        is_best = id(node) in on_path
        style = {"stroke_width": "2.5", "class_": "good"} if is_best else {"class_": "muted"}
        edges.append(element("path", d=path, fill="none", stroke="currentColor", **style))
        boxes.append(_box(tree, node, places[index], is_best))
    _, y, width = places[0]
    start = element("text", "start", x=0, y=y + 4)
    right = max(x + width for x, _, width in places.values()) + 4
    bottom = max(y for _, y, _ in places.values()) + ROW
    return element(
        "svg",
        *edges,
        start,
        *boxes,
        viewBox=f"0 0 {right:g} {bottom:g}",
        width=f"{right:g}",
        role="img",
        aria_label="Tree of hypotheses; the tables below have the same content",
    )


def _places(tree: BeamTree, shown: Sequence[int]) -> dict[int, tuple[float, float, float]]:
    """Returns the left end, the vertical middle and the width of each hypothesis."""
    places = {0: (0.0, ROW / 2, 34.0)}
    left = 34.0 + GAP
    for length in range(1, 1 + max(tree.nodes[index].length for index in shown)):
        column = [index for index in shown if tree.nodes[index].length == length]
        column.sort(key=lambda index: (tree.nodes[index].outcome == "finished", index))
        live = sum(tree.nodes[index].outcome != "finished" for index in column)
        width = 18.0 + max(text_width(_label(tree.nodes[index])) for index in column)
        for row, index in enumerate(column):
            below = max(tree.options.beam_size - live, 0) if row >= live else 0
            places[index] = (left, ROW * (row + below + 0.5), width)
        left += width + GAP
    return places


def _label(node: BeamNode) -> str:
    return node.piece if node.score is None else f"{node.piece} {node.score:.2f}"


def _box(tree: BeamTree, node: BeamNode, place: tuple[float, float, float], is_best: bool) -> Html:
    x, y, width = place
    facts = [
        f"{tree.text(node)}",
        f"probability of the token {_probability(node):.4f}, "
        f"log-probability {node.log_probability:.3f}, rank {node.rank}",
    ]
    if node.score is not None:
        facts.append(f"finished with score {node.score:.4f}")
    if node.reason:
        facts.append(node.reason)
    is_end = node.outcome == "continued" and node.reason
    border = {"stroke_dasharray": "3 3"} if is_end else {}
    size = {"x": x, "y": y - NODE / 2, "width": width, "height": NODE, "rx": 5}
    back = element("rect", **size, style="fill: var(--back)")
    box = element(
        "rect",
        **size,
        **border,
        stroke="currentColor",
        stroke_width="2" if node.score is not None or is_best else "1",
        style=f"fill: rgba(var(--shade), {0.75 * (1 - _probability(node)):.3f})",
    )
    text = element(
        "text",
        _label(node),
        x=x + width / 2,
        y=y + 4,
        text_anchor="middle",
        class_="strong",
        style="unicode-bidi: plaintext",
    )
    colour = "good" if is_best else "first" if node.score is not None else "muted"
    return element("g", element("title", "\n".join(facts)), back, box, text, class_=colour)
