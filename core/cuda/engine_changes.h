// What a benchmark may change in the steps of an engine. A session changes nothing.
#pragma once

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/transfer/gather.h"

#include <cstdint>

namespace kvscope {

class EngineChanges {
public:
    virtual ~EngineChanges() = default;
    /// Called for every choice of blocks, before the method sees the arguments.
    virtual void change(cuda::SelectArgs& /*choice*/) const {}
    /// Called for every transfer. nobodys: a pair of counters that no kernel raises, so that it stays 0.
    virtual void change(cuda::GatherArgs& /*transfer*/, std::uint32_t* /*nobodys*/) const {}
    /// How many sequences have blocks in the host store; 0: all. The other sequences read blocks of those, and what
    /// they store overwrites them.
    virtual int storedSequences() const { return 0; }
};

} // namespace kvscope
