#!/usr/bin/env python3
"""Builds a wheel of the package kvscope with libkvscope_trace inside.

    python3 sdk/python/build_wheel.py dist

compiles the library for glibc 2.28 (manylinux_2_28) with the compiler of the package ziglang, which pip installs under
build/python/zig: about 100 MB to download, once. It needs a static SQLite and the headers of fmt and nlohmann-json, as
tools/setup.sh installs them.

    python3 sdk/python/build_wheel.py dist --library build/ci/sdk/trace/libkvscope_trace.so

packs a library that was built for this machine.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ZIG = "ziglang==0.17.0"
GLIBC = "2.28"
HEADERS = ("fmt", "nlohmann", "sqlite3.h")


def fail(sentence: str) -> None:
    raise SystemExit(f"build_wheel.py: {sentence}")


def version() -> str:
    return re.search(r'__version__ = "(.+)"', (HERE / "kvscope" / "__init__.py").read_text()).group(1)


def zig() -> list[str]:
    """The compiler, installed under build/python/zig where it is not there yet."""
    python = ROOT / "build/python/zig/bin/python"
    if subprocess.run([python, "-m", "ziglang", "version"], capture_output=True).returncode != 0 if python.exists() else True:
        print(f"installing {ZIG} under build/python/zig: about 100 MB to download", flush=True)
        venv.create(python.parent.parent, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", ZIG], check=True)
    return [str(python), "-m", "ziglang"]


def static_sqlite() -> Path:
    for folder in (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"):
        if (Path(folder) / "libsqlite3.a").exists():
            return Path(folder) / "libsqlite3.a"
    fail("there is no libsqlite3.a; install libsqlite3-dev")


def compile_library(to: Path) -> None:
    compiler = zig()
    common = ["-target", f"{platform.machine()}-linux-gnu.{GLIBC}", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-sanitize=undefined"]
    with tempfile.TemporaryDirectory() as folder:
        # Only these headers: the system's own are those of a newer C library.
        headers = Path(folder) / "include"
        headers.mkdir()
        for name in HEADERS:
            source = next((place / name for place in map(Path, ("/usr/local/include", "/usr/include")) if (place / name).exists()), None)
            if source is None:
                fail(f"there is no header {name}; run tools/setup.sh")
            (shutil.copytree if source.is_dir() else shutil.copy)(source, headers / name)
        objects = []
        for line in (ROOT / "sdk/trace/sources.txt").read_text().split():
            objects.append(f"{folder}/{line.replace('/', '_')}.o")
            language = ["cc", f"-I{ROOT}/resources"]
            if line.endswith(".cpp"):
                language = ["c++", "-std=c++20", "-DFMT_HEADER_ONLY", f'-DKVSCOPE_VERSION="{version()}"', f"-I{ROOT}", "-isystem", str(headers)]
            subprocess.run([*compiler, language[0], *common, *language[1:], "-c", str(ROOT / line), "-o", objects[-1]], check=True)
        subprocess.run(
            [*compiler, "c++", *common, "-shared", "-s", "-o", str(to), *objects, str(static_sqlite()), "-Wl,-z,defs", "-Wl,--gc-sections",
             f"-Wl,--version-script={ROOT}/sdk/trace/exports.map"], check=True)  # fmt: skip


def pack(library: Path, tag: str, folder: Path) -> Path:
    name = f"kvscope-{version()}"
    files = {f"kvscope/{file.name}": file.read_bytes() for file in sorted((HERE / "kvscope").iterdir()) if file.suffix in (".py", ".typed")}
    files["kvscope/libkvscope_trace.so"] = library.read_bytes()
    files["kvscope_plugin.py"] = (HERE / "kvscope_plugin.py").read_bytes()
    files[f"{name}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: kvscope\nVersion: {version()}\nSummary: Records sparse attention into KVScope traces, and reads them\n"
        "Requires-Python: >=3.9\nProvides-Extra: pandas\nRequires-Dist: pandas; extra == 'pandas'\nProvides-Extra: polars\n"
        "Requires-Dist: polars; extra == 'polars'\n"
        "Provides-Extra: parquet\nRequires-Dist: pyarrow; extra == 'parquet'\n"
    ).encode()
    files[f"{name}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: kvscope\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{name}.dist-info/entry_points.txt"] = (
        b"[sglang.srt.plugins]\nkvscope = kvscope_plugin:sglang\n\n[vllm.general_plugins]\nkvscope = kvscope_plugin:vllm\n"
    )
    files[f"{name}.dist-info/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{name}.dist-info/RECORD"] = (record + f"{name}.dist-info/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheel goes")
    parser.add_argument("--library", type=Path, help="pack this libkvscope_trace.so, which works on machines like this one")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        fail("wheels are built on Linux")
    machine = platform.machine()
    if arguments.library:
        if not arguments.library.exists():
            fail(f"there is no {arguments.library}; build the target kvscope_trace first")
        print(pack(arguments.library, f"py3-none-linux_{machine}", arguments.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libkvscope_trace.so"
        compile_library(library)
        print(pack(library, f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{machine}", arguments.folder))


if __name__ == "__main__":
    main()
