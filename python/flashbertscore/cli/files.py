"""Text files with one text a line, read strictly: what is wrong is said with file and line."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

STDIN = "-"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_PIECE = 1 << 20  # bytes of a document that are read at once


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file, without the white space around them.

    A byte order mark is dropped; lines end with LF, CRLF or CR; empty lines stay, as empty texts.

    Args:
        path: the file, or "-" for standard input.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8; names file and line.
    """
    if path == STDIN:
        return list(_lines(sys.stdin.buffer, path))
    with Path(path).open("rb") as stream:
        return list(_lines(stream, path))


def read_parallel(candidate: str, references: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the texts of a candidate file and, line by line, those of its reference files.

    Raises:
        OSError, ValueError: as `Parallel`.
    """
    with Parallel(candidate, references) as texts:
        rows = list(texts)
    return [row[0] for row in rows], [row[1] for row in rows]


class Parallel:
    """A candidate file and its reference files, read line by line as often as one likes.

    Nothing of them stays in memory. Standard input and pipes, which give what they have once, are
    written to a temporary file.
    """

    def __init__(self, candidate: str, references: Sequence[str]) -> None:
        """Read the files once, to know that they can be scored.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not UTF-8, has another number of lines, or none; names files and
                line.
        """
        self._paths = [candidate, *references]
        if self._paths.count(STDIN) > 1:
            msg = "standard input (-) can be only one of the files"
            raise ValueError(msg)
        with ExitStack() as opened:
            self._streams = [opened.enter_context(_stream(path)) for path in self._paths]
            self._count = self._check()
            self._open = opened.pop_all()

    def __len__(self) -> int:
        """Return the number of candidates."""
        return self._count

    @property
    def references(self) -> int:
        """Number of references of each candidate."""
        return len(self._paths) - 1

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        """Give each candidate and its references."""
        columns = [self._column(number) for number in range(len(self._paths))]
        for row in zip(*columns, strict=True):
            yield row[0], list(row[1:])

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        self._open.close()

    def _check(self) -> int:
        """Read everything once; return the number of lines."""
        candidate, *references = self._paths
        count = sum(1 for _ in self._column(0))
        if not count:
            msg = f"{name_of(candidate)}: empty, there is nothing to score"
            raise ValueError(msg)
        for number, path in enumerate(references, start=1):
            lines = sum(1 for _ in self._column(number))
            if lines != count:
                raise ValueError(_mismatch(candidate, count, path, lines))
        return count

    def _column(self, number: int) -> Iterable[str]:
        self._streams[number].seek(0)
        return _lines(self._streams[number], self._paths[number])


@contextmanager
def _stream(path: str) -> Iterator[BinaryIO]:
    """Open a file so that it can be read again."""
    with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as stream:
        if path != STDIN and Path(path).is_file():
            yield stream
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(stream, copy)
            yield copy


def _lines(stream: Iterable[bytes], path: str) -> Iterator[str]:
    # Bytes are cut at LF, which in UTF-8 is part of no other character; CR alone ends lines too.
    number = 0
    for raw in stream:
        data = raw.removeprefix(_BYTE_ORDER_MARK) if number == 0 else raw
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            before = data[: error.start].decode("utf-8")
            line = number + len(_split(before + "x"))
            raise ValueError(_not_text(path, line, error)) from None
        for line_of_text in _split(text):
            number += 1
            yield line_of_text.strip()


def read_document(path: str) -> str:
    """Return a whole file as one text, read in pieces: its bytes are never held beside it.

    Args:
        path: the file, or "-" for standard input.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8; names file and line.
    """
    with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as stream:
        return decode(iter(partial(stream.read, _PIECE), b""), path)


def decode(pieces: Iterable[bytes], path: str) -> str:
    """Return the text that pieces of a file make; a byte order mark is dropped, line ends stay.

    Raises:
        ValueError: it is not UTF-8; names file and line.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    text = io.StringIO(newline="")
    try:
        for piece in pieces:
            text.write(decoder.decode(piece))
        text.write(decoder.decode(b"", final=True))
    except UnicodeDecodeError as error:
        before = text.getvalue() + error.object[: error.start].decode("utf-8")
        raise ValueError(_not_text(path, len(_split(before + "x")), error)) from None
    return text.getvalue()


def _not_text(path: str, line: int, error: UnicodeDecodeError) -> str:
    return (
        f"{name_of(path)}:{line}: not UTF-8 text "
        f"(byte 0x{error.object[error.start]:02x}: {error.reason})"
    )


def name_of(path: str) -> str:
    """Return what to call a file in a message."""
    return "<stdin>" if path == STDIN else path


def _mismatch(candidate: str, candidates: int, reference: str, references: int) -> str:
    longer = candidate if candidates > references else reference
    first = min(candidates, references) + 1
    return (
        f"# of sentences in {name_of(reference)} doesn't match the # of candidates: "
        f"{references} lines, {name_of(candidate)} has {candidates}; "
        f"{name_of(longer)}:{first} is the first line without a counterpart"
    )


def _split(text: str) -> list[str]:
    # Not str.splitlines: that also breaks at form feeds and Unicode's line separators, which are
    # part of a text.
    return list(io.StringIO(text, newline=None))
