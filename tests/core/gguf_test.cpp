// The GGUF reader: a file of the `gguf` package read back (tools/make_gguf_fixture.py), and wrong files refused.
#include "core/model/gguf.h"
#include "kernels/kernels.h"
#include "tests/core/gguf_writer.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::GgufWriter;

const std::string kFixture = test::source("tests/golden/gguf/quantised.gguf");

std::span<const std::byte> view(const std::string& bytes) {
    return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

TEST(Gguf, MetadataOfTheReferencePackageIsReadAsWritten) {
    const MappedFile file(kFixture);
    const GgufFile gguf(file.bytes(), "quantised.gguf");
    EXPECT_EQ(gguf.text("general.architecture"), "llama");
    EXPECT_EQ(gguf.integer("test.number"), 4096);
    EXPECT_THROW((void)gguf.number("test.number"), Error) << "a whole number where a real one is wanted";
    EXPECT_EQ(gguf.number("test.real"), 0.5);
    EXPECT_EQ(gguf.flag("test.flag"), true);
    EXPECT_EQ(gguf.text("test.text"), "a text, \u00fcnicode");
    EXPECT_THAT(gguf.texts("test.texts"), ::testing::ElementsAre("one", "", "three"));
    EXPECT_THAT(gguf.integers("test.numbers"), ::testing::ElementsAre(1, -2, 3));
    EXPECT_THROW((void)gguf.numbers("test.numbers"), Error);
    EXPECT_EQ(gguf.text("test.absent"), std::nullopt);
    EXPECT_TRUE(gguf.texts("test.absent").empty());
    EXPECT_EQ(gguf.tensors().size(), 16u);
    EXPECT_THROW((void)gguf.integer("test.text"), Error);
    EXPECT_THROW((void)gguf.texts("test.numbers"), Error);
}

/// float32 arithmetic on both sides, but not the same order of the roundings: two units in the last place of the larger
/// of scale * integer and minimum, which is at most the largest value plus the largest step here.
TEST(Gguf, EveryFormatDecodesToWhatTheReferencePackageDecodes) {
    const MappedFile file(kFixture);
    const GgufFile gguf(file.bytes(), "quantised.gguf");
    for (const char* type : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}) {
        const TensorView& blocks = gguf.tensors().at(std::string(type) + ".blocks");
        const TensorView& values = gguf.tensors().at(std::string(type) + ".values");
        EXPECT_EQ(blocks.dtype, type);
        ASSERT_EQ(blocks.shape, (std::vector<std::int64_t>{2, 512}));
        std::vector<float> want(1024), got(1024);
        ASSERT_EQ(values.bytes.size(), want.size() * 4);
        std::memcpy(want.data(), values.bytes.data(), values.bytes.size());
        makeCpuKernels(1)->embed({blocks.bytes.data(), *weightType(type), 2, 512}, std::vector<std::int32_t>{0, 1},
                                 got.data());
        float most = 0;
        for (const float value : want) most = std::max(most, std::abs(value));
        ASSERT_GT(most, 0.1f);
        for (std::size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 4 * 0x1p-24f * most) << type << " " << i;
    }
}

/// A small valid file that the cases below spoil.
GgufWriter valid() {
    GgufWriter writer;
    writer.put("general.architecture", "llama");
    writer.put("some.list", std::vector<std::int32_t>{1, 2, 3});
    writer.put("some.texts", std::vector<std::string>{"a", "b"});
    const std::vector<float> values(64, 1.f);
    writer.addFloats("first", {32, 2}, values);
    writer.add("second", {32, 1}, 8, std::string(34, 'x'));
    return writer;
}

struct Wrong {
    const char* name;
    std::function<void(GgufWriter&)> spoil;
    const char* says;
};

TEST(Gguf, WrongFilesAreRefusedInOneSentenceThatNamesFileAndThing) {
    const auto bad = [](std::uint32_t code, std::string bytes) {
        return [=](GgufWriter& w) { w.raw("bad", code, bytes); };
    };
    const auto n32 = [](std::uint32_t value) { return GgufWriter::number(value); };
    const auto n64 = [](std::uint64_t value) { return GgufWriter::number(value); };
    const std::vector<Wrong> cases{
        {"magic", [](auto& w) { w.magic = "GGML"; }, "not a GGUF file"},
        {"version 1", [](auto& w) { w.version = 1; }, "version 1"},
        {"version 9", [](auto& w) { w.version = 9; }, "version 9"},
        {"big-endian", [](auto& w) { w.version = 0x03000000; }, "big-endian"},
        {"huge tensor count", [](auto& w) { w.moreTensors = INT64_MAX / 2; }, "tensors"},
        {"huge value count", [](auto& w) { w.moreValues = INT64_MAX / 2; }, "metadata values"},
        {"one value too many", [](auto& w) { w.moreValues = 1; }, "name is 562949953421312 bytes"},
        {"negative count", [](auto& w) { w.moreTensors = -100; }, "tensors"},
        {"duplicate key", [](auto& w) { w.put("some.list", "again"); }, "'some.list' occurs twice"},
        {"empty key", [](auto& w) { w.put("", "x"); }, "key is empty"},
        {"unknown type", bad(13, "12345678"), "'bad' has the unknown type 13"},
        {"array of arrays", bad(GgufWriter::Array, n32(GgufWriter::Array) + n64(1)), "array of arrays"},
        {"array of unknown", bad(GgufWriter::Array, n32(99) + n64(1)), "unknown type 99"},
        {"endless array", bad(GgufWriter::Array, n32(GgufWriter::U64) + n64(UINT64_MAX / 8)), "'bad' claims"},
        {"endless texts", bad(GgufWriter::Array, n32(GgufWriter::Text) + n64(UINT64_MAX)), "'bad' claims"},
        {"endless text", bad(GgufWriter::Text, n64(UINT64_MAX)), "'bad' needs"},
        {"huge number", bad(GgufWriter::U64, n64(UINT64_MAX)), "larger than"},
        {"odd truth", bad(GgufWriter::Bool, "\x02"), "neither true nor false"},
        {"odd alignment", [](auto& w) { w.put("general.alignment", 24u); }, "general.alignment is 24"},
        {"alignment of 0", [](auto& w) { w.put("general.alignment", 0u); }, "general.alignment is 0"},
        {"huge alignment", [](auto& w) { w.put("general.alignment", 1u << 31); }, "general.alignment"},
        {"alignment as text", [](auto& w) { w.put("general.alignment", "32"); }, "'general.alignment' is not a whole"},
        {"no dimensions", [](auto& w) { w.tensors[0].sizes.clear(); }, "'first' has 0 dimensions"},
        {"five dimensions", [](auto& w) { w.tensors[0].sizes.assign(5, 1); }, "'first' has 5 dimensions"},
        {"a size of 0",
         [](auto& w) {
             w.tensors[0].sizes = {32, 0};
         },
         "'first' has an impossible shape"},
        {"overflowing shape",
         [](auto& w) {
             w.tensors[0].sizes = {1ull << 33, 1ull << 33};
         },
         "impossible shape"},
        {"overflowing bytes", [](auto& w) { w.tensors[0].sizes = {1ull << 62}; }, "impossible shape"},
        {"partial block",
         [](auto& w) {
             w.tensors[1].sizes = {16, 2};
         },
         "'second' has rows of 16"},
        {"type without kernels", [](auto& w) { w.tensors[1].type = 10; }, "'second' has the type Q2_K"},
        {"type nobody knows", [](auto& w) { w.tensors[1].type = 777; }, "'second' has the type 777"},
        {"odd offset", [](auto& w) { w.tensors[1].offset += 8; }, "'second' starts at byte"},
        {"offset beyond", [](auto& w) { w.tensors[1].offset = 1ull << 62; }, "'second' has"},
        {"larger than the data", [](auto& w) { w.tensors[1].sizes[1] = 100; }, "'second' has"},
        {"overlap", [](auto& w) { w.tensors[1].offset = 32; }, "'second' overlaps"},
        {"another order", [](auto& w) { std::swap(w.tensors[0], w.tensors[1]); },
         "before the tensor 'second' belong to no tensor that the table has before it"},
        {"gap",
         [](auto& w) {
             w.tensors[1].offset += 64;
             w.data.insert(w.data.size() - 64, 64, 'x');
         },
         "64 bytes before the tensor 'second' belong to no tensor"},
        {"the same name", [](auto& w) { w.tensors[1].name = "first"; }, "'first' occurs twice"},
        {"no name", [](auto& w) { w.tensors[1].name = ""; }, "name is empty"},
    };
    {
        const std::string bytes = valid().bytes();
        ASSERT_NO_THROW(GgufFile(view(bytes), "good.gguf"));
    }
    for (const Wrong& wrong : cases) {
        GgufWriter writer = valid();
        wrong.spoil(writer);
        const std::string bytes = writer.bytes();
        try {
            const GgufFile file(view(bytes), "bad.gguf");
            ADD_FAILURE() << wrong.name << " is accepted";
        } catch (const Error& error) {
            const std::string line = oneLine(error);
            EXPECT_THAT(line, ::testing::HasSubstr(wrong.says)) << wrong.name;
            EXPECT_THAT(line, ::testing::HasSubstr("bad.gguf")) << wrong.name;
            EXPECT_EQ(line.find('\n'), std::string::npos) << wrong.name;
        }
    }
}

TEST(Gguf, TruncatedAnywhereItIsRefused) {
    const std::string bytes = valid().bytes();
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        const std::string part = bytes.substr(0, length); // its own memory: reading past the end shows under ASan
        EXPECT_THROW(GgufFile(view(part), "part.gguf"), Error) << length;
    }
}

TEST(Gguf, FlippedBitsAreReadOrRefused) {
    const std::string bytes = valid().bytes();
    std::mt19937 random(11);
    int refused = 0;
    for (int round = 0; round < 20000; ++round) {
        std::string copy = bytes;
        for (int flips = 0; flips < 1 + round % 3; ++flips) copy[random() % copy.size()] ^= char(1 << random() % 8);
        try {
            const GgufFile file(view(copy), "flipped.gguf");
            for (const auto& [name, tensor] : file.tensors()) {
                ASSERT_GE(tensor.bytes.data(), view(copy).data());
                ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), view(copy).data() + copy.size());
            }
            (void)file.texts("some.texts");
        } catch (const Error&) {
            ++refused;
        }
    }
    EXPECT_GT(refused, 1000);
}

TEST(Gguf, LoadingStopsWhenAsked) {
    std::stop_source stop;
    stop.request_stop();
    const std::string bytes = valid().bytes();
    try {
        const GgufFile file(view(bytes), "good.gguf", {}, stop.get_token());
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Cancelled);
    }
}

TEST(Gguf, PartsAreNamedByTheFirst) {
    EXPECT_THAT(ggufParts("/a/model-00001-of-00003.gguf"),
                ::testing::ElementsAre("/a/model-00001-of-00003.gguf", "/a/model-00002-of-00003.gguf",
                                       "/a/model-00003-of-00003.gguf"));
    EXPECT_THAT(ggufParts("model.gguf"), ::testing::ElementsAre("model.gguf"));
    EXPECT_THAT(ggufParts("model-0001-of-00003.gguf"), ::testing::ElementsAre("model-0001-of-00003.gguf"));
    EXPECT_THROW((void)ggufParts("model-00002-of-00003.gguf"), Error);
    EXPECT_THROW((void)ggufParts("model-00001-of-00000.gguf"), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
