"""The text of a PDF's page, as a person would copy it: words in one piece, lines that belong together joined.

PDFium gives the lines of a page, without paragraphs. A line goes on in the next one where it is about as long
as the page's lines are and the next begins with a small letter, or where it ends with a comma; so tables and
lists stay as they are.
"""

from __future__ import annotations

import re

from holdfast.pipelines.documents.reading.clean_text import clean

GOES_ON_SHARE_MIN = 0.6
_PARTED_WORD = re.compile("[\x02\ufffe](?:\r\n)?")


def page_text(text: str) -> str:
    if "\ufffe" in text or "\x02" in text:
        text = _PARTED_WORD.sub("", text)  # PDFium's sign for a hyphen at the end of a line
    lines = [line.rstrip() for line in clean(text.replace("\r\n", "\n")).split("\n")]
    if len(lines) == 1:
        return lines[0]
    long = max(map(len, lines)) * GOES_ON_SHARE_MIN
    parts = [lines[0]]
    before = lines[0]
    for line in lines[1:]:
        goes_on = len(before) >= long and line[:1] != "" and (line[0].islower() or before[-1] in ",;")
        parts.append(" " if goes_on else "\n")
        parts.append(line)
        before = line
    return "".join(parts)
