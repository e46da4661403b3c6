// The explorer's worker: the engine and its model, which answer the page's requests one by one.

import { Answers, Problem } from "./answers.js";
import { Elmo } from "./elmokit/index.js";

const answers = open();
answers.catch(() => {}); // reported by every request

async function open() {
  const here = new URL("./", import.meta.url);
  const loaded = Elmo.load(new URL("model/", here), { trained: false });
  const [elmo, examples] = await Promise.all([loaded, fetch(new URL("examples.json", here))]);
  return new Answers(elmo, "en-mini", await examples.json());
}

addEventListener("message", async ({ data: { id, path, body } }) => {
  try {
    postMessage({ id, answer: (await answers).answer(path, body) });
  } catch (error) {
    postMessage({ id, problem: { status: error instanceof Problem ? error.status : 0, message: error.message } });
  }
});
