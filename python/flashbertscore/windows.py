"""Texts longer than the model takes: which windows of them are encoded, and what is taken of each.

A text of more ids than a window has is cut, at ids, into windows of one size, each between the
tokenizer's special tokens. Each begins `stride` ids after the one before; the last ends where the
text ends, so that it is as long as the others. Every token takes its embedding from the window in
which it has most context on its nearer side, which is the one whose middle is nearest; of two
equally near the first. The special tokens around the text take theirs from its first and its last
window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashbertscore.tokens import Tokens, ranges

#: What may happen to a text longer than the model takes.
POLICIES = ("truncate", "window", "error")

# Of a window the next one leaves out this part, unless told otherwise (docs/long-documents.md).
_ADVANCE = 3 / 4


@dataclass(frozen=True)
class Windows:
    """How long texts are cut.

    Attributes:
        size: ids of a window, special tokens included; longer texts are cut.
        stride: ids from the beginning of one window to that of the next.
        before: special tokens that the tokenizer puts before a text.
        after: special tokens that it puts after a text.
    """

    size: int
    stride: int
    before: int
    after: int

    @property
    def room(self) -> int:
        """Ids of the text itself in a window."""
        return self.size - self.before - self.after

    def __str__(self) -> str:
        """Return what a signature says: "window-512-382"."""
        return f"window-{self.size}-{self.stride}"


def make_windows(
    limit: int | None, special: tuple[int, int], window: int | None, stride: int | None
) -> Windows | None:
    """Return the windows that are asked for, None where no text is too long.

    Args:
        limit: ids that the model takes, None for any number.
        special: special tokens before and after a text.
        window: ids of a window, special ones included; None: `limit`.
        stride: ids of the text from one window to the next; None: three quarters of a window.

    Raises:
        TypeError: `window` or `stride` is no int.
        ValueError: a window has room for no token, or is longer than the model takes; a stride is
            below 1 or leaves out tokens.
    """
    for name, value in (("window", window), ("stride", stride)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            msg = f"{name}: expected int or None, got {type(value).__name__}"
            raise TypeError(msg)
    least = sum(special) + 1
    size = limit if window is None else window
    if size is None:
        if stride is None:
            return None
        msg = f"stride: expected None without a window, for a model without a limit, got {stride}"
        raise ValueError(msg)
    if size < least or (limit is not None and size > limit):
        most = "" if limit is None else f" and at most {limit}, what the model takes"
        msg = f"window: expected at least {least} (special tokens included){most}, got {size}"
        raise ValueError(msg)
    room = size - sum(special)
    if stride is None:
        stride = max(1, int(room * _ADVANCE))
    if not 1 <= stride <= room:
        msg = f"stride: expected 1 to {room}, the tokens of a text in a window, got {stride}"
        raise ValueError(msg)
    return Windows(size, stride, *special)


@dataclass(frozen=True)
class Pieces:
    """What goes through the model: whole texts, and windows of those that are too long.

    Attributes:
        starts: int64 [k, 3], where in `Tokens.ids` the special ids before, the own ids and the
            special ids after of each piece begin; a whole text has all in the second.
        sizes: int64 [k, 3], how many they are.
        taken: int64 [k, 2], first token of the piece whose embedding is taken, and how many are.
        into: int64 [k], row of `Tokens.ids` that the first of them is.
        texts: int64 [k], the text that each is of.
    """

    starts: torch.Tensor
    sizes: torch.Tensor
    taken: torch.Tensor
    into: torch.Tensor
    texts: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """Ids that each piece has, int64 [k]."""
        return self.sizes.sum(dim=1)

    def select(self, pieces: torch.Tensor) -> Pieces:
        """Return some pieces, in the order of `pieces` (int64 [n])."""
        return Pieces(
            self.starts[pieces],
            self.sizes[pieces],
            self.taken[pieces],
            self.into[pieces],
            self.texts[pieces],
        )

    def rows(self) -> torch.Tensor:
        """Rows of `Tokens.ids` of the ids of all pieces, one piece after another."""
        return ranges(self.starts.flatten(), self.sizes.flatten())

    def sources(self) -> torch.Tensor:
        """Which of the ids of all pieces, one after another, are those that are taken."""
        first = self.lengths.cumsum(0) - self.lengths
        return ranges(first + self.taken[:, 0], self.taken[:, 1])

    def targets(self) -> torch.Tensor:
        """Rows of `Tokens.ids` of those that are taken, one piece after another."""
        return ranges(self.into, self.taken[:, 1])


def cut(tokens: Tokens, windows: Windows | None, texts: torch.Tensor) -> Pieces:
    """Cut texts into the pieces that go through the model.

    Args:
        tokens: ids of texts.
        windows: how those that are too long are cut; None: none is too long.
        texts: int64 [n], which texts; those without an id make no piece.
    """
    texts = texts[tokens.lengths[texts] > 0]
    lengths, offsets = tokens.lengths[texts], tokens.offsets[:-1][texts]
    if windows is None or not bool((lengths > windows.size).any()):
        none = torch.zeros_like(lengths)
        return Pieces(
            starts=torch.stack([offsets, offsets, offsets + lengths], dim=1),
            sizes=torch.stack([none, lengths, none], dim=1),
            taken=torch.stack([none, lengths], dim=1),
            into=offsets,
            texts=texts,
        )
    is_long = lengths > windows.size
    own = lengths - windows.before - windows.after
    # Windows that begin before the last: at 0, stride, ... below own - room.
    earlier = (own - windows.room + windows.stride - 1).div(windows.stride, rounding_mode="floor")
    count = torch.where(is_long, earlier + 1, 1)
    text = torch.repeat_interleave(count)
    number = ranges(torch.zeros_like(count), count)
    is_long, own, lengths, offsets = is_long[text], own[text], lengths[text], offsets[text]
    is_last = number == count[text] - 1

    # In ids of the text itself: where the windows begin, and from where on tokens are theirs.
    start = (number * windows.stride).minimum(own - windows.room)
    previous = (number - 1) * windows.stride
    middle = (start + previous + windows.room - 1).div(2, rounding_mode="floor")
    begin = torch.where(number > 0, middle + 1, -windows.before)
    end = torch.where(is_last, own + windows.after, begin.roll(-1))

    before = torch.where(is_long, windows.before, 0)
    after = torch.where(is_long, windows.after, 0)
    first = torch.where(is_long, begin - start + windows.before, 0)
    size = torch.where(is_long, end - begin, lengths)
    return Pieces(
        starts=torch.stack(
            [
                offsets,
                torch.where(is_long, offsets + before + start, offsets),
                offsets + lengths - after,
            ],
            dim=1,
        ),
        sizes=torch.stack([before, torch.where(is_long, windows.room, lengths), after], dim=1),
        taken=torch.stack([first, size], dim=1),
        into=torch.where(is_long, offsets + before + begin, offsets),
        texts=texts[text],
    )
