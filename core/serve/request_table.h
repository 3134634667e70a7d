// The requests of a serving run that are queued, running or paused, and what they have reserved: what changes from plan
// to plan.
#pragma once

#include "base/indexed.h"
#include "core/serve/scheduler.h"

#include <cstdint>
#include <vector>

namespace kvscope::serve {

/// Takes requests in, carries out what a plan says about them, and frees their reservations when they end. One thread
/// makes all calls.
class RequestTable {
public:
    explicit RequestTable(const Budget& budget) : ledger_(budget) {}

    /// Appends the request to the queue and sets its state to Queued.
    void arrive(ServeRequest request);
    /// What the next plan is made from. Valid until the next call that changes the table.
    Snapshot snapshot(std::int64_t nowNs, double hitRate) const;

    /// The iteration begins: refused requests leave, admitted ones reserve and begin to be read, paused ones give their
    /// places on the device back, resumed ones take them again. The plan was made from the present state.
    void begin(const IterationPlan& plan, std::int64_t nowNs);

    /// What happened to a request in an iteration.
    struct Token {
        RequestId id = 0;
        int generated = 0;  // tokens it has now
        bool first = false; // its prompt was read in this iteration
    };
    /// Ends the iteration that begin() began: moves the prompts' positions on, and counts one more token for every
    /// request that decodes. The caller ends the requests that are done. @return the tokens, valid until the next call
    const std::vector<Token>& end(const IterationPlan& plan, std::int64_t nowNs);

    /// Ends a request in any state and frees all that it has reserved. @return whether there was a request with this id
    bool finish(RequestId id);
    /// Replaces the estimated working set of a running or paused request, in bytes. @return whether there is a request
    /// with this id
    bool setWorkingSet(RequestId id, std::int64_t bytes);

    const ServeRequest* find(RequestId id) const;
    const std::vector<ServeRequest>& waiting() const { return waiting_; }
    const std::vector<ServeRequest>& running() const { return running_; }
    const std::vector<ServeRequest>& paused() const { return paused_; }
    const Ledger& ledger() const { return ledger_; }
    bool idle() const { return waiting_.empty() && running_.empty() && paused_.empty(); }

private:
    Numbered<ServeRequest> waiting_, running_, paused_;
    std::vector<Token> tokens_;
    Ledger ledger_;
    int iterationsOver_ = 0;
};

} // namespace kvscope::serve
