// Prints, for each model in a folder, the cases whose ids or texts differ from those of SentencePiece.
import { readFile, readdir } from "node:fs/promises";

const [, , script, folder] = process.argv;
const { SentencePiece } = await import(script);
const differences = {};
for (const name of (await readdir(folder)).filter((x) => x.endsWith(".model"))) {
  const tokenizer = new SentencePiece(new Uint8Array(await readFile(`${folder}/${name}`)));
  const { encoded, decoded } = JSON.parse(await readFile(`${folder}/${name}.json`, "utf8"));
  const found = [
    ...encoded.map(([text, ids]) => [text, ids, tokenizer.encode(text)]),
    ...decoded.map(([ids, text]) => [ids, text, tokenizer.decode(ids)]),
  ];
  const wrong = found.filter(([, expected, own]) => JSON.stringify(expected) !== JSON.stringify(own));
  differences[name] = { count: found.length, wrong };
}
console.log(JSON.stringify(differences));
