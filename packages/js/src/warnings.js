// Warnings that are shown once, in one line, about results that may surprise.

const said = new Set();

/** Write a warning to the console, unless it has been written before. */
export function warnOnce(message) {
  if (said.has(message)) return;
  said.add(message);
  console.warn(`elmokit: ${message}`);
}
