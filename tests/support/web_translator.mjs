// Prints what a method of an exported page's translator, or its function `join`, makes of values.
import { readFile } from "node:fs/promises";
import { gunzipSync } from "node:zlib";

const [, , folder, values, method] = process.argv;
const { Translator, join } = await import(`${folder}/translator.js`);
const read = async (path) => new Uint8Array(gunzipSync(await readFile(`${folder}/${path}.gz`)));
let translator = Object.assign(new Translator(), { join, config: { tag_ids: {} } });
translator.ofSentences = new Intl.Segmenter("en", { granularity: "sentence" });
if (method === "translate") translator = await Translator.open(await import(`${folder}/onnxruntime/ort.js`), read);
const found = [];
for (const value of JSON.parse(await readFile(values, "utf8"))) found.push(await translator[method](value));
console.log(JSON.stringify(found));
