// The view of a text: the surprisal of each word as written, the words expected instead, and a token's neighbors in context.

import { element, inContext, radios, tint } from "./dom.js";
import { percent, textPicture } from "./picture.js";
import { ask, ServerError, tokenVectors } from "./server.js";

const MOST_NATS = 12; // the color is strongest from here on
const N_WORDS = 8;
const DIRECTIONS = { both: "both sides", forward: "from the left", backward: "from the right" };
const NUMBERS = { ...DIRECTIONS, both: "on average" };
const READINGS = { document: "as a document", cache: "with a cache", alone: "separately" };
const SURPRISAL = "https://en.wikipedia.org/wiki/Information_content";

/**
 * Show a text.
 * @param {HTMLElement} panel Where to show it.
 * @param {Object} state `text`, `reading`, `direction` and `token`, which may be null.
 * @param {function(Object)} change Changes the state and shows it.
 */
export async function showSentence(panel, state, change) {
  if (!state.text.trim()) throw new ServerError(0, "Please type a text.");
  const reading = Object.hasOwn(READINGS, state.reading) ? state.reading : "document";
  const isDocument = reading !== "alone";
  const text = await read(state.text, isDocument, reading === "cache");
  const directions = Object.keys(DIRECTIONS).filter((name) => text[name]);
  const direction = directions.includes(state.direction) ? state.direction : directions[0];
  const chosen = state.token !== null && state.token < text.tokens.length ? state.token : null;
  const parts = [element("h2", {}, "How expected is each word?")];
  if (direction) parts.push(...introduction(text, directions, direction, reading, change));
  else parts.push(element("p", { class: "note" }, "This model has no softmax and vocabulary, so it cannot predict words."));
  const detail = element("div", { class: "detail", id: "detail", role: "status" });
  const explain = (word, token) => detail.replaceChildren(...about(text, word, token, direction, token === chosen));
  detail.append(element("p", { class: "note" }, "Choose a word to see what the model expects in its place, and its neighbors."));
  text.sentence_lengths.forEach((_, sentence) => {
    const words = text.words.filter((word) => word.sentence_index === sentence);
    const items = words.map((word) => shownWord(text, word, direction, chosen, explain, (token) => change({ token })));
    parts.push(element("ol", { class: "tokens" }, ...items));
  });
  parts.push(detail);
  let gap = null;
  if (chosen !== null) {
    explain(text.words.find((word) => isPart(word, chosen)), chosen);
    if (direction) {
      gap = { token: text.tokens[chosen], words: text.expected[directions[0]][chosen] };
      parts.push(...substitutes(text, chosen, directions));
    }
    parts.push(...(await neighbors(state.text, text.tokens, chosen, isDocument)));
  }
  const picture = () => {
    const title = direction ? `Surprisal in nats (${DIRECTIONS[direction]}): the darker, the less expected` : "";
    const words = text.words.map((word) => ({ ...word, nats: word[direction] ?? null, isChosen: isPart(word, chosen) }));
    return textPicture(words, MOST_NATS, title, gap);
  };
  return { show: () => panel.replaceChildren(...parts), picture };
}

const isPart = (word, token) => token !== null && token >= word.first && token < word.first + word.n_tokens;

/** Return a text's tokens and its words as written, each with its `first` token, and surprisal if the model can predict. */
async function read(text, documents, cache) {
  let found;
  try {
    [found] = (await ask("v1/surprisal", { input: [text], documents, cache, words: true, n_expected: N_WORDS })).data;
    // An unknown word that has occurred before counts as a word of its own, whose nats include its letters.
    if (cache) found = { ...found, is_unknown: found.is_unknown.map((isUnknown, at) => isUnknown && found.spelling_nats[at] > 0) };
  } catch (error) {
    if (!(error instanceof ServerError) || error.status !== 501) throw error;
    const [{ tokens, sentences }] = await tokenVectors([text]);
    const words = sentences.flatMap((sentence, number) => sentence.map((word) => ({ word, sentence_index: number, n_tokens: 1 })));
    found = { tokens, words, sentence_lengths: sentences.map(({ length }) => length) };
  }
  let next = 0;
  const words = found.words.map(({ forward_nats: forward, backward_nats: backward, ...word }) => {
    const first = next;
    next += word.n_tokens;
    const unknown = word.unknown && found.is_unknown.slice(first, next).includes(true);
    return { ...word, unknown, first, forward, backward, both: (forward + backward) / 2 };
  });
  return { ...found, words };
}

/** Explain the numbers, with the controls that change them. */
function introduction(text, directions, direction, reading, change) {
  const more = element("a", { href: SURPRISAL, rel: "noreferrer" }, "More about surprisal");
  const lead = "The numbers are surprisals: the negative natural logarithm of the probability that the model assigned to each word. ";
  const choices = Object.fromEntries(directions.map((name) => [name, DIRECTIONS[name]]));
  const legend = element("p", { class: "legend" }, "expected", element("i", { "aria-hidden": "true" }), `surprising (${MOST_NATS}+ nats)`);
  if (text.is_unknown.includes(true)) {
    legend.append(element("i", { class: "unknown", "aria-hidden": "true" }), "not in the vocabulary");
  }
  const controls = [radios("direction", "The model reads", choices, direction, (value) => change({ direction: value }))];
  if (text.sentence_lengths.length > 1) {
    controls.push(radios("reading", "Sentences are read", READINGS, reading, (value) => change({ reading: value })));
  }
  const again = reading === "cache" ? "Words that have occurred in the text become more probable. " : "";
  return [element("p", { class: "lead" }, lead, again, more, "."), element("div", { class: "row between" }, ...controls, legend)];
}

/** Show a word with its surprisal: one button, or one per token. */
function shownWord(text, word, direction, chosen, explain, choose) {
  const nats = word.unknown ? undefined : word[direction];
  const kind = word.unknown ? "unknown" : "surprise";
  const number = direction && element("small", {}, word.unknown ? "unknown" : nats.toFixed(1));
  const isWhole = word.n_tokens === 1;
  const buttons = Array.from({ length: word.n_tokens }, (_, part) => {
    const position = word.first + part;
    const shown = isWhole ? word.word : text.tokens[position];
    const label = !direction ? shown : text.is_unknown[position] ? `${shown}, not in the vocabulary` : `${shown}, ${text[direction][position].toFixed(1)} nats`;
    return element(
      "button",
      {
        type: "button",
        class: isWhole ? `token ${kind}` : "token",
        "aria-pressed": position === chosen,
        "aria-label": label,
        click: () => choose(position === chosen ? null : position),
        focus: () => explain(word, position),
        pointerenter: () => explain(word, position),
      },
      shown,
    );
  });
  const share = (nats ?? 0) / MOST_NATS;
  if (isWhole) {
    if (number) buttons[0].append(number);
    return element("li", {}, tint(buttons[0], share));
  }
  return tint(element("li", { class: `word ${kind}` }, ...buttons, number ?? ""), share);
}

/** Format the surprisal of each direction. */
const numbers = (directions, natsOf) => directions.map((name) => `${natsOf(name).toFixed(2)} ${NUMBERS[name]}`).join(", ");

/** Describe a token: its surprisal, that of its word, and the expected words. */
function about(text, word, position, direction, isChosen) {
  const token = element("strong", {}, text.tokens[position]);
  if (!direction) return [element("p", {}, token)];
  if (text.is_unknown[position]) {
    const note = "The model has not learned this word, so it cannot tell how expected it is. But it does read the word's letters.";
    return [element("p", {}, token, " is not in the vocabulary."), element("p", { class: "note" }, note)];
  }
  const directions = Object.keys(DIRECTIONS).filter((name) => text[name]);
  const parts = [element("p", {}, token, ` Surprisal in nats: ${numbers(directions, (name) => text[name][position])}.`)];
  if (word.n_tokens > 1 && !word.unknown) {
    parts.push(element("p", {}, element("strong", {}, word.word), ` The sum of its ${word.n_tokens} tokens: ${numbers(directions, (name) => word[name])}.`));
  }
  if (isChosen) return parts; // the expected words are below
  const expected = element("p", {}, `Expected here (${DIRECTIONS[direction]}): `);
  text.expected[direction][position].forEach(({ word: other, probability }, index) => {
    expected.append(index ? " · " : "", element("strong", {}, other), `\u00a0${percent(probability)}`);
  });
  return [...parts, expected];
}

async function neighbors(text, tokens, position, documents) {
  const answer = await ask("v1/neighbors", { sentence: text, position, n: 5, documents });
  const columns = element("div", { class: "columns" });
  columns.append(
    element(
      "div",
      { class: "card" },
      element("h3", {}, "Layer 0: without context"),
      found(answer.context_free.map(({ similarity, word }) => [similarity.toFixed(2), word])),
    ),
  );
  for (const [layer, occurrences] of Object.entries(answer.layers)) {
    const rows = occurrences.map(({ similarity, words, token }) => [similarity.toFixed(2), inContext(words, token)]);
    columns.append(element("div", { class: "card" }, element("h3", {}, `Layer ${layer}`), found(rows)));
  }
  const where = answer.index.endsWith("sentences") ? `the ${answer.index}` : `the index ${answer.index}`;
  return [
    element("h2", {}, `Neighbors of “${tokens[position]}” by layer`),
    element("p", { class: "note" }, `The most similar occurrences in ${where}, with the cosine of their vectors.`),
    columns,
  ];
}

/** Show the words that each direction expected in place of a token. */
function substitutes({ tokens, sentence_lengths: lengths, expected }, position, directions) {
  const columns = directions.map((direction) => {
    const words = expected[direction][position];
    const rows = words.map(({ word, probability }) => {
      const bar = tint(element("span", { class: "bar", "aria-hidden": "true" }), probability / words[0].probability);
      return [percent(probability), element("span", { class: "barred" }, element("span", {}, word), element("span", {}, bar))];
    });
    const title = DIRECTIONS[direction];
    return element("div", { class: "card" }, element("h3", {}, title[0].toUpperCase() + title.slice(1)), found(rows));
  });
  let [first, number] = [0, 0]; // of the sentence
  while (position >= first + lengths[number]) first += lengths[number++];
  const blank = element("span", { class: "blank" }, element("span", { class: "hidden-text" }, "blank"));
  const sentence = inContext(tokens.slice(first, first + lengths[number]), position - first, blank);
  const parts = [element("h2", {}, `What the model expects in place of “${tokens[position]}”`), element("p", { class: "cloze" }, sentence)];
  if (directions.includes("both")) {
    parts.push(element("p", { class: "note" }, "The model does not see the word itself. “Both sides” lists words that both directions expect."));
  }
  return [...parts, element("div", { class: "columns" }, ...columns)];
}

function found(rows) {
  if (!rows.length) return element("p", { class: "note" }, "None.");
  const items = rows.map(([number, shown]) => element("li", {}, element("span", { class: "number" }, number), element("span", {}, shown)));
  return element("ol", { class: "found" }, ...items);
}
