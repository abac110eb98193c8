"""A translator in a process that was forked, and on its way to another process."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
from support.digits import Copier, new_translator
from support.forking import in_a_child
from support.small_models import new_model

# On PyTorch, a child computes if the parent has a single thread, as here.
REFUSED = {"tensorflow": RuntimeError, "jax": RuntimeError, "torch": type(None)}


@pytest.fixture(scope="module")
def translator():
    translator = new_translator(Copier(), beam_size=1)
    assert translator.translate(["12"]) == ["12"]
    return translator


@pytest.fixture(scope="module")
def model():
    return new_model()


@pytest.mark.each_backend
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize(
    "use", ["translate", "stream", "in a thread", "make a model", "predict", "train"]
)
def test_a_forked_child_answers_or_raises_at_once(use, translator, model):
    uses = {
        "translate": lambda: translator.translate(["12"]),
        "stream": lambda: [*translator.stream(["12"])],
        "in a thread": lambda: ThreadPoolExecutor().submit(translator.translate, ["12"]).result(),
        "make a model": new_model,
        "predict": model.make_predict_function,
        "train": model.make_train_function,
    }
    expected = REFUSED[keras.config.backend()].__name__
    assert in_a_child(uses[use]).startswith(f"{expected}: ")
    assert translator.translate(["34"]) == ["34"]


@pytest.mark.each_backend
@pytest.mark.parametrize("move", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda x: x.__name__)
def test_a_translator_is_opened_where_it_is_used(move, translator):
    with pytest.raises(TypeError, match="open it where it is used"):
        move(translator)
