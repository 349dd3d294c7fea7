"""One document a file: two files, or the files of folders that have the same name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flashbertscore.cli import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Names that a message spells out.
_NAMED = 5


class Documents:
    """Documents and their references, each read when it is its turn.

    Attributes:
        names: what to call each document: its path within the folder, or that of the file; bytes
            that are not UTF-8 in hexadecimal.
    """

    def __init__(self, candidate: str, references: Sequence[str]) -> None:
        """Find the files, and read each once to know that it can be scored.

        Args:
            candidate: a file, or a folder, of which all files count, those in folders within it
                too, also behind links; names that begin with a dot are left out.
            references: as many files, or folders with files of the same names.

        Raises:
            OSError: a file or folder cannot be read.
            ValueError: a folder stands beside a file, is empty, links to one that it is in, or
                lacks the counterpart of a file; a file is not UTF-8; names the files.
        """
        self._paths = [candidate, *references]
        if self._paths.count(files.STDIN) > 1:
            msg = "standard input (-) can be only one of the files"
            raise ValueError(msg)
        self._stdin: str | None = None
        folders = [path for path in self._paths if path != files.STDIN and Path(path).is_dir()]
        if not folders:
            self.names = [_shown(files.name_of(candidate))]
            self._columns = [[path] for path in self._paths]
        elif len(folders) < len(self._paths):
            other = next(path for path in self._paths if path not in folders)
            msg = f"{folders[0]} is a folder, so {files.name_of(other)} has to be one too"
            raise ValueError(msg)
        else:
            names = _names(candidate)
            for folder in references:
                _compare(candidate, names, folder, _names(folder))
            self._columns = [
                [os.path.join(folder, name) for name in names]  # noqa: PTH118 - keeps ./-
                for folder in self._paths
            ]
            self.names = [_shown(name) for name in names]
        for column in self._columns:
            for path in column:
                self._read(path)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        """Give each document and its references."""
        for paths in zip(*self._columns, strict=True):
            document, *references = map(self._read, paths)
            yield document, references

    def _read(self, path: str) -> str:
        if path != files.STDIN:
            return files.read_document(path)
        if self._stdin is None:
            self._stdin = files.read_document(path)
        return self._stdin


def _names(folder: str) -> list[str]:
    names = sorted(str(path.relative_to(folder)) for path in _files(Path(folder), ()))
    if not names:
        msg = f"{folder}: no files, there is nothing to score"
        raise ValueError(msg)
    return names


def _files(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Give all files, also behind links; a link to nothing is one that cannot be read."""
    real = folder.resolve()
    if real in above:
        msg = f"{folder}: a link to a folder that it is in"
        raise ValueError(msg)
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path, (*above, real))
        elif path.is_file() or path.is_symlink():  # no pipe, which would wait for its writer
            yield path


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _compare(candidate: str, names: list[str], folder: str, others: list[str]) -> None:
    for having, lacking, missing in (
        (candidate, folder, set(names) - set(others)),
        (folder, candidate, set(others) - set(names)),
    ):
        if missing:
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            named = ", ".join(map(_shown, sorted(missing)[:_NAMED]))
            msg = f"{lacking} lacks {named}{more}, which {having} has"
            raise ValueError(msg)
