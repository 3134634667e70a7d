/* See ggml.h of this folder. */
#ifndef GGML_BACKEND_STUB_H
#define GGML_BACKEND_STUB_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor* tensor, bool ask, void* user_data);

void ggml_backend_tensor_get(const struct ggml_tensor* tensor, void* data, size_t offset, size_t size);

#ifdef __cplusplus
}
#endif

#endif
