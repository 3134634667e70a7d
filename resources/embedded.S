/* Embeds the files named below; resources.cpp lists the same symbols. */
        .include "embed.inc"

        .section .rodata
        embed schema, "sql/schema.sql"
        embed trace_format, "../docs/trace-format.md"
        embed gpus, "gpus.json"
        embed long_document, "prompts/long_document.txt"
        embed report_style, "report/report.css"
        embed report_script, "report/report.js"
        .section .note.GNU-stack, "", @progbits
