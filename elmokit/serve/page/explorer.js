// The page: its state, which is in the address, its forms, and the view that is shown.

import { byId, element } from "./dom.js";
import { showLayers } from "./layers.js";
import { asPython } from "./python.js";
import { showSenses } from "./senses.js";
import { showSentence } from "./sentence.js";
import { ask, ServerError, tokenVectors, useToken } from "./server.js";

const VIEWS = ["sentence", "senses", "layers"];
const DEFAULTS = { view: "sentence", text: "", direction: "both", token: null, word: "", sentences: "", layer: null };
const state = { ...DEFAULTS };
let examples = { sentences: [], senses: {} };
let latest = 0; // the number of the last view that was asked for, so that slower answers are dropped
let starts = 0; // the same for the facts that the page starts with

/** Read the state from the address. */
function readAddress() {
  Object.assign(state, DEFAULTS, Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
  if (!VIEWS.includes(state.view)) state.view = DEFAULTS.view;
  const number = (value) => (value === null || !(Number(value) >= 0) ? null : Number(value));
  state.token = Number.isInteger(number(state.token)) ? number(state.token) : null;
  state.layer = number(state.layer);
  state.text ||= examples.sentences[0] ?? "";
  const [word, sentences] = Object.entries(examples.senses)[0] ?? ["", []];
  if (!location.hash) state.token = 1; // somebody who sees the page for the first time sees neighbors at once
  if (!state.sentences) Object.assign(state, { word, sentences: sentences.join("\n") });
}

/** Write what is needed for this view into the address. */
function writeAddress(replace) {
  const shown = { sentence: ["text", "direction", "token"], senses: ["word", "sentences", "layer"], layers: ["text"] };
  const names = ["view", ...shown[state.view]].filter((name) => state[name] !== null && state[name] !== "");
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

/** Show the view of the state. */
async function show() {
  const number = ++latest;
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    tab.setAttribute("aria-selected", view === state.view);
    tab.tabIndex = view === state.view ? 0 : -1;
    byId(`panel-${view}`).hidden = view !== state.view;
  }
  byId("sentence-form").hidden = state.view === "senses";
  byId("senses-form").hidden = state.view !== "senses";
  byId("text").value = state.text;
  byId("word").value = state.word;
  byId("sentences").value = state.sentences;
  byId("copied").textContent = "";
  const panel = byId(`panel-${state.view}`);
  panel.setAttribute("aria-busy", "true");
  try {
    const render = { sentence: showSentence, senses: showSenses, layers: showLayers }[state.view];
    const place = await render(panel, { ...state }, state.view === "senses" ? remember : change);
    if (number !== latest) return;
    const focused = focusedPlace(panel);
    place();
    focused?.();
    byId("problem").hidden = true;
    byId("token-form").hidden = true;
  } catch (error) {
    if (number === latest) report(error);
  } finally {
    if (number === latest) panel.removeAttribute("aria-busy");
  }
}

/** Return a function that moves the focus back to the control of the panel that has it now, or null. */
function focusedPlace(panel) {
  const controls = () => [...panel.querySelectorAll("button, input")];
  const index = controls().indexOf(document.activeElement);
  return index < 0 ? null : () => controls()[index]?.focus();
}

function report(error) {
  const problem = byId("problem");
  problem.textContent = error instanceof ServerError ? error.message : `The page has a fault: ${error}`;
  problem.hidden = !problem.textContent;
  byId("token-form").hidden = error.status !== 401;
  if (!(error instanceof ServerError)) throw error;
}

/** Fill the lists of examples and say which model this is. */
async function start() {
  const number = ++starts;
  try {
    const [models, found] = await Promise.all([ask("v1/models"), ask("v1/examples")]);
    if (number !== starts) return;
    examples = found;
    const [{ id, n_layers, dim, index }] = models.data;
    byId("model-facts").textContent =
      `What each layer of the model ${id} knows about a word in its sentence. It has ${n_layers} layers of ` +
      `${dim} numbers per token. Neighbors come from ${index.n_sentences.toLocaleString("en")} sentences.`;
    fill(byId("example"), Object.fromEntries(examples.sentences.map((text) => [text, text])));
    fill(byId("sense-example"), Object.fromEntries(Object.keys(examples.senses).map((word) => [word, word])));
  } catch (error) {
    if (number === starts) report(error);
    return;
  }
  readAddress();
  writeAddress(true);
  await show();
}

function fill(select, choices) {
  const options = Object.entries(choices).map(([value, label]) => element("option", { value }, label));
  select.replaceChildren(element("option", { value: "" }, "Choose an example"), ...options);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = `Copied the ${what}.`;
  } catch {
    byId("copied").textContent = `The browser does not allow copying. The ${what}: ${text}`;
  }
}

const tokens = async (text) => (await tokenVectors([text]))[0].tokens;

byId("sentence-form").addEventListener("submit", (event) => {
  event.preventDefault();
  change({ text: byId("text").value, token: null });
});
byId("example").addEventListener("change", ({ target }) => {
  if (target.value) change({ text: target.value, token: null });
  target.value = "";
});
byId("senses-form").addEventListener("submit", (event) => {
  event.preventDefault();
  change({ word: byId("word").value, sentences: byId("sentences").value });
});
byId("sense-example").addEventListener("change", ({ target }) => {
  if (target.value) change({ word: target.value, sentences: examples.senses[target.value].join("\n") });
  target.value = "";
});
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
    await copy(await asPython(state, model.id, tokens), "code");
  } catch (error) {
    report(error);
  }
});
addEventListener("popstate", () => {
  readAddress();
  show();
});
start();
