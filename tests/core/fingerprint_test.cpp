// Fingerprints of weight files, and what a session says in its trace about model and machine.
#include "core/model/fingerprint.h"

#include "core/model/model.h"
#include "core/model/model_shape.h"
#include "core/session/decode_session.h"
#include "core/session/processor.h"
#include "core/trace/run_meta.h"

#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Bytes = std::vector<std::byte>;

Bytes safetensors(std::size_t header, std::size_t data, unsigned seed) {
    Bytes file(8 + header + data);
    for (int i = 0; i < 8; ++i) file[std::size_t(i)] = std::byte(std::uint64_t(header) >> 8 * i & 0xff);
    std::mt19937 random(seed);
    for (std::size_t i = 8; i < file.size(); ++i) file[i] = std::byte(random() & 0xff);
    return file;
}

std::string of(const std::vector<Bytes>& files) {
    std::vector<std::span<const std::byte>> views(files.begin(), files.end());
    return fingerprintOf(views);
}

TEST(Fingerprint, NamesFilesAndBytesAndIsTheSameEveryTime) {
    const std::vector<Bytes> files{safetensors(500, 90'000, 1), safetensors(300, 60'000, 2)};
    EXPECT_EQ(of(files), of(files));
    EXPECT_THAT(of(files), testing::StartsWith("1:2:150816:"));
    EXPECT_THAT(of({}), testing::StartsWith("1:0:0:"));
    EXPECT_THAT(of({Bytes{}}), testing::StartsWith("1:1:0:"));
}

TEST(Fingerprint, ChangesWithSizeHeaderOrderAndWeights) {
    const std::vector<Bytes> files{safetensors(500, 90'000, 1), safetensors(300, 60'000, 2)};
    const std::string known = of(files);
    auto changed = files;
    changed[0].push_back(std::byte(0));
    EXPECT_NE(of(changed), known) << "a byte more";
    changed = files;
    changed[1][8 + 250] ^= std::byte(1);
    EXPECT_NE(of(changed), known) << "the header of the second file";
    EXPECT_NE(of({files[1], files[0]}), known);
    // All bytes of files up to 64 pages count, wherever they are.
    for (const std::size_t at : {std::size_t(600), std::size_t(45'000), files[0].size() - 1}) {
        changed = files;
        changed[0][at] ^= std::byte(0x80);
        EXPECT_NE(of(changed), known) << at;
    }
    changed = files;
    changed[1].back() ^= std::byte(1);
    EXPECT_NE(of(changed), known) << "the last byte";
}

TEST(Fingerprint, OfALargeFileTakesItsPagesAlone) {
    Bytes file = safetensors(100, 3'000'000, 3);
    const std::string known = of({file});
    int seen = 0;
    for (std::size_t at = 108; at < file.size(); at += 10'007) {
        file[at] ^= std::byte(1);
        seen += of({file}) != known;
        file[at] ^= std::byte(1);
    }
    EXPECT_GT(seen, 10) << "64 pages of 733";
    EXPECT_LT(seen, 60) << "not the whole file is read";
}

TEST(Fingerprint, OfDamagedHeadersIsDefined) {
    Bytes file(20, std::byte(0xff)); // a header of 2^64 - 1 bytes
    EXPECT_THAT(of({file}), testing::StartsWith("1:1:20:"));
    file.resize(5);
    EXPECT_THAT(of({file}), testing::StartsWith("1:1:5:"));
}

TEST(ModelShapes, ComeBackFromTheirText) {
    for (const ModelShape& shape : modelShapes()) {
        const auto read = parseModelShape(toJson(shape));
        ASSERT_TRUE(read) << shape.name;
        EXPECT_EQ(read->name, shape.name);
        EXPECT_EQ(read->storedWeights(), shape.storedWeights());
        EXPECT_EQ(read->evictionHead, shape.evictionHead);
        EXPECT_EQ(read->bytesPerWeight, shape.bytesPerWeight);
    }
    for (const char* bad : {"", "[]", "{}", R"({"layers":1})"}) EXPECT_FALSE(parseModelShape(bad)) << bad;
}

TEST(SessionMeta, SaysModelShapeFingerprintPathAndProcessor) {
    const auto model = Model::load(kDefaultModel);
    const auto metaOf = [&](bool withPath) {
        SessionOptions options;
        options.maxNewTokens = 1;
        options.recordModelPath = withPath;
        CollectingSink sink;
        DecodeSession session(model, {{1, 2, 3}}, options, sink);
        return std::map<std::string, std::string>(sink.info.meta.begin(), sink.info.meta.end());
    };
    auto meta = metaOf(true);
    EXPECT_EQ(meta[run_meta::kModelPath], kDefaultModel) << "an embedded model is found by its name";
    EXPECT_EQ(meta[run_meta::kModelFingerprint], model->fingerprint());
    EXPECT_THAT(model->fingerprint(), testing::StartsWith("1:1:"));
    EXPECT_EQ(meta[run_meta::kProcessor], processorName());
    const auto shape = parseModelShape(meta[run_meta::kModelShape]);
    ASSERT_TRUE(shape);
    EXPECT_EQ(shape->hidden, model->config().hidden);
    EXPECT_EQ(metaOf(false).count(run_meta::kModelPath), 0u) << "left out on request";
    EXPECT_EQ(metaOf(false).count(run_meta::kModelFingerprint), 1u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
