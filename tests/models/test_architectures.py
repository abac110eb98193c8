"""Recipes name a model; nothing is imported before it is used."""

import subprocess
import sys

import pytest

from keras_transformer import models
from keras_transformer.models import ARCHITECTURES, Transformer, architecture


def test_a_name_stands_for_a_class():
    assert architecture("transformer") is Transformer
    for name, (class_name, *_) in ARCHITECTURES.items():
        assert architecture(name).__name__ == class_name
        assert architecture(name).architecture == name


def test_names_are_known_without_keras():
    code = "import sys, keras_transformer.recipe.files; print('keras' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'Transfromer'"):
        _ = models.Transfromer
