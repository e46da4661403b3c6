// Everything against the numbers of the Python library. ELMOKIT_EXPECTED names a directory that `expected.py` filled; without
// it, the Python of PYTHON, in which elmokit is installed, fills one.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

import { NgramSpelling } from "../src/letters.js";
import { Elmo, NeighborIndex, splitAtSpaces, splitSentences, tokenize, Vocabulary } from "elmokit";

const expected = readExpected();
const { sentences } = expected;
const load = (precision, options) => Elmo.load(expected.model, { precision, ...options });

function readExpected() {
  let folder = process.env.ELMOKIT_EXPECTED;
  if (!folder) {
    folder = mkdtempSync(path.join(tmpdir(), "elmokit-"));
    execFileSync(process.env.PYTHON ?? "python3", [fileURLToPath(new URL("expected.py", import.meta.url)), folder]);
  }
  return JSON.parse(readFileSync(path.join(folder, "expected.json"), "utf8"));
}

// A number is a sum of terms that may be as large as the largest number, which is 38 for letters that were hardly seen
// in training. So that one, and not the number itself, says how far two orders of summation may differ.
function assertClose(found, wanted, tolerance, what) {
  assert.equal(found.length, wanted.length, what);
  const bound = tolerance * wanted.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1);
  found.forEach((value, at) => {
    assert.ok(Math.abs(value - wanted[at]) <= bound, `${what}: ${value} instead of ${wanted[at]} at ${at}`);
  });
}

// In int8, a sum that is rounded differently in its last digit can move an input to the next of its 255 levels.
for (const [precision, tolerance] of [["float32", 1e-5], ["int8", 0.05]]) {
  describe(`the included model in ${precision}`, async () => {
    const wanted = expected.included[precision];
    const elmo = await load(precision);

    test("has the vectors of the library", () => {
      elmo.embed(sentences).forEach((layers, number) => {
        assert.deepEqual(layers.shape, [3, sentences[number].length, 384]);
        assertClose(layers.data, wanted.layers[number], tolerance, `sentence ${number}`);
      });
    });

    test("has the surprisal of the library", () => {
      elmo.surprisal(sentences).forEach((found, number) => {
        assert.deepEqual(found.tokens, ["<S>", ...sentences[number], "</S>"]);
        assert.deepEqual(found.isUnknown, wanted.is_unknown[number]);
        assertClose(found.totalNats, wanted.total_nats[number], tolerance, `sentence ${number}`);
        found.nats.forEach((row, direction) => {
          const numbers = row.map((nats) => (Number.isNaN(nats) ? -1 : nats));
          assertClose(numbers, wanted.nats[number][direction], tolerance, `sentence ${number}, direction ${direction}`);
        });
      });
    });

    test("expects the words of the library", () => {
      for (const [direction, specialWords, words] of wanted.substitutes) {
        const found = elmo.substitutes(sentences[0], 1, { direction, n: 6, specialWords });
        if (precision === "float32") assert.deepEqual(found.map(({ word }) => word), words.map(({ word }) => word));
        if (precision === "float32") assert.deepEqual(found.map(({ wordId }) => wordId), words.map((one) => one.word_id));
        assertClose(found.map((one) => one.probability), words.map((one) => one.probability), tolerance, direction);
        assertClose(found.map((one) => one.score), words.map((one) => one.score), tolerance, direction);
      }
    });

    test("has the sentence vectors of the library", () => {
      for (const [trained, vectors] of [[false, wanted.sentence_vectors], [true, wanted.trained_vectors]]) {
        elmo.sentenceVectors(sentences, { trained }).forEach((vector, number) => {
          // A linear map multiplies small differences.
          assertClose(vector, vectors[number], 10 * tolerance, `sentence ${number}`);
        });
      }
    });

    test("has the bits of the same C functions outside of WebAssembly", { skip: !expected.bits && "no plain C here" }, () => {
      elmo.embed(sentences).forEach(({ data }, number) => {
        assert.deepEqual([...new Uint32Array(data.buffer)], expected.bits[precision][number]);
      });
    });
  });
}

test("a sentence has the same bits in any batch", async () => {
  const elmo = await load("int8");
  const together = elmo.embed(sentences);
  sentences.forEach((tokens, number) => assert.deepEqual(elmo.embed([tokens])[0].data, together[number].data));
  const many = Array.from({ length: 200 }, (_, at) => sentences[at % sentences.length]);
  elmo.embed(many).forEach(({ data }, at) => assert.deepEqual(data, together[at % sentences.length].data));
});

describe("documents", async () => {
  const wanted = expected.documents;
  const elmo = await load("float32");

  test("have the numbers of the library", () => {
    elmo.embedDocuments(wanted.documents, { layers: [2] }).forEach((layers, number) => {
      assert.equal(layers.length, wanted.documents[number].length);
      layers.forEach(({ data }, at) => assertClose(data, wanted.layers[number][at], 1e-5, `document ${number}, sentence ${at}`));
    });
    elmo.surprisalDocuments(wanted.documents).forEach((scored, number) => {
      scored.forEach(({ totalNats }, at) => assertClose(totalNats, wanted.total_nats[number][at], 1e-5, `document ${number}`));
    });
    const found = elmo.substitutes(sentences.at(-1), 3, { n: 6, before: [sentences[0], sentences[1]] });
    assert.deepEqual(found.map(({ word }) => word), wanted.substitutes);
  });

  test("are expected to have their own words again, as by the library", async () => {
    const { document, settings, nats, spelling_nats: spelling, substitutes, ...cached } = wanted.cached;
    for (const [name, cache] of [["default", true], ["own", settings]]) {
      const [scored] = elmo.surprisalDocuments([document], { cache });
      scored.forEach((found, number) => {
        found.nats.forEach((row, direction) => {
          const numbers = row.map((value) => (Number.isNaN(value) ? -1 : value));
          assertClose(numbers, nats[name][number][direction], 2e-5, `${name}, sentence ${number}`);
        });
        assertClose(found.spellingNats, spelling[name][number], 1e-5, `${name}, sentence ${number}`);
      });
    }
    for (const [direction, words] of Object.entries(substitutes)) {
      const found = elmo.substitutes(document[3], 5, { direction, n: 8, before: document.slice(0, 3), cache: true });
      assert.deepEqual(found.map(({ word, wordId }) => [word, wordId]), words.map(({ word, word_id: id }) => [word, id]));
      assertClose(found.map((one) => one.probability), words.map((one) => one.probability), 1e-4, direction);
    }
    const rows = elmo.wordSurprisal(cached.texts, { documents: true, cache: true });
    assertClose(rows.flatMap((row) => [row.forwardNats, row.backwardNats, row.spellingNats]), cached.words.flat(), 2e-5, "words");
    elmo.surprisal(document).forEach((found, number) => assertClose(found.spellingNats, cached.alone[number], 1e-5, "letters"));
    assert.throws(() => elmo.wordSurprisal(cached.texts, { cache: true }), /documents: true/);
    assert.throws(() => elmo.surprisalDocuments([document], { cache: { size: 0 } }), /size is 0/);
  });

  test("have their unknown words spelled by the vocabulary where a model has no letters", async () => {
    const words = elmo.vocabulary.words.filter((_, id) => !elmo.vocabulary.specialIds.includes(id));
    const spelling = new NgramSpelling(words);
    elmo.surprisal(wanted.cached.document).forEach(({ tokens, isUnknown }, number) => {
      const found = tokens.map((token, at) => (isUnknown[at] && !/[<&[#]/.test(token) ? spelling.nats(elmo.vocabulary.read(token)) : 0));
      const rows = wanted.cached.by_vocabulary[number];
      assertClose(found.filter((value) => value), rows.filter((_, at) => found[at]), 1e-6, `sentence ${number}`);
    });
  });

  test("have the same bits in any batch, and one of a single sentence those of the sentence", () => {
    const together = elmo.embedDocuments(wanted.documents);
    wanted.documents.forEach((document, number) => assert.deepEqual(elmo.embedDocuments([document])[0], together[number]));
    assert.deepEqual(together[1], elmo.embed([sentences.at(-1)]));
    assert.notDeepEqual(together[0][1], together[1][0]);
  });

  test("are read up to a sentence for its neighbors", () => {
    const [first, second] = [sentences[0], sentences.at(-1)];
    const index = new NeighborIndex(elmo, [second, first]);
    const { layers } = index.neighbors(second, 3, { n: 1, before: [first] });
    const [vector] = elmo.embedDocuments([[first, second]]).map((found) => found[1].vector(2, 3));
    const [other] = elmo.embed([first]).map((found) => found.vector(2, layers[2][0].token));
    const dot = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
    assertClose([layers[2][0].similarity], [dot(vector, other) / Math.sqrt(dot(vector, vector) * dot(other, other))], 1e-3, "cosine");
  });

  test("have words with the surprisal and the places of the library", () => {
    wanted.texts.forEach((text, number) => {
      const found = splitSentences(text, { offsets: true }).map((sentence) =>
        tokenize(sentence.text, { offsets: true }).map(({ text, start, stop }) => ({
          text,
          start: sentence.start + start,
          stop: sentence.start + stop,
        })),
      );
      assert.deepEqual(found.filter((tokens) => tokens.length), wanted.tokens[number]);
    });
    for (const [name, rows] of Object.entries(wanted.words)) {
      const found = elmo.wordSurprisal(wanted.texts, { documents: name === "document" });
      const places = ({ textIndex, sentenceIndex, wordIndex, word, start, stop, nTokens, unknown }) => [textIndex, sentenceIndex, wordIndex, word, start, stop, nTokens, unknown];
      const wantedPlaces = (row) => [row.text_index, row.sentence_index, row.word_index, row.word, row.start, row.stop, row.n_tokens, row.unknown];
      assert.deepEqual(found.map(places), rows.map(wantedPlaces));
      assertClose(found.flatMap((row) => [row.forwardNats, row.backwardNats]), rows.flatMap((row) => [row.forward_nats, row.backward_nats]), 1e-5, name);
    }
  });
});

test("a model of another shape, in float16, without a start state and a softmax", async () => {
  const elmo = await Elmo.load(expected.random.model);
  assert.equal(elmo.canPredict, false);
  assert.deepEqual(elmo.expectations, ["forward"]);
  elmo.embed(sentences).forEach(({ data, shape }, number) => {
    assert.deepEqual(shape, [4, sentences[number].length, 11]);
    assertClose(data, expected.random.layers[number], 1e-5, `sentence ${number}`);
  });
  assert.throws(() => elmo.surprisal(sentences), /no softmax/);
  assert.throws(() => elmo.sentenceVectors(sentences, { trained: true }), /stores no head/);
});

for (const [kind, what] of [
  ["full", "a softmax of its own"],
  ["tied", "a softmax that shares its table of words"],
  ["inner", "a softmax with an inner layer"],
  ["integers", "such a table in integers"],
]) {
  test(`a model with ${what} reads and predicts`, async () => {
    const wanted = expected[kind];
    const elmo = await Elmo.load(wanted.model);
    elmo.embed(sentences).forEach(({ data }, number) => assertClose(data, wanted.layers[number], 1e-5, `sentence ${number}`));
    elmo.surprisal(sentences).forEach(({ totalNats }, number) => {
      assertClose(totalNats, wanted.total_nats[number], 1e-5, `sentence ${number}`);
    });
    if (wanted.trained_vectors) {
      elmo.sentenceVectors(sentences, { trained: true }).forEach((vector, number) => {
        assertClose(vector, wanted.trained_vectors[number], 1e-5, `sentence ${number}`);
      });
    }
  });
}

test("each weighting of sentence vectors, and the default of a model without a vocabulary, are those of the library", async () => {
  assert.ok(expected.poolings.length > 3);
  for (const { model, weighting, vectors } of expected.poolings) {
    (await Elmo.load(model)).sentenceVectors(sentences).forEach((vector, number) => {
      assertClose(vector, vectors[number], 1e-5, `${path.basename(model)} (${weighting}), sentence ${number}`);
    });
  }
});

test("layers can be chosen", async () => {
  const elmo = await load("int8", { predicts: false });
  const [all] = elmo.embed(sentences);
  const [some] = elmo.embed(sentences, { layers: [2, 0] });
  assert.deepEqual(some.shape, [2, 6, 384]);
  assert.deepEqual(some.vector(0, 3), all.vector(2, 3));
  assert.deepEqual(some.vector(1, 3), all.vector(0, 3));
  for (const layers of [[], [3], [0, 0], "top"]) assert.throws(() => elmo.embed(sentences, { layers }), /layers is/);
  assert.throws(() => all.vector(3, 0), RangeError);
});

test("expected words of a whole sentence are those of its positions", async () => {
  const elmo = await load("int8");
  const long = Array.from({ length: 20 }, (_, at) => sentences.at(-1)[at % sentences.at(-1).length]); // more than one block
  const [{ expected: found }] = elmo.surprisal([long], { nExpected: 4 });
  assert.equal(found.length, 20);
  for (const position of [0, 14, 15, 16, 19]) {
    for (const direction of elmo.expectations) {
      assert.deepEqual(found[position][direction], elmo.substitutes(long, position, { direction, n: 4 }));
    }
  }
});

test("another start state gives other vectors", async () => {
  const [warm, zero] = await Promise.all([load("int8"), load("int8", { start: "zero" })]);
  assert.notDeepEqual(warm.embed(sentences)[0].data, zero.embed(sentences)[0].data);
});

test("sentences are those of the library", () => {
  for (const [text, wrapped, sentences] of expected.texts) {
    const split = splitSentences(text, { wrapped }).map((sentence) => tokenize(sentence)).filter((tokens) => tokens.length);
    assert.deepEqual(split, sentences, `${JSON.stringify(text)}, wrapped: ${wrapped}`);
  }
});

test("wrapped lines are joined where that is asked for", () => {
  const text = "It rained\r\nall day. We\r\nleft.\n\nHe slept";
  const [joined, apart] = ["yes", "no"].map((wrapped) => splitSentences(text, { wrapped }));
  assert.deepEqual(joined.map((one) => one.replace("  ", " ")), ["It rained all day.", "We left.", "He slept"]);
  assert.deepEqual(apart, ["It rained", "all day.", "We", "left.", "He slept"]);
  const [{ start, stop }] = splitSentences(text, { offsets: true, wrapped: "yes" });
  assert.equal(text.slice(start, stop), "It rained\r\nall day.");
  assert.throws(() => splitSentences(text, { wrapped: true }), /wrapped is true. Expected one of auto, yes, no/);
});

test("what is read otherwise than it is written is said once, on the console", async (t) => {
  const warnings = t.mock.method(console, "warn", () => {}).mock;
  const vocabulary = new Vocabulary(["<S>", "</S>", "<UNK>", "&lt;"]); // which has escapes of its own
  const other = new Vocabulary(["<S>", "</S>", "<UNK>"]);
  assert.deepEqual([vocabulary.read("&gt;"), other.read("@.@"), other.read("@.@")], ["&gt;", ".", "."]);
  const means = await Elmo.load(expected.random.model);
  means.sentenceVectors(sentences);
  means.sentenceVectors(sentences);
  const known = new Vocabulary(["<S>", "</S>", "<UNK>", "the", "US"]);
  for (let time = 0; time < 2; time++) assert.deepEqual(known.read.withCase(["THE", "US"]), ["the", "US"]);
  const said = warnings.calls.map(({ arguments: [message] }) => message);
  assert.equal(said.filter((message) => /plain means/.test(message)).length, 1);
  for (const what of [/escapes/, /capitals/]) assert.ok(said.filter((message) => what.test(message)).length <= 1);
});

test("tokens are those of Python", () => {
  for (const [text, tokens] of expected.tokens) assert.deepEqual(tokenize(text), tokens, JSON.stringify(text));
  assert.deepEqual(splitAtSpaces(" A\tbank .\r\n"), ["A", "bank", "."]);
  assert.deepEqual(splitAtSpaces("10\u00a0km far\u3000away"), ["10\u00a0km", "far\u3000away"]);
});

test("typographic marks are read as Python reads them", () => {
  for (const [words, reads] of expected.reads) {
    const vocabulary = new Vocabulary(words);
    for (const [token, read] of reads) assert.equal(vocabulary.read(token), read, token);
  }
});

test("sentences in capitals are read in the case in which Python reads them", () => {
  let nRead = 0;
  for (const [words, sentences] of expected.capitals) {
    const { read } = new Vocabulary(words);
    for (const [tokens, wanted] of sentences) {
      const found = read.withCase(tokens);
      assert.deepEqual(found, wanted, tokens.join(" "));
      if (found !== tokens) nRead++;
    }
  }
  assert.ok(nRead > 100 && nRead < 1900, `${nRead}`);
});

test("a long line takes time in proportion to its length", () => {
  for (const part of [". ", "a\u2019", "\u2026.", "'", "\u200b.", ".\u2003"]) tokenize(part.repeat(100_000));
  assert.deepEqual(tokenize(`.${" ".repeat(300_000)}x`), [".", "x"]);
});

test("neighbors are those of Python's index", async () => {
  const { sentences: indexed, query, settings, found: wanted } = expected.neighbors;
  const index = new NeighborIndex(await load("float32"), indexed);
  settings.forEach(({ among, n_neighbors: n }, number) => {
    const found = index.neighbors(query, 2, { among, n });
    const plain = (values) => values.map(({ similarity, ...rest }) => rest);
    const similarities = (values) => values.map(({ similarity }) => similarity);
    assert.deepEqual(plain(found.contextFree), plain(wanted[number].context_free));
    assertClose(similarities(found.contextFree), similarities(wanted[number].context_free), 2e-4, "layer 0");
    for (const layer of [1, 2]) {
      assert.deepEqual(plain(found.layers[layer]), plain(wanted[number].layers[layer]));
      assertClose(similarities(found.layers[layer]), similarities(wanted[number].layers[layer]), 2e-4, `layer ${layer}`);
    }
  });
  assert.throws(() => index.neighbors(query, 2, { layers: [3] }), /no layer 3/);
  assert.throws(() => index.neighbors(query, 2, { layers: [1.5] }), /no layer 1.5/);
  assert.throws(() => index.neighbors(query, 2, { layers: [undefined] }), /no layer undefined/);
  assert.throws(() => index.neighbors(query, 2, { layers: 1 }), /layers is 1\. Pass an array/);
  for (const n of [0, -1, 1.5, "1"]) assert.throws(() => index.neighbors(query, 2, { n }), /n is .+; it must be an integer/);
  assert.throws(() => index.neighbors(query, 2, { minCount: 0 }), /minCount is 0/);
  assert.throws(() => index.neighbors(query, 0.5), /of token 0.5/);
});

test("a model is found by a path, a file URL and its web address", async () => {
  const url = pathToFileURL(expected.model);
  for (const source of [expected.model, path.relative(process.cwd(), expected.model), url, url.href, `${url.href}/`]) {
    assert.equal((await Elmo.load(source, { predicts: false })).nLayers, 3);
  }
  const { createServer } = await import("node:http");
  const server = createServer((request, response) => {
    try {
      response.end(readFileSync(path.join(expected.model, path.basename(request.url))));
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    const elmo = await Elmo.load(`http://127.0.0.1:${server.address().port}/model`);
    assert.equal(elmo.canPredict, true);
  } finally {
    server.close();
  }
});

test("words of a vocabulary are those that Python reads", () => {
  const text = "\ufeff<S>\n</S>\r\n<UNK>\nthe\n\ufeffthe\n\x85a\x1c\n\u200b\n";
  assert.deepEqual(Vocabulary.fromText(text).words, ["<S>", "</S>", "<UNK>", "the", "\ufeffthe", "a", "\u200b"]);
});

test("mistakes are explained", async () => {
  await assert.rejects(Elmo.load("/nowhere/at-all"), /config\.json does not exist/);
  await assert.rejects(load("int4"), /precision is 'int4'/);
  await assert.rejects(load("int8", { start: "hot" }), /start is 'hot'/);
  await assert.rejects(load("int8", { wasm: new Uint8Array([1, 2, 3]) }), /WebAssembly with 128-bit SIMD/);
  const elmo = await load("int8", { predicts: false });
  assert.throws(() => elmo.embed("The bank"), /array of tokenized sentences/);
  assert.throws(() => elmo.embed(["The bank"]), /sentence as an array of tokens/);
  assert.throws(() => elmo.embed([["The", 5]]), /tokens to be strings, but got number/);
  assert.throws(() => elmo.embed([["The", undefined]]), /tokens to be strings, but got undefined/);
  assert.throws(() => elmo.embedDocuments(sentences), /sentence as an array of tokens, but got string/);
  assert.throws(() => elmo.embedDocuments([["The"]]), /sentence as an array of tokens, but got string/);
  assert.throws(() => elmo.wordSurprisal("The bank"), /array of raw texts/);
  assert.throws(() => elmo.substitutes(sentences[0], 0), /cannot predict/);
  const whole = await load("int8");
  assert.throws(() => whole.substitutes(sentences[0], 6), /position is 6/);
  assert.throws(() => whole.substitutes(sentences[0], 0, { direction: "up" }), /direction is 'up'/);
  assert.throws(() => whole.substitutes(sentences[0], 0, { n: 0 }), /n is 0; it must be an integer of at least 1/);
  assert.throws(() => whole.surprisal(sentences, { nExpected: -1 }), /nExpected is -1/);
});

test("a config.json that is something else is named", async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), "elmokit model \u00fc-")); // as it is written, not as in a URL
  t.after(() => rmSync(folder, { recursive: true }));
  await assert.rejects(Elmo.load(folder), ({ message }) => message === `${path.join(folder, "config.json")} does not exist.`);
  for (const content of ["<!DOCTYPE html>", "null", '{"format": "elmokit", "format_version": 1}', '{"format": "bert"}']) {
    writeFileSync(path.join(folder, "config.json"), content);
    const problem = await Elmo.load(folder).catch(({ message }) => message);
    assert.ok(problem.startsWith(`${path.join(folder, "config.json")} is not the config.json of an elmokit model`), problem);
  }
});

test("settings of sentence vectors that cannot be used are refused", async (t) => {
  const copy = mkdtempSync(path.join(tmpdir(), "elmokit-"));
  t.after(() => rmSync(copy, { recursive: true }));
  cpSync(expected.model, copy, { recursive: true });
  const settings = JSON.parse(readFileSync(path.join(copy, "config.json"), "utf8"));
  for (const [change, message] of [
    [{ layers: 99 }, /layers is .+ 'average', or distinct numbers from 0 to 2/],
    [{ smoothing: 0 }, /smoothing is .+\. It must be above 0/],
    [{ weighting: "max" }, /weighting is "max"\. Expected one of mean, sif/],
    [{ smothing: 3e-4 }, /there is no setting smothing/],
  ]) {
    const changed = { ...settings, sentence_head: { ...settings.sentence_head, ...change } };
    writeFileSync(path.join(copy, "config.json"), JSON.stringify(changed));
    const sentenceVectors = async () => (await Elmo.load(copy, { predicts: false })).sentenceVectors(sentences, { trained: true });
    await assert.rejects(sentenceVectors, message);
  }
});

test("a sentence head that was not loaded is said to be stored", async () => {
  const elmo = await load("int8", { predicts: false, trained: false });
  assert.throws(() => elmo.sentenceVectors(sentences, { trained: true }), /was not loaded.*without \{ trained: false \}/);
});
