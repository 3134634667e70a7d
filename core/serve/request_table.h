// The requests of a serving run, queued, running and paused, and what they have reserved: the state between two plans.
#pragma once

#include "core/serve/scheduler.h"

#include <cstdint>
#include <vector>

namespace kvscope::serve {

/// Takes requests in, carries out what a plan says about them, and gives back what they had when they end. One thread.
class RequestTable {
public:
    explicit RequestTable(const Budget& budget) : ledger_(budget) {}

    /// Appends to the queue. Its state is Queued, whatever it says.
    void arrive(ServeRequest request);
    /// What the next plan is made from; valid until the next call that changes something.
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
    /// The iteration that begin() began has ended: positions move on, and every decoding request has a token more. The
    /// caller ends those that are done. @return the tokens, valid until the next call
    const std::vector<Token>& end(const IterationPlan& plan, std::int64_t nowNs);

    /// A request ends, whatever its state: all that it has reserved is free. @return whether there was one of this id
    bool finish(RequestId id);
    /// A running or paused request's new estimate, in bytes. @return whether there is one of this id
    bool setWorkingSet(RequestId id, std::int64_t bytes);

    const ServeRequest* find(RequestId id) const;
    const std::vector<ServeRequest>& waiting() const { return waiting_; }
    const std::vector<ServeRequest>& running() const { return running_; }
    const std::vector<ServeRequest>& paused() const { return paused_; }
    const Ledger& ledger() const { return ledger_; }
    bool idle() const { return waiting_.empty() && running_.empty() && paused_.empty(); }

private:
    std::vector<ServeRequest> waiting_, running_, paused_;
    std::vector<Token> tokens_;
    Ledger ledger_;
    int iterationsOver_ = 0;
};

} // namespace kvscope::serve
