// The view that compares a word in several sentences: a map that moves from layer to layer, and similarities.

import { drawn, element, highlight, inContext, radios, spaced, tint } from "./dom.js";
import { between, cosines, placed, plane, turnedTowards } from "./geometry.js";
import { sensesPicture } from "./picture.js";
import { ServerError, tokenVectors } from "./server.js";

const MOST_SENTENCES = 30;
const N_COLORS = 4;
const RADIUS = 15;
const MOVE_MS = 1100;
const PAUSE_MS = 700; // before the first move, so that layer 0 can be seen

/**
 * Return the groups of sentences of a text: one sentence per line, an empty line between senses.
 * @param {string} text
 */
const senseGroups = (text) =>
  text
    .split(/\n[^\S\n]*\n/)
    .map((group) => group.split("\n").map((line) => line.trim()).filter(Boolean))
    .filter((group) => group.length);

/**
 * Compare the occurrences of a word.
 * @param {HTMLElement} panel Where to show them.
 * @param {Object} state `word`, `sentences` (one per line) and `layer`, or null for a tour from layer 0 to the top.
 * @param {function(Object)} remember Changes the state without showing it again.
 */
export async function showSenses(panel, state, remember) {
  const groups = senseGroups(state.sentences);
  const texts = groups.flat();
  const word = state.word.trim();
  if (!word) throw new ServerError(0, "Please type a word.");
  if (texts.length < 2) throw new ServerError(0, "Please type at least two sentences, one per line.");
  if (texts.length > MOST_SENTENCES) throw new ServerError(0, `Please type at most ${MOST_SENTENCES} sentences.`);
  const sentences = await tokenVectors(texts);
  const items = sentences.map(({ tokens, layers }, number) => {
    const position = tokens.findIndex((token) => token.toLowerCase() === word.toLowerCase());
    if (position < 0) throw new ServerError(0, `Sentence ${number + 1} does not contain the word “${word}”: ${texts[number]}`);
    const sense = groups.findIndex((_, last) => groups.slice(0, last + 1).flat().length > number);
    return { tokens, position, sense, color: sense % N_COLORS, vectors: layers.map((vectors) => vectors[position]) };
  });
  const nLayers = items[0].vectors.length;
  const similarities = Array.from({ length: nLayers }, (_, layer) => cosines(items.map(({ vectors }) => vectors[layer])));
  const maps = turnedMaps(similarities);
  const notes = similarities.map((matrix, layer) => about(matrix, layer, items));
  const { figure, lit, move, layout } = map(items, maps, (number) => highlight(panel, number));
  const top = nLayers - 1;
  const chosen = Math.min(state.layer ?? top, top);
  const note = element("p", { id: "layer-note", role: "status" });
  const tell = (layer) => note.replaceChildren(element("strong", {}, `Layer ${layer}. `), notes[layer]);
  let isChosen = state.layer !== null; // otherwise, the map moves once by itself
  const layers = radios("layer", "Layer", Object.fromEntries(notes.map((_, layer) => [layer, layer])), String(chosen), (value) => {
    isChosen = true;
    remember({ layer: Number(value) });
    tell(Number(value));
    move(Number(value));
  });
  tell(chosen);
  const show = () => {
    panel.replaceChildren(
      element("h2", {}, `“${word}” in ${items.length} sentences`),
      element("p", { class: "lead" }, "Points that are close to each other have similar vectors. Layer 0 only sees the word; the layers above it read the sentence."),
      element("div", { class: "row between" }, layers, note),
      element("div", { class: "stage" }, figure, element("div", {}, ...groups.map((_, sense) => list(items, sense, lit)))),
      element(
        "details",
        {},
        element("summary", {}, "Pairwise similarities, by layer"),
        element("p", { class: "note" }, "Cosines of the word's vectors in two sentences, times 100."),
        element("div", { class: "columns tables" }, ...similarities.map((matrix, layer) => table(matrix, layer, items, lit))),
      ),
    );
    layout(state.layer === null ? 0 : chosen);
    const tour = () => {
      if (isChosen || !figure.isConnected) return;
      move(top);
      remember({ layer: top });
    };
    if (!isChosen) setTimeout(tour, still() ? 0 : PAUSE_MS);
  };
  return { show, picture: () => sensesPicture(word, items, maps, notes) };
}

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Return a map of each layer, rotated so that the points move as little as possible between layers. */
function turnedMaps(similarities) {
  const maps = [];
  for (const matrix of similarities) {
    const points = plane(matrix);
    maps.push(maps.length ? turnedTowards(points, maps.at(-1)) : points);
  }
  // The top layer is drawn along its axes, and a layer without spread has no direction, so also rotate from the top down.
  maps[maps.length - 1] = plane(similarities.at(-1));
  if (maps.at(-1)[0][0] > 0) maps[maps.length - 1] = maps.at(-1).map(([x, y]) => [-x, y]);
  for (let below = maps.length - 2; below >= 0; below--) maps[below] = turnedTowards(maps[below], maps[below + 1]);
  return maps;
}

/** Describe how well a layer separates the senses. */
function about(matrix, layer, items) {
  const mean = (isWanted) => {
    const values = matrix.flatMap((row, i) => row.filter((_, j) => j < i && isWanted(items[i], items[j])));
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  };
  const all = mean(() => true);
  if (all > 0.9995) return "No context: all occurrences have the same vector.";
  const same = mean((a, b) => a.sense === b.sense);
  const other = mean((a, b) => a.sense !== b.sense);
  const context = layer ? "" : "No context, but different forms of the word. ";
  if (same === null || other === null) return `${context}Mean cosine of two occurrences: ${all.toFixed(2)}.`;
  return `${context}Mean cosine of two occurrences with the same sense: ${same.toFixed(2)}, with different senses: ${other.toFixed(2)}.`;
}

function list(items, sense, lit) {
  const first = items.findIndex((item) => item.sense === sense);
  const shown = items.map((item, number) => ({ ...item, number })).filter((item) => item.sense === sense);
  return element(
    "ol",
    { class: `numbered sense-${shown[0].color}`, start: first + 1 },
    ...shown.map(({ tokens, position, number }) =>
      element(
        "li",
        { "data-item": number, pointerenter: () => lit(number), pointerleave: () => lit(null) },
        element("span", { class: "dot", "aria-hidden": "true" }, number + 1),
        inContext(tokens, position),
      ),
    ),
  );
}

function table(matrix, layer, items, lit) {
  const head = (number, scope) => element("th", { scope, class: `sense-${items[number].color}` }, number + 1);
  const others = matrix.flatMap((row, i) => row.filter((_, j) => j !== i));
  const [least, most] = [Math.min(...others), Math.max(...others)];
  const rows = matrix.map((row, i) =>
    element(
      "tr",
      { "data-item": i, pointerenter: () => lit(i), pointerleave: () => lit(null) },
      head(i, "row"),
      ...row.map((value, j) => {
        const cell = element("td", { class: "similar" }, i === j ? "–" : Math.round(100 * value));
        return i === j ? cell : tint(cell, most - least < 0.005 ? 1 : (value - least) / (most - least));
      }),
    ),
  );
  const title = layer ? `Layer ${layer}` : "Layer 0: without context";
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": `Similarities, ${title}` },
    element(
      "table",
      {},
      element("caption", {}, title),
      element("thead", {}, element("tr", {}, element("td"), ...matrix.map((_, number) => head(number, "col")))),
      element("tbody", {}, ...rows),
    ),
  );
}

/** Create the map. `layout` draws it at a layer once it is in the page, `move` moves it to a layer, `lit` shows a sentence. */
function map(items, maps, highlightItem) {
  const bubble = element("p", { class: "bubble", "aria-hidden": "true", hidden: "" });
  const drawing = drawn("svg", { class: "map", role: "group", "aria-label": "Map of the sentences" });
  const figure = element("figure", {}, drawing, bubble);
  let pinned = null; // the point that was tapped
  let shown = null;
  let at = 0; // the drawn layer, which may be between two integers
  let moving = 0; // the number of the latest move
  let places = maps; // the points of each layer in pixels
  let size = [0, 0];

  const lit = (number) => {
    shown = number ?? pinned;
    highlightItem(shown);
    bubble.hidden = shown === null;
    if (shown === null) return;
    const { tokens, position, color } = items[shown];
    bubble.className = `bubble sense-${color}`;
    bubble.replaceChildren(inContext(tokens, position));
    const [x, y] = between(places, at)[shown];
    const left = Math.max(8, Math.min(size[0] - bubble.offsetWidth - 8, size[0] / 2 + x - bubble.offsetWidth / 2));
    bubble.style.left = `${left}px`;
    // Above or below the point, wherever it covers fewer other points.
    const height = bubble.offsetHeight;
    const tops = [size[1] / 2 - y - RADIUS - 10 - height, size[1] / 2 - y + RADIUS + 10];
    const cost = (top) => {
      if (top < 4 || top + height > size[1] - 4) return Infinity;
      const isCovered = ([otherX, otherY]) => {
        const [across, down] = [size[0] / 2 + otherX, size[1] / 2 - otherY];
        return across > left - RADIUS && across < left + bubble.offsetWidth + RADIUS && down > top - RADIUS && down < top + height + RADIUS;
      };
      return between(places, at).filter(isCovered).length;
    };
    bubble.style.top = `${cost(tops[0]) <= cost(tops[1]) ? tops[0] : tops[1]}px`;
  };
  const pin = (number) => {
    pinned = number === pinned ? null : number;
    lit(number);
  };
  const points = items.map(({ tokens, color }, number) => {
    const point = drawn(
      "g",
      {
        "data-item": number,
        class: `point sense-${color}`,
        tabindex: 0,
        role: "img",
        "aria-label": `${number + 1}: ${spaced(tokens).join("")}`,
        pointerenter: () => lit(number),
        pointerleave: () => lit(null),
        focus: () => lit(number),
        blur: () => lit(null),
      },
      drawn("circle", { r: RADIUS }),
      drawn("text", {}, number + 1),
    );
    point.addEventListener("click", (event) => {
      event.stopPropagation();
      pin(number);
    });
    drawing.append(point);
    return point;
  });
  drawing.addEventListener("click", () => {
    pinned = null;
    lit(null);
  });

  const place = (layer) => {
    at = layer;
    between(places, layer).forEach(([x, y], number) => {
      points[number].setAttribute("transform", `translate(${(size[0] / 2 + x).toFixed(1)} ${(size[1] / 2 - y).toFixed(1)})`);
    });
    figure.dataset.layer = layer;
  };
  const layout = (layer) => {
    const width = figure.clientWidth || 640;
    size = [width, Math.round(Math.max(300, Math.min(440, width * 0.64)))];
    drawing.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
    places = placed(maps, size, RADIUS);
    place(layer);
    lit(null);
  };
  const move = (target) => {
    const number = ++moving;
    const from = at;
    if (from === target) return;
    bubble.hidden = true;
    let started = null;
    const step = (now) => {
      if (number !== moving) return;
      started ??= now;
      const share = still() ? 1 : Math.min(1, (now - started) / MOVE_MS);
      const eased = share < 0.5 ? 4 * share ** 3 : 1 - (2 - 2 * share) ** 3 / 2;
      place(share < 1 ? from + (target - from) * eased : target);
      if (share < 1) requestAnimationFrame(step);
      else lit(shown);
    };
    requestAnimationFrame(step);
  };
  new ResizeObserver(() => {
    if (figure.clientWidth && figure.clientWidth !== size[0]) layout(at);
  }).observe(figure);
  return { figure, lit, move, layout };
}
