// Create elements of the page. Text is always set as text, never parsed as HTML.

/** Return the element with an id. */
export const byId = (id) => document.getElementById(id);

/**
 * Create an element.
 * @param {string} tag Its name.
 * @param {Object} attributes Attributes; functions become listeners for the event with that name.
 * @param {...(Node|string|number)} children Its content.
 */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Create an element of an SVG drawing. */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Give an element its attributes, listeners and children. */
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Color an element by a share from 0 to 1; its class determines the color. */
export function tint(colored, share) {
  colored.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(3));
  return colored;
}

/** Create a group of radio buttons. `choices` maps values to labels. */
export function radios(name, legend, choices, chosen, onChoice) {
  const buttons = Object.entries(choices).map(([value, label]) => {
    const input = element("input", { type: "radio", name, value, change: () => onChoice(value) });
    input.checked = value === chosen;
    return element("label", {}, input, element("span", {}, label));
  });
  return element("fieldset", { class: "segments" }, element("legend", {}, legend), element("div", {}, ...buttons));
}

const JOINED = /^([.,;:!?%)\]]|n't|'\p{L}+)$/u;

/** Return the tokens of a sentence with the spaces that precede them in running text. */
export const spaced = (tokens) => tokens.map((token, index) => (index && !JOINED.test(token) ? ` ${token}` : token));

/** Return a sentence with the token at a position marked, or replaced with another element. */
export function inContext(tokens, position, shown = element("mark", {}, tokens[position])) {
  const parts = spaced(tokens);
  const space = parts[position].startsWith(" ") ? " " : "";
  return element("span", {}, parts.slice(0, position).join(""), space, shown, parts.slice(position + 1).join(""));
}

/** Highlight the elements whose `data-item` is the given number; null highlights nothing. */
export function highlight(within, number) {
  for (const one of within.querySelectorAll("[data-item]")) {
    one.classList.toggle("lit", one.dataset.item === String(number));
  }
}
