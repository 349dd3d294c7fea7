"""What callers pass as candidates and references, checked and brought into one form."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple


class Item(NamedTuple):
    """A candidate and its references, checked."""

    candidate: str
    references: Sequence[str]


def read_items(cands: Any, refs: Any) -> tuple[Collection[Item], bool]:
    """Check candidates and references; return the items, and whether references are in lists.

    Args:
        cands: an ordered collection of str: list, tuple, array, pandas Series, generator.
        refs: as many of them; each a str, or each a collection of at least one str.

    Raises:
        TypeError: something is not a str, or not a collection; names the argument and index.
        ValueError: a candidate has no reference, or a text is not Unicode; names the index.
        AssertionError: the numbers of candidates and references differ (as in the reference).
    """
    candidates = read_texts(cands, "cands")
    references = _items(refs, "refs")
    if len(candidates) != len(references):
        msg = (
            "Different number of candidates and references: "
            f"{len(candidates)} candidates, {len(references)} references"
        )
        raise AssertionError(msg)
    several = bool(references) and not isinstance(references[0], str)
    if several:
        references = [_read_group(group, f"refs[{i}]") for i, group in enumerate(references)]
    else:
        for i, text in enumerate(references):
            check_text(text, f"refs[{i}]")
    return _Items(candidates, references), several


class _Items(Sequence[Item]):
    """Candidates and references side by side, put together when they are taken."""

    def __init__(self, candidates: list[str], references: list[Any]) -> None:
        self._candidates = candidates
        self._references = references

    def __len__(self) -> int:
        return len(self._candidates)

    def __getitem__(self, i: Any) -> Any:
        reference = self._references[i]
        return Item(self._candidates[i], [reference] if isinstance(reference, str) else reference)


def read_pairs(pairs: Any) -> Iterator[Item]:
    """Check pairs of a candidate and its reference or references, one after another.

    Raises:
        TypeError: `pairs` is no collection; what is in it is no pair of a str and a str, or a
            collection of str; names the index.
        ValueError: a candidate has no reference, a text is not Unicode; names the index.
    """
    if isinstance(pairs, (str, bytes, Mapping)) or not isinstance(pairs, Iterable):
        msg = f"pairs: expected an iterable of (candidate, reference), got {_kind(pairs)}"
        raise TypeError(msg)
    return _checked(pairs)


def _checked(pairs: Iterable[Any]) -> Iterator[Item]:
    for i, pair in enumerate(pairs):
        is_pair = not isinstance(pair, (str, bytes, Mapping, AbstractSet)) and hasattr(
            pair, "__len__"
        )
        if not is_pair or len(pair) != 2:
            got = f"{len(pair)} values" if is_pair else _kind(pair)
            msg = f"pairs[{i}]: expected (candidate, reference), got {got}"
            raise TypeError(msg)
        candidate, reference = pair
        check_text(candidate, f"pairs[{i}][0]")
        if isinstance(reference, str):
            check_text(reference, f"pairs[{i}][1]")
            yield Item(candidate, [reference])
        else:
            yield Item(candidate, _read_group(reference, f"pairs[{i}][1]"))


def _read_group(texts: Any, name: str) -> list[str]:
    group = read_texts(texts, name)
    if not group:
        msg = f"{name}: expected at least one reference, got none"
        raise ValueError(msg)
    return group


def texts_of(items: Collection[Item]) -> int:
    """Count the texts of items, duplicates included."""
    return len(items) + pairs_of(items)


def pairs_of(items: Collection[Item]) -> int:
    """Count the pairs of items."""
    return sum(len(item.references) for item in items)


def each_text(texts: Any, name: str) -> Iterator[str]:
    """Check texts one after another; raises as `read_texts`."""
    for i, text in enumerate(_iterable(texts, name)):
        check_text(text, f"{name}[{i}]")
        yield text


def read_texts(texts: Any, name: str) -> list[str]:
    """Return an ordered collection of str as a list; `name` is the argument's, for messages.

    Raises:
        TypeError: it is a str, not a collection, or holds something else than str.
        ValueError: a text is not Unicode.
    """
    items = _items(texts, name)
    for i, text in enumerate(items):
        check_text(text, f"{name}[{i}]")
    return items


def _items(texts: Any, name: str) -> list[Any]:
    return list(_iterable(texts, name))


def _iterable(texts: Any, name: str) -> Iterable[Any]:
    # A str would be taken character by character; a set has no order; a mapping would give keys.
    if isinstance(texts, (str, bytes, Mapping, AbstractSet)) or not isinstance(texts, Iterable):
        hint = " (did you mean a list with this one text?)" if isinstance(texts, str) else ""
        msg = f"{name}: expected a sequence of str, got {_kind(texts)}{hint}"
        raise TypeError(msg)
    return texts


def check_text(text: Any, where: str) -> None:
    """Raise TypeError if `text` is no str, ValueError if it is not Unicode; `where` it stands."""
    if not isinstance(text, str):
        msg = f"{where}: expected str, got {_kind(text)}"
        raise TypeError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = (
            f"{where}: expected Unicode text, got a lone surrogate "
            f"U+{ord(text[error.start]):04X} at character {error.start}"
        )
        raise ValueError(msg) from None


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return type(value).__name__
