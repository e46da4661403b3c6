// How a model reads a token: with the marks and character codes of its own words. As in elmokit/text/marks.py.

import { foreignReader } from "./foreign.js";
import { warnOnce } from "./warnings.js";

const READ_AS = {
  "'": "\u2018\u2019\u201a\u201b\u2039\u203a\u2032\u00b4\u02bc",
  '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033",
  "-": "\u2010\u2011\u2012\u2013\u2212",
  "--": "\u2014\u2015",
  "...": "\u2026",
  "": "\u00ad\u200b\u200e\u200f\u2060\ufeff",
  ff: "\ufb00",
  fi: "\ufb01",
  fl: "\ufb02",
  ffi: "\ufb03",
  ffl: "\ufb04",
  st: "\ufb05\ufb06",
};
/** How typographic marks, such as the apostrophe U+2019, are read: as the ASCII marks that models know. */
export const MARKS = new Map(Object.entries(READ_AS).flatMap(([plain, marks]) => [...marks].map((mark) => [mark, plain])));
/** Soft hyphens and zero-width marks. */
export const INVISIBLE = new Set(READ_AS[""]);
const EN_DASH = "\u2013";
const NOT_ASCII = /[^\0-\x7f]/;
const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;
const ASCII_WORD = /^[a-zA-Z0-9]+$/;
const UPPER_CASE = /\p{Uppercase}/u;
const OTHER_CASE = /[\p{Lowercase}\p{Lt}]/u;
const MAX_LOWER = 0.1; // in a sentence in capitals, words with a lower-case letter, as a fraction of those in capitals

// Armenian ligatures, Arabic forms (two blocks), and wide and narrow forms of Latin, Japanese and Korean letters: the first
// code, and the one after the last.
const FORM_RANGES = [[0xfb13, 0xfb18], [0xfb50, 0xfdfe], [0xfe70, 0xfefd], [0xff01, 0xffef]]; // prettier-ignore

/** How forms of a character are read: as the character without a width or a place in a word. Not if that brings a space. */
const FORMS = new Map();
for (const [first, stop] of FORM_RANGES) {
  for (let code = first; code < stop; code++) {
    const form = String.fromCodePoint(code);
    const plain = form.normalize("NFKC");
    if (plain !== form && !plain.includes(" ")) FORMS.set(form, plain);
  }
}

/** Replace marks in a text. */
export const translate = (text, marks) => [...text].map((char) => marks.get(char) ?? char).join("");

/** Return the marks in a table that a model does not know. */
const unknownOf = (table, known) => new Map([...table].filter(([mark]) => !known.has(mark)));

/** Yield other spellings of a word, starting with those that most models know. */
function* spellings(token) {
  const plainForms = translate(token, FORMS);
  for (const form of ["NFC", "NFD"]) {
    const spelling = plainForms.normalize(form);
    yield translate(spelling, MARKS);
    yield spelling;
  }
}

/** Whether a token is in capitals, like Python's `isupper`. */
const isUpper = (token) => UPPER_CASE.test(token) && !OTHER_CASE.test(token);

/**
 * Return a sentence in capitals in the case in which its words are most frequent, and other sentences as they are. A sentence
 * is in capitals if it has two words in capitals, (nearly) no other, and a word that is known in another case only.
 * @param {string[]} tokens
 * @param {Map<string, number>} ranks Of the known words, by frequency.
 */
export function readCapitals(tokens, ranks) {
  const nCapitals = tokens.filter(isUpper).length;
  if (nCapitals < 2) return tokens;
  const nOthers = tokens.filter((token) => token !== token.toUpperCase()).length;
  if (nOthers > MAX_LOWER * nCapitals) return tokens;
  const rank = (word) => ranks.get(word) ?? ranks.size;
  let isInCapitals = false;
  let isFirst = true;
  const read = tokens.map((token) => {
    if (!isUpper(token)) return token;
    const lower = token.toLowerCase();
    const [first] = token; // its first character, which may be two code units
    const capitalized = first + lower.slice(first.length);
    let best = lower;
    for (const word of [capitalized, token]) if (rank(word) < rank(best)) best = word;
    if (!ranks.has(token) && ranks.has(best)) isInCapitals = true;
    if (isFirst && best === lower && ranks.has(capitalized)) best = capitalized;
    isFirst = false;
    return best;
  });
  return isInCapitals ? read : tokens;
}

/** Return a sentence as read by `readCapitals`, with a warning. */
function withCase(tokens, words) {
  const read = readCapitals(tokens, words);
  if (read !== tokens) warnOnce("Sentences in capitals are read in the case that their words have in the vocabulary.");
  return read;
}

/**
 * Return a function that reads a token as the model knows it. A known token is read unchanged. Another word is read with plain
 * marks, composed or decomposed, if the model knows that spelling. Other tokens are composed, and marks that the model does not
 * know are replaced with ASCII marks. Marks of other programs are read as plain ones, with a warning. The function's method
 * `withCase` returns the tokens of a sentence in the case in which the model knows them.
 * @param {Map<string, number>} words The model's words.
 * @param {boolean} exact Read every token as it is, as the original programs do.
 */
export function markReader(words = new Map(), exact = false) {
  const foreign = foreignReader(words, exact);
  if (exact) {
    const read = (token) => (words.has(token) ? token : (foreign(token) ?? token));
    return Object.assign(read, { withCase: (tokens) => tokens });
  }
  const known = new Set([...words.keys()].join(""));
  // Only the frequent words of the training text are listed. If they have typographic marks, the text had rare ones, too; but
  // en dashes often stay in a text converted to ASCII marks. The same holds for wide letters and other forms of characters.
  for (const kind of [[...MARKS.keys()].filter((mark) => mark !== EN_DASH), [...FORMS.keys()]]) {
    if (kind.some((mark) => known.has(mark))) kind.forEach((mark) => known.add(mark));
  }
  const marks = unknownOf(MARKS, known);
  const forms = unknownOf(FORMS, known);
// If a word has a separate accent, the training text was not composed.
  const composes = [...words.keys()].every((word) => word === word.normalize("NFC"));
  const read = (token) => {
    if (ASCII_WORD.test(token) || words.has(token)) return token;
    const plainMark = foreign(token);
    if (plainMark !== undefined) return plainMark;
    if (!NOT_ASCII.test(token)) return token;
    if (words.size && LETTER_OR_DIGIT.test(token)) {
      for (const spelling of spellings(token)) if (words.has(spelling)) return spelling;
    }
    const plain = translate(token, forms);
    return translate(composes ? plain.normalize("NFC") : plain, marks) || token;
  };
  return Object.assign(read, { withCase: (tokens) => withCase(tokens, words) });
}
