// Split a raw English sentence into tokens, as NLTK's NLTKWordTokenizer does: in the style of the Penn Treebank.
//
// The regular expressions of Python have other classes of characters than JavaScript's, so these are written out: NLTK uses the
// package `regex`, but Python's own `re` for contractions, whose word characters are others.

/** Unicode's white space, for a class of characters. */
export const SPACE = "\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
/** The characters that Python's `split` and `strip` take for spaces. `trim` takes U+FEFF for one, too, and not all of these. */
export const PYTHON_SPACE = `[${SPACE}\\x1c-\\x1f]`;
export const WORD = "\\p{Alphabetic}\\p{M}\\p{Decimal_Number}\\p{Pc}\\u200c\\u200d";
const START = "(?<![\\p{L}\\p{N}_])"; // of a contraction: Python's \b before a letter
const END = "(?![\\p{L}\\p{N}_])";

const rule = (pattern, replacement, flags = "") => [new RegExp(pattern, `gu${flags}`), replacement];

const STARTING_QUOTES = [
  rule("([«“‘„]|[`]+)", " $1 "),
  rule('^"', "``"),
  rule("(``)", " $1 "),
  rule("([ (\\[{<])(\"|'{2})", "$1 `` "),
  rule(`(?<![${WORD}])(')(?!(?:re|ve|ll|m|t|s|d|n)(?![${WORD}]))(?=[${WORD}])`, "$1 ", "i"),
];
const PUNCTUATION = [
  rule(`([^.])(\\.)([\\])}>"'»”’ ]*)[${SPACE}]*$`, "$1 $2 $3 "),
  rule("([:,])([^\\p{Decimal_Number}])", " $1 $2"),
  rule("([:,])(?=\\n?$)", " $1 "),
  rule("\\.{2,}", " $& "),
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
  rule("([»”’])", " $1 "),
  rule("''", " '' "),
  rule('"', " '' "),
  rule(`[${SPACE}]+`, " "),
  rule("([^' ])('[sS]|'[mM]|'[dD]|') ", "$1 $2 "),
  rule("([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1 $2 "),
];
// Python's "i" has forms that JavaScript's has not, and the reverse: JavaScript's would make U+0345 a letter of START and END.
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

/**
 * Split a raw sentence into tokens. Each is a part of the text; nothing is rewritten.
 * @param {string} sentence English.
 * @returns {string[]}
 */
export function tokenize(sentence) {
  let text = replaceAll(sentence, [...STARTING_QUOTES, ...PUNCTUATION]);
  text = replaceAll(` ${text} `, [...ENDING_QUOTES, ...CONTRACTIONS]);
  const tokens = text.split(SPACES).filter(Boolean);
  // The rules write quotes as `` and ''. They get back the form that they have in the sentence.
  const quotes = /"|''/.test(sentence) ? sentence.match(/``|''|"/g).values() : null;
  let from = 0;
  return tokens.map((token) => {
    const own = quotes && ['"', "``", "''"].includes(token) ? quotes.next().value : token;
    const start = sentence.indexOf(own, from);
    if (start < 0) throw new Error(`The token ${own} was not found in the sentence.`);
    from = start + own.length;
    return own;
  });
}

/** Split a sentence that is tokenized already, with spaces or tabs between the tokens. Other Unicode spaces are part of their token. */
export function splitAtSpaces(text) {
  return text.split(/[ \t\r\n]+/).filter(Boolean);
}

const replaceAll = (text, rules) => rules.reduce((changed, [pattern, replacement]) => changed.replace(pattern, replacement), text);
