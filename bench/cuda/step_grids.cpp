#include "bench/cuda/grid_jobs.h"

#include <string>
#include <utility>

namespace kvscope::bench::grids {

/// The steps whose limits the docs and results give.
std::vector<DecodeJob> stepJobs() {
    std::vector<DecodeJob> jobs;
    for (const char* shape : {"nosa-1b", "nosa-3b", "nosa-8b"}) {
        jobs.push_back(job("full", 512, 1));
        jobs.back().shape = shape;
    }
    for (const int context : {16384, 98304}) jobs.push_back(job("nosa", context, 4));
    jobs.push_back(job("full", 16384, 4));
    for (const int batch : {16, 64}) {
        jobs.push_back(job("nosa", 16384, batch, kNosaLocality));
        jobs.push_back(job("infllmv2", 16384, batch, kInfllmLocality));
    }
    return jobs;
}

std::vector<DecodeJob> batchOneJobs() {
    std::vector<DecodeJob> jobs;
    for (const char* shape : {"nosa-8b", "nosa-3b", "nosa-1b"}) {
        jobs.push_back(job("full", 512, 1));
        jobs.back().shape = shape;
        jobs.back().steps = 200;
    }
    return jobs;
}

std::vector<DecodeJob> contextJobs() { return {job("nosa", 16384, 4), job("nosa", 98304, 4)}; }

std::vector<DecodeJob> batchJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {1, 2, 4, 8, 16, 32, 64, 128, 256}) jobs.push_back(job("nosa", 4096, batch));
    for (const int batch : {1, 2, 4, 8, 16, 32, 64, 128, 192, 256}) jobs.push_back(job("nosa", 16384, batch));
    for (const int batch : {1, 2, 4, 8, 16, 32}) jobs.push_back(job("nosa", 98304, batch));
    return jobs;
}

/// Each batch with its misses and without, so that computing alone is known.
std::vector<DecodeJob> offloadedJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {16, 64, 128})
        for (const double locality : {kNosaLocality, kEverythingHits})
            jobs.push_back(job("nosa", 16384, batch, locality));
    return jobs;
}

/// NOSA whose blocks the layer before chooses, each batch with its misses and without. Random weights forecast nothing:
/// what is forecast is planted, as what is chosen is.
std::vector<DecodeJob> aheadJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {16, 64, 128})
        for (const double locality : {kNosaLocality, kEverythingHits}) {
            jobs.push_back(job("nosa", 16384, batch, locality));
            jobs.back().parameters = {{"ahead", "forecast"}};
            jobs.back().storedSequences = kStoredSequences;
        }
    return jobs;
}

/// On demand beside halves of the batch, of which one computes while blocks of the other travel; and on demand where
/// every block is hit, so that computing alone is known.
std::vector<DecodeJob> halvesJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {64, 128}) {
        jobs.push_back(job("nosa", 16384, batch, kNosaLocality));
        jobs.push_back(job("nosa", 16384, batch, kNosaLocality));
        jobs.back().parameters = {{"overlap", "halves"}};
        jobs.push_back(job("nosa", 16384, batch, kEverythingHits));
    }
    for (DecodeJob& each : jobs) each.storedSequences = kStoredSequences;
    return jobs;
}

/// What 16,384 tokens of a 96K context, 64 pools of 4,096 tokens, or the same bytes of 8-bit blocks make of the same
/// GPU memory; and NOSA beside InfLLM-V2 where its fewer misses count most.
std::vector<DecodeJob> sameMemoryJobs() {
    constexpr int kContext = 98304, kResident = 4, kPools = 64;
    std::vector<DecodeJob> jobs{job("full", kContext, kResident), job("nosa", kContext, kPools, kNosaLocality),
                                job("nosa", kContext, kPools, kNosaLocality)};
    jobs[0].note = "full", jobs[1].note = "offloaded", jobs[2].note = "ahead";
    jobs[2].parameters = {{"ahead", "forecast"}};
    for (const char* note : {"full, 8 bits", "offloaded, 8 bits", "ahead, 8 bits"}) {
        const std::string_view what = note;
        jobs.push_back(what.starts_with("full") ? job("full", kContext, 2 * kResident)
                                                : job("nosa", kContext, 2 * kPools, kNosaLocality));
        jobs.back().kvType = KvType::INT8;
        jobs.back().note = note;
        if (what.starts_with("ahead")) jobs.back().parameters = {{"ahead", "forecast"}};
    }
    for (const auto& [method, locality] : {std::pair{"nosa", kNosaLocality}, {"infllmv2", kInfllmLocality}}) {
        jobs.push_back(job(method, 16384, 128, locality));
        jobs.back().note = std::string(method) + ", 16K";
    }
    for (DecodeJob& each : jobs)
        if (each.offload) each.storedSequences = kStoredSequences;
    return jobs;
}

/// Blocks of bf16, of 8 and of 4 bits on the host, the link and in slots.
std::vector<DecodeJob> kvTypeJobs() {
    std::vector<DecodeJob> jobs;
    for (const KvType type : {KvType::BF16, KvType::INT8, KvType::INT4}) {
        jobs.push_back(job("nosa", 16384, 4, kNosaLocality));
        jobs.back().kvType = type;
        jobs.back().steps = 128;
    }
    return jobs;
}

/// Blocks of bf16, 8 and 4 bits at batches whose attention is most of a layer; and of 8 bits with as many slots as the
/// bytes of bf16's allow.
std::vector<DecodeJob> kvSlotJobs() {
    std::vector<DecodeJob> jobs;
    const auto add = [&](int batch, KvType type) -> DecodeJob& {
        jobs.push_back(job("nosa", 16384, batch, kNosaLocality));
        jobs.back().kvType = type;
        jobs.back().storedSequences = 8;
        return jobs.back();
    };
    for (const int batch : {16, 64})
        for (const KvType type : {KvType::BF16, KvType::INT8, KvType::FP8, KvType::INT4}) add(batch, type);
    DecodeJob& roomy = add(16, KvType::INT8);
    // 123 slots of 8-bit blocks and one bf16 block, which is being filled, have the bytes of 64 bf16 blocks.
    roomy.slots = 123;
    roomy.leastRecentlyUsed = true;
    roomy.note = "as many slots as the bytes of 64 bf16 blocks allow";
    return jobs;
}

/// A long answer.
std::vector<DecodeJob> longJobs() {
    DecodeJob each = job("nosa", 16384, 16, kNosaLocality);
    each.steps = 1216;
    return {each};
}

} // namespace kvscope::bench::grids
