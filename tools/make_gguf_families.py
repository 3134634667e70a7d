#!/usr/bin/env python3
"""The tiny checkpoints of tests/golden/families as GGUF files, made by llama.cpp's own converter.

    python3 -m venv venv && venv/bin/pip install torch transformers sentencepiece
    venv/bin/python tools/make_gguf_families.py LLAMA_CPP               writes tests/golden/gguf/families/NAME.gguf
    venv/bin/python tools/make_gguf_families.py LLAMA_CPP --from DIR -o DIR2 --all

LLAMA_CPP: a checkout, or vendor/llama.cpp of llama-cpp-python's source package. The tests compare what KVScope computes
with such a file with the reference.safetensors of the checkpoint, which transformers made. The checkpoints have no
tokenizer, so the converter's is replaced by a list of names."""
import argparse
import logging
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a GGUF file can hold: no window, no dynamic scaling, LongRoPE from the full context on, released muP values.
CASES = ["llama2-mha", "llama3-gqa-bias", "llama-mqa-tied", "llama-linear", "llama-llama3", "llama-yarn", "smollm2",
         "mistral", "qwen2", "qwen3", "qwen2-moe", "qwen3-moe-normed", "mixtral", "minicpm-longrope", "minicpm3-released",
         "deepseek2-lite", "deepseek2-groups", "deepseek3", "glm4-lite"]


def convert(folder: pathlib.Path, target: pathlib.Path, conversion, gguf) -> None:
    hparams = conversion.ModelBase.load_hparams(folder, False)
    architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    kept = {"bfloat16": gguf.LlamaFileType.MOSTLY_BF16, "float16": gguf.LlamaFileType.MOSTLY_F16,
            "float32": gguf.LlamaFileType.ALL_F32}[hparams.get("dtype", hparams.get("torch_dtype"))]
    model = conversion.get_model_class(architecture)(folder, kept, target, eager=True)

    def names_as_tokenizer() -> None:
        writer = model.gguf_writer
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([f"t{i}" for i in range(hparams["vocab_size"])])
        writer.add_token_merges([])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)

    model.set_vocab = names_as_tokenizer
    model.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("--from", dest="source", type=pathlib.Path, default=ROOT / "tests/golden/families")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "tests/golden/gguf/families")
    parser.add_argument("--all", action="store_true", help="every folder, not only what a GGUF file can hold")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    import conversion
    import gguf
    import torch

    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    arguments.output.mkdir(parents=True, exist_ok=True)
    names = sorted(f.name for f in arguments.source.iterdir()) if arguments.all else CASES
    with torch.inference_mode():
        for name in names:
            target = arguments.output / f"{name}.gguf"
            try:
                convert(arguments.source / name, target, conversion, gguf)
                print(f"{name}: {target.stat().st_size} bytes", flush=True)
            except Exception as problem:
                if not arguments.all:
                    raise
                print(f"{name}: not converted: {problem}", flush=True)


if __name__ == "__main__":
    main()
