"""Let a chat program ask an ELMo, as tools of the Model Context Protocol over standard input and output.

pip install . 'mcp>=2'
python recipes/mcp_server.py [MODEL]
"""

from __future__ import annotations

import sys

import numpy as np
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from elmokit import Elmo, LanguageModel, tokenize

MODEL = sys.argv[1] if len(sys.argv) > 1 else None
language_model = LanguageModel.from_pretrained(MODEL)
elmo = Elmo(language_model.model)
server = MCPServer("elmokit", log_level="WARNING")


def found(sentence: str, word: str) -> tuple[list[str], int]:
    """Return the tokens of a sentence, and the position of a word among them."""
    tokens = [token for part in tokenize(sentence) for token in part]
    if word not in tokens:
        raise ToolError(f"{word!r} is not among the tokens {' | '.join(tokens)}. Give one of these.")
    return tokens, tokens.index(word)


@server.tool()
def surprisal(sentence: str) -> list[tuple[str, float, float]]:
    """Compute how surprising each word is, in nats: by the words before it, and by those after it."""
    scored = language_model.surprisal(tokenize(sentence))
    return [
        (token, round(forward, 2), round(backward, 2))
        for part in scored
        for token, (forward, backward) in list(zip(part.tokens, part.nats.T.tolist(), strict=True))[1:-1]
    ]


@server.tool()
def substitutes(sentence: str, word: str) -> dict[str, float]:
    """Find ten words that fit in the place of a word, which the model does not see; write ___ for a gap."""
    expected = language_model.substitutes(*found(sentence, word), "both", 10)
    return {one.word: round(one.probability, 4) for one in expected}


@server.tool()
def compare_uses(word: str, sentence: str, other: str) -> list[float]:
    """Compute the cosine of a word in two sentences, by layer: the higher ones know the sense in which it is used."""
    places = [found(text, word) for text in (sentence, other)]
    one, two = (elmo.embed([tokens])[0][:, position] for tokens, position in places)
    cosines = (one * two).sum(axis=-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(two, axis=-1)
    return [round(cosine, 3) for cosine in cosines.tolist()]


if __name__ == "__main__":
    server.run("stdio")
