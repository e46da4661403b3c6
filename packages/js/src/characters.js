// Tokens as character ids: UTF-8 bytes are 1 to 256, followed by five marks; 0 means "no token".

export const BEGIN_SENTENCE = "<S>";
export const END_SENTENCE = "</S>";
const BOUNDARIES = { [BEGIN_SENTENCE]: 257, [END_SENTENCE]: 258 };
const [BEGIN_TOKEN, END_TOKEN, PADDING] = [259, 260, 261];
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/**
 * Return the character ids of tokens, `(tokens, maxChars)`: a begin mark, the UTF-8 bytes, an end mark, padding.
 * @param {string[]} tokens
 * @param {number} maxChars Bytes beyond `maxChars - 2` are cut off, as in bilm-tf.
 * @returns {Int32Array}
 */
export function encodeTokens(tokens, maxChars) {
  const ids = new Int32Array(tokens.length * maxChars).fill(PADDING);
  const encoder = new TextEncoder();
  tokens.forEach((token, number) => {
    const row = ids.subarray(number * maxChars, (number + 1) * maxChars);
    const boundary = Object.hasOwn(BOUNDARIES, token) ? [BOUNDARIES[token]] : null;
    const bytes = boundary ?? encoder.encode(token.replace(LONE_SURROGATES, "")).subarray(0, maxChars - 2);
    row[0] = BEGIN_TOKEN;
    bytes.forEach((byte, at) => (row[at + 1] = boundary ? byte : byte + 1));
    row[bytes.length + 1] = END_TOKEN;
  });
  return ids;
}
