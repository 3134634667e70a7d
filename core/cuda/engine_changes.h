// What whoever measures an engine may change of it. A session changes nothing.
#pragma once

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/transfer/gather.h"

#include <cstdint>

namespace kvscope {

class EngineChanges {
public:
    virtual ~EngineChanges() = default;
    /// Every choice of blocks, before the method sees its arguments.
    virtual void change(cuda::SelectArgs& /*choice*/) const {}
    /// Every transfer. nobodys: a pair of counters that stays 0.
    virtual void change(cuda::GatherArgs& /*transfer*/, std::uint32_t* /*nobodys*/) const {}
    /// So many sequences have blocks on the host; the others read those and write over them what they store themselves.
    /// 0: all.
    virtual int storedSequences() const { return 0; }
};

} // namespace kvscope
