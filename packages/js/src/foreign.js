// Marks that other programs leave in a text: escapes, subwords, unknown words, sentence boundaries and padding. As in
// elmokit/text/foreign.py.

import { warnOnce } from "./warnings.js";

const UNKNOWN = "<UNK>";
const ESCAPES = new Map(
  Object.entries({
    "&apos;": "'",
    "&quot;": '"',
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&#124;": "|",
    "&#91;": "[",
    "&#93;": "]",
    "&#39;": "'",
    "&bar;": "|",
  }),
);
const ESCAPE = [...ESCAPES.keys()].join("|");
const BRACKETS = { lrb: "(", rrb: ")", lsb: "[", rsb: "]", lcb: "{", rcb: "}" };
const WORD = "[\\p{L}\\p{N}_]"; // Python's \w

const withoutEscapes = (token) => token.replace(new RegExp(ESCAPE, "g"), (escape) => ESCAPES.get(escape));

function withoutTreebank(token) {
  if (token === "``" || token === "''") return '"';
  if (token[0] === "/") return token.slice(1);
  if (token[0] === "-") return BRACKETS[token.slice(1, 4).toLowerCase()];
  return token.replace(/\\([/*])/g, "$1");
}

const WITHOUT_BOUNDARIES = "Remove them: sentence boundaries are added when the text is read.";
const JOIN_SUBWORDS = "Join them into words, which the model knows.";

// Each has a name, a pattern for whole tokens, advice, and the plain form of a token; without one, it is read as a word.
const FOREIGN = {
  escapes: {
    name: "escapes of HTML and the Moses tokenizer (&apos; &quot; &amp; &lt; &gt; &#124; &#91; &#93;)",
    pattern: `.*(?:${ESCAPE}).*`,
    cure: "The Moses tokenizer also splits words differently (don &apos;t). Undo both with a detokenizer (sacremoses detokenize).",
    plain: withoutEscapes,
  },
  treebank: {
    name: "marks of the Penn Treebank (-LRB- -RRB- -LSB- -RSB- -LCB- -RCB- \\/ \\* /. `` '')",
    pattern: "-[lrLR][rscRSC][bB]-|``|''|/[.?!,;:\\-]|(?:[^\\\\]*\\\\[/*])+[^\\\\]*",
    cure: "To avoid this message, replace them with plain marks.",
    plain: withoutTreebank,
  },
  wikitext: {
    name: "separators of WikiText (@-@ @,@ @.@)",
    pattern: "@[\\-,.:/\\u2013]@",
    cure: "Join the parts that they separate.",
    plain: (token) => token[1],
  },
  unknown: {
    name: "marks of unknown words (<unk> [UNK] @@UNKNOWN@@)",
    pattern: "<unk>|<UNK>|<Unk>|\\[UNK\\]|@@UNKNOWN@@|<oov>|<OOV>",
    cure: "If possible, use a version of the text with the original words.",
    plain: () => UNKNOWN,
  },
  s: { name: "sentence boundaries of another program (<s> </s>)", pattern: "</?s>", cure: WITHOUT_BOUNDARIES },
  eos: {
    name: "sentence boundaries of another program (<bos> <eos>)",
    pattern: "<[be]os>|<[BE]OS>|\\[[BE]OS\\]",
    cure: WITHOUT_BOUNDARIES,
  },
  cls: { name: "sentence boundaries of another program ([CLS] [SEP])", pattern: "\\[CLS\\]|\\[SEP\\]", cure: WITHOUT_BOUNDARIES },
  endoftext: {
    name: "sentence boundaries of another program (<|endoftext|>)",
    pattern: `<\\|(?:start|end)of${WORD}+\\|>`,
    cure: WITHOUT_BOUNDARIES,
  },
  padding: {
    name: "padding of another program (<pad> [PAD] @@PADDING@@)",
    pattern: "<pad>|<PAD>|\\[PAD\\]|@@PADDING@@",
    cure: "Remove it: sentences in a batch can have different lengths.",
  },
  wordpiece: { name: "subwords of WordPiece (##ing)", pattern: `##${WORD}+`, cure: JOIN_SUBWORDS },
  bpe: { name: "subwords of BPE (walk@@ ing)", pattern: `${WORD}+@@`, cure: JOIN_SUBWORDS },
  sentencepiece: { name: "subwords of SentencePiece (\u2581walk ing)", pattern: "\\u2581.*", cure: JOIN_SUBWORDS },
};
const PATTERN = new RegExp(`^(?:${Object.entries(FOREIGN).map(([key, { pattern }]) => `(?<${key}>${pattern})`).join("|")})$`, "su");
const NEVER_WORDS = new Set(["s", "eos", "cls", "endoftext", "padding"]); // no program should read them as words
const WORD_ALONE = /^[\p{L}\p{N}]+$/u;

/** Return the key of the marks in a token, or undefined. */
function findForeign(token) {
  if (WORD_ALONE.test(token)) return undefined;
  const groups = PATTERN.exec(token)?.groups ?? {};
  return Object.keys(groups).find((key) => groups[key] !== undefined);
}

/**
 * Return a function that reads a token with another program's marks, with a warning. It returns undefined for other tokens.
 * @param {Map<string, number>} words The model's words. Marks of programs in its vocabulary are words.
 * @param {boolean} exact Read every token as it is, and only warn about marks that are never words.
 */
export function foreignReader(words, exact = false) {
  const own = new Set([...words.keys()].filter((word) => word !== UNKNOWN).map(findForeign));
  return (token) => {
    const key = findForeign(token);
    if (key === undefined || own.has(key) || (exact && !NEVER_WORDS.has(key))) return undefined;
    const { name, cure, plain } = FOREIGN[key];
    const isWord = exact || !plain || (key === "unknown" && !words.has(UNKNOWN));
    const readAs = isWord ? "words" : key === "unknown" ? UNKNOWN : "plain marks";
    warnOnce(`The text has ${name}, which are read as ${readAs}. ${cure}`);
    return isWord ? token : plain(token);
  };
}
