"""How a word is spelled for the character features of a task's model."""

from __future__ import annotations

from typing import Literal

Spelling = Literal["characters", "bytes", "marked bytes"]
# The ids of bytes are those of AllenNLP's character tokenizer: byte + 1, so that row 1 is that of byte 0, which no text
# contains. Rows 259 and 260 begin and end a word, and there are 262 rows. A byte is written as the character with its
# number.
BYTES = [chr(number) for number in range(1, 261)]
BEGIN_MARK, END_MARK = chr(258), chr(259)


def spell(token: str, spelling: Spelling) -> str:
    """Return the characters of a token: its own, or one for each byte, with marks around them or not."""
    if spelling == "characters":
        return token
    # Latin-1 writes each byte as the character with its number.
    spelled = token.encode("utf-8", "surrogatepass").decode("latin-1")
    return spelled if spelling == "bytes" else f"{BEGIN_MARK}{spelled}{END_MARK}"
