"""A program goes on with the options with which it began."""

import json

import pytest

from keras_transformer import UserError
from keras_transformer.training import check_same_options

pytestmark = pytest.mark.once


def test_other_options_are_refused_by_name(tmp_path):
    folder = tmp_path / "runs" / "mine"
    check_same_options(folder, {"steps": 3, "seed": 1, "data_dir": "a"}, may_change=["data_dir"])
    assert json.loads((folder / "options.json").read_text()) == {"steps": "3", "seed": "1"}
    check_same_options(folder, {"steps": 3, "seed": 1, "data_dir": "b"}, may_change=["data_dir"])
    with pytest.raises(UserError, match="Received: seed=2, before 1$"):
        check_same_options(folder, {"steps": 3, "seed": 2})
