"""JSON as the protocol needs it: one document, UTF-8, no key twice, nothing rounded to infinity unseen.

Python's own parser does the work; this module closes what it leaves open.
"""

from __future__ import annotations

import json
import re

from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class InfinityWord(float):
    """The bare word Infinity or -Infinity, told apart from a number too large for a double."""


def _constant(word: str) -> float:
    return float("nan") if word == "NaN" else InfinityWord(word)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise OipError(Reason.MALFORMED, f"The JSON has the member {shown(key)} twice in one object.")
            seen.add(key)
    return members


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)


def loads(text: bytes) -> object:
    """The one JSON document that `text` holds.

    Beyond the standard, the words NaN, Infinity and -Infinity are numbers, as in Triton; a number
    too large for a double becomes a plain infinite float, which is no `InfinityWord`. Raises OipError
    MALFORMED for anything else: other encodings, a byte order mark, keys that repeat, lone
    surrogates, nesting deeper than the interpreter's recursion limit, integers of more digits than
    it converts, anything after the document.
    """
    try:
        characters = text.decode("utf-8")
    except UnicodeDecodeError:
        raise OipError(Reason.MALFORMED, "The JSON is not UTF-8.") from None
    try:
        document: object = _DECODER.decode(characters)
        if "\\u" in characters and _SURROGATE_ESCAPE.search(characters):
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise OipError(
            Reason.MALFORMED, f"The JSON does not parse: {_fault(error)} at character {error.pos}."
        ) from None
    except RecursionError:
        raise OipError(Reason.MALFORMED, "The JSON is nested too deeply.") from None
    except UnicodeEncodeError:
        raise OipError(Reason.MALFORMED, "A string in the JSON holds a lone surrogate.") from None
    except ValueError:
        raise OipError(Reason.MALFORMED, "An integer in the JSON has too many digits.") from None
    return document


def _fault(error: json.JSONDecodeError) -> str:
    return error.msg[:1].lower() + error.msg[1:].split("(")[0].rstrip()
