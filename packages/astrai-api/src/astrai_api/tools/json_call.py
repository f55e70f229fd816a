"""Reads a call written as a JSON object: ``{"name": "f", "arguments": {"x": 1}}``.

Only what can be nothing else is a call: the object has no keys but a call's, and names a tool.
Its arguments are passed on as they come, or at its end if the name stands behind them.
"""

from astrai_api.tools.json_scanner import JsonScanner, NotJsonError
from astrai_api.tools.reading import Calls, NotACallError, Reading, read_name, read_space

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "id", "type", *_ARGUMENTS)


class CallObject:
    """One call on its way.

    Args:
        calls: told of what is found.
        end_tag: the end of a call that makes a mistake in its arguments; without one that of the
            answer. Up to there everything passes for arguments.
    """

    def __init__(self, calls: Calls, end_tag: str = "") -> None:
        self._calls = calls
        self._end_tag = end_tag
        self._name = ""
        self._early_arguments = ""
        self.is_started = False

    def read(self, first: str) -> Reading[bool]:
        """The object, whose first character has come already; tells whether it is whole.

        It is not when its end tag had to end it.
        """
        if first != "{":
            raise NotACallError(first)
        char = ","
        while char == ",":
            if not (yield from self._read_item()):
                return False
            char = yield from read_space()
        if char != "}" or not self._name:
            raise NotACallError(char)
        if not self.is_started:
            self._calls.start(self._name)
            self._calls.add_arguments(self._early_arguments or "{}")
        self._calls.end()
        return True

    def read_arguments(self, name: str, first: str) -> Reading[bool]:
        """The arguments of a tool, passed on as they come; tells whether they are whole."""
        if first != "{":
            raise NotACallError(first)
        self._calls.start(name)
        self.is_started = True
        scanner, char = JsonScanner(), first
        try:
            while not scanner.push(char):
                self._calls.add_arguments(char)
                char = yield
        except NotJsonError:
            yield from self._read_mistake(char)
            return False
        self._calls.add_arguments(char)
        return True

    def _read_item(self) -> Reading[bool]:
        quote = yield from read_space()
        if quote != '"':
            raise NotACallError(quote)
        key, _ = yield from read_name(_KEYS, (yield), '"')
        colon = yield from read_space()
        if colon != ":":
            raise NotACallError(colon)
        first = yield from read_space()
        if key in _ARGUMENTS:
            if self._early_arguments or self.is_started:
                raise NotACallError(first)
            if self._name:
                return (yield from self.read_arguments(self._name, first))
            self._early_arguments = yield from _read_value(first, "{")
        elif key == "name":
            yield from self._read_name(first)
        else:
            yield from _read_value(first, '"')
        return True

    def _read_name(self, first: str) -> Reading[None]:
        if first != '"' or self._name:
            raise NotACallError(first)
        char = yield
        self._calls.is_open = True
        self._name, _ = yield from read_name(self._calls.names, char, '"')

    def _read_mistake(self, char: str) -> Reading[None]:
        held = char
        while not self._end_tag or not held.endswith(self._end_tag):
            if len(held) > len(self._end_tag):
                self._calls.add_arguments(held[0])
                held = held[1:]
            held += yield
        self._calls.add_arguments(held.removesuffix(self._end_tag))


def _read_value(first: str, opening: str) -> Reading[str]:
    """A JSON object or string, whole."""
    if first != opening:
        raise NotACallError(first)
    scanner, text = JsonScanner(), first
    try:
        while not scanner.push(text[-1]):
            text += yield
    except NotJsonError:
        raise NotACallError(text[-1]) from None
    return text
