// The parts of the benchmark `serving`, and what they share.
#pragma once

#include "bench/bench.h"
#include "core/plan/backend.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::bench {

constexpr std::int64_t kMi = std::int64_t(1) << 20;

/// The server that is measured, and what is asked of it.
struct ServingJob {
    std::string model, method;
    std::string costs; // a file with the costs that plans are made from; empty: they are measured first
    Backend backend = Backend::Cpu;
    bool processorTime = false; // runs with and without recording count it: see serve::LoadOptions
    int threads = 0;            // of the CPU backend; 0: all cores
    int streams = 64;           // requests that are served at once: rows of the engine, and connections
    int prompt = 512;           // tokens
    int tokens = 256;           // new tokens of the longest answers; the shortest have half as many
    int requests = 10;          // of each stream, over HTTP; the first and the last of them are not counted
    int pairs = 8;              // runs with and without recording
    int connects = 1000;        // at once
    int deviceMiB = 2048, hostMiB = 4096, scratchMiB = 512;
};

/// A number beside the aim that it should be below.
nlohmann::ordered_json besideAim(double value, double below);
/// The same in words: "0.12 (aim: below 0.2)", "0.31 (aim: below 0.2, missed)".
std::string inWords(const nlohmann::ordered_json& number);

/// Times plans of a full server with 64 rows and 1,000 waiting requests.
nlohmann::ordered_json servingPlans(const ServingJob& job, const Log& log);
/// Compares times between tokens of runs that are recorded at the level `serving` with those of runs that are not.
nlohmann::ordered_json servingRecording(const ServingJob& job, const Log& log);
/// Compares a client's times with those that the engine recorded in the same run.
nlohmann::ordered_json servingHttp(const ServingJob& job, const Log& log);
/// Counts the answers to many connections that come at once.
nlohmann::ordered_json servingConnects(const ServingJob& job, const Log& log);

} // namespace kvscope::bench
