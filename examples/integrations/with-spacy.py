"""Train a spaCy tagger on ELMo, save the pipeline, load it again, and look at all layers of a word.

pip install '.[spacy]'
python examples/integrations/with-spacy.py
"""

from __future__ import annotations

import tempfile

import spacy
from spacy.tokens import Doc
from spacy.training import Example

SENTENCES = [
    ("The bank raised its rate .", "DET NOUN VERB PRON NOUN PUNCT"),
    ("She rates the film .", "PRON VERB DET NOUN PUNCT"),
    ("They film the banks .", "PRON VERB DET NOUN PUNCT"),
    ("We bank there .", "PRON VERB ADV PUNCT"),
]


def main() -> None:
    """Train until the tagger knows the sentences, and tag another one."""
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": {"@architectures": "elmokit.Tok2Vec.v1"}})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 384}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}})
    examples = []
    for text, tags in SENTENCES:
        words = text.split()
        examples.append(Example(nlp.make_doc(text), Doc(nlp.vocab, words=words, tags=tags.split())))
    optimizer = nlp.initialize(lambda: examples)
    for epoch in range(40):
        losses = nlp.update(examples, sgd=optimizer, losses={})
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {losses['tagger']:.2f}")

    with tempfile.TemporaryDirectory() as folder:
        nlp.to_disk(folder)  # the weights of ELMo are part of the pipeline
        nlp = spacy.load(folder)
    nlp.add_pipe("elmo_layers")
    doc = nlp("They rate the banks.")
    print(" ".join(f"{token.text}/{token.tag_}" for token in doc))
    print("vectors:", doc.tensor.shape, "layers of 'rate':", doc[1]._.elmo_layers.shape)


if __name__ == "__main__":
    main()
