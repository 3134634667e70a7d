#!/usr/bin/env python3
"""Encode the corpus, with an existing tokenizer or one trained on it.

    tokenize_corpus.py corpus.txt heldout.txt OUT_DIR --tokenizer tokenizer.json
    tokenize_corpus.py corpus.txt heldout.txt OUT_DIR

Writes tokenizer.json, tokens.npy and heldout.npy (uint16, <|eos|> after every
document).  Texts may be compressed (.xz).  A model already published keeps its
tokenizer: ids are part of its weights.  The split pattern of a new one is that
of Llama 3 with single digits: every digit is a token of its own.
"""
import argparse
import json
import lzma
import os
import random
import shutil
import time

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")
BOS, EOS = "<|bos|>", "<|eos|>"


def documents(path):
    opener = lzma.open if path.endswith(".xz") else open
    with opener(path, "rt", encoding="utf8") as fh:
        return [d for d in fh.read().split("\f") if d.strip()]


def train_tokenizer(docs, out):
    """Byte-level BPE of 4096 entries, trained on a third of the documents."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=4096, special_tokens=[BOS, EOS], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(random.Random(0).sample(docs, len(docs) // 3), trainer)
    tok.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
                                                       special_tokens=[(BOS, 0)])
    tok.save(os.path.join(out, "tokenizer.json"))
    with open(os.path.join(out, "tokenizer_config.json"), "w") as fh:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS,
                   "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
                   "model_max_length": 16384}, fh, indent=2)
    return tok


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("corpus")
    ap.add_argument("heldout")
    ap.add_argument("out")
    ap.add_argument("--tokenizer", help="tokenizer.json to keep (default: train one)")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    began, docs = time.time(), documents(args.corpus)
    print(f"{len(docs)} documents, {sum(map(len, docs)) / 1e6:.1f} M characters", flush=True)
    if args.tokenizer:
        shutil.copyfile(args.tokenizer, os.path.join(args.out, "tokenizer.json"))
        tok = Tokenizer.from_file(args.tokenizer)
    else:
        tok = train_tokenizer(docs, args.out)
    if tok.token_to_id(BOS) != 0 or tok.token_to_id(EOS) != 1 or tok.get_vocab_size() != 4096:
        raise SystemExit(f"{args.tokenizer or args.corpus}: not 4096 entries with {BOS} = 0 and {EOS} = 1")
    for name, texts in (("tokens", docs), ("heldout", documents(args.heldout))):
        parts = []
        for lo in range(0, len(texts), 500):
            for enc in tok.encode_batch(texts[lo:lo + 500], add_special_tokens=False):
                parts.append(np.asarray(enc.ids + [1], np.uint16))
        ids = np.concatenate(parts)
        np.save(os.path.join(args.out, name + ".npy"), ids)
        print(f"{name}: {len(ids) / 1e6:.2f} M tokens, {sum(map(len, texts)) / len(ids):.3f} characters a token, "
              f"{time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
