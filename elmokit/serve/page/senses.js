// The view that compares one word in several sentences: similarity by layer, and a map that follows the layers.

import { drawn, element, highlight, tint } from "./dom.js";
import { between, cosines, plane, turnedTowards } from "./geometry.js";
import { ServerError, tokenVectors } from "./server.js";

const MOST_SENTENCES = 30;
const [WIDTH, HEIGHT, MARGIN] = [640, 440, 36];

/**
 * Compare the occurrences of a word.
 * @param {HTMLElement} panel Where to show them.
 * @param {Object} state `word`, `sentences` (one per line) and `layer`, which may lie between whole numbers.
 * @param {function(Object)} remember Puts values into the state without showing it again.
 */
export async function showSenses(panel, state, remember) {
  const texts = state.sentences.split("\n").map((line) => line.trim()).filter(Boolean);
  if (texts.length < 2) throw new ServerError(0, "Give at least two sentences, one per line.");
  if (texts.length > MOST_SENTENCES) throw new ServerError(0, `Give at most ${MOST_SENTENCES} sentences.`);
  const word = state.word.trim();
  if (!word) throw new ServerError(0, "Give the word to compare.");
  const sentences = await tokenVectors(texts);
  const positions = sentences.map(({ tokens }, number) => {
    const position = tokens.findIndex((token) => token.toLowerCase() === word.toLowerCase());
    if (position < 0) throw new ServerError(0, `Sentence ${number + 1} does not contain the word “${word}”: ${texts[number]}`);
    return position;
  });
  const nLayers = sentences[0].layers.length;
  const similarities = Array.from({ length: nLayers }, (_, layer) =>
    cosines(sentences.map(({ layers }, number) => layers[layer][positions[number]])),
  );
  const lit = (number) => highlight(panel, number);

  const list = element("ol", { class: "numbered" });
  sentences.forEach(({ tokens }, number) => {
    const words = tokens.map((token, index) => (index === positions[number] ? element("mark", {}, token) : token));
    const item = element("li", { "data-item": number, pointerenter: () => lit(number), pointerleave: () => lit(null) });
    words.forEach((shown) => item.append(shown, " "));
    list.append(item);
  });
  return () =>
    panel.replaceChildren(
      element("h2", {}, `Occurrences of “${word}”`),
      list,
      element("h2", {}, "Map"),
      ...map(similarities, state.layer, lit, remember),
      element("h2", {}, "Similarity by layer"),
      element("p", { class: "note" }, "Cosines of the word's vectors in two sentences, times 100."),
      element("div", { class: "columns" }, ...similarities.map((matrix, layer) => table(matrix, layer, lit))),
    );
}

function table(matrix, layer, lit) {
  const numbers = matrix.map((_, number) => element("th", { scope: "col" }, number + 1));
  const others = matrix.flatMap((row, i) => row.filter((_, j) => j !== i));
  const [least, most] = [Math.min(...others), Math.max(...others)];
  const rows = matrix.map((row, i) =>
    element(
      "tr",
      { "data-item": i, pointerenter: () => lit(i), pointerleave: () => lit(null) },
      element("th", { scope: "row" }, i + 1),
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
    element("table", {}, element("caption", {}, title), element("thead", {}, element("tr", {}, element("td"), ...numbers)), element("tbody", {}, ...rows)),
  );
}

function map(similarities, layer, lit, remember) {
  const maps = [];
  for (const matrix of similarities) {
    const points = plane(matrix);
    maps.push(maps.length ? turnedTowards(points, maps.at(-1)) : points);
  }
  // Every layer is turned towards the one below, but a layer without spread has no direction: turn from the top down too.
  for (let below = maps.length - 2; below >= 0; below--) maps[below] = turnedTowards(maps[below], maps[below + 1]);
  const reach = (axis) => Math.max(1e-6, ...maps.flat().map((point) => Math.abs(point[axis])));
  // One scale for both axes and all layers, so that distances can be compared.
  const scale = Math.min((WIDTH / 2 - MARGIN) / reach(0), (HEIGHT / 2 - MARGIN) / reach(1));

  const drawing = drawn("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-labelledby": "map-note" });
  const points = similarities[0].map((_, number) => {
    const label = drawn("text");
    label.textContent = number + 1;
    const point = drawn("g", { "data-item": number }, drawn("circle", { r: 13 }), label);
    point.addEventListener("pointerenter", () => lit(number));
    point.addEventListener("pointerleave", () => lit(null));
    drawing.append(point);
    return point;
  });
  const top = maps.length - 1;
  const at = element("output", { for: "layer" });
  const slider = element("input", { type: "range", id: "layer", min: 0, max: top, step: 0.05, list: "layer-marks" });
  slider.value = Math.min(layer ?? top, top);
  const place = () => {
    const value = Number(slider.value);
    between(maps, value).forEach(([x, y], number) => {
      points[number].setAttribute("transform", `translate(${(WIDTH / 2 + scale * x).toFixed(1)} ${(HEIGHT / 2 - scale * y).toFixed(1)})`);
    });
    const shown = Number.isInteger(value) ? `layer ${value}` : `between layers ${Math.floor(value)} and ${Math.ceil(value)}`;
    at.textContent = ` ${shown}`;
    slider.setAttribute("aria-valuetext", shown);
  };
  slider.addEventListener("input", place);
  slider.addEventListener("change", () => remember({ layer: Number(slider.value) }));
  place();
  const marks = element("datalist", { id: "layer-marks" }, ...maps.map((_, number) => element("option", { value: number })));
  const note =
    "Each point is the word in the sentence of that number. Near points have similar vectors. In layer 0 a word has the " +
    "same vector in every sentence, unless it is spelled differently there. Move the slider to watch the senses separate.";
  return [
    element("label", { for: "layer" }, "Layer"),
    element("div", {}, slider, at, marks),
    element("figure", {}, drawing, element("figcaption", { id: "map-note" }, note)),
  ];
}
