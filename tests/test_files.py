"""Files as such: damaged ones are refused, and one is written whole or not at all."""

from __future__ import annotations

import gzip
import os
import stat

import pytest

from placewright import files
from placewright.errors import FileError
from placewright.files import read_text, write_text
from placewright.formats import read_graph
from tests.test_formats import fault

# ---- writing ------------------------------------------------------------------------------------


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("x")
    write_text(tmp_path / "ours", "x")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "g.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(FileError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["g.json"]


def test_writing_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_device_file_is_written_to_and_not_replaced():
    write_text("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("path", ["", "missing/folder/g.json", ".", "a\0b"])
def test_what_cannot_be_written_says_so(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="cannot be written"):
        write_text(path, "x")
    assert os.listdir(tmp_path) == []


# ---- reading ------ ---------------------------------------------------------------------------


def test_files_that_are_not_there_or_no_files(tmp_path):
    for path, message in (
        (tmp_path / "no.json", "no such file"),
        (tmp_path, "is a folder"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(FileError, match=message):
            read_graph(path)


@pytest.mark.timeout(20)
def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/null", "/dev/zero"):
        with pytest.raises(FileError, match="is not a regular file"):
            read_graph(path)
    (tmp_path / "real.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert read_text(tmp_path / "link.txt") == "x"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"schema": "\xff"}', "byte 12: is not UTF-8"),
        (b'\xef\xbb\xbf{"schema": 1}', "byte order mark"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"schema": "placewright.graph/1"', "line 1, column"),
        (b"[" * 100_000, "too deeply"),
        (b'{"a":' * 100_000, "too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
        (gzip.compress(b'{"schema": "placewright.graph/1"}' * 50, mtime=0)[:-9], "cut off"),
        (gzip.compress(b"{}", mtime=0)[:12], "cut off"),
        (gzip.compress(b"{}", mtime=0)[:-8] + bytes(8), "damaged"),
        (gzip.compress(b"{}", mtime=0) + b"more", "damaged"),
        (b"\x1f\x8b\x07garbage and more", "damaged"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_damaged_texts_are_refused(tmp_path, data, message):
    assert message in str(fault(data))
    (tmp_path / "f.json").write_bytes(data)
    with pytest.raises(FileError, match=message.replace("(", r"\(")):
        read_graph(tmp_path / "f.json")


def test_a_text_with_a_byte_order_mark_is_refused():
    assert "byte order mark" in str(fault("\ufeff{}"))


def test_decompression_stops_at_the_limit(tmp_path):
    bomb = gzip.compress(bytes(1 << 20)) * 300  # 300 MiB in 300 KiB
    (tmp_path / "bomb.json.gz").write_bytes(bomb)
    with pytest.raises(FileError, match=f"more than {256 << 20} bytes"):
        read_text(tmp_path / "bomb.json.gz")


def test_a_text_beyond_the_limit_is_neither_read_nor_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 100)
    (tmp_path / "long.json").write_text("x" * 101)
    with pytest.raises(FileError, match="more than 100 bytes"):
        read_text(tmp_path / "long.json")
    with pytest.raises(FileError, match="at most 100"):
        write_text(tmp_path / "long2.json", "x" * 101)
    with pytest.raises(FileError, match="compressed"):
        files.decode(b"\x1f\x8b" + bytes(100), "f")
    (tmp_path / "just.json").write_text("x" * 100)
    assert read_text(tmp_path / "just.json") == "x" * 100
