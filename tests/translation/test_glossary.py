"""Terms are whole words, the longest first."""

import pytest

from keras_transformer import UserError
from keras_transformer.translation import Glossary


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The red  car, cars, Car\nand carpet", ["rotes Auto", "Auto"]),
        ("us and US.", ["USA"]),
        ("C++ (c++)", ["C++-Code", "C++-Code"]),
        ("", []),
    ],
)
def test_terms_are_found(text, found):
    terms = {"car": "Auto", "Red Car": "rotes Auto", "C++": "C++-Code"}
    glossary = Glossary(terms, {"US": "USA"})
    places = [*glossary.find(text)]
    assert [translation for _, _, translation in places] == found
    assert all(0 <= start < end <= len(text) for start, end, _ in places)


def test_a_file_has_a_term_on_each_line(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("# terms\ncar\tAuto\n\nUS\tUSA\t=case\ncar\tAuto\n", "utf-8")
    assert Glossary.read(path) == Glossary({"car": "Auto"}, {"US": "USA"})
    for line in ("car", "car\t", "\tAuto", "car\tAuto\tcase", "a\tb\t=case\tc", "Car\tWagen"):
        path.write_text(f"car\tAuto\n{line}\n", "utf-8")
        with pytest.raises(UserError, match=r"terms\.tsv, line 2: a line needs a term"):
            Glossary.read(path)
