export { Elmo, Layers } from "./elmo.js";
export { NeighborIndex } from "./neighbors.js";
export { splitSentences } from "./sentences.js";
export { splitAtSpaces, tokenize } from "./tokenize.js";
export { Vocabulary } from "./vocabulary.js";
