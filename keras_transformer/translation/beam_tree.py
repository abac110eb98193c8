"""The tree of all hypotheses that a beam search considered, and how it is drawn."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from keras_transformer._pages import Page, render, text_width
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.translation.hypothesis import WORD_BEGIN, Hypothesis

Outcome = Literal["continued", "finished", "dropped"]
ROW, GAP, START = 38, 26, 34  # pixels
# Widths of the tree, in pixels, on a screen and on a telephone. Steps that do not fit are below.
WIDTHS = (1080, 360)


@dataclass
class BeamNode:
    """A hypothesis of a beam search: its last token, and what became of it.

    Attributes:
        parent: Index in `BeamTree.nodes` of the hypothesis without the last token. None for the
            empty hypothesis.
        length: Number of tokens.
        group: Index of the beam group.
        token_id: Id of the last token.
        piece: The last token as text.
        log_probability: Log-probability in nats, by which the search compares hypotheses. It
            includes the penalties of the search for repetition and for equal beam groups.
        token_log_probability: The model's log-probability of the last token in nats, without
            penalties.
        rank: Rank among the candidates of its step and group, from 1.
        outcome: `"continued"` (the hypothesis became live), `"finished"` or `"dropped"`.
        score: The score of a finished hypothesis, else None.
        result: Rank among the results of the search, from 1. None if it is no result.
        reason: Why the hypothesis won, finished without being a result, or was dropped.
    """

    parent: int | None
    length: int
    group: int
    token_id: int
    piece: str
    log_probability: float
    token_log_probability: float
    rank: int
    outcome: Outcome = "dropped"
    score: float | None = None
    result: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class BeamTree:
    """All hypotheses that a beam search considered for one sentence.

    Attributes:
        source: The source sentence.
        nodes: The hypotheses, shortest first. The first is the empty hypothesis.
        hypotheses: The results of the search, best first.
        options: The options of the search.
    """

    source: str
    nodes: tuple[BeamNode, ...] = field(repr=False)
    hypotheses: tuple[Hypothesis, ...]
    options: SearchOptions

    def path(self, node: BeamNode) -> list[BeamNode]:
        """Returns the nodes from the first token of a hypothesis to its last token."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = self.nodes[node.parent]
        return nodes[::-1]

    def text(self, node: BeamNode) -> str:
        """Returns the tokens of a hypothesis as text, without the end of the sentence."""
        pieces = (x.piece for x in self.path(node) if x.piece != "</s>")
        return "".join(pieces).replace(WORD_BEGIN, " ").strip()

    def _repr_html_(self) -> str:
        """Shows the tree in a notebook."""
        return beam_page(self)._repr_html_()


def beam_page(tree: BeamTree) -> Page:
    """Returns a beam tree as one HTML page that loads nothing else.

    The page has the results, the tree of all hypotheses that were live or finished, a table that
    tells why each finished hypothesis won or lost, and the candidates of each step.

    Example:

    >>> Path("beam.html").write_text(beam_page(translator.beam_tree("A man sleeps.")), "utf-8")
    """
    options = tree.options.model_dump(exclude_defaults=True, exclude={"beam_size"})
    options = {"length_penalty": tree.options.length_penalty, **options}
    finished = [node for node in tree.nodes if node.outcome == "finished" and node.length > 0]
    return render(
        "beam.html",
        title=f"Beam search: {tree.source}",
        tree=tree,
        search=", ".join(f"{name} {x}" for name, x in options.items()),
        start=ROW / 2,
        drawings=[_boxes(tree, width) for width in WIDTHS],
        row=ROW,
        gap=GAP,
        finished=sorted(finished, key=lambda node: -(node.score or 0.0)),
        last_step=max(node.length for node in tree.nodes),
        probability=lambda node: min(math.exp(node.token_log_probability), 1.0),
        label=_label,
    )


def _label(node: BeamNode) -> str:
    return node.piece if node.score is None else f"{node.piece} {node.score:.2f}"


def _boxes(tree: BeamTree, most: int) -> list[dict[str, Any]]:
    """Returns a box for each hypothesis that was live or finished.

    `x` is its left end, `y` its vertical middle, and `begin` and `parent_y` are where its edge
    begins. A step is a column: the live hypotheses first, then those that finished. Columns that
    exceed the width `most` go on below, and the edges to them begin at the left.
    """
    boxes: dict[int, dict[str, Any]] = {0: {"x": 0.0, "y": ROW / 2, "width": float(START)}}
    best = next((node for node in tree.nodes if node.result == 1), tree.nodes[0])
    on_path = {id(node) for node in tree.path(best)}
    shown = [i for i, node in enumerate(tree.nodes) if i and node.outcome != "dropped"]
    left, top, before = float(START + GAP), 0.0, 0.0
    for length in range(1, 1 + max(tree.nodes[index].length for index in shown)):
        column = [index for index in shown if tree.nodes[index].length == length]
        column.sort(key=lambda index: (tree.nodes[index].outcome == "finished", index))
        live = sum(tree.nodes[index].outcome != "finished" for index in column)
        width = 18 + max(text_width(_label(tree.nodes[index])) for index in column)
        is_below = length > 1 and left + width > most
        if is_below:
            left, before = float(GAP), top
            top = max(box["y"] for box in boxes.values()) + ROW
        for row, index in enumerate(column):
            node, parent = tree.nodes[index], boxes[tree.nodes[index].parent or 0]
            below = max(tree.options.beam_size - live, 0) if row >= live else 0
            place = {"x": left, "y": top + ROW * (row + below + 0.5), "width": width}
            edge = {"begin": parent["x"] + parent["width"], "parent_y": parent["y"]}
            if is_below:
                edge = {"begin": 0.0, "parent_y": parent["y"] - before + top}
            boxes[index] = {**place, **edge, "node": node, "is_best": id(node) in on_path}
        left += width + GAP
    del boxes[0]
    return list(boxes.values())
