"""How far JSON goes in a text that comes in pieces. Every character is looked at once; what is no JSON is not judged
beyond where it ends."""

from __future__ import annotations

import json

_SPACE = " \t\r\n"
# What comes next, and a character: what comes then.
_NEXT = {
    ("[", "["): "{",
    ("{", "{"): "first",
    ("first", '"'): "key",
    ("first", "}"): "over",
    ("another", '"'): "key",
    (":", ":"): "value",
    (",", ","): "another",
    (",", "}"): "over",
}


class JsonValue:
    """One value; over: it has ended."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped, self.over = 0, False, False, False

    def take(self, text: str, at: int) -> int:
        """Index behind the characters of `text` from `at` on that belong to it."""
        for place in range(at, len(text)):
            letter = text[place]
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._quoted, self.over = False, not self._depth
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif not self._depth and (letter in ",}]" or letter in _SPACE):  # behind a number or a word
                self.over = True
                return place
            elif letter in "}]":
                self._depth -= 1
                self.over = not self._depth
            if self.over:
                return place + 1
        return len(text)


class JsonKeys:
    """An object, key by key. listed: it is the first of a list, which begins with it. broken: it is none."""

    def __init__(self, *, listed: bool = False) -> None:
        self._next, self._key = "[" if listed else "{", ""
        self._value: JsonValue | None = None
        self.over = self.broken = False

    def read(self, text: str, at: int) -> tuple[int, tuple[str, str, bool] | None]:
        """From `at` on, up to the next of a value: (index behind it, (key, more of its value, whether that is all));
        None where there is no more in this text."""
        while at < len(text) and not self.over and not self.broken:
            if self._value is not None:
                begin, at, ended = at, self._value.take(text, at), self._value.over
                if ended:
                    self._value = None
                if (found := self._more(text[begin:at], ended)) is not None:
                    return at, found
            elif text[at] in _SPACE:
                at += 1
            elif self._next == "value":
                self._value = JsonValue()
            else:
                self._next = _NEXT.get((self._next, text[at]), "broken")
                self.over, self.broken = self._next == "over", self._next == "broken"
                if self._next == "key":
                    self._key, self._value = "", JsonValue()
                elif not self.broken:
                    at += 1
        return at, None

    def _more(self, piece: str, ended: bool) -> tuple[str, str, bool] | None:
        if self._next == "value":
            self._next = "," if ended else self._next
            return self._key, piece, ended
        self._key += piece
        if ended:
            self._next = ":"
            try:
                self._key = str(json.loads(self._key, strict=False))
            except ValueError:
                self.broken = True
        return None
