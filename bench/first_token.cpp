// The time from a program that has loaded nothing to the first decoded token.
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

nlohmann::ordered_json firstToken(const Log& log) {
    std::vector<double> load, total;
    for (int round = 0; round < 5; ++round) {
        double loaded = 0;
        total.push_back(1e3 * seconds([&] {
                            std::shared_ptr<const Model> model;
                            loaded = 1e3 * seconds([&] { model = Model::load(kDefaultModel); });
                            NullSink sink;
                            DecodeSession session(model, {needlePrompt(*model, 600)}, greedy("nosa", 2), sink);
                            session.prefill();
                            session.step();
                        }));
        load.push_back(loaded);
        log(fmt::format("{:.0f} ms, {:.0f} of them loading the model", total.back(), loaded));
    }
    return {{"load_ms", median(load)}, {"first_decoded_token_ms", median(total)}};
}

} // namespace kvscope::bench
