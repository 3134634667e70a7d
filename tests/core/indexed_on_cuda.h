// What dsa_cuda_test.cpp and msa_cuda_test.cpp share: random checkpoints whose indexers choose what is attended, and
// sessions on the GPU and on the CPU with the same bf16 weights and the same tokens.
#pragma once

#include "core/plan/model_limits.h"
#include "core/select/refusal.h"
#include "tests/core/backend.h"
#include "tests/core/indexed_family.h"
#include "tests/core/random_checkpoint.h"

#include <functional>
#include <ostream>

namespace kvscope::test {

/// The shape of a checkpoint. It is asked for its configuration when a test runs, because that reads files.
struct IndexedShape {
    const char* name;
    std::function<nlohmann::json()> config;
};
inline void PrintTo(const IndexedShape& shape, std::ostream* out) { *out << shape.name; }

/// A checkpoint of random weights; written once for all tests of a method and a shape.
inline const std::shared_ptr<const Model>& randomModel(const std::string& method, const IndexedShape& shape) {
    static std::map<std::string, std::shared_ptr<const Model>> written;
    const std::string name = "kvscope-" + method + "-" + shape.name + "-" + std::to_string(getpid());
    std::shared_ptr<const Model>& model = written[name];
    if (model) return model;
    const auto folder = std::filesystem::temp_directory_path() / name;
    model = Model::load(writeCheckpoint(folder.string(), shape.config(), 5));
    std::filesystem::remove_all(folder); // the files are mapped
    return model;
}

inline double middleOf(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Tests of a method on shapes, with and without a GPU.
class IndexedShapes : public ::testing::TestWithParam<IndexedShape> {
protected:
    explicit IndexedShapes(const char* method) : method_(method), model_(randomModel(method, GetParam())) {}

    Ids prompt(int tokens) { return randomPrompt(tokens, random_, model_->config().vocab); }
    SessionOptions optionsOf(Backend backend, int newTokens, bool offload, const char* method = nullptr) const {
        SessionOptions options = test::optionsOf(method != nullptr ? method : method_, newTokens);
        options.backend = backend;
        options.offload = offload;
        return options;
    }
    Outcome decode(const std::vector<Ids>& prompts, SessionOptions options, const Ids& forced = {}) const {
        options.twoInFlight = forced.empty(); // a forced token is known before the next step is launched
        return test::decode(model_, prompts, options, forced);
    }
    void expectRunsOnCuda() const {
        EXPECT_EQ(gpuProblem(*model_), "");
        const MethodEntry& method = findMethod(method_);
        const ParameterValues values = resolveDefaults(method, model_->config());
        const SelectionSpec spec = method.make(values, model_->config());
        EXPECT_FALSE(findRefusal(method, {values, spec, model_->config(), Backend::Cuda}, 500));
    }
    void skipWithoutGpu() const {
        if (!onCuda()) GTEST_SKIP() << "compares the GPU with the CPU";
    }
    /// How far the GPU's logits are from the CPU's, as shares of the largest, in steps that are fed the same tokens.
    static std::vector<double> errorsOf(const Outcome& cpu, const Outcome& gpu) {
        EXPECT_EQ(cpu.logits.size(), gpu.logits.size());
        std::vector<double> errors;
        for (std::size_t step = 0; step < cpu.logits.size(); ++step)
            errors.push_back(relativeError(gpu.logits.at(step), cpu.logits[step].data()));
        return errors;
    }
    std::vector<double> errorsOf(int tokens, const char* method, bool offload) {
        const std::vector<Ids> prompts{prompt(tokens)};
        const Ids forced = prompt(12);
        return errorsOf(decode(prompts, optionsOf(Backend::Cpu, 12, offload, method), forced),
                        decode(prompts, optionsOf(Backend::Cuda, 12, offload, method), forced));
    }
    /// For steps that attend to the same tokens on both: only bf16 lies between the two.
    void expectNear(const std::vector<double>& errors) const {
        const double most = *std::max_element(errors.begin(), errors.end()), middle = middleOf(errors);
        std::printf("logits differ by %.2e of the largest, half of them by less than %.2e\n", most, middle);
        EXPECT_LT(middle, 0.05);
        if (!model_->config().experts) { // where a token may have other experts
            EXPECT_LT(most, 0.1);
        }
    }

    const char* const method_;
    const std::shared_ptr<const Model> model_;
    std::mt19937 random_{11};
};

} // namespace kvscope::test
