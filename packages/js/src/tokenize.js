// Split a raw English sentence into tokens in the style of the Penn Treebank, as elmokit/text/english.py does.
//
// Python's regular expressions have different character classes than JavaScript's, so they are written out.

import { INVISIBLE } from "./marks.js";

/** Unicode white space, for a character class. */
export const SPACE = "\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
/** The characters that Python's `split` and `strip` treat as spaces. `trim` also treats U+FEFF as one, and not all of these. */
export const PYTHON_SPACE = `[${SPACE}\\x1c-\\x1f]`;
export const WORD = "\\p{Alphabetic}\\p{M}\\p{Decimal_Number}\\p{Pc}\\u200c\\u200d";
const START = "(?<![\\p{L}\\p{N}_])"; // of a contraction: Python's \b before a letter
const END = "(?![\\p{L}\\p{N}_])";
const CLITIC = `(?:re|ve|ll|m|t|s|d|n)(?![${WORD}])`;
const APOSTROPHE = new RegExp(`(?<=[${WORD}])[‘’](?=[${WORD}])|(?<![${WORD}])’(?=${CLITIC})`, "giu");

const rule = (pattern, replacement, flags = "") => [new RegExp(pattern, `gu${flags}`), replacement];

const STARTING_QUOTES = [
  rule("([«“‘„‚‛‟‹]|[`]+)", " $1 "),
  rule('^"', "``"),
  rule("(``)", " $1 "),
  rule("([ (\\[{<])(\"|'{2})", "$1 `` "),
  rule(`(?<![${WORD}])(')(?!${CLITIC})(?=[${WORD}])`, "$1 ", "i"),
];
const PUNCTUATION = [
  // The lookahead prevents backtracking into the spaces, so a long run of them takes linear time.
  rule(`([^.])(\\.)(?=([\\])}>"'»”’› ]*))\\3[${SPACE}]*$`, "$1 $2 $3 "),
  rule("([:,])([^\\p{Decimal_Number}])", " $1 $2"),
  rule("([:,])(?=\\n?$)", " $1 "),
  rule("\\.*…[.…]*|\\.{2,}", " $& "),
  rule("[;@#$%&]", " $& "),
  rule("[\\u2012-\\u2015]", " $& "),
  rule(`([^.])(\\.)([\\])}>"']*)[${SPACE}]*$`, "$1 $2$3 "),
  rule("[?!]", " $& "),
  rule("([^'])' ", "$1 ' "),
  rule("[*]", " $& "),
  rule("[\\][(){}<>]", " $& "),
  rule("--", " -- "),
];
const ENDING_QUOTES = [
  rule("([»”’›])", " $1 "),
  rule("''", " '' "),
  rule('"', " '' "),
  rule(`[${SPACE}]+`, " "),
  rule("([^' ])('[sS]|'[mM]|'[dD]|') ", "$1 $2 "),
  rule("([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1 $2 "),
];
// Case-insensitive matching differs from Python's: JavaScript would match U+0345 as a letter in START and END.
const FORMS = { i: "iI\u0130\u0131", s: "sS\u017f" };
const anyCase = (letters) => letters.replace(/[a-z]/g, (one) => `[${FORMS[one] ?? one + one.toUpperCase()}]`);
const CONTRACTIONS = [
  ...["(can)(not)", "(d)('ye)", "(gim)(me)", "(gon)(na)", "(got)(ta)", "(lem)(me)", "(more)('n)"].map((parts) =>
    rule(`${START}${anyCase(parts)}${END}`, " $1 $2 "),
  ),
  rule(`${START}${anyCase("(wan)(na)")}(?=${PYTHON_SPACE})`, " $1 $2 "),
  rule(` ${anyCase("('t)(is)")}${END}`, " $1 $2 "),
  rule(` ${anyCase("('t)(was)")}${END}`, " $1 $2 "),
];
const SPACES = new RegExp(`${PYTHON_SPACE}+`, "u");
const ONE_SPACE = new RegExp(PYTHON_SPACE);

/** Split a raw sentence into tokens; see index.d.ts. Each is a part of the text; nothing is rewritten. */
export function tokenize(sentence, options) {
  return parts(sentence, withoutInvisible((visible) => spans(withApostrophes(visible)), sentence), options);
}

/** Return parts of a text, as strings or with their offsets. */
export const parts = (text, spans, { offsets = false } = {}) =>
  spans.map(([start, stop]) => (offsets ? { text: text.slice(start, stop), start, stop } : text.slice(start, stop)));

/** Find spans ignoring soft hyphens and zero-width characters, which would hide the end of a word. */
export function withoutInvisible(spans, text) {
  const positions = [];
  for (let at = 0; at < text.length; at++) if (!INVISIBLE.has(text[at])) positions.push(at);
  const visible = positions.length === text.length ? text : positions.map((at) => text[at]).join("");
  return spans(visible).map(([start, stop]) => [positions[start], positions[stop - 1] + 1]);
}

/** Replace marks that are apostrophes by `'`, which keeps all positions. Others are quotes, or end a plural possessive. */
const withApostrophes = (text) => text.replace(/[\u02bc\u00b4\u2032]/g, "'").replace(/\u2033/g, '"').replace(APOSTROPHE, "'");

function spans(sentence) {
  let text = replaceAll(sentence, [...STARTING_QUOTES, ...PUNCTUATION]);
  text = replaceAll(` ${text} `, [...ENDING_QUOTES, ...CONTRACTIONS]);
  // The rules convert quotes to `` and ''. Restore their form in the sentence.
  const quotes = /"|''/.test(sentence) ? sentence.match(/``|''|"/g).values() : null;
  let stop = 0;
  return text.split(SPACES).filter(Boolean).map((token) => {
    const own = quotes && ['"', "``", "''"].includes(token) ? quotes.next().value : token;
    const start = sentence.indexOf(own, stop);
    if (start < 0) throw new Error(`The token ${own} was not found in the sentence.`);
    stop = start + own.length;
    return [start, stop];
  });
}

/** Split an already tokenized sentence at spaces and tabs. Other Unicode spaces are part of their token. */
export function splitAtSpaces(text) {
  return text.split(/[ \t\r\n]+/).filter(Boolean);
}

const replaceAll = (text, rules) => rules.reduce((changed, [pattern, replacement]) => changed.replace(pattern, replacement), text);

/** Remove white space at both ends, in linear time: a pattern for the end would restart at each space of a line. */
export function withoutSpacesAtEnds(line) {
  let [start, end] = [0, line.length];
  while (start < end && ONE_SPACE.test(line[start])) start++;
  while (end > start && ONE_SPACE.test(line[end - 1])) end--;
  return line.slice(start, end);
}
