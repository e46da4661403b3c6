"""Train a flair tagger on ELMo, save it, and load it again.

pip install '.[flair]'
python examples/integrations/with-flair.py
"""

from __future__ import annotations

import tempfile

import flair
import torch
from flair.data import Corpus, Sentence
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

from elmokit.integrations.flair import ElmoTokenEmbeddings

TAGGED = [
    ("The bank raised its rate .", "DET NOUN VERB PRON NOUN PUNCT"),
    ("She rates the film .", "PRON VERB DET NOUN PUNCT"),
    ("They film the banks .", "PRON VERB DET NOUN PUNCT"),
    ("We bank there .", "PRON VERB ADV PUNCT"),
]


def main() -> None:
    """Train until the tagger knows the sentences, and tag another one."""
    flair.set_seed(0)
    sentences = []
    for text, tags in TAGGED:
        sentence = Sentence(text.split())
        for token, tag in zip(sentence, tags.split(), strict=True):
            token.set_label("pos", tag)
        sentences.append(sentence)
    corpus = Corpus(sentences, sentences, sentences)
    labels = corpus.make_label_dictionary("pos", add_unk=False)
    tagger = SequenceTagger(ElmoTokenEmbeddings(), labels, "pos", use_rnn=False, use_crf=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ModelTrainer(tagger, corpus)
        trainer.train(folder, optimizer=torch.optim.Adam, learning_rate=0.02, mini_batch_size=4, max_epochs=15)
        tagger = SequenceTagger.load(f"{folder}/final-model.pt")  # the weights of ELMo are part of it
    sentence = Sentence(["They", "rate", "the", "banks", "."])
    tagger.predict(sentence)
    print(" ".join(f"{token.text}/{token.tag}" for token in sentence))


if __name__ == "__main__":
    main()
