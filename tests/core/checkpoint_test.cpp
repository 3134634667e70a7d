// Whole checkpoints, sound and damaged.
#include "core/model/model.h"

#include "tests/core/tiny_checkpoint.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <cstring>
#include <sys/stat.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;
using test::contentsOf;
using test::kEmbeddedFolder;
using test::refusalOf;
using test::Tensor;
using test::TinyCheckpoint;
using test::write;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::string loadRefusal(const fs::path& path, const std::string& file) {
    return refusalOf([&] { Model::load(path.string()); }, file);
}

void expectHolds(const Model& model, const TinyCheckpoint& checkpoint) {
    const auto matrixEquals = [&](const WeightMatrix& matrix, const std::string& name) {
        const Tensor& tensor = checkpoint.tensors.at(name);
        ASSERT_EQ(matrix.bytes(), tensor.bytes.size()) << name;
        EXPECT_EQ(matrix.rows, tensor.shape[0]) << name;
        EXPECT_EQ(std::memcmp(matrix.data, tensor.bytes.data(), tensor.bytes.size()), 0) << name;
    };
    const auto vectorEquals = [&](const std::vector<float>& values, const std::string& name) {
        ASSERT_FALSE(values.empty()) << name;
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], checkpoint.value(name, i)) << name;
    };
    for (int i = 0; i < 2; ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        const LayerWeights& w = model.layer(i);
        matrixEquals(w.q, layer + "self_attn.q_proj.weight");
        matrixEquals(w.k, layer + "self_attn.k_proj.weight");
        matrixEquals(w.v, layer + "self_attn.v_proj.weight");
        matrixEquals(w.o, layer + "self_attn.o_proj.weight");
        matrixEquals(w.mlp.gate, layer + "mlp.gate_proj.weight");
        matrixEquals(w.mlp.up, layer + "mlp.up_proj.weight");
        matrixEquals(w.mlp.down, layer + "mlp.down_proj.weight");
        vectorEquals(w.inputNorm, layer + "input_layernorm.weight");
        vectorEquals(w.postNorm, layer + "post_attention_layernorm.weight");
        EXPECT_TRUE(w.qBias.empty());
        if (!model.hasEvictionHead()) continue;
        vectorEquals(w.delta, layer + "self_attn.delta.weight");
        vectorEquals(w.gain, layer + "self_attn.A");
    }
    vectorEquals(model.finalNorm(), "model.norm.weight");
    matrixEquals(model.embedding(), "model.embed_tokens.weight");
    if (model.config().tiedEmbeddings)
        EXPECT_EQ(model.lmHead().data, model.embedding().data);
    else
        matrixEquals(model.lmHead(), "lm_head.weight");
}

class Checkpoint : public testing::Test {
protected:
    fs::path file(const std::string& name = "model.safetensors") const { return folder_ / name; }
    /// Writes `checkpoint` and gives the refusal of loading it.
    std::string refusal(const TinyCheckpoint& checkpoint, const std::string& named = "model.safetensors") const {
        checkpoint.writeTo(folder_.path());
        return loadRefusal(folder_.path(), named);
    }
    test::Folder folder_;
};

TEST_F(Checkpoint, LoadsInEveryTypeTiedAndUntied) {
    for (const std::string dtype : {"BF16", "F16", "F32"})
        for (const bool tied : {true, false})
            for (const bool head : {true, false}) {
                SCOPED_TRACE(dtype + (tied ? " tied" : " untied") + (head ? " with eviction head" : ""));
                const TinyCheckpoint checkpoint(dtype, tied, head);
                checkpoint.writeTo(folder_.path());
                const auto model = Model::load(folder_.path().string());
                EXPECT_EQ(model->name(), folder_.path().filename().string());
                EXPECT_EQ(model->weightType(), *weightType(dtype));
                EXPECT_EQ(model->hasEvictionHead(), head);
                EXPECT_EQ(model->fileBytes(), fs::file_size(file()));
                expectHolds(*model, checkpoint);
            }
}

TEST_F(Checkpoint, LoadsFromAFileASlashedFolderAndShards) {
    const TinyCheckpoint checkpoint("F32", false);
    checkpoint.writeTo(folder_.path());
    expectHolds(*Model::load(file().string()), checkpoint);
    const auto slashed = Model::load(folder_.path().string() + "/");
    EXPECT_EQ(slashed->name(), folder_.path().filename().string());
    fs::remove(file());
    checkpoint.writeSharded(folder_.path());
    const auto sharded = Model::load(folder_.path().string());
    expectHolds(*sharded, checkpoint);
    EXPECT_EQ(sharded->fileBytes(),
              fs::file_size(file("part-1.safetensors")) + fs::file_size(file("part-2.safetensors")));
}

TEST_F(Checkpoint, LoadsFromAFolderOfTheHubsCache) {
    const TinyCheckpoint checkpoint;
    const fs::path repository = file("models--some-owner--Some-Model"), snapshots = repository / "snapshots",
                   current = snapshots / "0123abcd", blob = repository / "blobs/77";
    for (const fs::path& folder : {current, snapshots / "f00", blob.parent_path(), repository / "refs"})
        fs::create_directories(folder);
    checkpoint.writeTo(current); // the files are links to blobs
    fs::rename(current / "model.safetensors", blob);
    fs::create_symlink("../../blobs/77", current / "model.safetensors");
    write(repository / "refs/main", "0123abcd\n");
    for (const fs::path& path : {repository, current, current / ""}) {
        const auto model = Model::load(path.string());
        EXPECT_EQ(model->name(), "Some-Model");
        expectHolds(*model, checkpoint);
    }
    fs::remove(repository / "refs/main");
    EXPECT_THAT(loadRefusal(repository, "several snapshots"), HasSubstr("0123abcd, f00"));
    write(repository / "refs/main", "../../elsewhere");
    EXPECT_NE(loadRefusal(repository, "several snapshots"), "");
    fs::remove(snapshots / "f00");
    expectHolds(*Model::load(repository.string()), checkpoint);
    fs::remove_all(current);
    EXPECT_THAT(loadRefusal(repository, "models--some-owner"), HasSubstr("no snapshot"));
}

TEST_F(Checkpoint, TakesTheOnlyGgufModelOfAFolder) {
    if (!fs::exists(test::source("tests/golden/gguf/families")))
        GTEST_SKIP() << "this checkout leaves out tests/golden/gguf/families";
    const fs::path golden = test::source("tests/golden/gguf/families");
    fs::copy_file(golden / "mistral.gguf", file("a b \u00fc.gguf"));
    EXPECT_EQ(Model::load(folder_.path().string())->name(), "a b \u00fc");
    write(file("other-00002-of-00002.gguf"), ""); // a later part is no model of its own
    EXPECT_EQ(Model::load(folder_.path().string())->name(), "a b \u00fc");
    fs::copy_file(golden / "qwen2.gguf", file("second.gguf"));
    EXPECT_THAT(loadRefusal(folder_.path(), "several models"), HasSubstr("second.gguf"));
    TinyCheckpoint().writeTo(folder_.path()); // a checkpoint goes before
    EXPECT_EQ(Model::load(folder_.path().string())->name(), folder_.path().filename().string());
}

TEST_F(Checkpoint, ReadsNoFileThatCouldRunCode) {
    TinyCheckpoint().writeConfig(folder_.path());
    for (const char* name : {"pytorch_model.bin", "consolidated.00.pth"}) {
        write(file(name), "not even opened");
        EXPECT_THAT(loadRefusal(folder_.path(), name), HasSubstr("may run code"));
    }
}

TEST_F(Checkpoint, ATildeIsTheHomeFolder) {
    const TinyCheckpoint checkpoint;
    fs::create_directory(file("models"));
    checkpoint.writeTo(file("models"));
    const char* const home = std::getenv("HOME");
    const std::string before = home != nullptr ? home : "";
    setenv("HOME", folder_.path().c_str(), 1);
    const auto model = Model::load("~/models");
    const std::string line = loadRefusal("~/nowhere", "~/nowhere");
    home != nullptr ? setenv("HOME", before.c_str(), 1) : unsetenv("HOME");
    expectHolds(*model, checkpoint);
    EXPECT_NE(line, "");
}

TEST_F(Checkpoint, ReadsBiasesWhenThereAreAny) {
    TinyCheckpoint checkpoint;
    checkpoint.config["architectures"] = {"NosaLlamaForCausalLM"}; // its file does not say which there are
    checkpoint.config["rope_theta"] = 10000.0;
    checkpoint.add("model.layers.0.self_attn.q_proj.bias", {32});
    checkpoint.add("model.layers.1.self_attn.o_proj.bias", {32});
    checkpoint.writeTo(folder_.path());
    const auto model = Model::load(folder_.path().string());
    ASSERT_EQ(model->layer(0).qBias.size(), 32u);
    EXPECT_EQ(model->layer(0).qBias[5], checkpoint.value("model.layers.0.self_attn.q_proj.bias", 5));
    EXPECT_EQ(model->layer(1).oBias.size(), 32u);
    EXPECT_TRUE(model->layer(1).qBias.empty());
    checkpoint.add("model.layers.1.mlp.up_proj.bias", {48});
    checkpoint.writeTo(folder_.path());
    const auto biased = Model::load(folder_.path().string());
    EXPECT_EQ(biased->layer(1).mlp.upBias.size(), 48u);
    EXPECT_TRUE(biased->layer(1).mlp.gateBias.empty());
}

/// A bias that the configuration turns off would be left out by the library, with another result than the one that the
/// file's author saw; so would any tensor that this architecture does not know.
TEST_F(Checkpoint, RefusesTensorsThatNothingUses) {
    for (const auto& [name, size] : {std::pair{"self_attn.q_proj.bias", 32},
                                     {"self_attn.o_proj.bias", 32},
                                     {"mlp.gate_proj.bias", 48},
                                     {"mlp.down_proj.bias", 32},
                                     {"self_attn.q_norm.weight", 16},
                                     {"pre_feedforward_layernorm.weight", 32}}) {
        TinyCheckpoint checkpoint;
        const std::string tensor = std::string("model.layers.1.") + name;
        checkpoint.add(tensor, {size});
        EXPECT_THAT(refusal(checkpoint), HasSubstr("nothing uses the tensor '" + tensor + "'"));
    }
    TinyCheckpoint checkpoint;
    checkpoint.config["attention_bias"] = true; // then all of them
    EXPECT_THAT(refusal(checkpoint), HasSubstr("'model.layers.0.self_attn.q_proj.bias' is missing"));
    checkpoint.writeSharded(folder_.path());
    fs::remove(file());
    write(file("part-3.safetensors"), contentsOf(file("part-2.safetensors")));
    Json index = Json::parse(contentsOf(file("model.safetensors.index.json")));
    index["weight_map"]["model.norm.weight"] = "part-3.safetensors";
    write(file("model.safetensors.index.json"), index.dump());
    EXPECT_THAT(loadRefusal(folder_.path(), "part-3.safetensors"), HasSubstr("is in"));
}

TEST_F(Checkpoint, NotesTensorsThatTheLibraryLeavesOutToo) {
    TinyCheckpoint checkpoint;
    checkpoint.add("model.layers.0.self_attn.rotary_emb.inv_freq", {8});
    checkpoint.add("model.layers.1.self_attn.rotary_emb.inv_freq", {8});
    checkpoint.add("model.layers.2.self_attn.q_proj.weight", {32, 32});
    checkpoint.add("vision.patch.weight", {4, 4});
    checkpoint.add("model.layers.0.empty.weight", {0, 32});
    checkpoint.writeTo(folder_.path());
    const auto notes = Model::load(folder_.path().string())->notes();
    ASSERT_EQ(notes.size(), 3u);
    EXPECT_EQ(notes[0], "2 tensors with rotary tables, which are computed, are left out");
    EXPECT_EQ(notes[1], "1 tensor of layers behind the last one is left out");
    EXPECT_EQ(notes[2], "1 tensor of no layer (vision.patch.weight) is left out");
}

/// As the library: the head that is in the file goes before what the configuration says, if it is another.
TEST_F(Checkpoint, ATiedHeadThatIsInTheFileIsUsedWhereItDiffers) {
    TinyCheckpoint checkpoint("F32", true);
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors.at("model.embed_tokens.weight");
    checkpoint.writeTo(folder_.path());
    const auto same = Model::load(folder_.path().string());
    EXPECT_TRUE(same->config().tiedEmbeddings);
    EXPECT_EQ(same->lmHead().data, same->embedding().data);
    ASSERT_EQ(same->notes().size(), 1u);
    EXPECT_THAT(same->notes()[0], HasSubstr("is the embedding"));
    checkpoint.tensors.at("lm_head.weight").bytes[5] ^= 1;
    checkpoint.writeTo(folder_.path());
    const auto other = Model::load(folder_.path().string());
    EXPECT_FALSE(other->config().tiedEmbeddings);
    EXPECT_NE(other->lmHead().data, other->embedding().data);
    ASSERT_EQ(other->notes().size(), 1u);
    EXPECT_THAT(other->notes()[0], HasSubstr("differs"));
    checkpoint.config.erase("tie_word_embeddings"); // the library's default is a head of its own
    checkpoint.tensors.erase("lm_head.weight");
    EXPECT_THAT(refusal(checkpoint), HasSubstr("'lm_head.weight' is missing"));
}

TEST_F(Checkpoint, NamesEveryMissingTensor) {
    const TinyCheckpoint whole("BF16", false);
    for (const auto& [name, tensor] : whole.tensors) {
        TinyCheckpoint checkpoint = whole;
        checkpoint.tensors.erase(name);
        const std::string line = refusal(checkpoint);
        if (name.find("delta") == std::string::npos && name.find("self_attn.A") == std::string::npos)
            EXPECT_THAT(line, HasSubstr("'" + name + "'"));
        else
            EXPECT_THAT(line, HasSubstr("eviction head")) << name;
    }
}

TEST_F(Checkpoint, NamesEveryTensorOfAWrongShapeOrType) {
    const TinyCheckpoint whole("BF16", false);
    for (const auto& [name, tensor] : whole.tensors) {
        TinyCheckpoint checkpoint = whole;
        Tensor& changed = checkpoint.tensors.at(name);
        changed.shape.push_back(1);
        EXPECT_THAT(refusal(checkpoint), HasSubstr("'" + name + "' has shape [")) << name;
        changed.shape = tensor.shape;
        changed.dtype = "I16";
        EXPECT_THAT(refusal(checkpoint), HasSubstr("'" + name + "' has type I16")) << name;
        changed.dtype = "Q4\n";
        EXPECT_THAT(refusal(checkpoint), HasSubstr("'" + name + "' has the unknown type")) << name;
    }
}

TEST_F(Checkpoint, RefusesShardsOutsideTheFolder) {
    TinyCheckpoint().writeSharded(folder_.path());
    const std::string index = "model.safetensors.index.json";
    const std::vector<std::string> names = {
        "../part-1.safetensors",  "/etc/passwd", "a/b", "a\\b", "..", ".", "", std::string("a\0b", 3),
        std::string(100'000, 'y')};
    for (const std::string& name : names) {
        write(file(index), Json{{"weight_map", {{"x", name}}}}.dump());
        EXPECT_NE(loadRefusal(folder_.path(), index), "") << name;
    }
    for (const std::string text :
         {"", "{}", "[]", "{\"weight_map\": {}}", "{\"weight_map\": []}", "{\"weight_map\": {\"x\": 4}}"}) {
        write(file(index), text);
        EXPECT_NE(loadRefusal(folder_.path(), index), "") << text;
    }
}

TEST_F(Checkpoint, NamesAMissingShard) {
    TinyCheckpoint().writeSharded(folder_.path());
    fs::remove(file("part-2.safetensors"));
    EXPECT_THAT(loadRefusal(folder_.path(), "part-2.safetensors"), HasSubstr("cannot open"));
}

TEST_F(Checkpoint, NamesTheIndexWhenNoShardHoldsATensor) {
    TinyCheckpoint checkpoint;
    checkpoint.tensors.erase("model.layers.1.mlp.up_proj.weight");
    checkpoint.writeSharded(folder_.path());
    EXPECT_THAT(loadRefusal(folder_.path(), "model.safetensors.index.json"), HasSubstr("layers.1.mlp.up_proj.weight"));
}

TEST_F(Checkpoint, NamesEveryMissingFile) {
    for (const char* name : {"config.json", "model.safetensors"}) {
        TinyCheckpoint().writeTo(folder_.path());
        fs::remove(file(name));
        EXPECT_THAT(loadRefusal(folder_.path(), name), HasSubstr("has no")) << name;
    }
}

TEST_F(Checkpoint, EndsWhereGenerationConfigSaysToo) {
    TinyCheckpoint().writeTo(folder_.path());
    const auto before = Model::load(folder_.path().string())->config().eosIds;
    ASSERT_EQ(before, std::vector<std::int32_t>{1});
    write(file("generation_config.json"), R"({"eos_token_id": [1, 3, 999999], "temperature": 0.6})");
    EXPECT_EQ(Model::load(folder_.path().string())->config().eosIds, (std::vector<std::int32_t>{1, 3}));
    // This config.json names no end-of-text token; generation_config.json does, until it is removed.
    TinyCheckpoint silent;
    silent.config.erase("eos_token_id");
    silent.writeConfig(folder_.path());
    EXPECT_EQ(Model::load(folder_.path().string())->config().eosIds, (std::vector<std::int32_t>{1, 3}));
    fs::remove(file("generation_config.json"));
    EXPECT_EQ(Model::load(folder_.path().string())->config().eosIds, std::vector<std::int32_t>{2});
    TinyCheckpoint().writeConfig(folder_.path());
    write(file("generation_config.json"), R"({"eos_token_id": 5})");
    EXPECT_EQ(Model::load(folder_.path().string())->config().eosIds, (std::vector<std::int32_t>{1, 5}));
    for (const char* bad : {"[", "4", R"({"eos_token_id": "</s>"})", R"({"eos_token_id": -4})"}) {
        write(file("generation_config.json"), bad);
        EXPECT_NE(loadRefusal(folder_.path(), "generation_config.json"), "") << bad;
    }
}

// transformers applies a repetition penalty of generation_config.json to greedy texts too.
TEST_F(Checkpoint, SaysWhatOfGenerationConfigChangesTokens) {
    TinyCheckpoint().writeTo(folder_.path());
    const auto notesWith = [&](const char* text) {
        write(file("generation_config.json"), text);
        return Model::load(folder_.path().string())->notes();
    };
    for (const char* neutral :
         {"{}", R"({"repetition_penalty": 1.0, "num_beams": 1, "min_length": 0, "suppress_tokens": null})",
          R"({"do_sample": true, "temperature": 0.6, "bad_words_ids": [], "no_repeat_ngram_size": 0})",
          R"({"token_healing": false, "guidance_scale": 1, "max_length": 20})"})
        EXPECT_TRUE(notesWith(neutral).empty()) << neutral;
    for (const auto& [text, key] :
         {std::pair(R"({"repetition_penalty": 1.05})", "repetition_penalty"),
          std::pair(R"({"suppress_tokens": [3]})", "suppress_tokens"),
          std::pair(R"({"min_new_tokens": 4})", "min_new_tokens"), std::pair(R"({"num_beams": 4})", "num_beams"),
          std::pair(R"({"repetition_penalty": "1.0"})", "repetition_penalty")}) {
        const auto notes = notesWith(text);
        ASSERT_EQ(notes.size(), 1u) << text;
        EXPECT_THAT(notes[0], HasSubstr(key)) << text;
    }
}

// As transformers: a folder may hold the shards that a single file was made from.
TEST_F(Checkpoint, TakesTheSingleFileBesideShards) {
    TinyCheckpoint checkpoint("F32", false);
    checkpoint.writeSharded(folder_.path());
    const std::string ofShards = checkpoint.tensors.at("model.norm.weight").bytes;
    checkpoint.tensors.at("model.norm.weight").bytes[2] ^= 1;
    checkpoint.writeTo(folder_.path());
    const auto model = Model::load(folder_.path().string());
    const auto& bytes = checkpoint.tensors.at("model.norm.weight").bytes;
    EXPECT_EQ(std::memcmp(model->finalNorm().data(), bytes.data(), bytes.size()), 0);
    ASSERT_EQ(model->notes().size(), 1u);
    EXPECT_THAT(model->notes()[0], HasSubstr("model.safetensors.index.json"));
    fs::remove(file("model.safetensors"));
    EXPECT_EQ(std::memcmp(Model::load(folder_.path().string())->finalNorm().data(), ofShards.data(), ofShards.size()),
              0);
}

// transformers adds it to the weights where peft is installed.
TEST_F(Checkpoint, RefusesAnAdapterBesideTheWeights) {
    TinyCheckpoint("F32", false).writeTo(folder_.path());
    write(file("adapter_config.json"), R"({"peft_type": "LORA", "base_model_name_or_path": "base"})");
    EXPECT_THAT(loadRefusal(folder_.path(), "adapter_config.json"), HasSubstr("beside the model"));
    const auto model = Model::load(file("model.safetensors").string());
    ASSERT_EQ(model->notes().size(), 1u) << "the weights alone were asked for";
    EXPECT_THAT(model->notes()[0], HasSubstr("adapter_config.json"));
    fs::remove(file("model.safetensors"));
    fs::remove(file("config.json"));
    write(file("adapter_model.safetensors"), "");
    EXPECT_THAT(loadRefusal(folder_.path(), "adapter_config.json"), HasSubstr("merge it into its base model"));
}

// AutoTokenizer of transformers 5.17 was asked about every one of these.
TEST_F(Checkpoint, NotesWhatItsTokenizerConfigSaysOtherwise) {
    TinyCheckpoint("F32", false).writeTo(folder_.path());
    fs::copy_file(test::source("tests/golden/tokenizers/llama2.json"), file("tokenizer.json"),
                  fs::copy_options::overwrite_existing);
    const auto notesWith = [&](const std::string& text) {
        write(file("tokenizer_config.json"), text);
        return Model::load(folder_.path().string())->notes();
    };
    for (
        const char* text :
        {"{}", R"({"add_bos_token": true, "add_eos_token": false, "bos_token": "<s>", "eos_token": "</s>"})",
         R"({"bos_token": {"content": "<s>"}, "unk_token": "<unk>", "pad_token": null, "split_special_tokens": false})",
         R"({"added_tokens_decoder": {"1": {"content": "<s>", "special": true}}, "extra_special_tokens": {}})",
         R"({"add_bos_token": true})"})
        EXPECT_THAT(notesWith(text), testing::IsEmpty()) << text;
    for (const auto& [text, named] :
         {std::pair(R"({"add_bos_token": false})", "(add_bos_token: false) and the post-processor"),
          std::pair(R"({"add_eos_token": true, "eos_token": "</s>"})", "add_eos_token: true"),
          std::pair(R"({"pad_token": "<pad>"})", ": <pad>; transformers"),
          std::pair(R"({"split_special_tokens": true})", "split_special_tokens"),
          std::pair(R"({"image_token": {"content": "<image>"}})", "<image>"),
          std::pair(R"({"extra_special_tokens": ["<a>", {"content": "<b>"}]})", "<a>, <b>"),
          std::pair(R"({"extra_special_tokens": {"x_token": "<x>"}})", "<x>"),
          std::pair(R"({"additional_special_tokens": ["<c>"]})", "<c>"),
          std::pair(R"({"added_tokens_decoder": {"900": {"content": "<d>", "special": false}}})", "<d>"),
          std::pair(R"({"extra_special_tokens": ["1", "2", "3", "4", "5", "6", "7"]})", "5 and 2 more")}) {
        const auto notes = notesWith(text);
        ASSERT_EQ(notes.size(), 1u) << text;
        EXPECT_THAT(notes[0], HasSubstr(named)) << text;
    }
}

TEST_F(Checkpoint, WithoutATokenizerTakesAndGivesIdsOnly) {
    TinyCheckpoint().writeTo(folder_.path());
    fs::remove(file("tokenizer.json"));
    const auto model = Model::load(folder_.path().string());
    EXPECT_EQ(model->tokenizer().vocabSize(), model->config().vocab);
    EXPECT_EQ(model->tokenizer().decode({3, 17}), "<3><17>");
    const std::string line = refusalOf([&] { (void)model->tokenizer().encode("a text"); }, "--prompt-ids");
    EXPECT_THAT(line, HasSubstr(folder_.path().string()));
}

TEST_F(Checkpoint, RefusesAFileTruncatedAnywhere) {
    TinyCheckpoint checkpoint;
    checkpoint.writeTo(folder_.path());
    const std::string whole = contentsOf(file());
    std::uint64_t header = 0;
    std::memcpy(&header, whole.data(), 8);
    for (std::size_t length = 0; length < whole.size(); length += length < 8 + header ? 1 + header / 2000 : 997) {
        const std::string cut = whole.substr(0, length);
        EXPECT_NE(refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(cut)), "x.safetensors"); }, "x.safetensors"),
                  "")
            << length;
    }
    for (const std::size_t length : {std::size_t(0), std::size_t(4), std::size_t(8), std::size_t(100),
                                     std::size_t(8 + header), std::size_t(8 + header + 1000), whole.size() - 1}) {
        write(file(), whole.substr(0, length));
        EXPECT_NE(loadRefusal(folder_.path(), "model.safetensors"), "") << length;
    }
}

TEST_F(Checkpoint, ADamagedHeaderLoadsOrIsRefused) {
    TinyCheckpoint checkpoint;
    checkpoint.writeTo(folder_.path());
    const std::string whole = contentsOf(file());
    std::uint64_t header = 0;
    std::memcpy(&header, whole.data(), 8);
    std::mt19937 random(11);
    int refused = 0;
    for (int round = 0; round < 200; ++round) {
        std::string damaged = whole;
        for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
            const std::size_t at = round % 10 == 0 ? random() % 8 : random() % (8 + header);
            damaged[at] = round % 2 ? char(random()) : "0123456789[]{},:\""[random() % 17];
        }
        write(file(), damaged);
        if (!loadRefusal(folder_.path(), "model.safetensors").empty()) ++refused;
    }
    EXPECT_GT(refused, 50);
}

TEST_F(Checkpoint, ADamagedConfigurationLoadsOrIsRefused) {
    TinyCheckpoint checkpoint;
    checkpoint.writeTo(folder_.path());
    const std::string whole = contentsOf(file("config.json"));
    std::mt19937 random(13);
    for (int round = 0; round < 200; ++round) {
        std::string damaged = whole;
        damaged[random() % damaged.size()] = round % 2 ? char(random()) : "0123456789[]{},:\""[random() % 17];
        write(file("config.json"), damaged);
        loadRefusal(folder_.path(), ""); // the weights may be what no longer fits
    }
}

TEST_F(Checkpoint, RefusesWhatIsNoFile) {
    TinyCheckpoint().writeConfig(folder_.path());
    write(file(), "");
    EXPECT_THAT(loadRefusal(folder_.path(), "model.safetensors"), HasSubstr("too few"));
    fs::remove(file());
    fs::create_directory(file());
    EXPECT_THAT(loadRefusal(folder_.path(), "model.safetensors"), HasSubstr("directory"));
    fs::remove(file());
    ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
    EXPECT_NE(loadRefusal(folder_.path(), "model.safetensors"), "");
    write(file("notes.txt"), "text");
    EXPECT_THAT(loadRefusal(file("notes.txt"), "notes.txt"), HasSubstr("neither a folder nor"));
}

TEST_F(Checkpoint, ANameThatDoesNotExistListsTheEmbeddedModels) {
    const std::string long_(10'000, 'x');
    const std::string line = loadRefusal(file("nowhere"), "nowhere");
    for (const std::string& name : embeddedModels()) EXPECT_THAT(line, HasSubstr(name));
    EXPECT_NE(loadRefusal("", ""), "");
    EXPECT_NE(loadRefusal("line\nbreak", "line break"), "");
    EXPECT_THROW(Model::load(long_), Error);
}

TEST_F(Checkpoint, StopsWhenAskedAtEveryReport) {
    TinyCheckpoint().writeTo(folder_.path());
    int reports = 0;
    Model::load(folder_.path().string(), [&](double, std::string_view) { ++reports; });
    ASSERT_GT(reports, 4);
    for (int at = 0; at + 1 < reports; ++at) { // the last one says that it is done
        std::stop_source source;
        int seen = 0;
        try {
            Model::load(
                folder_.path().string(),
                [&](double, std::string_view) {
                    if (seen++ == at) source.request_stop();
                },
                source.get_token());
            ADD_FAILURE() << "not stopped at report " << at;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::Cancelled);
            EXPECT_EQ(seen, at + 1);
        }
    }
}

TEST_F(Checkpoint, ProgressRisesFromZeroToOne) {
    TinyCheckpoint().writeSharded(folder_.path());
    std::vector<double> fractions;
    Model::load(folder_.path().string(), [&](double fraction, std::string_view what) {
        fractions.push_back(fraction);
        EXPECT_FALSE(what.empty());
    });
    ASSERT_FALSE(fractions.empty());
    EXPECT_EQ(fractions.front(), 0.0);
    EXPECT_EQ(fractions.back(), 1.0);
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
}

TEST(EmbeddedModel, LoadsByItsName) {
    const auto model = Model::load(kDefaultModel);
    EXPECT_EQ(model->name(), kDefaultModel);
    EXPECT_TRUE(model->hasEvictionHead());
    EXPECT_EQ(model->weightType(), DType::BF16);
    EXPECT_EQ(model->fileBytes(), fs::file_size(kEmbeddedFolder / "model.safetensors"));
    EXPECT_GT(model->weightBytes(), 0u);
    EXPECT_LE(model->weightBytes(), model->fileBytes());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
