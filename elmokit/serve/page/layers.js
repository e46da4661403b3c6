// The view of the layers: how much each changes a token, and the weights of the model's scalar mix.

import { element, tint } from "./dom.js";
import { cosine } from "./geometry.js";
import { ask, tokenVectors } from "./server.js";

/**
 * Show how similar a token's vectors are in adjacent layers.
 * @param {HTMLElement} panel Where to.
 * @param {Object} state `text`.
 */
export async function showLayers(panel, state) {
  const [[{ tokens, layers }], models] = await Promise.all([tokenVectors([state.text]), ask("v1/models")]);
  const steps = layers.slice(1).map((vectors, below) => vectors.map((vector, token) => cosine(vector, layers[below][token])));
  const names = steps.map((_, below) => `layers ${below} and ${below + 1}`);
  const row = (title, values) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, title),
      ...values.map((value) => tint(element("td", { class: "similar" }, value.toFixed(2)), value)),
    );
  const mean = steps.map((values) => values.reduce((sum, value) => sum + value, 0) / values.length);
  const table = element(
    "table",
    {},
    element("caption", {}, "Cosine of a token's vectors"),
    element("thead", {}, element("tr", {}, element("td"), ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...tokens.map((token, index) => row(token, steps.map((values) => values[index]))), row("mean", mean)),
  );
  return () =>
    panel.replaceChildren(
      element("h2", {}, "Similarity of adjacent layers"),
      element("p", { class: "note" }, "A low number means that the upper layer changed the vector of the token much."),
      element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Similarity of adjacent layers" }, table),
      element("h2", {}, "Weights of the layers"),
      ...mixWeights(models.data[0].mix),
    );
}

function mixWeights(mix) {
  if (!mix) {
    return [
      element("p", {}, "This model has no scalar mix of its own. A task learns one: a weight for each layer, see the guide on tasks."),
    ];
  }
  const items = mix.weights.map((weight, layer) =>
    element("li", {}, element("span", { class: "number" }, `layer ${layer}: ${weight.toFixed(2)}`), element("meter", { value: weight, "aria-hidden": "true" })),
  );
  return [
    element("p", { class: "note" }, `The sum of the layers with these weights, times ${mix.gamma.toFixed(2)}, is the mix.`),
    element("ol", { class: "found" }, ...items),
  ];
}
