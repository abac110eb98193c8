// Translates what the page sends, so that typing never waits.

import * as ort from "./onnxruntime/ort.js";
import { Translator, join } from "./translator.js";

const MOST_KNOWN = 1000;
const known = new Map(); // translations of sentences
let newest = 0;

/** Returns the bytes of a file, which is stored with gzip. Some servers unpack it themselves. */
async function read(path) {
  const answer = await fetch(`${path}.gz`);
  if (!answer.ok) throw new Error(`${path}.gz: status ${answer.status}`);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}

async function open() {
  Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: await read("onnxruntime/ort.wasm") });
  const translator = await Translator.open(ort, (path) => read(`model/${path}`));
  postMessage({ languages: translator.config.languages });
  return translator;
}
const opened = open();
opened.catch((error) => postMessage({ error: error.message }));

onmessage = async ({ data: { number, text } }) => {
  newest = number;
  const translator = await opened, lines = [];
  for (const line of text.split("\n")) {
    const parts = [], tag = translator.tagOf(line);
    lines.push("");
    for (const sentence of translator.sentences(line)) {
      const full = sentence.startsWith(tag) ? sentence : tag + sentence;
      if (known.size > MOST_KNOWN) known.clear();
      if (!known.has(full)) known.set(full, await translator.translate(full));
      await new Promise((done) => setTimeout(done)); // Newer messages arrive.
      if (newest !== number) return;
      parts.push([sentence, known.get(full)]);
      lines[lines.length - 1] = join(parts);
      postMessage({ number, text: lines.join("\n") });
    }
  }
  postMessage({ number, text: lines.join("\n"), isDone: true });
};
