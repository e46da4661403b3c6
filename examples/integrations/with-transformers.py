"""Use ELMo in transformers: fill in a word, train a tagger with the trainer, and use it in a pipeline.

pip install '.[transformers]' accelerate
python examples/integrations/with-transformers.py
"""

from __future__ import annotations

import tempfile

from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments, pipeline

from elmokit.integrations.transformers import ElmoForMaskedLM, ElmoForTokenClassification, ElmoTokenizer

TAGGED = [
    "The O|cat ANIMAL|sat O|on O|the O|mat O|. O",
    "A O|dog ANIMAL|barked O|at O|the O|man O|. O",
    "He O|saw O|two O|horses ANIMAL|near O|the O|river O|. O",
    "The O|teacher O|closed O|the O|door O|. O",
]


def main() -> None:
    """Print the words that fit into a sentence, and the animals of another one."""
    tokenizer = ElmoTokenizer.from_elmokit()
    fill = pipeline("fill-mask", model=ElmoForMaskedLM.from_elmokit(), tokenizer=tokenizer)
    for row in fill("She sat on the <MASK> of the river.", top_k=3):
        print(f"{row['score']:.2f} {row['sequence']}")

    labels, examples = ["O", "ANIMAL"], []
    for line in TAGGED:
        words, tags = zip(*(pair.split() for pair in line.split("|")), strict=True)
        encoded = tokenizer(list(words), is_split_into_words=True)
        # The boundaries <S> and </S> have no word, and no label.
        ids = [-100 if i is None else labels.index(tags[i]) for i in encoded.word_ids()]
        examples.append({**encoded, "labels": ids})
    with tempfile.TemporaryDirectory() as folder:
        # The biLM stays as it is: only the mix of its layers and the classifier are trained.
        model = ElmoForTokenClassification.from_elmokit(labels=labels, trainable=False)
        settings = TrainingArguments(folder, num_train_epochs=40, learning_rate=0.02, report_to="none")
        collate = DataCollatorForTokenClassification(tokenizer)
        Trainer(model, settings, train_dataset=examples, data_collator=collate).train()
        model.save_pretrained(f"{folder}/my-tagger")
        tokenizer.save_pretrained(f"{folder}/my-tagger")
        tag = pipeline("token-classification", model=f"{folder}/my-tagger")
        print([(row["word"], row["entity"]) for row in tag("A bird and a fox ran across the street.")])


if __name__ == "__main__":
    main()
