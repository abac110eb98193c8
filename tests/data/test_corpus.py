import gzip
import io
import queue
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import pytest

from keras_transformer.data import CorpusError, read_lines, read_parallel
from keras_transformer.data.corpus import available_chunks, read_standard_input
from keras_transformer.errors import UserError

LONGEST = 1024 * 1024


def write(path, data):
    path.write_bytes(data)
    return path


def test_files_are_read_line_by_line(tmp_path):
    source = write(tmp_path / "s", b"one\n\ntwo\n")
    target = write(tmp_path / "t", "eins\nnichts\nzwei ü\n".encode())
    pairs = [("one", "eins"), ("", "nichts"), ("two", "zwei ü")]
    text = read_parallel(source, target)
    assert list(text) == pairs
    assert list(text) == pairs  # again


def test_gzip_is_recognised_by_its_content(tmp_path):
    packed = gzip.compress("grüße\nzwei\n".encode())
    assert list(read_lines(write(tmp_path / "a.gz", packed))) == ["grüße", "zwei"]
    assert list(read_lines(write(tmp_path / "a.txt", packed))) == ["grüße", "zwei"]
    assert list(read_lines(write(tmp_path / "b.gz", b"plain\n"))) == ["plain"]


def test_only_newline_ends_a_line(tmp_path):
    line = "a\u2028b\u2029c\u0085d\x0be\x0cf\rg\x1ch"
    assert list(read_lines(write(tmp_path / "s", f"{line}\nnext".encode()))) == [line, "next"]


def test_carriage_return_before_newline_is_dropped(tmp_path):
    assert list(read_lines(write(tmp_path / "s", b"one\r\ntwo\r\n"))) == ["one", "two"]


def test_byte_order_mark_is_no_text(tmp_path):
    assert list(read_lines(write(tmp_path / "s", b"\xef\xbb\xbfone\ntwo"))) == ["one", "two"]


def test_standard_input_is_read_like_a_file(monkeypatch):
    content = b"\xef\xbb\xbfone\r\n\n two \r\r\n\xef\xbb\xbfthree\r"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert list(read_standard_input()) == ["one", "", " two \r", "\ufeffthree\r"]


def test_missing_newline_at_the_end_adds_or_loses_nothing(tmp_path):
    assert list(read_lines(write(tmp_path / "s", b"one\ntwo"))) == ["one", "two"]
    assert list(read_lines(write(tmp_path / "t", b"one\ntwo\n"))) == ["one", "two"]
    assert list(read_lines(write(tmp_path / "u", b""))) == []


def test_tab_separated_file(tmp_path):
    path = write(tmp_path / "pairs.tsv", b"one\teins\ntwo\tzwei\n")
    assert list(read_parallel(path)) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize("line", [b"no tab", b"a\tb\tc"])
def test_tab_separated_line_must_have_two_fields(tmp_path, line):
    path = write(tmp_path / "pairs.tsv", b"one\teins\n" + line + b"\n")
    with pytest.raises(CorpusError, match=r"pairs\.tsv, line 2:"):
        list(read_parallel(path))


def test_further_columns_have_a_remedy(tmp_path):
    path = write(tmp_path / "pairs.tsv", b"one\teins\tCC-BY 2.0\n")
    with pytest.raises(CorpusError, match="Received: 3 fields; `cut -f 1,2` keeps the first two"):
        list(read_parallel(path))


@pytest.mark.parametrize(("source_count", "target_count"), [(3, 5), (5, 3), (0, 1), (4, 5)])
def test_unequal_numbers_of_lines_are_refused(tmp_path, source_count, target_count):
    source = write(tmp_path / "text.en", b"x\n" * source_count)
    target = write(tmp_path / "text.de", b"y\n" * target_count)
    with pytest.raises(CorpusError) as caught:
        list(read_parallel(source, target))
    assert f"text.en with {source_count} " in str(caught.value)
    assert str(caught.value).endswith(f"text.de with {target_count} lines")


def test_invalid_utf8_names_file_and_line(tmp_path):
    path = write(tmp_path / "text.de", b"gut\nsch\xf6n\n")
    with pytest.raises(CorpusError, match=r"text\.de, line 2: .*0xf6 at column 4"):
        list(read_lines(path))


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(CorpusError, match="absent.en: cannot be read: No such file"):
        list(read_lines(tmp_path / "absent.en"))
    with pytest.raises(CorpusError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


def test_truncated_gzip_is_refused(tmp_path):
    packed = gzip.compress(b"".join(b"line %d\n" % number for number in range(1_000)))
    path = write(tmp_path / "text.gz", packed[: len(packed) // 2])
    with pytest.raises(CorpusError, match=r"text\.gz, after line \d+: damaged gzip file"):
        list(read_lines(path))


def test_a_long_line_is_refused_before_it_is_in_memory(tmp_path):
    packed = gzip.compress(b"short\n" + bytes(64 * LONGEST), compresslevel=1)
    path = write(tmp_path / "text.gz", packed)
    tracemalloc.start()
    with pytest.raises(CorpusError, match=r"text\.gz, line 2: .* at most 1,048,576 bytes"):
        list(read_lines(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * LONGEST


def test_a_long_line_of_standard_input_is_refused(monkeypatch):
    content = b"short\n" + b"a" * (LONGEST + 1)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    with pytest.raises(CorpusError, match="standard input, line 2: .* at most 1,048,576 bytes"):
        list(read_standard_input())


def test_the_longest_line_is_read(tmp_path):
    line = "a" * (LONGEST - 1)
    assert list(read_lines(write(tmp_path / "s", f"{line}\n{line}b".encode()))) == [
        line,
        f"{line}b",
    ]


def test_a_corpus_error_is_one_line_to_the_user():
    assert issubclass(CorpusError, UserError)
    assert issubclass(CorpusError, ValueError)


def items_of(source):
    """Items that a test puts into a queue, until None."""
    return iter(source.get, None)


def test_what_is_there_goes_in_large_chunks_in_order():
    chunks = list(available_chunks(range(10), most=4))
    assert chunks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(available_chunks([], most=4)) == []


def test_each_item_is_answered_before_the_next_one_comes():
    source = queue.Queue()
    chunks = available_chunks(items_of(source), most=8)
    for item in ("a", "b"):
        source.put(item)
        assert next(chunks) == [item]  # Would hang if it waited for more.
    source.put(None)
    assert list(chunks) == []


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise ValueError("third")

    chunks = available_chunks(items(), most=8)
    assert next(chunks) == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(chunks)


def test_only_so_many_items_are_taken_ahead():
    taken = []
    chunks = available_chunks((taken.append(n) or n for n in range(1000)), most=4)
    assert next(chunks) == [0, 1, 2, 3]
    assert len(taken) <= 4 + 4 + 1  # The chunk, the queue, and the one in the thread's hand.
    chunks.close()


def test_no_thread_is_left_when_nobody_wants_more():
    chunks = available_chunks(iter(int, 1), most=4)  # Endless.
    next(chunks)
    chunks.close()
    takers = [thread for thread in threading.enumerate() if thread.name.endswith("(_take)")]
    for thread in takers:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in takers)


def test_a_byte_order_mark_alone_is_no_line(tmp_path):
    assert list(read_lines(write(tmp_path / "s", b"\xef\xbb\xbf"))) == []
    assert list(read_lines(write(tmp_path / "t", b"\xef\xbb\xbf\n"))) == [""]


def test_a_byte_order_mark_belongs_to_the_length_of_its_line(tmp_path):
    path = write(tmp_path / "s", b"\xef\xbb\xbf" + b"a" * LONGEST)
    with pytest.raises(CorpusError, match="line 1: a line must have at most"):
        list(read_lines(path))


def test_standard_input_that_cannot_be_read_is_an_error(monkeypatch, tmp_path):
    with (tmp_path / "s").open("wb") as file:
        monkeypatch.setattr(sys, "stdin", open(file.fileno(), closefd=False))
        with pytest.raises(CorpusError, match="^standard input cannot be read: Bad file desc"):
            list(read_standard_input())
