"""A translator in a process that was forked, and on its way to another process."""

import copy
import os
import pickle

import keras
import pytest
from support.digits import Copier, new_translator
from support.small_models import new_model

from keras_transformer import UserError

# On PyTorch, a child computes if the parent has a single thread, as here.
REFUSED = {"tensorflow": UserError, "jax": UserError, "torch": type(None)}


def in_a_child(function):
    """The error of a function in a forked child, as text. The child is killed after a minute."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            function()
            os.write(writing, b"NoneType: ")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("use", ["translate", "make a model", "predict"])
def test_a_forked_child_answers_or_raises_at_once(use):
    translator, model = new_translator(Copier(), beam_size=1), new_model()
    translator.translate(["12"])
    uses = {
        "translate": lambda: translator.translate(["12"]),
        "make a model": new_model,
        "predict": model.make_predict_function,
    }
    expected = REFUSED[keras.config.backend()].__name__
    assert in_a_child(uses[use]).startswith(f"{expected}: ")
    assert translator.translate(["345"]) == ["345"]


@pytest.mark.parametrize("move", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda x: x.__name__)
def test_a_translator_is_opened_where_it_is_used(move):
    with pytest.raises(TypeError, match="open it where it is used"):
        move(new_translator(Copier(), beam_size=1))
