"""Draws the tree of hypotheses of a beam search as an HTML page."""

import math
from typing import Any
from unicodedata import east_asian_width

from keras_transformer.translation.beam_tree import BeamNode, BeamTree
from keras_transformer.visualization.pages import render

ROW, GAP, START = 38, 26, 34  # pixels


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
    finished = [node for node in tree.nodes if node.outcome == "finished" and node.length > 0]
    finished.sort(key=lambda node: -(node.score or 0.0))
    groups = ["group"] * (tree.options.num_beam_groups > 1)
    boxes = _boxes(tree)
    return render(
        "beam.html",
        title=f"Beam search: {tree.source}",
        tree=tree,
        search=", ".join(f"{name} {x}" for name, x in options.items()),
        start=ROW / 2,
        boxes=boxes,
        width=max(box["x"] + box["width"] for box in boxes) + 4,
        height=max(box["y"] for box in boxes) + ROW,
        finished=[
            (node, [(x.piece, _probability(x)) for x in tree.path(node)]) for node in finished
        ],
        heads=[*groups, "rank", "hypothesis", "token", "probability", "log-probability", "outcome"],
        steps=[
            [_candidate(tree, node) for node in tree.nodes if node.length == length]
            for length in range(1, 1 + max(node.length for node in tree.nodes))
        ],
    )


def _probability(node: BeamNode) -> float:
    return min(math.exp(node.token_log_probability), 1.0)


def _candidate(tree: BeamTree, node: BeamNode) -> list[Any]:
    return [
        *([node.group + 1] if tree.options.num_beam_groups > 1 else []),
        node.rank,
        tree.text(node),
        node.piece,
        f"{_probability(node):.4f}",
        f"{node.log_probability:.3f}",
        f"{node.outcome}: {node.reason}" if node.reason else node.outcome,
    ]


def _boxes(tree: BeamTree) -> list[dict[str, Any]]:
    """Returns a box for each hypothesis that was live or finished, with the edge that leads to it.

    A step is a column: the live hypotheses first, then those that finished.
    """
    places = {0: (0.0, ROW / 2, float(START))}  # left end, vertical middle and width by node
    best = next((node for node in tree.nodes if node.result == 1), tree.nodes[0])
    on_path = {id(node) for node in tree.path(best)}
    shown = [i for i, node in enumerate(tree.nodes) if i and node.outcome != "dropped"]
    left, boxes = float(START + GAP), []
    for length in range(1, 1 + max(tree.nodes[index].length for index in shown)):
        column = [index for index in shown if tree.nodes[index].length == length]
        column.sort(key=lambda index: (tree.nodes[index].outcome == "finished", index))
        live = sum(tree.nodes[index].outcome != "finished" for index in column)
        width = 18.0 + max(_text_width(_label(tree.nodes[index])) for index in column)
        for row, index in enumerate(column):
            node = tree.nodes[index]
            below = max(tree.options.beam_size - live, 0) if row >= live else 0
            places[index] = left, ROW * (row + below + 0.5), width
            boxes.append(_box(tree, node, places[index], places[node.parent or 0], on_path))
        left += width + GAP
    return boxes


def _box(
    tree: BeamTree,
    node: BeamNode,
    place: tuple[float, float, float],
    parent: tuple[float, float, float],
    on_path: set[int],
) -> dict[str, Any]:
    x, y, width = place
    begin, middle, parent_y = parent[0] + parent[2], x - GAP / 2, parent[1]
    is_best, has_score = id(node) in on_path, node.score is not None
    facts = [
        tree.text(node),
        f"probability of the token {_probability(node):.4f}, "
        f"log-probability {node.log_probability:.3f}, rank {node.rank}",
        f"finished with score {node.score:.4f}" if has_score else "",
        node.reason or "",
    ]
    return {
        "x": x,
        "y": y,
        "width": width,
        "edge": f"M{begin} {parent_y} C{middle} {parent_y} {middle} {y} {x} {y}",
        "label": _label(node),
        "probability": _probability(node),
        "facts": [fact for fact in facts if fact],
        "is_best": is_best,
        "is_end": node.outcome == "continued" and bool(node.reason),
        "border": 2 if has_score or is_best else 1,
        "colour": "good" if is_best else "first" if has_score else "muted",
    }


def _label(node: BeamNode) -> str:
    return node.piece if node.score is None else f"{node.piece} {node.score:.2f}"


def _text_width(text: str) -> float:
    """Returns about how many pixels a label needs. East Asian characters are wide."""
    return sum(12.0 if east_asian_width(x) in "WF" else 7.4 for x in text)
