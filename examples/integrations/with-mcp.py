"""Ask `elmokit mcp` as a chat program does: over standard input and output, with the client of the MCP SDK.

pip install '.[mcp]'
python examples/integrations/with-mcp.py
"""

from __future__ import annotations

import asyncio
import sys

from mcp import Client, StdioServerParameters, stdio_client

BANKS = [
    "They sat on the bank of the river and watched the boats.",
    "A heron stood on the muddy bank and waited for fish.",
    "She opened an account at the bank near the station.",
]


async def main() -> None:
    """Call each tool once."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "elmokit", "mcp"])
    async with Client(stdio_client(server)) as client:
        print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))

        answer = await client.call_tool("surprisal", {"sentences": ["The key is here.", "The key are here."]})
        for sentence in answer.structured_content["sentences"]:
            print(" ".join(f"{token['token']} {token['forward']:.1f}" for token in sentence["tokens"]))

        gap = {"sentence": "The dog ___ at the postman.", "word": "___", "n": 5}
        answer = await client.call_tool("substitutes", gap)
        print("expected:", ", ".join(answer.structured_content["expected"]["both"]))

        answer = await client.call_tool("neighbors", {"sentence": BANKS[0], "word": "bank", "n": 2})
        for neighbor in answer.structured_content["layers"]["2"]:
            print(f"{neighbor['cosine']:.2f} {neighbor['occurrence']}")

        answer = await client.call_tool("compare_senses", {"word": "bank", "sentences": BANKS})
        cosines = answer.structured_content["layers"]["2"]
        print(f"two rivers {cosines[0][1]:.2f}, river and account {cosines[0][2]:.2f}")


asyncio.run(main())
