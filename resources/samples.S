/* Embeds the sample traces; samples.cpp lists the same symbols. */
        .include "embed.inc"

        .section .rodata
        embed sample_h200_tiny, "samples/h200-nosa-tiny.kvtrace"
        embed sample_h200_serving, "samples/h200-serving.kvtrace"
        embed sample_h200_8b, "samples/h200-nosa-8b.kvtrace"
        .section .note.GNU-stack, "", @progbits
