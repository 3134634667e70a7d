// Writes the rows of serving runs: requests, the spans of their states, iterations, what these did for requests, and
// who has which row of the batch.
#pragma once

#include "core/trace/serving_record.h"
#include "profiler/format/engine_event.h"
#include "profiler/sqlite/row_inserter.h"

#include <cstdint>
#include <string>

namespace kvscope {

class ServingWriter {
public:
    ServingWriter() = default;
    /// The connection must outlive this object, and have the tables.
    explicit ServingWriter(Connection& connection);

    /// The next rows are those of another run.
    void beginRun() { spanNumber_ = eventNumber_ = 0; }
    /// Inserts the rows in the open transaction. @throws Error(Storage), also for a number that a trace cannot hold
    void add(int run, const ServingRecord& record);
    /// Likewise of a request of another engine.
    void add(int run, const EngineRequest& request);
    /// Resets the statements that an error has interrupted.
    void reset();

private:
    void addRequest(int run, const ServedRequest& request, const std::string& externalId, std::int64_t firstStep,
                    std::int64_t lastStep);
    void addRequests(int run, const ServingRecord& record);
    void addSpans(int run, const std::vector<RequestSpan>& spans);
    void addIterations(int run, const ServingRecord& record);
    void addMembers(int run, const ServingRecord& record);
    void addEvents(int run, const ServingRecord& record);

    std::string path_;
    RowInserter requests_, spans_, iterations_, members_, events_;
    std::int64_t spanNumber_ = 0, eventNumber_ = 0; // of the run's next span and event
};

} // namespace kvscope
