/* Embeds the sample traces; samples.cpp lists the same symbols. */
        .macro embed symbol, path
        .balign 64
        .global kvscope_\symbol\()_begin
        .global kvscope_\symbol\()_end
kvscope_\symbol\()_begin:
        .incbin "\path"
kvscope_\symbol\()_end:
        .byte 0
        .endm

        .section .rodata
        embed sample_h200_tiny, "samples/h200-nosa-tiny.kvtrace"
        embed sample_h200_8b, "samples/h200-nosa-8b.kvtrace"
        .section .note.GNU-stack, "", @progbits
