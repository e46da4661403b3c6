"""Example sentences of the explorer: words with several senses, gaps to fill, and everyday sentences around them.

They were chosen by measuring the included model.
"""

from __future__ import annotations

SENSES: dict[str, list[list[str]]] = {
    "play": [
        [
            "The theater showed a new play by her brother .",
            "He wrote a play about two sisters .",
            "The play was first performed in London .",
            "Her second play won a prize .",
        ],
        [
            "The children play in the garden .",
            "They play football every Sunday .",
            "She learned to play the piano .",
            "We play chess in the evening .",
        ],
    ],
    "watch": [
        [
            "He looked at his watch .",
            "The watch was made of gold .",
            "She took a watch from her pocket .",
            "His watch had stopped at noon .",
        ],
        [
            "They watch television in the evening .",
            "Thousands came to watch the game .",
            "We watch the birds in the garden .",
            "She liked to watch the boats .",
        ],
    ],
    "left": [
        [
            "She left the house in the morning .",
            "He left his wife in 1905 .",
            "They left the city after the war .",
            "The ship left the harbor at night .",
        ],
        [
            "He raised his left hand .",
            "The church is on the left side of the street .",
            "She lost her left eye .",
            "Turn to the left at the bridge .",
        ],
    ],
    "train": [
        [
            "The train left the station at noon .",
            "She missed the last train to London .",
            "They traveled to the coast by train .",
            "The train was full of soldiers .",
        ],
        [
            "They train young players for the team .",
            "The school will train teachers and nurses .",
            "He had to train every day for the race .",
            "It is hard to train a dog .",
        ],
    ],
    "run": [
        [
            "They run to the river .",
            "She had to run for the train .",
            "The children run in the garden .",
            "He could not run any more .",
        ],
        [
            "The play had a run of two years .",
            "He scored a run for the team .",
            "The show ended its run in May .",
            "It was a long run of good luck .",
        ],
    ],
    "second": [
        [
            "He won the second game .",
            "Her second husband was a doctor .",
            "The second book was published in 1950 .",
            "They live on the second floor .",
        ],
        [
            "He waited for a second and spoke again .",
            "For a second nobody moved .",
            "She stopped for a second at the door .",
            "It was over in a second .",
        ],
    ],
    "park": [
        [
            "The children played in the park .",
            "The park has old trees and a lake .",
            "They walked through the park .",
            "A new park was opened in the city .",
        ],
        [
            "You may not park here .",
            "She tried to park the car .",
            "They park their cars in the street .",
            "He had to park near the station .",
        ],
    ],
    "ring": [
        [
            "She wore a gold ring on her finger .",
            "He gave her a ring and asked her to marry him .",
            "The ring was set with diamonds .",
            "She took off her ring .",
        ],
        [
            "They heard the bells ring .",
            "The telephone began to ring .",
            "Please ring the bell .",
            "The bells ring every Sunday .",
        ],
    ],
    "spring": [
        [
            "The garden is full of flowers in spring .",
            "Last spring was the warmest in forty years .",
            "The farmers plant their fields in early spring .",
            "He returned to London in the spring of 1921 .",
        ],
        [
            "Fresh water flows from a spring in the hills .",
            "They drank from the spring behind the house .",
            "The river rises from a small spring .",
            "A broken spring inside the clock had stopped it .",
        ],
    ],
    "light": [
        [
            "The light from the window fell on the table .",
            "Please turn off the light before you leave .",
            "A single light was burning in the kitchen .",
            "He saw a light in the distance .",
        ],
        [
            "The bag is light enough for a child to carry .",
            "We had a light meal before the journey .",
            "She wore a light coat in the morning .",
            "The boat was small and light .",
        ],
    ],
    "rock": [
        [
            "The band plays rock and blues .",
            "He was a singer in a rock band .",
            "The album mixes rock with jazz .",
            "They wrote rock songs in the seventies .",
        ],
        [
            "The house was built on solid rock .",
            "He climbed on a rock above the sea .",
            "The path was cut into the rock .",
            "The boat struck a rock and sank .",
        ],
    ],
    "bank": [
        [
            "The bank raised its interest rate last week .",
            "She opened an account at the bank .",
            "The bank refused to lend him more money .",
            "He worked as a clerk in a bank .",
        ],
        [
            "They sat on the bank of the river .",
            "The river broke its bank after the rain .",
            "A heron stood on the muddy bank .",
            "We walked along the south bank of the lake .",
        ],
    ],
}
"""Sentences by the word whose senses they show, one list per sense. The first is the word of the README's picture."""

GAPS: dict[str, int] = {
    "She wore a red dress and a black hat .": 4,
    "She speaks French and German .": 2,
    "He played the piano in a band .": 3,
    "He sat on the bench .": 4,
    "He studied law at the university .": 2,
    "They lived in a small house near the river .": 5,
    "He was born in London in 1921 .": 4,
    "He took off his hat .": 4,
    "He died of cancer in 1954 .": 3,
    "He closed the door behind him .": 3,
    "The keys to the cabinet are on the table .": 5,
    "The wug sat on the bench .": 1,
}
"""Sentences and the position to look at: what the model expects there fits, except in the last two (see the log)."""

OTHERS = [
    "The cat sat on the mat and slept .",
    "The doctor told the patient that she would recover soon .",
    "Nobody knows who wrote the first of these stories .",
    "The old man who lives next door has a small dog .",
    "The key to the cabinets is on the table .",
    "The government announced new rules for schools and hospitals .",
    "He was born in a village near the border in 1921 .",
    "The ship left the harbor early in the morning .",
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

SENTENCES = [sentence for senses in SENSES.values() for sense in senses for sentence in sense] + [*GAPS, *OTHERS]
"""All of them: space-separated tokens."""

LISTED = {
    "sentences": [{"text": text, "position": position} for text, position in GAPS.items()],
    "senses": SENSES,
}
"""What the page offers to look at."""
