// The view of the layers: what each layer knows, measured on the example sentences and on published benchmarks.

import { element } from "./dom.js";
import { cosine } from "./geometry.js";
import { MEASURED } from "./measured.js";
import { ask, tokenVectors } from "./server.js";

const SHORTEST_WORD = 4; // shorter words are similar by chance
const SAME_LETTERS = 3;

/**
 * Show which layer knows most about spelling, parts of speech and senses.
 * @param {HTMLElement} panel Where to show it.
 * @param {Object} state The state of the page, which this view does not depend on.
 * @param {function(Object)} change Changes the state and shows it.
 * @param {Object} examples The example sentences of the server.
 */
export async function showLayers(panel, state, change, examples) {
  const words = Object.entries(examples.senses);
  const [models, ...embedded] = await Promise.all([
    ask("v1/models"),
    ...words.map(([, senses]) => tokenVectors(senses.flat())),
  ]);
  const [{ id, n_layers, mix }] = models.data;
  const measured = MEASURED[id]?.tags.layers.length === n_layers ? MEASURED[id] : null;
  const senses = senseAccuracy(words, embedded);
  // In layer 0, all uses of a word are equally similar, and 3 of the 7 others have the same sense.
  const chance = 100 * mean(words.flatMap(([, groups]) => groups.flatMap((group) => group.map(() => (group.length - 1) / (groups.flat().length - 1)))));
  const spelling = spellingAccuracy(embedded.flat());
  const nSentences = embedded.flat().length;

  const figures = [
    bars("Spelling", spelling, `Words whose closest other word begins or ends with the same ${SAME_LETTERS} letters, such as “showed” and “show”. Computed now from the ${nSentences} example sentences.`),
  ];
  if (measured) {
    figures.push(
      bars("Parts of speech", measured.tags.layers, `Accuracy of a linear classifier on the dev set of the English Web Treebank. Baseline, each word's most frequent tag: ${measured.tags.baseline}\u00a0%.`, measured.tags.baseline),
      bars("Word senses in running text", measured.senses.layers, `F1 on Senseval-2, Senseval-3 and SemEval-2007, choosing the sense with the nearest mean vector. Baseline, each word's most frequent sense: ${measured.senses.baseline}\u00a0%.`, measured.senses.baseline),
    );
  }
  figures.push(
    bars(`Senses of the ${words.length} example words`, senses, `Uses of the example words whose closest other use has the same sense. Computed now from the ${nSentences} example sentences. Baseline, chance: ${chance.toFixed(0)}\u00a0%.`, chance),
  );
  return {
    show: () =>
      panel.replaceChildren(
        element("h2", {}, "What each layer knows"),
        element("p", { class: "lead" }, "The lowest layer only sees the word itself. The layers above it read the sentence: in most ELMo models, grammar comes first and meaning above it."),
        element("div", { class: "columns charts" }, ...figures),
        element("h2", {}, "Which layer should I use?"),
        ...advice(mix, measured),
      ),
  };
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Return the share, in percent, of occurrences whose most similar other occurrence of the word has the same sense. */
function senseAccuracy(words, embedded) {
  const nLayers = embedded[0][0].layers.length;
  return Array.from({ length: nLayers }, (_, layer) => {
    let [right, all] = [0, 0];
    words.forEach(([word, senses], which) => {
      const labels = senses.flatMap((sentences, sense) => sentences.map(() => sense));
      const vectors = embedded[which].map(({ tokens, layers }) => layers[layer][tokens.indexOf(word)]);
      vectors.forEach((vector, i) => {
        const similarities = vectors.map((other, j) => (i === j ? -2 : cosine(vector, other)));
        const most = Math.max(...similarities) - 1e-6;
        const nearest = labels.filter((_, j) => similarities[j] >= most); // ties count together
        right += nearest.filter((label) => label === labels[i]).length / nearest.length;
        all += 1;
      });
    });
    return (100 * right) / all;
  });
}

/** Return the share, in percent, of words whose most similar other word begins or ends with the same letters. */
function spellingAccuracy(sentences) {
  const occurrences = new Map();
  for (const { tokens, layers } of sentences) {
    tokens.forEach((token, position) => {
      if (token.length < SHORTEST_WORD || !/^\p{L}+$/u.test(token)) return;
      const word = token.toLowerCase();
      if (!occurrences.has(word)) occurrences.set(word, []);
      occurrences.get(word).push(layers.map((vectors) => vectors[position]));
    });
  }
  const words = [...occurrences.keys()];
  const alike = (a, b) => a.slice(0, SAME_LETTERS) === b.slice(0, SAME_LETTERS) || a.slice(-SAME_LETTERS) === b.slice(-SAME_LETTERS);
  return sentences[0].layers.map((_, layer) => {
    const means = words.map((word) => unitMean(occurrences.get(word).map((layers) => layers[layer])));
    const right = words.filter((word, i) => {
      let [best, nearest] = [-2, ""];
      means.forEach((mean, j) => {
        if (i === j) return;
        let similarity = 0;
        for (let k = 0; k < mean.length; k++) similarity += mean[k] * means[i][k];
        if (similarity > best) [best, nearest] = [similarity, words[j]];
      });
      return alike(word, nearest);
    });
    return (100 * right.length) / words.length;
  });
}

function unitMean(vectors) {
  const sum = Float64Array.from(vectors[0], (_, k) => vectors.reduce((total, vector) => total + vector[k], 0));
  const norm = Math.hypot(...sum) || 1;
  return sum.map((value) => value / norm);
}

/** Draw percentages by layer as bars in a table. The highest layer is at the top, as in the network. */
function bars(title, values, note, baseline) {
  const best = values.indexOf(Math.max(...values));
  const rows = values.map((value, layer) => {
    const bar = element("span", { class: "bar" });
    bar.style.setProperty("--share", (value / 100).toFixed(3));
    const track = element("span", { class: "track", "aria-hidden": "true" }, bar);
    if (baseline !== undefined) {
      const line = element("span", { class: "baseline" });
      line.style.setProperty("--share", (baseline / 100).toFixed(3));
      track.append(line);
    }
    return element(
      "tr",
      { class: layer === best ? "best" : undefined },
      element("th", { scope: "row" }, `Layer ${layer}`),
      element("td", { class: "wide" }, track),
      element("td", {}, `${value.toFixed(1)}\u00a0%`),
    );
  });
  return element(
    "div",
    { class: "card" },
    element("table", { class: "bars" }, element("caption", {}, title), element("tbody", {}, ...rows.reverse())),
    element("p", { class: "note" }, note),
  );
}

function advice(mix, measured) {
  const paragraphs = [
    element("p", {}, "Use all layers, with weights that your task learns: ELMo's scalar mix. Without training, start with the average."),
  ];
  const weights = (values) => values.map((weight, layer) => `layer ${layer}: ${weight.toFixed(2)}`).join(", ");
  if (mix) {
    paragraphs.push(element("p", {}, `This model has its own mix: ${weights(mix.weights)}; the weighted sum is multiplied by ${mix.gamma.toFixed(2)}.`));
  } else if (measured) {
    paragraphs.push(element("p", {}, `The part-of-speech classifier, given all layers, learned the weights ${weights(measured.tags.mix)}.`));
  }
  return paragraphs;
}
