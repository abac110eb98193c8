"""What is around the sentence of a line."""

import pytest

from keras_transformer.translation.edges import edges


@pytest.mark.parametrize(
    ("line", "head", "tail"),
    [("- (Tom.) 😀", "- (", ") 😀"), ("12) [x] > Tom ♪ ♪ :-)", "12) [x] > ", " ♪ ♪ :-)")]
    + [("(a) 1. ♪ Tom", "(a) 1. ♪ ", ""), ("2024 Tom (red) C++", "", ""), ("- 5", "", "")]
    + [('"Is it?"', '"', '"'), ("**„Tom.“**", "**„", "“**"), ("“Tom’s.” 😀", "“", "” 😀")]
    + [('"A," he said. "B."', "", ""), ('"Tom', "", ""), ("(a) or (b)", "(a) ", "")]
    + [
        (":-) Tom", ":-) ", ""),
        ("...and", "...", ""),
        ("—Tom", "—", ""),
        ("iv. I", "iv. ", ""),
        ("D: Tom", "", ""),
        ("#tag", "", ""),
        ("== A b ==", "== ", " =="),
        ("| A b |", "| ", " |"),
        ("/* A */", "/* ", " */"),
        ("<!-- A -->", "<!-- ", " -->"),
        ("--- A ---", "--- ", " ---"),
        ("A. Smith", "", ""),
        ("", "", ""),
        ("😀", "", ""),
        ("✓ 😀", "", ""),
    ],
)
def test_marks_symbols_and_brackets_are_around_the_sentence(line, head, tail):
    assert edges(line) == (head, line.removeprefix(head).removesuffix(tail), tail)


def test_many_symbols_are_found_as_fast_as_few():
    for line in "😀" * 300, "😀" * 300 + "a":  # what takes 2**300 steps never ends
        assert "".join(edges(line)) == line
