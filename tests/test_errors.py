"""The error that is the user's to mend."""

import numpy as np
import pytest

from keras_transformer.errors import check_ids, check_is_list, check_sizes, is_out_of_memory


def test_errors_of_full_memory_are_recognized():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."))
    assert is_out_of_memory('File "x.py": DefaultCPUAllocator: can\'t allocate memory')
    assert not is_out_of_memory(RuntimeError("shapes differ"))


@pytest.mark.parametrize("size", [0, -1, 1.0, None, True])
def test_sizes_are_integers_of_at_least_1(size):
    check_sizes(size=np.int64(1))
    with pytest.raises(ValueError, match=f"`size` must be an integer of at least 1.*size={size}"):
        check_sizes(size=size)


def test_a_string_is_no_list_of_strings():
    check_is_list(texts=["one"], none=())
    for text in ("one", b"one"):
        with pytest.raises(TypeError, match="`texts` must be a list of strings. Received: b?'one'"):
            check_is_list(texts=text)


def test_ids_are_integers_in_a_range_whatever_their_dtype():
    check_ids(5, ids=np.array([0, 4], "uint8"), none=np.zeros(0))
    check_ids(5, ids=np.array([0.0, 4.0]))
    for wrong in ([5], [-1], np.array([2**32], "uint64"), [1, 2.5, 3], [np.nan]):
        with pytest.raises(ValueError, match="`ids` must be integers from 0 to 4. Received: val"):
            check_ids(5, ids=np.asarray(wrong))
