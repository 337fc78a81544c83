"""Whether a value is one JSON object and nothing else, decided in Spark's plan.

Spark's parser reads the first value of a text and does not look at what follows it: of `{"a":1}{"a":2}` one half would
be lost without a word. And JSON's white space is four characters, of which SQL's `trim` knows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

_WHITE_SPACE: Final = " \t\r\n"
_FALLBACK: Final = "enableDateTimeParsingFallback"


def parser_options(corrupt: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """For `from_json`; `corrupt` is the field that holds what does not fit. A text of digits is no date: Spark would
    take them for days since 1970, as it wrote dates ten years ago, and "20261101" for one in the year 57443."""
    is_said = any(name.lower() == _FALLBACK.lower() for name in given or ())
    ours = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    return {**({} if is_said else {_FALLBACK: "false"}), **(given or {}), **ours}


def is_one_object(value: Column, options: Mapping[str, str] | None = None) -> Column:
    """Of a value that Spark could parse: whether it is a single object, in UTF-8, from its first byte to its last."""
    from pyspark.sql import functions as F

    text = value.cast("string")
    body = F.btrim(text, F.lit(_WHITE_SPACE))
    has_braces = body.startswith("{") & body.endswith("}")
    # An object without objects in it ends at its only closing brace; most do, and need no second look.
    is_flat = F.locate("}", body) == F.length(body)
    is_whole = F.when(is_flat, True).otherwise(_is_alone(body, dict(options or {})))
    return F.coalesce(F.is_valid_utf8(text) & has_braces & is_whole, F.lit(False))


def _is_alone(body: Column, options: dict[str, str]) -> Column:
    """Parsed as the first of two elements: whatever stands behind it breaks the list, or makes it longer. The second is
    the hash of the value, which no value can hold itself to pass for two."""
    from pyspark.sql import functions as F

    mark = F.xxhash64(body).cast("string")
    both = F.from_json(F.concat(F.lit("["), body, F.lit(","), mark, F.lit("]")), "array<string>", options)
    return (F.size(both) == 2) & (F.get(both, F.lit(1)) == mark)
