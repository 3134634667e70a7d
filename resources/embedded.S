/* Embeds the files named below; resources.cpp lists the same symbols. */
        .include "embed.inc"

        .section .rodata
        embed nosa_tiny_weights, "models/nosa-tiny/model.safetensors"
        embed nosa_tiny_config, "models/nosa-tiny/config.json"
        embed nosa_tiny_generation, "models/nosa-tiny/generation_config.json"
        embed nosa_tiny_tokenizer, "models/nosa-tiny/tokenizer.json"
        embed nosa_tiny_tokenizer_config, "models/nosa-tiny/tokenizer_config.json"
        embed nosa_tiny_locret, "models/nosa-tiny/locret.safetensors"
        embed schema, "sql/schema.sql"
        embed trace_format, "../docs/trace-format.md"
        embed gpus, "gpus.json"
        embed long_document, "prompts/long_document.txt"
        embed report_style, "report/report.css"
        embed report_script, "report/report.js"
        .section .note.GNU-stack, "", @progbits
