// Headers of single safetensors files.
#include "core/model/safetensors.h"

#include "tests/support/refusal.h"

#include <cstdint>
#include <cstring>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::refusalOf;
using testing::HasSubstr;

/// A file of this header and `dataBytes` zeros.
std::string withHeader(const std::string& header, std::size_t dataBytes) {
    const std::uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(dataBytes, '\0');
}

std::string headerRefusal(const std::string& header, std::size_t dataBytes) {
    const std::string file = withHeader(header, dataBytes);
    return refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(file)), "x.safetensors"); }, "x.safetensors");
}

TEST(Safetensors, ReadsNamesShapesAndBytes) {
    const std::string file = withHeader(
        R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"empty":{"dtype":"F16","shape":[0],"data_offsets":[24,24]},)"
        R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"__metadata__":{"format":"pt"}}   )",
        26);
    const SafetensorsFile read(std::as_bytes(std::span(file)), "x");
    EXPECT_EQ(read.tensors().size(), 3u);
    ASSERT_NE(read.find("a"), nullptr);
    EXPECT_EQ(read.find("a")->shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(read.find("a")->bytes.size(), 24u);
    EXPECT_EQ(read.find("scalar")->bytes.size(), 2u);
    EXPECT_EQ(read.find("empty")->bytes.size(), 0u);
    EXPECT_EQ(read.find("b"), nullptr);
}

TEST(Safetensors, RefusesImpossibleShapes) {
    for (const std::string shape : {"[4294967296,4294967296]", "[9223372036854775808]", "[18446744073709551615,2]",
                                    "[-1]", "[1.5]", "[\"2\"]", "[[2]]", "[4611686018427387904]", "[3]", "4", "null"})
        EXPECT_THAT(headerRefusal(R"({"t":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]}})", 8),
                    HasSubstr("'t'"))
            << shape;
}

TEST(Safetensors, RefusesBadOffsets) {
    for (const std::string offsets :
         {"[0,16]", "[8,0]", "[-8,0]", "[0,18446744073709551615]", "[18446744073709551608,0]", "[0]", "[0,8,8]",
          "[0.0,8.0]", "null", "{}", "[1,8]", "[4,12]"})
        EXPECT_THAT(headerRefusal(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}", 8),
                    HasSubstr("'t'"))
            << offsets;
}

TEST(Safetensors, RefusesOverlappingTensors) {
    const auto two = [](const std::string& first, const std::string& second) {
        return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
               R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}";
    };
    EXPECT_EQ(headerRefusal(two("[0,8]", "[8,16]"), 16), "");
    EXPECT_EQ(headerRefusal(two("[8,16]", "[0,8]"), 16), "");
    EXPECT_THAT(headerRefusal(two("[0,8]", "[4,12]"), 16), HasSubstr("overlap"));
    EXPECT_THAT(headerRefusal(two("[8,16]", "[8,16]"), 16), HasSubstr("overlap"));
}

/// As the format demands: what no tensor covers is a sign that the file is not what its header says.
TEST(Safetensors, RefusesDataThatNoTensorCovers) {
    const auto one = [](const std::string& offsets, std::size_t dataBytes) {
        return headerRefusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}", dataBytes);
    };
    EXPECT_EQ(one("[0,8]", 8), "");
    EXPECT_THAT(one("[0,8]", 9), HasSubstr("end at byte 8 of 9 bytes"));
    EXPECT_THAT(one("[4,12]", 12), HasSubstr("bytes 0 to 4"));
    EXPECT_THAT(headerRefusal("{}", 3), HasSubstr("end at byte 0 of 3 bytes"));
    const std::string two = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})";
    EXPECT_THAT(headerRefusal(two, 20), HasSubstr("bytes 8 to 12"));
    EXPECT_THAT(headerRefusal(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})", 4),
                HasSubstr("bytes 0 to 4"));
}

/// Writers pad the header with spaces: a length that is short by one or more of them leaves valid JSON before data that
/// begins too early.
TEST(Safetensors, RefusesAHeaderLengthThatIsOffByALittle) {
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}        )";
    const std::string whole = withHeader(header, 8);
    for (std::uint64_t size = header.size() - 8; size <= header.size() + 8; ++size) {
        std::string file = whole;
        std::memcpy(file.data(), &size, 8);
        const std::string line =
            refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(file)), "x.safetensors"); }, "x.safetensors");
        EXPECT_EQ(line.empty(), size == header.size()) << size << ": " << line;
    }
}

TEST(Safetensors, RefusesHeadersThatAreNone) {
    for (const std::string header :
         {"", "[]", "3", "null", "{", "{\"t\":4}", "{\"t\":{}}", "{\"t\":{\"dtype\":4}}", "\xff{}"})
        EXPECT_NE(headerRefusal(header, 8), "") << header;
    EXPECT_EQ(headerRefusal("{}", 0), "");
    EXPECT_NE(headerRefusal("{\"t\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}", 8), "");
    EXPECT_NE(headerRefusal("{\"" + std::string(1'000'000, 'n') + "\\n\":4}", 8), "");
    for (const std::uint64_t size : {std::uint64_t(9), std::uint64_t(100'000'001), UINT64_MAX, UINT64_MAX - 7}) {
        const std::string file = std::string(reinterpret_cast<const char*>(&size), 8) + "{}      ";
        EXPECT_THAT(
            refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(file)), "x.safetensors"); }, "x.safetensors"),
            HasSubstr("header"))
            << size;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
