#include "core/serve/request.h"

#include <algorithm>

namespace kvscope::serve {

std::int64_t ServeRequest::aloneBytes(bool partitioned) const {
    const std::int64_t decode = partitioned ? workingSetBytes : needs.hardBytes;
    const bool reading = state == RequestState::Queued || state == RequestState::Prefilling;
    return reading ? std::max(decode, needs.chunkTokenBytes * promptTokens) : decode;
}

} // namespace kvscope::serve
