// Typographic marks, such as the apostrophe U+2019, are read as the ASCII marks that models know. As in elmokit/text/characters.py.

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
/** How typographic marks are read. */
export const MARKS = new Map(Object.entries(READ_AS).flatMap(([plain, marks]) => [...marks].map((mark) => [mark, plain])));
/** Soft hyphens and marks without a width. */
export const INVISIBLE = new Set(READ_AS[""]);
const EN_DASH = "\u2013";
const NOT_ASCII = /[^\0-\x7f]/;

/** Return a text with other marks. */
export const translate = (text, marks) => [...text].map((char) => marks.get(char) ?? char).join("");

const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;

/**
 * Return a function that says how a model reads a token: as it is, if the model knows it; else a word with ASCII marks, if the
 * model knows it so; else with ASCII marks in place of those that the model does not know.
 * @param {Map<string, number>} words Those that it knows.
 */
export function markReader(words = new Map()) {
  const known = new Set([...words.keys()].join(""));
  // Only the frequent words of its text are listed. If they have typographic marks, rare ones were there, too; en dashes often
  // stay in a text that was changed to ASCII marks.
  const typographic = [...MARKS.keys()].filter((mark) => mark !== EN_DASH);
  if (typographic.some((mark) => known.has(mark))) typographic.forEach((mark) => known.add(mark));
  const unknown = new Map([...MARKS].filter(([mark]) => !known.has(mark)));
  return (token) => {
    if (!NOT_ASCII.test(token) || words.has(token)) return token;
    const plain = translate(token, MARKS);
    return (words.has(plain) && LETTER_OR_DIGIT.test(token) ? plain : translate(token, unknown)) || token;
  };
}
