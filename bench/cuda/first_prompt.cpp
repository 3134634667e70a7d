// What a process pays once: from its start to the first token of its first prompt, and how much longer that prompt
// takes than the second one. Each round is a program of its own that loads a checkpoint with random weights, uploads it
// and reads prompts, with a rehearsal beside the upload and without one, in turns.
#include "base/clock.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/child_program.h"
#include "bench/cuda/decode_job.h"
#include "bench/settings.h"
#include "bench/workload.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/rehearsal.h"
#include "core/model/model_shape.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>

namespace kvscope::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape; // with one length: the weights of a norm
    std::int64_t elements() const { return shape.size() == 1 ? shape[0] : shape[0] * shape[1]; }
};

std::vector<Tensor> tensorsOf(const ModelShape& shape) {
    const std::int64_t hidden = shape.hidden, dim = shape.headDim, ffn = shape.ffn;
    const std::int64_t q = shape.queryHeads * dim, kv = shape.kvHeads * dim;
    std::vector<Tensor> all{{"model.embed_tokens.weight", {shape.vocab, hidden}}, {"model.norm.weight", {hidden}}};
    if (!shape.tiedEmbeddings) all.push_back({"lm_head.weight", {shape.vocab, hidden}});
    for (int i = 0; i < shape.layers; ++i) {
        const std::string layer = fmt::format("model.layers.{}.", i);
        for (const Tensor& tensor : std::initializer_list<Tensor>{{"input_layernorm.weight", {hidden}},
                                                                  {"post_attention_layernorm.weight", {hidden}},
                                                                  {"self_attn.q_proj.weight", {q, hidden}},
                                                                  {"self_attn.k_proj.weight", {kv, hidden}},
                                                                  {"self_attn.v_proj.weight", {kv, hidden}},
                                                                  {"self_attn.o_proj.weight", {hidden, q}},
                                                                  {"mlp.gate_proj.weight", {ffn, hidden}},
                                                                  {"mlp.up_proj.weight", {ffn, hidden}},
                                                                  {"mlp.down_proj.weight", {hidden, ffn}}})
            all.push_back({layer + tensor.name, tensor.shape});
    }
    return all;
}

/// Writes config.json and bf16 weights of deviation 1/sqrt(columns), norms 1. The numbers repeat after 32 MiB.
void writeCheckpoint(const fs::path& folder, const ModelShape& shape) {
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << Json{
        {"architectures", {"LlamaForCausalLM"}},
        {"model_type", "llama"},
        {"vocab_size", shape.vocab},
        {"hidden_size", shape.hidden},
        {"intermediate_size", shape.ffn},
        {"num_hidden_layers", shape.layers},
        {"num_attention_heads", shape.queryHeads},
        {"num_key_value_heads", shape.kvHeads},
        {"head_dim", shape.headDim},
        {"max_position_embeddings", 131072},
        {"rms_norm_eps", 1e-5},
        {"tie_word_embeddings",
         shape.tiedEmbeddings}}.dump();
    const std::vector<Tensor> tensors = tensorsOf(shape);
    Json header = Json::object();
    std::int64_t bytes = 0;
    for (const Tensor& tensor : tensors) {
        const std::int64_t end = bytes + 2 * tensor.elements();
        header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {bytes, end}}};
        bytes = end;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::ofstream file(folder / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(std::size_t(16) << 20);
    for (float& number : numbers) number = normal(random);
    std::vector<std::uint16_t> halves(numbers.size());
    for (const Tensor& tensor : tensors) {
        const bool norm = tensor.shape.size() == 1;
        const float scale = norm ? 1.f : 1.f / std::sqrt(float(tensor.shape[1]));
        const auto count = std::size_t(tensor.elements());
        for (std::size_t i = 0; i < std::min(count, halves.size()); ++i)
            halves[i] = std::uint16_t(std::bit_cast<std::uint32_t>(norm ? 1.f : numbers[i] * scale) >> 16);
        for (std::size_t done = 0; done < count; done += halves.size())
            file.write(reinterpret_cast<const char*>(halves.data()),
                       std::streamsize(2 * std::min(halves.size(), count - done)));
    }
    file.close();
    if (!file)
        throw Error(ErrorKind::Storage,
                    fmt::format("{} has no room for {:.1f} GB", folder.string(), double(bytes) / 1e9),
                    "give another folder with --set folder=");
}

/// Milliseconds of each stage on the GPU, over all layers: where a kernel is loaded before it is launched, the stage is
/// longer.
Json stagesOf(const StepRecord& record) {
    std::array<double, kStageCount> ms{};
    for (const LayerRecord& layer : record.layers)
        for (std::size_t s = 0; s < ms.size(); ++s) ms[s] += double(layer.stageNs[s]) * 1e-6;
    Json stages = Json::object();
    for (std::size_t s = 0; s < ms.size(); ++s)
        if (ms[s] > 0) stages[std::string(nameOf(Stage(s)))] = ms[s];
    for (std::size_t s = 0; s < kStepStageCount; ++s)
        if (record.stepStageNs[s] > 0) stages[std::string(kStepStageNames[s])] = double(record.stepStageNs[s]) * 1e-6;
    return stages;
}

/// What one program measures: a line of the results.
Json measureHere(const fs::path& folder, DecodeJob job, std::int64_t startedNs) {
    std::int64_t last = steadyNowNs();
    const auto lap = [&] {
        const std::int64_t now = steadyNowNs();
        return double(now - std::exchange(last, now)) * 1e-6;
    };
    Json out{{"until_main_ms", double(last - startedNs) * 1e-6}};
    const auto model = Model::load(folder.string());
    job.steps = 1;
    PlantedSteps changes;
    CudaEngineOptions options = engineOptions(job, *DeviceModel::shapesOf(*model), changes);
    options.maxPrompt = job.context;
    options.model = model.get();
    out["load_ms"] = lap();
    UploadTimes times;
    const auto uploaded = uploadRehearsing(model, options, &times);
    lap();
    out["upload_ms"] = times.upload, out["rehearsal_ms"] = times.rehearsal, out["waited_ms"] = times.waited;
    out["problem"] = times.problem;
    CudaEngine engine(uploaded, options);
    out["open_ms"] = lap();
    std::vector<double> prompts;
    Json tokens, stages;
    for (unsigned i = 0; i < 5; ++i) {
        StepRecord record;
        const auto prompt = randomPrompt(job.context, model->config().vocab, 1 + i);
        lap();
        engine.prefill({prompt}, record, {}, {});
        prompts.push_back(lap());
        if (i == 0) out["start_to_token_ms"] = double(last - startedNs) * 1e-6;
        tokens.push_back(engine.tokens().front());
        if (i < 2) stages.push_back(stagesOf(record));
    }
    out["prompt_ms"] = prompts, out["tokens"] = tokens;
    out["first_two_gpu_stage_ms"] = stages;
    out["first_minus_second_ms"] = prompts[0] - prompts[1];
    return out;
}

/// A program that starts now and measures.
Json measureInChild(const std::string& self, const fs::path& folder, const DecodeJob& job, bool rehearse) {
    if (rehearse)
        unsetenv("KVSCOPE_NO_REHEARSAL");
    else
        setenv("KVSCOPE_NO_REHEARSAL", "1", 1);
    std::vector<std::string> command{self, "first-prompt", "--json"};
    for (const std::string& setting :
         {"shape=" + job.shape, "method=" + job.method, fmt::format("offload={}", job.offload),
          fmt::format("tokens={}", job.context), "folder=" + folder.string(), fmt::format("started={}", steadyNowNs())})
        command.insert(command.end(), {"--set", setting});
    ChildProgram child(command);
    if (const int status = child.wait(); status != 0)
        throw Error(ErrorKind::Device, fmt::format("the measuring program ended with status {}", status));
    return Json::parse(child.output()).at("first-prompt");
}

double medianOf(const std::vector<Json>& rows, const char* key) {
    std::vector<double> values;
    for (const Json& row : rows) values.push_back(row.at(key).get<double>());
    return median(std::move(values));
}

} // namespace

/// Settings: shape, method, offload as for `decode`; tokens of a prompt; rounds; folder=: where the checkpoint lies, or
/// is written and stays (else in a temporary folder, which is removed). started=: given to the programs that measure.
Json firstPrompt(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"shape", "method", "offload", "tokens", "rounds", "folder", "started"});
    DecodeJob job;
    job.shape = settings.text("shape", "llama3.2-3b");
    job.method = settings.text("method", "full");
    job.offload = settings.flag("offload", false);
    job.context = settings.integer("tokens", 4096, 1, 1 << 17);
    fs::path folder = settings.text("folder", "");
    if (given.contains("started")) return measureHere(folder, job, std::int64_t(settings.number("started", 0)));
    struct Temporary {
        fs::path path;
        ~Temporary() {
            std::error_code failure;
            if (!path.empty()) fs::remove_all(path, failure);
        }
    } temporary;
    if (folder.empty())
        folder = temporary.path = fs::temp_directory_path() / fmt::format("kvscope-first-prompt-{}", getpid());
    if (!fs::exists(folder / "model.safetensors")) {
        log(fmt::format("writing a checkpoint of {} into {}", job.shape, folder.string()));
        writeCheckpoint(folder, findModelShape(job.shape));
    }
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    const int rounds = settings.integer("rounds", 3, 1, 100);
    std::vector<Json> with, without;
    (void)measureInChild(self, folder, job, false); // files are in memory from here on
    for (int round = 0; round < rounds; ++round)
        for (const bool rehearse : {true, false}) {
            Json row = measureInChild(self, folder, job, rehearse);
            log(fmt::format(
                "{}: {:.0f} ms to the first token (load {:.0f}, upload {:.0f}, rehearsal {:.0f}, waited {:.0f}, "
                "open {:.0f}); prompts {:.1f}, {:.1f}, {:.1f}: first minus second {:.1f} ms {}",
                rehearse ? "rehearsed" : "not      ", row["start_to_token_ms"].get<double>(),
                row["load_ms"].get<double>(), row["upload_ms"].get<double>(), row["rehearsal_ms"].get<double>(),
                row["waited_ms"].get<double>(), row["open_ms"].get<double>(), row["prompt_ms"][0].get<double>(),
                row["prompt_ms"][1].get<double>(), row["prompt_ms"][2].get<double>(),
                row["first_minus_second_ms"].get<double>(), row["problem"].get<std::string>()));
            (rehearse ? with : without).push_back(std::move(row));
        }
    const bool same = with.front()["tokens"] == without.front()["tokens"];
    if (!same) log("THE TOKENS DIFFER");
    Json out{{"shape", job.shape}, {"method", job.method}, {"tokens", job.context}, {"same_tokens", same}};
    for (const char* key :
         {"first_minus_second_ms", "start_to_token_ms", "upload_ms", "rehearsal_ms", "waited_ms", "open_ms"}) {
        out[fmt::format("rehearsed_{}", key)] = medianOf(with, key);
        out[fmt::format("not_rehearsed_{}", key)] = medianOf(without, key);
    }
    out["rounds_rehearsed"] = with, out["rounds_not_rehearsed"] = without;
    return out;
}

} // namespace kvscope::bench
