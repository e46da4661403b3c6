// What is said once, in one line, where a reader may not expect a number.

const said = new Set();

/** Write a warning to the console, unless it was written before. */
export function warnOnce(message) {
  if (said.has(message)) return;
  said.add(message);
  console.warn(`elmokit: ${message}`);
}
