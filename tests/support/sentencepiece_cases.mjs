// Prints the cases of each model in a folder whose ids or texts differ from SentencePiece's.
import { readFile, readdir } from "node:fs/promises";

const folder = process.argv[2], wrong = {};
const { SentencePiece } = await import(`${folder}/sentencepiece.js`);
for (const file of (await readdir(folder)).filter((x) => x.endsWith(".model"))) {
  const name = file.replace(".model", "");
  const tokenizer = new SentencePiece(new Uint8Array(await readFile(`${folder}/${file}`)));
  const [encoded, decoded] = JSON.parse(await readFile(`${folder}/${name}.json`, "utf8"));
  const found = encoded.map(([text, ids]) => [text, ids, tokenizer.encode(text)]);
  found.push(...decoded.map(([ids, text]) => [ids, text, tokenizer.decode(ids)]));
  wrong[name] = found.filter(([, a, b]) => JSON.stringify(a) !== JSON.stringify(b));
}
console.log(JSON.stringify(wrong));
