// One request on a connection and the way its answer goes.
#pragma once

#include "core/http/api_response.h"
#include "core/http/http_reader.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope::server {

/// A request that waits for its answer: either `respond`, or `beginStream`, `stream` any number of times and
/// `endStream`. The thread of the connections makes all calls. Calls after the end, or when the client is gone, do
/// nothing.
class Exchange {
public:
    virtual ~Exchange() = default;
    virtual void respond(int status, std::string_view type, std::string_view body, const http::Headers& headers) = 0;
    virtual void beginStream(const http::Headers& headers) = 0;
    virtual void stream(std::string_view bytes) = 0;
    /// keep: the connection may take another request
    virtual void endStream(bool keep) = 0;

    std::int64_t request = 0; // the engine's number of the request; 0: none yet
    bool gone = false;        // nobody reads the answer
};

} // namespace kvscope::server
