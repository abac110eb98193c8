"""The page of a beam search."""

from support.html_page import read_page

from keras_transformer import SearchOptions
from keras_transformer.formats.engines import open_translator
from keras_transformer.visualization import beam_page


def test_the_page_has_every_hypothesis_and_the_results_of_the_search(run):
    options = SearchOptions(beam_size=3, n_best=3, max_length=6)
    translator = open_translator(run, options)
    tree = translator.beam_tree("a <b>")
    found = translator.translate_nbest(["a <b>"])[0]
    assert [x.ids for x in tree.hypotheses] == [x.ids for x in found]
    page = read_page(beam_page(tree))
    assert page.texts("h1") == ["a <b>"]
    drawn = [node for node in tree.nodes[1:] if node.outcome != "dropped"]
    assert len(page.texts("g")) == 2 * len(drawn)  # for wide and for narrow screens
    cells = page.texts("td")
    for rank, hypothesis in enumerate(found, 1):
        assert f"{hypothesis.score:.2f}" in cells
        assert any(cell.startswith(f"result {rank}, ") for cell in cells)
    candidates = sum("candidates" in x for x in page.texts("summary"))
    assert candidates == max(node.length for node in tree.nodes)
