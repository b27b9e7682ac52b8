"""The verdict of a command: a headline to take away, then the details it rests on.

A headline has at most 30 words and four numbers. A number is a run of digits that stands by itself: p99, H200 and 80GB
are names. Each command has one verdict, in the file of its name; terminal, page and JSON say the same one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_WORDS = 30
MOST_NUMBERS = 4
_NUMBER = re.compile(r"(?<![\w.,])\d[\d.,]*(?:e[-+]?\d+)?(?!\w)")


class Verdict(NamedTuple):
    """A headline, and the sentences that follow it; each ends with a full stop."""

    headline: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.headline, *self.details])

    @property
    def rest(self) -> str:
        """The details as one paragraph."""
        return " ".join(self.details)


def _concise(sentence: str) -> bool:
    """Whether a headline is short enough, and has few enough numbers."""
    return len(sentence.split()) <= MOST_WORDS and len(_NUMBER.findall(sentence)) <= MOST_NUMBERS


def first_concise(candidates: Iterable[str], mark: str = "") -> str:
    """The first candidate that is concise after ``mark``, else the last one; as a sentence.

    candidates : the one that says most comes first
    """
    chosen = ""
    for candidate in candidates:
        chosen = f"{mark}{candidate}"
        if _concise(chosen):
            break
    return as_sentence(chosen)


def as_sentence(text: str) -> str:
    """With a full stop, and a capital letter where it begins with a word and not with a name like ``h100-qwen3``."""
    word = text.split(" ", 1)[0].rstrip(",:")
    return f"{text[:1].upper() if word.isalpha() else text[:1]}{text[1:]}."
