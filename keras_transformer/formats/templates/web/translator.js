// Translates text with encoder.onnx and step.onnx, as the package does.

import { SentencePiece } from "./sentencepiece.js";

const INVISIBLE = /^[\p{Cc}\p{Cf}\p{Z}\p{DI}\u2800]*$/u;
const TAG = /^\s*(>>.*?<<)/s;
// Scripts without spaces, and scripts that have spaces only between sentences.
const CJK = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Bopo}\u3000-\u303f\uff00-\uffef]/u;
const SOUTH_EAST_ASIAN = /[\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}\p{sc=Tibt}]/u;
// Initials, numbers, and words without a vowel, such as "Dr": no sentence ends after their dot.
const SHORT = /(?:^|[^\p{L}\p{N}])(?:\p{L}|\p{N}{1,2}|[bcdfghjklmnpqrstvwxz]{2,5}|prof|st)\.\s*$/iu;

export class Translator {
  /** Opens a model with onnxruntime-web. `read` returns the bytes of a file of the model. */
  static async open(ort, read) {
    const self = new Translator();
    const config = JSON.parse(new TextDecoder().decode(await read("config.json")));
    const externalData = [{ path: "weights.bin", data: await read("weights.bin") }];
    const session = async (name) => ort.InferenceSession.create(await read(name), { externalData });
    const tokenizer = async (name) => new SentencePiece(await read(`tokenizer/${name}`));
    Object.assign(self, { ort, config, encoder: await session("encoder.onnx"), step: await session("step.onnx") });
    self.source = await tokenizer(config.source_tokenizer);
    self.target = await tokenizer(config.target_tokenizer);
    self.segmenters = ["sentence", "grapheme"].map((granularity) => new Intl.Segmenter(config.languages[0]?.code, { granularity }));
    return self;
  }

  /** Returns the sentences of a text. The spaces after a sentence belong to it. */
  sentences(text) {
    const found = [];
    for (const { segment } of this.segmenters[0].segment(text)) {
      if (SHORT.test(found.at(-1) ?? "")) found.push(found.pop() + segment);
      else found.push(segment);
    }
    return found;
  }

  /** Returns the tag such as ">>fra<<" at the beginning of a line, or "". */
  tagOf(line) {
    return (Object.keys(this.config.tag_ids).length && line.match(TAG)?.[1]) || "";
  }

  /** Translates a line as one sentence, or in parts if the model does not accept all its pieces. */
  async translate(line) {
    const { config } = this, tag = this.tagOf(line), id = config.tag_ids[tag];
    const prefix = id ? [id] : [...config.source_prefix_ids, ...(tag ? [config.unk_id] : [])];
    const suffix = config.source_eos ? [config.eos_id] : [];
    const most = config.max_length - prefix.length - suffix.length, translated = [];
    const isShort = (text) => {
      const ids = this.source.encode(text.trim());
      return ids.length <= most || this.#isUnknown(ids);
    };
    for (const part of this.#split(line.trimStart().slice(tag.length), isShort)) {
      const ids = this.source.encode(part.trim());
      const isEmpty = INVISIBLE.test(part) || !ids.length;
      const isCopied = isEmpty || this.#isUnknown(ids);
      translated.push([part, isEmpty ? "" : isCopied ? part.trim() : await this.#best([...prefix, ...ids.slice(0, most), ...suffix])]);
    }
    return join(translated);
  }

  /** Splits a text between sentences, then between words, then between characters. */
  #split(text, isShort) {
    if (isShort(text)) return [text];
    let parts = this.sentences(text);
    for (const split of [(x) => x.trim().split(/(?<=\s)(?=\S)/), (x) => [...this.segmenters[1].segment(x)].map((y) => y.segment)]) {
      if (parts.length > 1) break;
      const units = split(text), middle = units.length >> 1;
      parts = [units.slice(0, middle), units.slice(middle)].map((x) => x.join("")).filter(Boolean);
    }
    return parts.length > 1 ? parts.flatMap((x) => this.#split(x, isShort)) : parts;
  }

  /** Returns whether some pieces are unknown, and no other piece has a letter or digit. */
  #isUnknown(ids) {
    const known = ids.filter((id) => id !== this.config.unk_id);
    return known.length < ids.length && !known.some((id) => /[\p{L}\p{N}]/u.test(this.source.pieces[id]));
  }

  async #best(ids) {
    const { config } = this, limit = config.search_max_length ?? Math.min(ids.length + config.extra_length, config.max_length);
    const found = await this.search(ids, limit);
    return this.target.decode(found.slice(config.target_prefix_ids.length).filter((id) => id !== config.eos_id));
  }

  /** Returns the ids of the best translation. See `BeamSearch` in the package for the rules. */
  async search(sourceIds, limit) {
    const { config, ort } = this, { beam_size: beams, eos_id: eos, length_penalty: alpha } = config;
    const integers = (values, ...shape) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
    const divisor = (length) => ((5 + length) / 6) ** alpha;
    const memory = await this.encoder.run({ source_ids: integers(sourceIds, 1, sourceIds.length) });
    const numCandidates = integers([2 * beams], 1);
    let cache = {}, live = [{ ids: [config.bos_id], total: 0, parent: 0 }], best = { score: -Infinity }, finished = 0;
    for (const { name, shape } of this.step.inputMetadata.filter((x) => x.name.startsWith("past_"))) {
      cache[name] = new ort.Tensor("float32", new Float32Array(), [1, 1, shape[2], 0, shape[4]]);
    }
    for (let length = 1; length <= limit; length++) {
      const output = await this.step.run({
        ...memory, ...cache, num_candidates: numCandidates,
        token_ids: integers(live.map((x) => x.ids.at(-1)), 1, live.length),
        parents: integers(live.map((x) => x.parent), 1, live.length),
      });
      for (const name in cache) cache[name] = output[name.slice("past_".length)];
      const candidates = [], forced = config.target_prefix_ids[length - 1];
      const tokens = output.candidate_ids.data, logarithms = output.candidate_log_probabilities.data;
      const add = ({ ids, total }, parent, token, logarithm) =>
        candidates.push({ ids: [...ids, token], total: Math.fround(total + logarithm), parent });
      if (forced !== undefined) add(live[0], 0, forced, logProbability(output.logits.data, forced));
      else tokens.forEach((token, i) => add(live[Math.floor(i / (2 * beams))], Math.floor(i / (2 * beams)), Number(token), logarithms[i]));
      candidates.sort((a, b) => b.total - a.total);
      live = [];
      for (const [rank, candidate] of candidates.slice(0, 2 * beams).entries()) {
        const score = candidate.total / divisor(length);
        if (candidate.total === -Infinity) continue;
        if (candidate.ids.at(-1) !== eos && length < limit) live.push(candidate);
        else if (rank < beams && ++finished && score > best.score) best = { score, ids: candidate.ids };
      }
      live.splice(beams);
      if (!live.length || live[0].total / divisor(limit) <= best.score || finished >= beams) break;
    }
    return best.ids.slice(1);
  }
}

function logProbability(logits, token) {
  const largest = logits.reduce((a, b) => Math.max(a, b));
  return logits[token] - largest - Math.log(logits.reduce((sum, x) => sum + Math.exp(x - largest), 0));
}

/** Joins the translations of parts, each with its source, as their script joins sentences. */
export function join(parts) {
  let text = "", last = "";
  for (const [source, part] of parts) {
    const space = last.match(/\s*$/)[0], end = last.trim().at(-1) ?? "", isSpaced = space || CJK.test(end) || /\p{P}/u.test(end);
    if (!text || !part || CJK.test(text.at(-1))) text += part;
    else if (SOUTH_EAST_ASIAN.test(text.at(-1))) text += space + part;
    else text += (isSpaced ? " " : "") + part;
    if (part) last = source;
  }
  return text;
}
