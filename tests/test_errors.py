"""The error that is the user's to mend."""

from keras_transformer.data import CorpusError
from keras_transformer.errors import UserError, is_out_of_memory


def test_errors_of_text_are_the_users_to_mend():
    assert issubclass(CorpusError, UserError)
    assert not issubclass(ValueError, UserError)


def test_errors_of_full_memory_are_recognized():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."))
    assert is_out_of_memory("DefaultCPUAllocator: can't allocate memory")
    assert not is_out_of_memory(RuntimeError("shapes differ"))
