"""Example sentences of the explorer: words with several senses, and everyday sentences around them."""

from __future__ import annotations

SENSES: dict[str, list[str]] = {
    "bank": [
        "The bank raised its interest rate last week .",
        "She opened an account at the bank near the station .",
        "The bank refused to lend the young couple more money .",
        "They sat on the bank of the river and watched the boats .",
        "The river broke its bank after three days of rain .",
        "A heron stood on the muddy bank and waited for fish .",
    ],
    "play": [
        "The children play in the garden after school .",
        "He will play the piano at the concert tonight .",
        "Our team must play two more games this season .",
        "The new play opened at the small theatre on Friday .",
        "She wrote a play about two sisters and their father .",
        "Critics praised the play for its quiet ending .",
    ],
    "spring": [
        "The garden is full of flowers in spring .",
        "Last spring was the warmest in forty years .",
        "The farmers plant their fields in early spring .",
        "Fresh water flows from a spring in the hills .",
        "The old spring behind the house never runs dry .",
        "A broken spring inside the clock had stopped it .",
    ],
    "light": [
        "The light from the window fell on the table .",
        "Please turn off the light before you leave .",
        "A single light was burning in the kitchen .",
        "The bag is light enough for a child to carry .",
        "We had a light meal before the long journey .",
        "She wore a light coat because the morning was warm .",
    ],
    "match": [
        "Our team won the match by two goals .",
        "The match was stopped because of heavy rain .",
        "Thousands of people came to watch the match .",
        "He struck a match and lit the candle .",
        "The last match in the box was wet .",
        "She held the burning match until it reached her fingers .",
    ],
    "letter": [
        "I received a long letter from my brother in Canada .",
        "She folded the letter and put it in her pocket .",
        "The letter was signed by the prime minister .",
        "The first letter of the word is a capital .",
        "Each letter of the alphabet has its own sound .",
        "He wrote every letter of his name with great care .",
    ],
}
"""Sentences by the word whose senses they show: three of one sense, then three of others."""

OTHERS = [
    "The cat sat on the mat and slept .",
    "The doctor told the patient that she would recover soon .",
    "Nobody knows who wrote the first of these stories .",
    "The old man who lives next door has a small dog .",
    "The keys to the cabinet are on the table .",
    "The key to the cabinets is on the table .",
    "The government announced new rules for schools and hospitals .",
    "He was born in a village near the border in 1921 .",
    "The ship left the harbour early in the morning .",
    "The judge asked the witness to speak more slowly .",
    "Most birds leave the island before the winter begins .",
    "She studied mathematics and physics at the university .",
    "The company sold more cars this year than ever before .",
    "The soldiers marched through the town without a word .",
    "It was a cold night , and the wind howled around the house .",
    "The museum has a fine collection of paintings from Italy .",
    "The film was so long that half of the audience left .",
    "After the storm , the roads were covered with leaves .",
    "The teacher explained the problem again , but nobody listened .",
    "Their house stands on a hill above the sea .",
]
"""Sentences that give the index something else to find."""

SENTENCES = [sentence for group in SENSES.values() for sentence in group] + OTHERS
"""All of them: space-separated tokens."""
