"""python -m kvscope: converts replies of servers, writes Parquet."""

from __future__ import annotations

import argparse
import sys

from ._library import Error


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvscope", description="Traces of sparse attention")
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("convert", help="a server's reply with indexer_topk, as a trace")
    convert.add_argument("reply", help="JSON file: SGLang's /generate or vLLM's completion")
    convert.add_argument("-o", "--output", required=True, help="the .kvtrace file")
    convert.add_argument("--topk", type=int, help="index_topk of the model, which SGLang's reply does not say")
    convert.add_argument("--layers", type=int, help="indexer layers, where that is known rather than --topk")
    convert.add_argument("--prompt-tokens", type=int, help="where the reply does not say it")
    convert.add_argument("--block-size", type=int, default=64, help="tokens of a block")
    convert.add_argument("--model", default="", help="name of the model")
    parquet = commands.add_parser("parquet", help="the tables of traces as Parquet, partitioned by run and rank")
    parquet.add_argument("traces", nargs="+", help=".kvtrace files")
    parquet.add_argument("-o", "--output", required=True, help="folder that gets a folder for each table")
    parquet.add_argument("--tables", help="comma-separated; all of them without it")
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = _arguments().parse_args(arguments)
    try:
        if given.command == "convert":
            from .converting import convert

            convert(given.reply, given.output, topk=given.topk, indexer_layers=given.layers, prompt_tokens=given.prompt_tokens,
                    block_size=given.block_size, model=given.model)  # fmt: skip
        else:
            from .parquet import write_parquet

            unreadable: list[str] = []
            tables = given.tables.split(",") if given.tables else None
            for file in write_parquet(given.traces, given.output, tables, lambda _, error: unreadable.append(str(error))):
                print(file)
            for sentence in unreadable:
                print(f"kvscope: left out: {sentence}", file=sys.stderr)
            return 1 if unreadable else 0
    except (Error, ImportError, OSError, ValueError) as error:
        print(f"kvscope: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
