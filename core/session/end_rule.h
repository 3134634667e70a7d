// Says when a sequence of a session is over. The session asks this of every token. A backend that begins the next step
// before the session has seen the tokens of this step asks it too.
#pragma once

#include "core/model/model_config.h"
#include "core/session/decode_session.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvscope {

class EndRule {
public:
    /// Both must outlive this object.
    EndRule(const SessionOptions& options, const ModelConfig& config) : options_(options), config_(config) {}

    /// Whether `last` ends its sequence. generated: how many tokens of the sequence were generated, `last` included.
    bool ends(int generated, std::int32_t last) const {
        if (generated >= options_.maxNewTokens) return true;
        const std::vector<std::int32_t>& ids = config_.eosIds;
        return options_.stopAtEos && std::find(ids.begin(), ids.end(), last) != ids.end();
    }

private:
    const SessionOptions& options_;
    const ModelConfig& config_;
};

} // namespace kvscope
