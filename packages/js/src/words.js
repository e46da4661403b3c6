// The words of a raw text, as written, and the surprisal of each: the sum over its tokens.

import { splitSentences } from "./sentences.js";
import { PYTHON_SPACE, tokenize } from "./tokenize.js";

const WORDS = new RegExp(`(?:(?!${PYTHON_SPACE})[^])+`, "g");

/** Split raw text into sentences of tokens, with the offsets of each token in the text; `wrapped` as in index.d.ts. */
export function textTokens(text, wrapped) {
  const sentences = splitSentences(text, { offsets: true, wrapped }).map(({ text: sentence, start: first }) =>
    tokenize(sentence, { offsets: true }).map((token) => ({ ...token, start: first + token.start, stop: first + token.stop })),
  );
  return sentences.filter((tokens) => tokens.length);
}

/**
 * Return a row for each word of a text. A string of invisible marks is not a word.
 * @param {string} text
 * @param {import("./index.js").Token[][]} sentences From `textTokens`.
 * @param {import("./index.js").Surprisal[]} scored The surprisal of each sentence.
 * @param {string[]} directions The model's directions.
 * @returns {import("./index.js").WordSurprisal[]}
 */
export function sumByWord(text, sentences, scored, directions, textIndex = 0) {
  const places = sentences.flatMap((tokens, sentence) => tokens.map(({ start }, token) => ({ start, sentence, position: token + 1 }))); // after <S>
  const rows = [];
  let next = 0;
  for (const { 0: word, index: start } of text.matchAll(WORDS)) {
    const stop = start + word.length;
    const own = [];
    while (next < places.length && places[next].start < stop) own.push(places[next++]);
    if (!own.length) continue;
    const nats = (direction) => {
      const number = directions.indexOf(direction);
      return number < 0 ? null : own.reduce((sum, { sentence, position }) => sum + scored[sentence].nats[number][position], 0);
    };
    rows.push({
      textIndex,
      sentenceIndex: own[0].sentence,
      wordIndex: rows.length,
      word,
      start,
      stop,
      forwardNats: nats("forward"),
      backwardNats: nats("backward"),
      nTokens: own.length,
      unknown: own.some(({ sentence, position }) => scored[sentence].isUnknown[position]),
      spellingNats: own.reduce((sum, { sentence, position }) => sum + scored[sentence].spellingNats[position], 0),
    });
  }
  return rows;
}
