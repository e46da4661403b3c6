// The view of one sentence: surprisal of each token, what was expected instead, and neighbors of a token in context.

import { element, inContext, radios, tint } from "./dom.js";
import { ask, ServerError, tokenVectors } from "./server.js";

const MOST_NATS = 12; // from here on, the color is at its strongest
const N_WORDS = 8;
const DIRECTIONS = { both: "both directions", forward: "from the left", backward: "from the right" };
const NUMBERS = { ...DIRECTIONS, both: "on average" };

/**
 * Show a sentence.
 * @param {HTMLElement} panel Where to.
 * @param {Object} state `text`, `direction` and `token`, which may be null.
 * @param {function(Object)} change Changes the state and shows it.
 */
export async function showSentence(panel, state, change) {
  const { tokens, surprisal } = await read(state.text);
  const directions = Object.keys(DIRECTIONS).filter((name) => surprisal?.[name]);
  const direction = directions.includes(state.direction) ? state.direction : directions[0];
  const chosen = state.token !== null && state.token < tokens.length ? state.token : null;
  const parts = [element("h2", {}, "Surprisal")];
  const detail = element("div", { class: "detail", id: "detail", role: "status" });
  const explain = (position) => detail.replaceChildren(...about(tokens, position, surprisal, direction));

  if (surprisal) {
    const choices = Object.fromEntries(directions.map((name) => [name, DIRECTIONS[name]]));
    parts.push(radios("direction", "The model reads", choices, direction, (value) => change({ direction: value })));
    parts.push(
      element("p", { class: "legend" }, "expected", element("i", { "aria-hidden": "true" }), `surprising (${MOST_NATS} nats or more)`),
    );
  } else {
    parts.push(element("p", { class: "note" }, "This model has no softmax and vocabulary, so it cannot predict words."));
  }
  const list = element("ol", { class: "tokens" });
  tokens.forEach((token, position) => {
    const nats = surprisal?.[direction][position];
    const button = element(
      "button",
      {
        type: "button",
        class: `token surprise${surprisal?.is_unknown[position] ? " unknown" : ""}`,
        "aria-pressed": position === chosen,
        "aria-label": nats === undefined ? token : `${token}, ${nats.toFixed(1)} nats`,
        click: () => change({ token: position === chosen ? null : position }),
        focus: () => explain(position),
        pointerenter: () => explain(position),
      },
      token,
    );
    if (nats !== undefined) button.append(element("small", {}, nats.toFixed(1)));
    list.append(element("li", {}, tint(button, (nats ?? 0) / MOST_NATS)));
  });
  detail.append(
    element("p", { class: "note" }, "Point at a token to read what the model expected. Choose it to see its neighbors."),
  );
  parts.push(list, detail);
  if (chosen !== null) {
    explain(chosen);
    parts.push(...(await neighbors(tokens, chosen)));
    if (surprisal) parts.push(...(await substitutes(tokens, chosen)));
  }
  return () => panel.replaceChildren(...parts);
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

function about(tokens, position, surprisal, direction) {
  if (!surprisal) return [element("p", {}, tokens[position])];
  const numbers = Object.keys(DIRECTIONS)
    .filter((name) => surprisal[name])
    .map((name) => `${surprisal[name][position].toFixed(2)} ${NUMBERS[name]}`);
  const parts = [element("p", {}, element("strong", {}, tokens[position]), ` Surprisal in nats: ${numbers.join(", ")}.`)];
  if (surprisal.is_unknown[position]) {
    parts.push(element("p", { class: "note" }, "The word is not in the vocabulary: this is the surprisal of “unknown word”."));
  }
  const expected = element("p", {}, `Expected here (${DIRECTIONS[direction]}): `);
  surprisal.expected[direction][position].forEach(({ word, probability }, index) => {
    expected.append(index ? " · " : "", element("strong", {}, word), `\u00a0${percent(probability)}`);
  });
  parts.push(expected);
  return parts;
}

async function neighbors(tokens, position) {
  const answer = await ask("v1/neighbors", { sentence: tokens, position, n: 5 });
  const columns = element("div", { class: "columns" });
  columns.append(
    element(
      "div",
      {},
      element("h3", {}, "Layer 0: without context"),
      found(answer.context_free.map(({ similarity, word }) => [similarity.toFixed(2), word])),
    ),
  );
  for (const [layer, occurrences] of Object.entries(answer.layers)) {
    const rows = occurrences.map(({ similarity, words, token }) => [similarity.toFixed(2), inContext(words, token)]);
    columns.append(element("div", {}, element("h3", {}, `Layer ${layer}`), found(rows)));
  }
  const where = answer.index.endsWith("sentences") ? `the ${answer.index}` : `the index ${answer.index}`;
  return [
    element("h2", {}, `Neighbors of “${tokens[position]}” by layer`),
    element("p", { class: "note" }, `The most similar occurrences in ${where}, with the cosine of their vectors.`),
    columns,
  ];
}

async function substitutes(tokens, position) {
  const answer = await ask("v1/substitutes", { sentence: tokens, position, n: N_WORDS });
  const columns = element("div", { class: "columns" });
  for (const [direction, title] of Object.entries(DIRECTIONS)) {
    if (!answer[direction]) continue;
    const most = answer[direction][0]?.probability;
    const rows = answer[direction].map(({ word, probability }) => [
      percent(probability),
      element("span", {}, element("meter", { value: probability, max: most, "aria-hidden": "true" }), " ", word),
    ]);
    columns.append(element("div", {}, element("h3", {}, title[0].toUpperCase() + title.slice(1)), found(rows)));
  }
  return [
    element("h2", {}, `What the model expects in place of “${tokens[position]}”`),
    element("p", { class: "note" }, "Both directions together: the words that the two agree on."),
    columns,
  ];
}

function found(rows) {
  if (!rows.length) return element("p", { class: "note" }, "None.");
  const items = rows.map(([number, shown]) => element("li", {}, element("span", { class: "number" }, number), shown));
  return element("ol", { class: "found" }, ...items);
}

function percent(probability) {
  return probability >= 0.0995 ? `${(100 * probability).toFixed(0)}\u00a0%` : `${(100 * probability).toFixed(1)}\u00a0%`;
}
