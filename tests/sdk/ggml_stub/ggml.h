/* The part of ggml's interface that sdk/trace/kvscope_llama.h uses, written for the tests: names, types and order of
 * calls are ggml's, nothing of it computes. */
#ifndef GGML_STUB_H
#define GGML_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ggml_type { GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1, GGML_TYPE_I32 = 26 };

struct ggml_tensor {
    enum ggml_type type;
    int64_t ne[4]; /* elements, the innermost dimension first */
    size_t nb[4];  /* bytes to the next one */
    void* data;
    char name[64];
};

/* Bytes from the first element to behind the last one. */
size_t ggml_nbytes(const struct ggml_tensor* tensor);

#ifdef __cplusplus
}
#endif

#endif
