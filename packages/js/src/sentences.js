// Split raw English text into sentences, as elmokit/text/english.py does.

import { parts, PYTHON_SPACE, SPACE, WORD, withoutInvisible } from "./tokenize.js";
import { withJoinedLines } from "./wrapped.js";

const ABBREVIATIONS = new Set(
  (
    "mr mrs ms dr prof st mt ft sr jr rev hon gen col lt capt sgt maj gov sen rep pres co corp inc ltd bros vs etc al approx jan " +
    "feb mar apr jun jul aug sep sept oct nov dec no vol pp ed eds cf ca fig u.s u.k u.n e.g i.e a.m p.m b.c a.d ph.d"
  ).split(" "),
);
const CLOSING = "\u2018\u2019\u201c\u201d\u00ab\u00bb\u2039\u203a";
const NO_WORD = `[)";}\\]*:@'(\\{\\[?!${CLOSING}]`;
const DOTS_OR_DASHES = `-{2,}|\\.{2,}|(?:\\.[${SPACE}]){2,}\\.`;
const WORDS = new RegExp(
  `${DOTS_OR_DASHES}|[^("\`{\\[:;&#*@)}\\]\\-,${SPACE}][^${SPACE}]*?` +
    `(?=[${SPACE}]|$|${NO_WORD}|${DOTS_OR_DASHES}|,(?:$|[${SPACE}]|${NO_WORD}|${DOTS_OR_DASHES}))|[^${SPACE}]`,
  "gu",
);
const QUOTED_END = new RegExp(`[?!]["')\\]${CLOSING}]+[${SPACE}]+[a-z]`, "uy");
const END = new RegExp(`[.?!](?=(${NO_WORD}|[${SPACE}]+([^${SPACE}]+)))`, "gu");
const AFTER_END = new RegExp(`["')\\]}${CLOSING}]+?(?:[${SPACE}]+|(?=--|[\\u2012-\\u2015])|$)`, "muy");
const TRAILING_SPACE = new RegExp(`${PYTHON_SPACE}+$`, "u");
const NUMBER = /^-?[.,]?\p{Decimal_Number}[\p{Decimal_Number},.-]*$/u;
const INITIAL = new RegExp(`^(?!\\p{Decimal_Number})[${WORD}]\\.$`, "u");

/** Split raw text into sentences; see index.d.ts. A line break also ends a sentence, unless lines are wrapped. */
export function splitSentences(text, { wrapped, ...options } = {}) {
  const joined = withJoinedLines(text, wrapped);
  const found = [];
  for (const { 0: line, index } of joined.matchAll(/[^\r\n]+/g)) {
    for (const [start, stop] of withoutInvisible(spans, line)) found.push([index + start, index + stop]);
  }
  return parts(joined, found, options);
}

function spans(text) {
  const found = [];
  let start = 0;
  for (const { word, end } of possibleEnds(text)) {
    const stop = end.index + 1;
    const [, after, next] = end;
    QUOTED_END.lastIndex = end.index;
    if (QUOTED_END.test(text) || !hasEnd(text.slice(word, stop), after)) continue;
    found.push([start, stop]);
    start = next === undefined ? stop : stop + after.length - next.length;
  }
  found.push([start, text.replace(TRAILING_SPACE, "").length]);
  // Quotes and brackets after the end belong to the preceding sentence.
  let shift = 0;
  const aligned = found.map(([from, to], number) => {
    const first = from + shift;
    AFTER_END.lastIndex = 0;
    const following = found[number + 1];
    const [closing] = (following && AFTER_END.exec(text.slice(...following))) ?? [""];
    shift = closing.length;
    return [first, closing ? following[0] + closing.replace(TRAILING_SPACE, "").length : to];
  });
  return aligned.filter(([from, to]) => from < to);
}

/** Yield the marks that may end a sentence, each with the start of its word; only the last one of each word. */
function* possibleEnds(text) {
  let last = null;
  let [word, stop] = [0, 0]; // of the last one
  for (const match of text.matchAll(END)) {
    const before = text.slice(stop, match.index);
    const space = Math.max(...[..." \t\v\f"].map((character) => before.lastIndexOf(character)));
    const begin = space > 0 ? stop + space + 1 : word;
    if (last && stop <= begin) yield { word, end: last };
    [last, word, stop] = [match, begin, match.index];
  }
  if (last) yield { word, end: last };
}

/** Check whether a sentence ends in a word, given what follows it. */
function hasEnd(word, after) {
  const tokens = [...(word + after).matchAll(WORDS)];
  return tokens.slice(1).some(([following], number) => tokens[number].index < word.length && ends(tokens[number][0], following));
}

function ends(token, following) {
  if (["?", "!", "."].includes(token)) return true;
  if (!token.endsWith(".") || token.endsWith("..")) return false;
  const stem = token.slice(0, -1).toLowerCase();
  if (ABBREVIATIONS.has(stem) || ABBREVIATIONS.has(stem.split("-").at(-1))) return false;
  const isInitial = INITIAL.test(token);
  if (!isInitial && !NUMBER.test(token)) return true;
  const goesOn = [";", ":", ",", ".", "!", "?"].includes(following) || /^\p{Lowercase}/u.test(following);
  return !goesOn && !(isInitial && /^\p{Uppercase}/u.test(following));
}
