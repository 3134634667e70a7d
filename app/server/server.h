// An HTTP server for an engine: one thread runs all connections, another the engine.
#pragma once

#include "app/server/engine_thread.h"
#include "app/server/service.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::server {

/// Limits of connections, in seconds and bytes.
struct Limits {
    double connections = 1024; // that are open at once; the next one gets 503
    double headBytes = 16 << 10, bodyBytes = 8 << 20, bufferBytes = 1 << 20;
    double headSeconds = 10, bodySeconds = 30, writeSeconds = 30, idleSeconds = 60, drainSeconds = 30;
};

/// A row of the table from which --limit and the docs are made.
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

/// Why this build has no server, as a sentence without a full stop; empty: it has one.
std::string whyNoServer();

/// Serves until SIGINT, SIGTERM or SIGHUP. After the signal nothing more is admitted; requests that run may end within
/// drainSeconds, or until a second signal. Writes to standard output where it listens, before it loads the model, and
/// when it is ready.
/// @return the exit status. @throws Error where the address, the model or the engine's memory cannot be had
int serve(const ServerOptions& options, const LoadEngine& load);

} // namespace kvscope::server
