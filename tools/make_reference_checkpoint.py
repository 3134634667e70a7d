#!/usr/bin/env python3
"""Writes tests/golden/hf_llama: a tiny random Llama checkpoint and what the transformers library computes with it.

    python3 -m venv venv && venv/bin/pip install torch transformers tokenizers
    venv/bin/python tools/make_reference_checkpoint.py

The checkpoint is written by the library itself (config.json, a sharded float32 model.safetensors with its index), so
that loading it tests the real formats: grouped-query attention, a head_dim that is not hidden_size / heads, biases in
attention, untied embeddings, no sparse_config. reference.safetensors holds
    prompt_ids      i32 [P]
    generated_ids   i32 [65]         greedy: generated_ids[s] is the arg-max of logits[s]
    logits          f32 [65, vocab]  of the prompt's last position, then of every decode step
computed on the CPU in float32 without a KV cache. tokenizer_cases.jsonl holds texts and their ids; this tokenizer
splits with the pattern built into byte-level BPE, the embedded model's with one of its own.

The script fails if a float64 run chooses other ids or if two best logits ever come closer than 1e-3, for then "equal
ids" would be a matter of rounding. The weights come from a fixed seed; another version of the libraries may write
other bytes.
"""

import json
import pathlib
import shutil
import tempfile

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

from make_tokenizer_fixture import texts

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/hf_llama"
SEED = 20261
PROMPT_TOKENS = 230  # three full blocks of 64 and a part of one
STEPS = 64
SMALLEST_GAP = 1e-3
TEXTS = 1200


def make_model():
    config = transformers.LlamaConfig(
        vocab_size=288, hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0}, tie_word_embeddings=False,
        attention_bias=True, bos_token_id=0, eos_token_id=1)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            random = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * random)
            elif name.endswith("bias"):
                weight.copy_(0.3 * random)
            elif "embed_tokens" in name:
                weight.copy_(random)
            else:  # keeps the size of activations, and makes attention look at few positions
                gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
                weight.copy_(gain * random / weight.shape[1] ** 0.5)
    return model


def make_tokenizer():
    """Byte-level BPE: two special tokens, 256 bytes and a few merges, in the layout the library writes."""
    vocabulary = {"<s>": 0, "</s>": 1}
    for letter in sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    merges = []
    for left, right in ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed",
                        "is", "it", "al", "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le"]:
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer, len(vocabulary)


@torch.no_grad()
def decode(model, prompt):
    ids, logits = list(prompt), []
    for _ in range(STEPS + 1):
        last = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        logits.append(last)
        ids.append(int(last.argmax()))
    return ids[len(prompt):], torch.stack(logits)


def main():
    torch.set_num_threads(1)
    model = make_model()
    tokenizer, vocabulary = make_tokenizer()
    assert vocabulary == model.config.vocab_size, vocabulary
    generator = torch.Generator().manual_seed(SEED + 1)
    prompt = [0] + torch.randint(2, vocabulary, (PROMPT_TOKENS - 1,), generator=generator).tolist()
    ids, logits = decode(model, prompt)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model.save_pretrained(folder, max_shard_size="300KB")
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        again = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager")
        assert decode(again, prompt)[0] == ids, "the saved checkpoint differs from the model"
        exact_ids, exact = decode(model.double(), prompt)
        best = logits.topk(2, dim=1).values
        gap = (best[:, 0] - best[:, 1]).min().item()
        error = (exact - logits).abs().max().item()
        assert exact_ids == ids and gap > SMALLEST_GAP, f"choose another seed: gap {gap}"
        save_file({"prompt_ids": torch.tensor(prompt, dtype=torch.int32),
                   "generated_ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.float().contiguous()},
                  folder / "reference.safetensors")
        with open(folder / "tokenizer_cases.jsonl", "w", encoding="utf-8", newline="\n") as file:
            for text in texts()[:TEXTS]:
                case = {"text": text, "ids": tokenizer.encode(text).ids}
                file.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        for file in sorted(folder.iterdir()):
            shutil.copyfile(file, FOLDER / file.name)
    print(json.dumps({"distinct ids": len(set(ids)), "largest logit": logits.abs().max().item(), "smallest gap": gap,
                      "float32 error": error, "torch": torch.__version__,
                      "transformers": transformers.__version__,
                      "bytes": sum(file.stat().st_size for file in FOLDER.iterdir())}))


if __name__ == "__main__":
    main()
