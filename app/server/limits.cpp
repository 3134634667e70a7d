#include "app/server/server.h"

namespace kvscope::server {

const std::vector<LimitRow>& limitRows() {
    static const std::vector<LimitRow> rows{
        {"connections", &Limits::connections, 1, 100000, "Connections at once; further ones get 503 and are closed."},
        {"head_bytes", &Limits::headBytes, 256, 1 << 20, "Request line and headers (431)."},
        {"body_bytes", &Limits::bodyBytes, 1, 1 << 30, "Body of a request (413)."},
        {"buffer_bytes", &Limits::bufferBytes, 1024, 1 << 30,
         "Answer that a client has not read, and requests behind the present one; beyond it the client is cut off."},
        {"head_s", &Limits::headSeconds, 0.05, 3600,
         "From the first byte of a request to the end of its headers (408)."},
        {"body_s", &Limits::bodySeconds, 0.05, 3600, "From there to the end of its body (408)."},
        {"write_s", &Limits::writeSeconds, 0.05, 3600, "A client that reads nothing for so long is cut off."},
        {"idle_s", &Limits::idleSeconds, 0.05, 86400, "A connection without a request is closed."},
        {"drain_s", &Limits::drainSeconds, 0, 86400, "Time that requests have to end after SIGTERM."},
    };
    return rows;
}

} // namespace kvscope::server
