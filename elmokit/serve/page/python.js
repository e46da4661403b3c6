// Python code that computes what a view shows.

// A JSON string or list of strings is also valid Python.
const quoted = JSON.stringify;

/**
 * Return the code for a view.
 * @param {Object} state The state of the page.
 * @param {string} model The name of the model in requests.
 * @param {function(string): Promise<string[][]>} split Returns the tokenized sentences of a text.
 */
export async function asPython(state, model, split) {
  const source = model === "en-mini" ? "" : quoted(model);
  if (state.view === "senses") {
    const texts = state.sentences.split("\n").map((line) => line.trim()).filter(Boolean);
    const word = state.word.trim().toLowerCase();
    const hasWord = (sentence) => sentence.some((token) => token.toLowerCase() === word);
    const sentences = (await Promise.all(texts.map(split))).map((text) => text.find(hasWord) ?? text[0]);
    return `import numpy as np

from elmokit import Elmo

elmo = Elmo.from_pretrained(${source})
sentences = [
${sentences.map((tokens) => `    ${quoted(tokens)},\n`).join("")}]
word = ${quoted(word)}
positions = [[token.lower() for token in tokens].index(word) for tokens in sentences]
vectors = np.stack([one[:, position] for one, position in zip(elmo.embed(sentences), positions)], axis=1)
vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
for layer, rows in enumerate(vectors):
    print("layer", layer)
    print((rows @ rows.T).round(2))
`;
  }
  if (state.view === "layers") {
    return `import numpy as np

from elmokit import Elmo
from elmokit.serve.examples import EXAMPLES

elmo = Elmo.from_pretrained(${source})
is_right = []  # whether the closest other use of a word has the same sense; of equally close ones, how many
for word, senses in EXAMPLES["senses"].items():
    sentences = [sentence.split() for sense in senses for sentence in sense]
    labels = np.repeat(np.arange(len(senses)), list(map(len, senses)))
    layers = np.stack([one[:, tokens.index(word)] for one, tokens in zip(elmo.embed(sentences), sentences)], axis=1)
    layers = layers / np.linalg.norm(layers, axis=-1, keepdims=True)
    cosines = layers @ layers.swapaxes(1, 2) - 3 * np.eye(len(sentences))  # (layers, sentences, sentences)
    nearest = cosines >= cosines.max(axis=-1, keepdims=True) - 1e-6
    is_right.append((nearest & (labels == labels[:, None])).sum(axis=-1) / nearest.sum(axis=-1))
for layer, share in enumerate(np.concatenate(is_right, axis=1).mean(axis=1)):
    print(f"layer {layer}: {100 * share:.1f} %")
`;
  }
  const isDocument = state.reading !== "alone";
  const cache = state.reading === "cache" ? ", cache=True" : "";
  const rows = `lm.word_surprisal([${quoted(state.text)}], documents=${isDocument ? "True" : "False"}${cache})`;
  const sentences = await split(state.text);
  let [position, number] = [state.token, 0];
  while (position !== null && position >= sentences[number]?.length) position -= sentences[number++].length;
  const before = `${isDocument && number ? `, before=sentences[:${number}]` : ""}${cache}`;
  const chosen = position === null || number === sentences.length ? "" : `
sentences = ${quoted(sentences)}
for direction in ("forward", "backward", "both"):
    print(direction, [one.word for one in lm.substitutes(sentences[${number}], ${position}, direction, n=8${before})])
`;
  return `from elmokit import LanguageModel

lm = LanguageModel.from_pretrained(${source})
for row in ${rows}:
    print(row.word, row.forward_nats, row.backward_nats)
${chosen}`;
}
