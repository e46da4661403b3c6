// The page: its state, which is stored in the address, its forms, and the current view.

import { byId, element } from "./dom.js";
import { showLayers } from "./layers.js";
import { savePicture } from "./picture.js";
import { asPython } from "./python.js";
import { showSenses } from "./senses.js";
import { showSentence } from "./sentence.js";
import { ask, LOADING, ServerError, tokenVectors, useToken } from "./server.js";

const VIEWS = ["senses", "sentence", "layers"];
const PATIENCE_MS = 200; // shorter waits need no message
const DEFAULTS = { view: "senses", text: "", reading: "document", direction: "both", token: null, word: "", sentences: "", layer: null };
const state = { ...DEFAULTS };
let examples = { senses: {} };
let texts = []; // also examples: texts, then sentences
let picture = null; // returns a picture of the view, as SVG
let stage = "loading"; // or "failed", or "ready" once the model and the examples are loaded
let latest = 0; // the number of the last requested view, so that late answers are dropped
let starts = 0; // the same for the data that the page starts with

/** Read the state from the address. */
function readAddress() {
  Object.assign(state, DEFAULTS, Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
  if (!VIEWS.includes(state.view)) state.view = DEFAULTS.view;
  for (const name of ["token", "layer"]) state[name] = /^\d+$/.test(state[name]) ? Number(state[name]) : null;
  if (!state.text && texts.length) {
    const [{ text, position }] = texts;
    Object.assign(state, { text, token: state.token ?? position });
  }
  state.word ||= Object.keys(examples.senses)[0] ?? "";
  state.sentences ||= exampleOf(state.word);
}

/** Return the example sentences of a word as a user would type them: one per line, an empty line between senses. */
function exampleOf(word) {
  const senses = Object.hasOwn(examples.senses, word) ? examples.senses[word] : []; // not a property such as "constructor"
  return senses.map((sentences) => sentences.join("\n")).join("\n\n");
}

/** Write the state that this view needs into the address. */
function writeAddress(replace) {
  const shown = { sentence: ["text", "reading", "direction", "token"], senses: ["word", "sentences", "layer"], layers: [] };
  const isExample = state.sentences === exampleOf(state.word);
  const isNeeded = (name) => state[name] !== null && state[name] !== "" && !(name === "sentences" && isExample);
  const names = ["view", ...shown[state.view]].filter(isNeeded);
  const address = `#${new URLSearchParams(names.map((name) => [name, state[name]]))}`;
  if (address !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", address);
}

/** Change the state, write it into the address and show it. */
function change(values) {
  Object.assign(state, values);
  writeAddress(false);
  return show();
}

/** Change the state and the address only. */
function remember(values) {
  Object.assign(state, values);
  writeAddress(true);
}

/** Show the tabs and forms for the state, without computed results. */
function showForms() {
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    tab.setAttribute("aria-selected", view === state.view);
    tab.tabIndex = view === state.view ? 0 : -1;
    byId(`panel-${view}`).hidden = view !== state.view;
  }
  byId("sentence-form").hidden = stage !== "ready" || state.view !== "sentence";
  byId("senses-form").hidden = stage !== "ready" || state.view !== "senses";
  for (const chip of byId("words").children) chip.setAttribute("aria-pressed", isShown(chip.textContent));
  byId("text").value = state.text;
  byId("word").value = state.word;
  byId("sentences").value = state.sentences;
  byId("copied").textContent = "";
  fitTextAreas();
}

/** Make the text areas as high as their text. Otherwise, the last lines would be cut off on a phone. */
function fitTextAreas() {
  for (const area of document.querySelectorAll("textarea")) {
    area.style.height = "auto";
    const borders = area.offsetHeight - area.clientHeight;
    if (area.scrollHeight > area.clientHeight) area.style.height = `${area.scrollHeight + borders}px`;
  }
}

/** Show or hide the buttons that save and copy the view. They are disabled while another view is computed. */
function offerTools({ isShown, isCurrent }) {
  byId("tools").hidden = !isShown;
  for (const button of byId("tools").querySelectorAll("button")) button.disabled = !isCurrent;
  byId("save-svg").hidden = byId("save-png").hidden = !picture;
}

/** Show the view of the state. */
async function show() {
  showForms();
  if (stage === "loading") return;
  if (stage === "failed") {
    await start();
    return;
  }
  const number = ++latest;
  const panel = byId(`panel-${state.view}`);
  panel.setAttribute("aria-busy", "true");
  offerTools({ isShown: panel.hasChildNodes(), isCurrent: false });
  const message = setTimeout(() => (byId("progress").textContent = "Computing\u2026"), PATIENCE_MS);
  try {
    const render = { sentence: showSentence, senses: showSenses, layers: showLayers }[state.view];
    const shown = await render(panel, { ...state }, state.view === "senses" ? remember : change, examples);
    if (number !== latest) return;
    const focused = focusedPlace(panel);
    shown.show();
    focused?.();
    picture = shown.picture ?? null;
    offerTools({ isShown: true, isCurrent: true });
    byId("problem").hidden = true;
    byId("token-form").hidden = true;
  } catch (error) {
    if (number !== latest) return;
    panel.replaceChildren(); // the old results belong to another request
    offerTools({ isShown: false, isCurrent: false });
    report(error);
  } finally {
    clearTimeout(message);
    if (number === latest) {
      panel.removeAttribute("aria-busy");
      byId("progress").textContent = "";
    }
  }
}

/** Whether the view shows the examples of a word. */
function isShown(word) {
  return word === state.word && state.sentences === exampleOf(word);
}

/** Return a function that restores the focus to the same control of the panel, or null if no control has it. */
function focusedPlace(panel) {
  const controls = () => [...panel.querySelectorAll("button, input")];
  const index = controls().indexOf(document.activeElement);
  return index < 0 ? null : () => controls()[index]?.focus();
}

function report(error) {
  const problem = byId("problem");
  problem.textContent = error instanceof ServerError ? error.message : `There is an error in this page: ${error}`;
  problem.hidden = !problem.textContent;
  byId("token-form").hidden = error.status !== 401;
  if (!(error instanceof ServerError)) throw error;
}

/** Fill the lists of examples and show which model this is. */
async function start() {
  const number = ++starts;
  stage = "loading";
  byId("progress").textContent = LOADING;
  byId("problem").hidden = true;
  try {
    const [models, found] = await Promise.all([ask("v1/models"), ask("v1/examples")]);
    if (number !== starts) return;
    examples = found;
    texts = [...found.texts, ...found.sentences];
    const [{ id, n_layers, dim, index }] = models.data;
    byId("model-facts").textContent =
      `Model ${id}: ${n_layers} layers, ${dim} numbers per word in each. Neighbors from ${index.n_sentences.toLocaleString("en")} sentences.`;
    const options = texts.map(({ text }, which) => element("option", { value: which }, text));
    byId("example").replaceChildren(element("option", { value: "" }, "Choose an example"), ...options);
    const chip = (word) => element("button", { type: "button", click: () => change({ word, sentences: exampleOf(word), layer: null }) }, word);
    byId("words").replaceChildren(...Object.keys(examples.senses).map(chip));
  } catch (error) {
    if (number !== starts) return;
    stage = "failed";
    byId("progress").textContent = "";
    report(error);
    return;
  }
  stage = "ready";
  byId("progress").textContent = "";
  readAddress();
  writeAddress(true);
  await show();
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = `Copied the ${what}.`;
  } catch {
    byId("copied").textContent = `The browser does not allow copying. The ${what}: ${text}`;
  }
}

const sentencesOf = async (text) => (await tokenVectors([text]))[0].sentences;

byId("sentence-form").addEventListener("submit", (event) => {
  event.preventDefault();
  change({ text: byId("text").value, token: null });
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("sentence-form").requestSubmit();
});
byId("example").addEventListener("change", ({ target }) => {
  const example = texts[target.value];
  if (target.value && example) change({ text: example.text, token: example.position });
  target.value = "";
});
document.querySelector("#own form").addEventListener("submit", (event) => {
  event.preventDefault();
  change({ word: byId("word").value.trim(), sentences: byId("sentences").value, layer: null });
});
for (const kind of ["svg", "png"]) {
  byId(`save-${kind}`).addEventListener("click", () => {
    const name = (state.view === "senses" ? state.word : state.text).trim().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
    savePicture(picture(), `elmokit-${name}`, kind).catch(report);
  });
}
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("bearer").value);
  start();
});
for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => change({ view }));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const view = VIEWS[(VIEWS.indexOf(state.view) + step + VIEWS.length) % VIEWS.length];
  change({ view });
  byId(`tab-${view}`).focus();
});
byId("copy-link").addEventListener("click", () => copy(location.href, "link"));
byId("copy-python").addEventListener("click", async () => {
  try {
    const [model] = (await ask("v1/models")).data;
    await copy(await asPython(state, model.id, sentencesOf), "code");
  } catch (error) {
    report(error);
  }
});
addEventListener("popstate", () => {
  readAddress();
  show();
});
addEventListener("input", fitTextAreas);
addEventListener("resize", fitTextAreas);
byId("own").addEventListener("toggle", fitTextAreas);
readAddress();
showForms();
start();
