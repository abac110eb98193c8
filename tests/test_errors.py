"""The error that is the user's to mend."""

import numpy as np
import pytest

from keras_transformer.errors import (
    check_integers,
    check_is_list,
    check_range,
    check_sizes,
    is_out_of_memory,
)

pytestmark = pytest.mark.once


def test_errors_of_full_memory_are_recognized():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."))
    assert is_out_of_memory("DefaultCPUAllocator: can't allocate memory")
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


def test_integers_are_of_any_size_and_an_empty_array_has_any_dtype():
    check_integers(ids=np.zeros(2, "uint8"), none=np.zeros(0))
    with pytest.raises(ValueError, match="`ids` must be integers. Received: dtype=float64"):
        check_integers(ids=np.zeros(1))


def test_the_range_of_values_is_checked_in_their_own_dtype():
    check_range(-1, 5, ids=np.array([-1, 4]), none=np.zeros(0))
    for wrong in ([5], [-2], np.array([2**32], "uint64")):
        with pytest.raises(ValueError, match="`ids` must be from -1 to 4. Received: values from"):
            check_range(-1, 5, ids=np.asarray(wrong))
