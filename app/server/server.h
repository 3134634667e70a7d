// An HTTP server in front of the engine: one thread for all connections, the engine in another.
#pragma once

#include "app/server/engine_thread.h"
#include "app/server/service.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::server {

/// Limits of connections. Seconds and bytes.
struct Limits {
    double connections = 1024; // open at once; further ones get 503
    double headBytes = 16 << 10, bodyBytes = 8 << 20, bufferBytes = 1 << 20;
    double headSeconds = 10, bodySeconds = 30, writeSeconds = 30, idleSeconds = 60, drainSeconds = 30;
};

/// Rows of the table that --limit and the docs are made from.
struct LimitRow {
    const char* key;
    double Limits::*value;
    double lowest, highest;
    const char* meaning;
};
const std::vector<LimitRow>& limitRows();

struct ServerOptions {
    std::string address = "127.0.0.1";
    int port = 8000; // 0: one that is free
    Limits limits;
    ServiceOptions service;
};

/// Whether this build has the server; else why not, as a sentence without a full stop.
std::string whyNoServer();

/// Serves until SIGINT, SIGTERM or SIGHUP. From then on nothing is admitted; what runs may end within drainSeconds, or
/// until a second signal. Says on standard output where it listens, before the model is loaded, and when it is ready.
/// @return the exit status. @throws Error for what cannot be had: the address, the model, the engine's memory
int serve(const ServerOptions& options, const LoadEngine& load);

} // namespace kvscope::server
