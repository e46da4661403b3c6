// The view of one sentence: surprisal of each token, what was expected instead, and neighbors of a token in context.

import { element, inContext, radios, tint } from "./dom.js";
import { percent, sentencePicture } from "./picture.js";
import { ask, ServerError, tokenVectors } from "./server.js";

const MOST_NATS = 12; // from here on, the color is at its strongest
const N_WORDS = 8;
const DIRECTIONS = { both: "both sides", forward: "from the left", backward: "from the right" };
const NUMBERS = { ...DIRECTIONS, both: "on average" };
const SURPRISAL = "https://en.wikipedia.org/wiki/Information_content";

/**
 * Show a sentence.
 * @param {HTMLElement} panel Where to.
 * @param {Object} state `text`, `direction` and `token`, which may be null.
 * @param {function(Object)} change Changes the state and shows it.
 */
export async function showSentence(panel, state, change) {
  if (!state.text.trim()) throw new ServerError(0, "Please type a sentence.");
  const { tokens, surprisal } = await read(state.text);
  const directions = Object.keys(DIRECTIONS).filter((name) => surprisal?.[name]);
  const direction = directions.includes(state.direction) ? state.direction : directions[0];
  const chosen = state.token !== null && state.token < tokens.length ? state.token : null;
  const parts = [element("h2", {}, "How expected is each word?")];
  const detail = element("div", { class: "detail", id: "detail", role: "status" });
  const explain = (position) => detail.replaceChildren(...about(tokens, position, surprisal, direction, position === chosen));

  if (surprisal) {
    const more = element("a", { href: SURPRISAL, rel: "noreferrer" }, "More about surprisal");
    parts.push(
      element("p", { class: "lead" }, "The number is the surprisal: minus the natural logarithm of the probability that the model gave the word. ", more, "."),
    );
    const choices = Object.fromEntries(directions.map((name) => [name, DIRECTIONS[name]]));
    const legend = element("p", { class: "legend" }, "expected", element("i", { "aria-hidden": "true" }), `surprising (${MOST_NATS}+ nats)`);
    if (surprisal.is_unknown.includes(true)) {
      legend.append(element("i", { class: "unknown", "aria-hidden": "true" }), "not in the vocabulary");
    }
    parts.push(element("div", { class: "row between" }, radios("direction", "The model reads", choices, direction, (value) => change({ direction: value })), legend));
  } else {
    parts.push(element("p", { class: "note" }, "This model has no softmax and vocabulary, so it cannot predict words."));
  }
  const list = element("ol", { class: "tokens" });
  tokens.forEach((token, position) => {
    const isUnknown = surprisal?.is_unknown[position] ?? false;
    const nats = isUnknown ? undefined : surprisal?.[direction][position];
    const spoken = isUnknown ? `${token}, not in the vocabulary` : nats === undefined ? token : `${token}, ${nats.toFixed(1)} nats`;
    const button = element(
      "button",
      {
        type: "button",
        class: `token ${isUnknown ? "unknown" : "surprise"}`,
        "aria-pressed": position === chosen,
        "aria-label": spoken,
        click: () => change({ token: position === chosen ? null : position }),
        focus: () => explain(position),
        pointerenter: () => explain(position),
      },
      token,
    );
    if (surprisal) button.append(element("small", {}, isUnknown ? "unknown" : nats.toFixed(1)));
    list.append(element("li", {}, tint(button, (nats ?? 0) / MOST_NATS)));
  });
  detail.append(element("p", { class: "note" }, "Choose a word to see what the model expects in its place, and its neighbors."));
  parts.push(list, detail);
  let gap = null;
  if (chosen !== null) {
    explain(chosen);
    const [expected, near] = await Promise.all([surprisal && substitutes(state.text, tokens, chosen), neighbors(state.text, tokens, chosen)]);
    if (expected) {
      parts.push(...expected.parts);
      gap = { token: tokens[chosen], words: expected.words };
    }
    parts.push(...near);
  }
  const picture = () => {
    const drawn = tokens.map((token, position) => ({
      token,
      nats: surprisal?.[direction][position] ?? null,
      isUnknown: surprisal?.is_unknown[position] ?? false,
    }));
    const title = surprisal ? `Surprisal in nats (${DIRECTIONS[direction]}): the darker, the less expected` : "";
    return sentencePicture(drawn, MOST_NATS, title, gap, chosen);
  };
  return { show: () => panel.replaceChildren(...parts), picture };
}

async function read(text) {
  try {
    const answer = await ask("v1/surprisal", { input: [text], n_expected: N_WORDS });
    return { tokens: answer.data[0].tokens, surprisal: answer.data[0] };
  } catch (error) {
    if (!(error instanceof ServerError) || error.status !== 501) throw error;
    const [{ tokens }] = await tokenVectors([text]);
    return { tokens, surprisal: null };
  }
}

function about(tokens, position, surprisal, direction, isChosen) {
  if (!surprisal) return [element("p", {}, tokens[position])];
  if (surprisal.is_unknown[position]) {
    const note = "The model has not learned this word, so it cannot say how expected it is. It reads its letters all the same.";
    return [element("p", {}, element("strong", {}, tokens[position]), " is not in the vocabulary."), element("p", { class: "note" }, note)];
  }
  const numbers = Object.keys(DIRECTIONS)
    .filter((name) => surprisal[name])
    .map((name) => `${surprisal[name][position].toFixed(2)} ${NUMBERS[name]}`);
  const parts = [element("p", {}, element("strong", {}, tokens[position]), ` Surprisal in nats: ${numbers.join(", ")}.`)];
  if (isChosen) return parts; // the expected words are below
  const expected = element("p", {}, `Expected here (${DIRECTIONS[direction]}): `);
  surprisal.expected[direction][position].forEach(({ word, probability }, index) => {
    expected.append(index ? " · " : "", element("strong", {}, word), `\u00a0${percent(probability)}`);
  });
  parts.push(expected);
  return parts;
}

async function neighbors(text, tokens, position) {
  const answer = await ask("v1/neighbors", { sentence: text, position, n: 5 });
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

async function substitutes(text, tokens, position) {
  const answer = await ask("v1/substitutes", { sentence: text, position, n: N_WORDS });
  const columns = element("div", { class: "columns" });
  const directions = Object.entries(DIRECTIONS).filter(([direction]) => answer[direction]);
  for (const [direction, title] of directions) {
    const most = answer[direction][0]?.probability;
    const rows = answer[direction].map(({ word, probability }) => {
      const bar = tint(element("span", { class: "bar", "aria-hidden": "true" }), probability / most);
      return [percent(probability), element("span", { class: "barred" }, element("span", {}, word), element("span", {}, bar))];
    });
    const card = element("div", { class: "card" }, element("h3", {}, title[0].toUpperCase() + title.slice(1)), found(rows));
    columns.append(card);
  }
  const blank = element("span", { class: "blank" }, element("span", { class: "hidden-text" }, "blank"));
  const sentence = element("p", { class: "cloze" }, inContext(tokens, position, blank));
  const parts = [element("h2", {}, `What the model expects in place of “${tokens[position]}”`), sentence];
  if (answer.both) {
    parts.push(element("p", { class: "note" }, "The model never sees the word itself. Both sides: the words that the left and the right agree on."));
  }
  return { parts: [...parts, columns], words: answer[directions[0][0]] };
}

function found(rows) {
  if (!rows.length) return element("p", { class: "note" }, "None.");
  const items = rows.map(([number, shown]) => element("li", {}, element("span", { class: "number" }, number), element("span", {}, shown)));
  return element("ol", { class: "found" }, ...items);
}
