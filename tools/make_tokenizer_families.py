#!/usr/bin/env python3
"""Writes tests/golden/tokenizers: a tiny tokenizer of every kind that the supported families use, and what the reference
libraries make of the same texts with it.

Each file has the parts (normalizer, pre-tokenizer, decoder, post-processor, model flags) of the family's own
tokenizer.json, around a vocabulary of some hundred tokens trained on the sentences of make_tokenizer_fixture.py.
cases.jsonl holds one text a line with its ids by tokenizer, and the decoded text where it is not the text itself.
Needs the packages `tokenizers` and `sentencepiece`:  python tools/make_tokenizer_families.py
Thousands of other texts (any characters, long runs, code, digits, special tokens) for the same tokenizers:
    python tools/make_tokenizer_families.py --random 5000 --seed 7 -o FILE
    KVSCOPE_TOKENIZER_CASES=FILE build/ci/tests/core_tests --gtest_filter='*TokenizerFamily.Gives*'
"""

import argparse
import io
import json
import pathlib
import random

import sentencepiece
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

import make_tokenizer_fixture as texts

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tokenizers"
CORPUS = (texts.SENTENCES + texts.CODE + [" ".join(texts.WORDS)] * 2) * 3
COUNT = 320
SPACE = "\u2581"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ["[\r\n]", "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0370-\u0373\u0388-\u03ff\u0400-\u0481]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]


def byte_level(before, bos=None, normalizer=None, ignore_merges=False, digits=False, regex=False):
    """Byte-level BPE behind the given splits."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in before]
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [bos] if bos else []
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=specials,
        show_progress=False))
    if bos:
        tokenizer.post_processor = tokenizers.processors.Sequence([
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])])
    else:
        tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    return tokenizer


def byte_fallback(first_only):
    """SentencePiece BPE as tokenizer.json has it: Llama 2 (a prefix before every text) or newer (at the start only)."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, show_progress=False, limit_alphabet=90))
    learned = json.loads(learner.to_str())["model"]
    vocab = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocab += [token for token, _ in sorted(learned["vocab"].items(), key=lambda item: item[1])] + [SPACE * 2, SPACE * 4]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learned["merges"]]
    merges += [(SPACE, SPACE), (SPACE * 2, SPACE * 2)]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocab)}, merges=merges,
                                                unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tail = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(tail)
    if first_only:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def flagged_tokens():
    """Added tokens with every flag, and splits with every behaviour."""
    tokenizer = byte_level([], regex=True)
    steps = [pre_tokenizers.Split(Regex(r"\d+"), "merged_with_previous"), pre_tokenizers.Split("-", "merged_with_next"),
             pre_tokenizers.Split(Regex("[.!?]"), "contiguous"), pre_tokenizers.Split("\t", "removed"),
             pre_tokenizers.Punctuation("isolated"),
             pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()])
    token = tokenizers.AddedToken
    tokenizer.add_special_tokens([token("<mask>", lstrip=True, normalized=False), token("<pad>", rstrip=True)])
    tokenizer.add_tokens([token("token", single_word=True), token("==", normalized=False), token("block", normalized=True)])
    return tokenizer


def families():
    chat = ["<|im_start|>", "<|im_end|>"]
    out = {
        "llama2": byte_fallback(False),
        "mistral": byte_fallback(True),
        "minicpm": byte_fallback(False),
        "llama3": byte_level([LLAMA3], bos="<|begin_of_text|>", ignore_merges=True),
        "smollm2": byte_level([], digits=True, regex=True),
        "qwen2": byte_level([QWEN2], normalizer=normalizers.NFC()),
        "tekken": byte_level([TEKKEN], bos="<s>", ignore_merges=True),
        "deepseek2": byte_level(DEEPSEEK, digits=True),
        "glm4": byte_level([LLAMA3]),
        "unigram": unigram(),
        "flags": flagged_tokens(),
    }
    for name in ("minicpm", "smollm2", "qwen2"):
        out[name].add_special_tokens(chat)
    out["qwen2"].add_tokens([tokenizers.AddedToken("<think>", normalized=False), "</think>"])
    return out


def sentencepieces():
    """tokenizer.model files, made by SentencePiece itself."""
    out = {}
    for name, kind, options in (("spm-bpe", "bpe", {"byte_fallback": True, "normalization_rule_name": "identity",
                                                    "remove_extra_whitespaces": False}),
                                ("spm-unigram", "unigram", {"byte_fallback": True, "normalization_rule_name": "identity"})):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_writer=model, model_type=kind, vocab_size=640, character_coverage=0.98,
            user_defined_symbols=["<|im_start|>", "<|im_end|>"], minloglevel=2, num_threads=1, **options)
        out[name] = model.getvalue()
    return out


# Punctuation of Unicode 8 and of later versions, and what is no longer any.
AGES = [f"a{mark}b {mark}1" for mark in "\u0df4\u166d\U000111c9\u2e42\u2e43\u2e52\u061d\u0a76\U0001145b\U00011a9d\u2e5d\u30fb\u00ab"]


def cases():
    rng = random.Random(2027)
    special = ["<s>", "</s>", "<unk>", "<|im_start|>user\nHi<|im_end|>\n", "<mask>", " <mask> x", "<pad>  y", "tokens token",
               "BLOCK block", "a<|begin_of_text|>b", "<think>\nx\n</think>", "<0x41>", SPACE, "a" + SPACE + "b", " a", "  a",
               "a  ", "e\u0301", "\u212b", "\uff21\uff11", "\u1e9b\u0323", "1,234.5", "x-1--2", "a\tb", "...?!", "don't DON'T",
               SPACE + "camelCase token", "a " + SPACE + " b", " " + SPACE + " ", "x" + SPACE + " " + SPACE]
    out = list(dict.fromkeys(texts.FIXED + special))
    while len(out) < COUNT:
        text = "".join(texts.part(rng) if rng.random() < 0.85 else rng.choice(special) for _ in range(rng.choice([1, 2, 3])))
        if text not in out:
            out.append(text)
    return [text for text in out if len(text) < 400] + AGES


# Where Unicode's properties, case and composition are least regular, beside what everybody writes.
RANGES = [(0x20, 0x7f), (0x20, 0x7f), (0, 0x20), (0x7f, 0x100), (0x100, 0x250), (0x250, 0x3a0), (0x370, 0x530), (0x590, 0x700),
          (0x900, 0xe00), (0x1100, 0x1200), (0x1e00, 0x2070), (0x2070, 0x2c00), (0x3000, 0x3400), (0x4e00, 0x4f00),
          (0xac00, 0xad00), (0xe000, 0xe010), (0xf900, 0xfb50), (0xfe00, 0x10000), (0x1d400, 0x1d500), (0x1f300, 0x1f700),
          (0x20000, 0x20040), (0xe0000, 0xe0080)]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\x0b", "\x85", "\u2028", "\ufeff"]
WRITTEN = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "<mask>", "<pad>", "token", "==", "block", "<0x41>",
           SPACE, "'s", "'LL", "I'm", "http://a.b/c?d=e", "def f(x):\n    return x ** 2\n", "1234567890", "3.14e-10", "\u0661\u0662",
           "\u00bd", "Ⅷ", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "e\u0301\u0327", "\u1100\u1161\u11a8"]


def random_text(rng):
    def piece():
        kind = rng.random()
        if kind < 0.35:
            low, high = rng.choice(RANGES)
            return "".join(chr(rng.randrange(low, high)) for _ in range(rng.choice([1, 1, 2, 5])))
        if kind < 0.5:
            return rng.choice(SPACES) * rng.choice([1, 1, 2, 3, 17])
        if kind < 0.65:
            return rng.choice(WRITTEN)
        if kind < 0.75:
            return rng.choice("abZ019.-=!\u00e9\u5b57") * rng.choice([2, 7, 40])
        return texts.part(rng)
    while True:
        text = "".join(piece() for _ in range(rng.choice([1, 2, 3, 5, 8])))
        if not any(0xd800 <= ord(c) < 0xe000 for c in text):
            return text


def write_cases(path, all_texts, made, pieces):
    processors = {name: sentencepiece.SentencePieceProcessor(model_proto=content) for name, content in pieces.items()}
    with open(path, "w", encoding="utf-8", newline="") as file:
        for text in all_texts:
            line = {"text": text, "ids": {}, "decoded": {}}
            for name, tokenizer in made.items():
                line["ids"][name] = tokenizer.encode(text).ids
                decoded = tokenizer.decode(line["ids"][name])
                if decoded != text:
                    line["decoded"][name] = decoded
            for name, processor in processors.items() if "\0" not in text else ():  # SentencePiece drops it
                line["ids"][name] = processor.encode(text)
                if processor.decode(line["ids"][name]) != text:
                    line["decoded"][name] = processor.decode(line["ids"][name])
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=0, help="so many texts for the tokenizers that are there")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.random:
        made = {path.stem: tokenizers.Tokenizer.from_file(str(path)) for path in sorted(FOLDER.glob("*.json"))}
        pieces = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.model"))}
        rng = random.Random(arguments.seed)
        return write_cases(arguments.output, (random_text(rng) for _ in range(arguments.random)), made, pieces)
    FOLDER.mkdir(parents=True, exist_ok=True)
    made, pieces = families(), sentencepieces()
    for name, tokenizer in made.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False,
                                                        separators=(",", ":")) + "\n", encoding="utf-8")
    for name, content in pieces.items():
        (FOLDER / f"{name}.model").write_bytes(content)
    write_cases(FOLDER / "cases.jsonl", cases(), made, pieces)


if __name__ == "__main__":
    main()
