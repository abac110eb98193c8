// Prints the translations of the lines of a JSON file, by the files of an exported page.
import { readFile } from "node:fs/promises";
import { gunzipSync } from "node:zlib";

const [, , folder, linesFile, method = "translate"] = process.argv;
const { Translator, join } = await import(`${folder}/translator.js`);
const ort = await import(`${folder}/onnxruntime/ort.js`);
const read = async (path) => new Uint8Array(gunzipSync(await readFile(`${folder}/${path}.gz`)));
const translator = await Translator.open(ort, read);
const translations = [];
for (const line of JSON.parse(await readFile(linesFile, "utf8"))) {
  translations.push(await (method === "join" ? join(line) : translator[method](line)));
}
console.log(JSON.stringify(translations));
