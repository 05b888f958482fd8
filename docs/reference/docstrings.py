"""Converts docstrings of this code base to the form that mkdocstrings reads."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.M)
"""An example: from a prompt to the next empty line."""
SEVERAL = re.compile(r"^    (?P<first>\w+),\s+(?P<others>(?:\w+,\s+)*\w+):\s+(?P<text>.*(?:\n {8}.*)*)", re.M)
"""`first, second: text`, possibly with names on several lines."""


def apart(found: re.Match[str]) -> str:
    """One item per name: the first has the text, the others refer to it."""
    first, others = found["first"], re.split(r",\s+", found["others"])
    return "\n".join([f"    {first}: {found['text']}", *(f"    {name}: see `{first}`." for name in others)])


class Docstrings(Extension):
    """Fences every `>>>` example, which Markdown would read as a quotation, and splits arguments listed together."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Convert one docstring."""
        if obj.docstring:
            text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = SEVERAL.sub(apart, text)
