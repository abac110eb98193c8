"""The error that is the user's to mend."""

from keras_transformer.data import CorpusError
from keras_transformer.errors import UserError


def test_errors_of_text_are_the_users_to_mend():
    assert issubclass(CorpusError, UserError)
    assert not issubclass(ValueError, UserError)
