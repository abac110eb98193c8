// Translates what the page sends, so that typing never waits.
import * as ort from "./onnxruntime/ort.js";
import { Translator, join } from "./translator.js";
const known = new Map(); // translations of sentences
let newest;
/** Returns the bytes of a file, which is stored with gzip. Some servers unpack it themselves. */
async function read(path) {
  const answer = await fetch(`${path}.gz`);
  if (!answer.ok) throw new Error(`${path}.gz has the status ${answer.status}`);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}
addEventListener("unhandledrejection", (event) => postMessage({ error: event.reason.message }));
const opened = Translator.open(ort, read);
opened.then((translator) => postMessage({ languages: translator.config.languages }));
onmessage = async ({ data: { number, text } }) => {
  newest = number;
  const translator = await opened, lines = [];
  for (const line of text.split("\n")) {
    const parts = [], place = lines.push("") - 1;
    for (const sentence of translator.sentences(line)) {
      if (!known.has(sentence)) known.set(sentence, await translator.translate(sentence));
      await new Promise((done) => setTimeout(done)); // Newer messages arrive.
      if (newest !== number) return;
      parts.push([sentence, known.get(sentence)]);
      lines[place] = join(parts);
      postMessage({ number, text: lines.join("\n") });
    }
  }
  postMessage({ number, text: lines.join("\n"), isDone: true });
};
