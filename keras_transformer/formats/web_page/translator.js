// Translates text with encoder.onnx and step.onnx, as the package does.
import { SentencePiece } from "./sentencepiece.js";
const INVISIBLE = /^[\p{Cc}\p{Cf}\p{Z}\p{DI}\u2800]*$/u, TAG = /^\s*(>>.*?<<)/s;
const CJK = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Bopo}\u3000-\u303f\uff00-\uffef]/u; // no spaces between sentences
// Initials, numbers, and words without a vowel such as "Dr": no sentence ends after their dot.
const SHORT = /(?:^|[^\p{L}\p{N}])(?:\p{L}|\p{N}{1,2}|[bcdfghjklmnpqrstvwxz]{2,5}|prof)\.\s*$/iu;

export class Translator {
  /** Opens a model with onnxruntime-web. `read` returns the bytes of a file of the page. */
  static async open(ort, read) {
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = await read("onnxruntime/ort.wasm");
    const config = JSON.parse(new TextDecoder().decode(await read("model/config.json")));
    const externalData = [{ path: "weights.bin", data: await read("model/weights.bin") }];
    const session = async (name) => ort.InferenceSession.create(await read(`model/${name}.onnx`), { externalData });
    const tokenizer = async (side) => new SentencePiece(await read(`model/tokenizer/${config[`${side}_tokenizer`]}`));
    const segmenter = (granularity) => new Intl.Segmenter(config.languages[0]?.lang, { granularity });
    return Object.assign(new Translator(), {
      ort, config, source: await tokenizer("source"), target: await tokenizer("target"), encoder: await session("encoder"),
      step: await session("step"), ofSentences: segmenter("sentence"), ofCharacters: segmenter("grapheme"),
    });
  }
  /** Returns the tag such as ">>fra<<" at the beginning of a line, or "". */
  #tagOf(line) { return (Object.keys(this.config.tag_ids).length && line.match(TAG)?.[1]) || ""; }
  /** Returns the sentences of a line, with the spaces after them. After a tag, the line is one sentence. */
  sentences(line) {
    const found = [], segments = this.#tagOf(line) ? [line] : Array.from(this.ofSentences.segment(line), (x) => x.segment);
    for (const segment of segments) found.push((SHORT.test(found.at(-1)) ? found.pop() : "") + segment);
    return found;
  }
  /** Translates a line as one sentence, or in parts if the model does not accept all its pieces. */
  async translate(line) {
    const { config } = this, tag = this.#tagOf(line), id = config.tag_ids[tag], translated = [];
    const before = id ? [id] : [...config.source_prefix_ids, ...(tag ? [config.unk_id] : [])];
    const after = config.source_eos ? [config.eos_id] : [], most = config.max_length - before.length - after.length;
    for (const [part, ids] of this.#split(line.trimStart().slice(tag.length), most)) {
      const isCopied = this.#isUnknown(ids);
      const found = isCopied || !ids.length ? [] : await this.search([...before, ...ids.slice(0, most), ...after]);
      translated.push([part, isCopied ? part.trim() : this.target.decode(found)]);
    }
    return join(translated);
  }
  /** Splits a text between sentences, or in halves between words or characters. Returns parts and their ids. */
  #split(text, most) {
    const ids = INVISIBLE.test(text) ? [] : this.source.encode(text.trim());
    if (ids.length <= most || this.#isUnknown(ids)) return [[text, ids]];
    const sentences = this.sentences(text), words = text.trimStart().split(/(?<=\s)(?=\S)/);
    const units = words.length > 1 ? words : Array.from(this.ofCharacters.segment(text), (x) => x.segment);
    const halves = [units.slice(0, units.length / 2).join(""), units.slice(units.length / 2).join("")];
    const parts = sentences.length > 1 ? sentences : halves;
    return parts[0] ? parts.flatMap((x) => this.#split(x, most)) : [[text, ids]];
  }
  /** Returns whether some pieces are unknown, and no other piece has a letter or digit. */
  #isUnknown(ids) {
    const known = ids.filter((id) => id !== this.config.unk_id);
    return known.length < ids.length && !known.some((id) => /[\p{L}\p{N}]/u.test(this.source.pieces[id].text));
  }
  /** Returns the pieces of the best translation. `BeamSearch` of the package has the same rules. */
  async search(sourceIds) {
    const { config, ort } = this, { beam_size: beams, eos_id: eos, target_prefix_ids: prefix } = config;
    const cache = {}, limit = config.search_max_length ?? Math.min(sourceIds.length + config.extra_length, config.max_length);
    const integers = (values, ...shape) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
    const isWu = config.length_penalty_form === "wu", alpha = config.length_penalty;
    const score = (total, length) => total / (isWu ? (5 + length) / 6 : length) ** alpha;
    const memory = await this.encoder.run({ source_ids: integers(sourceIds, 1, sourceIds.length) });
    const empty = ({ shape }) => new ort.Tensor("float32", new Float32Array(), [1, 1, shape[2], 0, shape[4]]);
    for (const x of this.step.inputMetadata) if (x.name.startsWith("past_")) cache[x.name] = empty(x);
    let live = [{ ids: [config.bos_id], total: 0, parent: 0 }], best = { score: -Infinity }, finished = 0;
    for (let length = 1; length <= limit; length++) {
      const forced = prefix[length - 1], count = 2 * beams;
      const output = await this.step.run({
        ...memory, ...cache, num_candidates: integers([count], 1),
        token_ids: integers(live.map((x) => x.ids.at(-1)), 1, live.length),
        parents: integers(live.map((x) => x.parent), 1, live.length),
      });
      for (const name in cache) cache[name] = output[name.slice("past_".length)];
      const logarithms = output.candidate_log_probabilities.data;
      let candidates = [{ ids: [...live[0].ids, forced], total: 0, parent: 0 }];
      if (forced === undefined) candidates = Array.from(output.candidate_ids.data, (token, i) => {
        const parent = Math.floor(i / count), { ids, total } = live[parent];
        return { ids: [...ids, Number(token)], total: Math.fround(total + logarithms[i]), parent };
      }).filter((x) => x.total > -Infinity);
      candidates.sort((a, b) => b.total - a.total);
      live = [];
      for (const [rank, x] of candidates.slice(0, 2 * beams).entries()) {
        const ends = x.ids.at(-1) === eos || length === limit, own = score(x.total, length);
        if (!ends && live.length < beams) live.push(x);
        if (ends && rank < beams && ++finished && own > best.score) best = { ids: x.ids, score: own };
      }
      if (!live.length || score(live[0].total, limit) <= best.score || finished >= beams) break;
    }
    return best.ids.slice(1 + prefix.length);
  }
}
/** Joins the translations of parts, which follow their sources, as their script joins sentences. */
export function join(parts) {
  let text = "", source = "";
  for (const [nextSource, part] of parts.filter((x) => x[1])) {
    const isSpaced = /[\s\p{P}]$/u.test(source) || CJK.test(source.at(-1));
    text += (isSpaced && !CJK.test(text.at(-1)) ? " " : "") + part;
    source = nextSource;
  }
  return text;
}
