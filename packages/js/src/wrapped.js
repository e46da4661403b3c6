// Whether the lines of a raw text are wrapped, as in e-mail or a book. As in elmokit/text/first_lines.py.

import { PYTHON_SPACE, withoutSpacesAtEnds } from "./tokenize.js";
import { warnOnce } from "./warnings.js";

const CHOICES = ["auto", "yes", "no"];
const HEAD_LINES = 100; // which decide
const [MIN_WIDTH, MIN_CONTINUED] = [40, 2]; // the shortest lines, and how many go on with a small letter
const MIN_CONTINUED_SHARE = 0.05; // of lines that are not joined, from which on they are reported
const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;
const SENTENCE_END = /[.!?\u2026]/;
const SMALL_LETTER = /^\p{Lowercase}/u;
const SPACES = new RegExp(`${PYTHON_SPACE}+`, "u");

/**
 * Join the wrapped lines of each paragraph with spaces. The text keeps its length.
 * @param {string} text
 * @param {"auto"|"yes"|"no"} wrapped Whether lines are wrapped; "auto" decides from the first lines, with a warning.
 */
export function withJoinedLines(text, wrapped = "auto") {
  if (!CHOICES.includes(wrapped)) throw new Error(`wrapped is ${JSON.stringify(wrapped)}. Expected one of ${CHOICES.join(", ")}.`);
  const parts = text.split(/(\r\n|\r|\n)/); // lines, and the line ends between them
  const lines = parts.filter((_, at) => at % 2 === 0).map(withoutSpacesAtEnds);
  if (wrapped === "no" || (wrapped === "auto" && !areWrapped(lines.slice(0, HEAD_LINES)))) return text;
  return parts.map((part, at) => (at % 2 && lines[(at - 1) / 2] && lines[(at + 1) / 2] ? " ".repeat(part.length) : part)).join("");
}

/** Decide whether lines are wrapped, and warn if they are or may be. */
function areWrapped(lines) {
  const pairs = pairwise(lines).filter(([line, after]) => line && after);
  const inside = pairs.filter(([line]) => !endsSentence(line));
  const continued = inside.filter(([, after]) => SMALL_LETTER.test(after));
  if (!continued.length || !lines.some((line) => SENTENCE_END.test(line))) return false;
  if (areMostFull(lines, pairs, inside) || doMostGoOn(lines, pairs, continued)) {
    warnOnce('The lines of the text are wrapped, so they are joined: a blank line ends a paragraph. If they are not, pass { wrapped: "no" }.');
    return true;
  }
  if (doSentencesBeginWithCapitals(lines) && continued.length >= MIN_CONTINUED_SHARE * pairs.length) {
    const [[line, after]] = continued;
    warnOnce(
      `The lines of the text are read one by one, but "${line.slice(-20)}" may continue with "${after.slice(0, 20)}". If they are wrapped, ` +
        'pass { wrapped: "yes" } to join them; if not, pass "no".',
    );
  }
  return false;
}

/** Whether most lines end inside a sentence and have no room for the next word. */
function areMostFull(lines, pairs, inside) {
  const lengths = lines.filter(Boolean).map(nCharacters).sort((a, b) => a - b);
  const width = lengths[Math.floor(((lengths.length - 1) * 9) / 10)];
  const full = inside.filter(([line, after]) => nCharacters(line) + 1 + nCharacters(after.split(SPACES)[0]) > width);
  const nSmall = full.filter(([, after]) => SMALL_LETTER.test(after)).length;
  return width >= MIN_WIDTH && 2 * full.length > pairs.length && nSmall >= MIN_CONTINUED;
}

/** Whether most lines continue with a lower-case letter, in a text whose sentences begin with capitals. */
function doMostGoOn(lines, pairs, continued) {
  return continued.length >= MIN_CONTINUED && 2 * continued.length > pairs.length && doSentencesBeginWithCapitals(lines);
}

/** Whether nearly no line that certainly begins a sentence starts with a lower-case letter. */
function doSentencesBeginWithCapitals(lines) {
  const begins = pairwise(["", ...lines]).filter(([line, after]) => after && (!line || endsSentence(line)));
  return 5 * begins.filter(([, after]) => SMALL_LETTER.test(after)).length <= begins.length;
}

/** Whether a line ends with the end of a sentence, possibly followed by other marks. */
function endsSentence(line) {
  const characters = [...line];
  for (let at = characters.length - 1; at >= 0 && !LETTER_OR_DIGIT.test(characters[at]); at--) {
    if (SENTENCE_END.test(characters[at])) return true;
  }
  return false;
}

const nCharacters = (text) => [...text].length; // as Python counts them
const pairwise = (items) => items.slice(1).map((item, at) => [items[at], item]);
