#include "core/model/gguf.h"

#include "base/json_reading.h"
#include "base/utf8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::uint64_t kLongestName = 65535; // the format's own limit for keys
constexpr std::uint64_t kLargestAlignment = 1 << 20;
constexpr std::uint32_t kMostDimensions = 4;
constexpr int kItemsBetweenReports = 1024;

// Codes of the format.
enum Code : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64 };

constexpr int kCodeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; // texts and arrays: 0, because their sizes differ

struct TensorType {
    std::uint32_t code;
    const char* name;
    int blockWeights, blockBytes; // 0: not supported
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", 1, 4},      {1, "F16", 1, 2},     {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},   {8, "Q8_0", 32, 34},  {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176}, {14, "Q6_K", 256, 210},
    {30, "BF16", 1, 2},    {9, "Q8_1", 0, 0},    {10, "Q2_K", 0, 0},     {11, "Q3_K", 0, 0},     {15, "Q8_K", 0, 0},
    {16, "IQ2_XXS", 0, 0}, {17, "IQ2_XS", 0, 0}, {18, "IQ3_XXS", 0, 0},  {19, "IQ1_S", 0, 0},    {20, "IQ4_NL", 0, 0},
    {21, "IQ3_S", 0, 0},   {22, "IQ2_S", 0, 0},  {23, "IQ4_XS", 0, 0},   {24, "I8", 0, 0},       {25, "I16", 0, 0},
    {26, "I32", 0, 0},     {27, "I64", 0, 0},    {28, "F64", 0, 0},      {29, "IQ1_M", 0, 0},    {34, "TQ1_0", 0, 0},
    {35, "TQ2_0", 0, 0},   {39, "MXFP4", 0, 0}};

std::string named(std::string_view name) {
    return fmt::format("'{}'", shown(toValidUtf8(name.substr(0, 256)))); // a name may be any bytes
}

template <class T> T load(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

/// The number at `at` as the widest type of its kind.
std::int64_t wholeAt(std::uint32_t code, const std::byte* at) {
    switch (code) {
    case U8:
        return load<std::uint8_t>(at);
    case I8:
        return load<std::int8_t>(at);
    case U16:
        return load<std::uint16_t>(at);
    case I16:
        return load<std::int16_t>(at);
    case U32:
        return load<std::uint32_t>(at);
    case I32:
        return load<std::int32_t>(at);
    default:
        return load<std::int64_t>(at); // u64 too: the caller refuses what does not fit
    }
}
double realAt(std::uint32_t code, const std::byte* at) {
    return code == F32 ? double(load<float>(at)) : load<double>(at);
}
bool isWhole(std::uint32_t code) { return code <= I32 || code == U64 || code == I64; }
bool isReal(std::uint32_t code) { return code == F32 || code == F64; }

/// Reads forward and never past the end.
class Cursor {
public:
    Cursor(std::span<const std::byte> bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

    std::size_t position() const { return at_; }
    std::size_t left() const { return bytes_.size() - at_; }
    [[noreturn]] void refuse(const std::string& what) const {
        throw Error(ErrorKind::BadInput, fmt::format("{}: {}", origin_, what),
                    "the file is damaged or incomplete: download it again");
    }
    std::span<const std::byte> take(std::uint64_t count, const std::string& what) {
        if (count > left())
            refuse(fmt::format("{} needs {} bytes at byte {}, where the file has {} left", what, count, at_, left()));
        const auto part = bytes_.subspan(at_, std::size_t(count));
        at_ += std::size_t(count);
        return part;
    }
    template <class T> T number(const std::string& what) { return load<T>(take(sizeof(T), what).data()); }
    std::string_view text(const std::string& what, std::uint64_t longest = UINT64_MAX) {
        const auto length = number<std::uint64_t>(what);
        if (length > longest) refuse(fmt::format("{} is {} bytes long", what, length));
        const auto bytes = take(length, what);
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

private:
    std::span<const std::byte> bytes_;
    const std::string& origin_;
    std::size_t at_ = 0;
};

void checkElement(const Cursor& cursor, std::uint32_t code, const std::byte* at, const std::string& what) {
    if (code == U64 && load<std::uint64_t>(at) > std::uint64_t(INT64_MAX))
        cursor.refuse(fmt::format("{} is larger than any number used here", what));
    if (code == Bool && load<std::uint8_t>(at) > 1) cursor.refuse(what + " is neither true nor false");
}

GgufArray readArray(Cursor& cursor, const std::string& what, const std::stop_token& stop) {
    GgufArray array;
    array.type = cursor.number<std::uint32_t>(what);
    array.count = cursor.number<std::uint64_t>(what);
    if (array.type == Array) cursor.refuse(what + " is an array of arrays, which no model file known here has");
    if (array.type >= std::size(kCodeBytes))
        cursor.refuse(fmt::format("{} has elements of the unknown type {}", what, array.type));
    if (array.type != Text) {
        const auto size = std::uint64_t(kCodeBytes[array.type]);
        if (array.count > cursor.left() / size)
            cursor.refuse(fmt::format("{} claims {} elements, more than the file has bytes", what, array.count));
        array.bytes = cursor.take(array.count * size, what);
        if (array.type == U64 || array.type == Bool)
            for (std::uint64_t i = 0; i < array.count; ++i)
                checkElement(cursor, array.type, array.bytes.data() + i * size, what);
        return array;
    }
    if (array.count > cursor.left() / 8)
        cursor.refuse(fmt::format("{} claims {} texts, more than the file has bytes", what, array.count));
    Cursor ahead = cursor;
    for (std::uint64_t i = 0; i < array.count; ++i) {
        if (i % kItemsBetweenReports == 0) throwIfCancelled(stop);
        ahead.text(what);
    }
    array.bytes = cursor.take(ahead.position() - cursor.position(), what);
    return array;
}

GgufValue readValue(Cursor& cursor, const std::string& what, const std::stop_token& stop) {
    const auto code = cursor.number<std::uint32_t>(what);
    if (code >= std::size(kCodeBytes)) cursor.refuse(fmt::format("{} has the unknown type {}", what, code));
    if (code == Text) return cursor.text(what);
    if (code == Array) return readArray(cursor, what, stop);
    const std::byte* at = cursor.take(std::uint64_t(kCodeBytes[code]), what).data();
    checkElement(cursor, code, at, what);
    if (code == Bool) return load<std::uint8_t>(at) != 0;
    if (isReal(code)) return realAt(code, at);
    return wholeAt(code, at);
}

/// A tensor's place in the data section.
struct Place {
    std::uint64_t offset = 0, bytes = 0;
};

Place readTensor(Cursor& cursor, const std::string& origin, const std::string& what, TensorView& view) {
    const auto dimensions = cursor.number<std::uint32_t>(what);
    if (dimensions < 1 || dimensions > kMostDimensions)
        cursor.refuse(fmt::format("{} has {} dimensions, not 1 to {}", what, dimensions, kMostDimensions));
    std::uint64_t weights = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
        const auto size = cursor.number<std::uint64_t>(what);
        if (size < 1 || size > std::uint64_t(INT64_MAX) || __builtin_mul_overflow(weights, size, &weights))
            cursor.refuse(what + " has an impossible shape");
        view.shape.insert(view.shape.begin(), std::int64_t(size));
    }
    const auto code = cursor.number<std::uint32_t>(what);
    const auto* type = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                    [&](const TensorType& known) { return known.code == code; });
    if (type == std::end(kTensorTypes) || type->blockBytes == 0)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: {} has the type {}", origin, what,
                                type == std::end(kTensorTypes) ? std::to_string(code) : type->name),
                    "use a file with F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K weights");
    view.dtype = type->name;
    view.file = origin;
    Place place;
    place.offset = cursor.number<std::uint64_t>(what);
    if (view.shape.back() % type->blockWeights != 0)
        cursor.refuse(fmt::format("{} has rows of {} weights, no multiple of {}'s {}", what, view.shape.back(),
                                  type->name, type->blockWeights));
    if (__builtin_mul_overflow(weights / std::uint64_t(type->blockWeights), std::uint64_t(type->blockBytes),
                               &place.bytes))
        cursor.refuse(what + " has an impossible shape");
    return place;
}

} // namespace

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string origin, const Progress& progress,
                   const std::stop_token& stop)
    : origin_(std::move(origin)) {
    Cursor cursor(bytes, origin_);
    const auto magic = cursor.take(std::min<std::size_t>(4, bytes.size()), "the magic number");
    if (magic.size() < 4 || std::memcmp(magic.data(), "GGUF", 4) != 0)
        throw Error(ErrorKind::BadInput, origin_ + ": this is not a GGUF file",
                    "choose another file, or download it again");
    const auto version = cursor.number<std::uint32_t>("the version");
    if (version != 2 && version != 3)
        throw Error(ErrorKind::Unsupported,
                    __builtin_bswap32(version) <= 3 ? fmt::format("{}: this GGUF file is big-endian", origin_)
                                                    : fmt::format("{}: this is version {} of GGUF", origin_, version),
                    "convert the model to GGUF version 3, little-endian");
    const auto tensorCount = cursor.number<std::uint64_t>("the number of tensors"),
               valueCount = cursor.number<std::uint64_t>("the number of metadata values");
    // The shortest entries: a name of one byte with its length, a type, a value; dimensions, one size and an offset.
    if (valueCount > cursor.left() / 14 || tensorCount > cursor.left() / 33)
        cursor.refuse(fmt::format("the header claims {} tensors and {} metadata values, too many for {} bytes",
                                  tensorCount, valueCount, bytes.size()));
    const auto step = [&](std::uint64_t index, std::uint64_t count, std::string_view what) {
        if (index % kItemsBetweenReports != 0) return;
        throwIfCancelled(stop);
        report(progress, double(index) / double(count), what);
    };
    for (std::uint64_t i = 0; i < valueCount; ++i) {
        step(i, valueCount, "reading the metadata");
        const std::string_view key = cursor.text("a metadata key", kLongestName);
        if (key.empty()) cursor.refuse("a metadata key is empty");
        const GgufValue value = readValue(cursor, "the metadata value " + named(key), stop);
        if (!metadata_.emplace(key, value).second)
            cursor.refuse(fmt::format("the metadata value {} occurs twice", named(key)));
    }
    const auto alignment = std::uint64_t(integer("general.alignment").value_or(32));
    if (alignment < 8 || alignment > kLargestAlignment || (alignment & (alignment - 1)) != 0)
        cursor.refuse(fmt::format("general.alignment is {}, no power of two from 8 to {}", std::int64_t(alignment),
                                  kLargestAlignment));

    std::vector<std::pair<decltype(tensors_)::iterator, Place>> places;
    for (std::uint64_t i = 0; i < tensorCount; ++i) {
        step(i, tensorCount, "reading the tensor table");
        const std::string_view name = cursor.text("a tensor's name", kLongestName);
        if (name.empty()) cursor.refuse("a tensor's name is empty");
        const std::string what = "the tensor " + named(name);
        TensorView view;
        const Place place = readTensor(cursor, origin_, what, view);
        if (place.offset % alignment != 0)
            cursor.refuse(
                fmt::format("{} starts at byte {} of the data, no multiple of {}", what, place.offset, alignment));
        const auto [at, isNew] = tensors_.emplace(std::string(name), std::move(view));
        if (!isNew) cursor.refuse(what + " occurs twice");
        places.emplace_back(at, place);
    }
    const std::size_t dataStart = (cursor.position() + alignment - 1) / alignment * alignment;
    const auto data = dataStart < bytes.size() ? bytes.subspan(dataStart) : std::span<const std::byte>();
    const auto padded = [alignment](std::uint64_t size) { return (size + alignment - 1) / alignment * alignment; };
    std::uint64_t end = 0;
    for (const auto& [tensor, place] : places) {
        const std::string what = "the tensor " + named(tensor->first);
        if (place.offset > data.size() || place.bytes > data.size() - place.offset)
            cursor.refuse(fmt::format("{} has {} bytes from byte {} of the data, which has {}", what, place.bytes,
                                      place.offset, data.size()));
        if (place.offset < end) cursor.refuse(fmt::format("{} overlaps the one before it", what));
        if (place.offset > padded(end))
            cursor.refuse(fmt::format("{} bytes before {} belong to no tensor that the table has before it",
                                      place.offset - padded(end), what));
        end = place.offset + place.bytes;
        tensor->second.bytes = data.subspan(std::size_t(place.offset), std::size_t(place.bytes));
    }
    behind_ = data.size() > padded(end) ? data.size() - std::size_t(padded(end)) : 0;
}

void GgufFile::wrongType(std::string_view key, const char* wanted) const {
    throw Error(ErrorKind::BadInput, fmt::format("{}: the metadata value {} is not a {}", origin_, named(key), wanted),
                "the file is damaged, or was written by a converter unknown here");
}

template <class T> std::optional<T> GgufFile::value(std::string_view key, const char* wanted) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return std::nullopt;
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) wrongType(key, wanted);
    return *value;
}

std::optional<std::string_view> GgufFile::text(std::string_view key) const {
    return value<std::string_view>(key, "text");
}
std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
    return value<std::int64_t>(key, "whole number");
}
std::optional<bool> GgufFile::flag(std::string_view key) const { return value<bool>(key, "truth value"); }
std::optional<double> GgufFile::number(std::string_view key) const {
    const auto real = value<double>(key, "real number");
    if (real && !std::isfinite(*real))
        throw Error(ErrorKind::BadInput, fmt::format("{}: '{}' is {}, no finite number", origin(), key, *real),
                    "the file is damaged: download it again");
    return real;
}

const GgufArray* GgufFile::array(std::string_view key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return nullptr;
    const auto* array = std::get_if<GgufArray>(&found->second);
    if (array == nullptr) wrongType(key, "list");
    return array;
}

std::vector<std::string_view> GgufFile::texts(std::string_view key) const {
    const GgufArray* list = array(key);
    if (list == nullptr) return {};
    if (list->type != Text) wrongType(key, "list of texts");
    std::vector<std::string_view> out;
    out.reserve(std::size_t(list->count));
    const std::byte* at = list->bytes.data();
    for (std::uint64_t i = 0; i < list->count; ++i) {
        const auto length = load<std::uint64_t>(at);
        out.emplace_back(reinterpret_cast<const char*>(at + 8), std::size_t(length));
        at += 8 + length;
    }
    return out;
}

std::vector<std::int64_t> GgufFile::integers(std::string_view key) const {
    const GgufArray* list = array(key);
    if (list == nullptr) return {};
    if (!isWhole(list->type)) wrongType(key, "list of whole numbers");
    std::vector<std::int64_t> out(std::size_t(list->count));
    const auto size = std::size_t(kCodeBytes[list->type]);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = wholeAt(list->type, list->bytes.data() + i * size);
    return out;
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
    const GgufArray* list = array(key);
    if (list == nullptr) return {};
    if (!isReal(list->type)) wrongType(key, "list of real numbers");
    std::vector<double> out(std::size_t(list->count));
    const auto size = std::size_t(kCodeBytes[list->type]);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = realAt(list->type, list->bytes.data() + i * size);
    return out;
}

std::vector<std::string> ggufParts(const std::string& path) {
    // NAME-00001-of-00003.gguf
    constexpr std::size_t kDigits = 5, kSuffix = 1 + kDigits + 4 + kDigits + 5;
    const std::string name = std::filesystem::path(path).filename().string();
    if (name.size() <= kSuffix) return {path};
    const std::string suffix = name.substr(name.size() - kSuffix);
    const auto number = [&](std::size_t at) {
        int value = 0;
        for (std::size_t i = at; i < at + kDigits; ++i) {
            if (suffix[i] < '0' || suffix[i] > '9') return -1;
            value = 10 * value + (suffix[i] - '0');
        }
        return value;
    };
    const int part = number(1), parts = number(1 + kDigits + 4);
    if (suffix[0] != '-' || suffix.substr(1 + kDigits, 4) != "-of-" || !suffix.ends_with(".gguf") || part < 0 ||
        parts < 0)
        return {path};
    if (part != 1 || parts < 1)
        throw Error(ErrorKind::BadInput, fmt::format("{} is not the first of its parts", path),
                    fmt::format("give the file that ends in -00001-of-{:05}.gguf", parts));
    std::vector<std::string> out;
    for (int i = 1; i <= parts; ++i)
        out.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", path.substr(0, path.size() - kSuffix), i, parts));
    return out;
}

} // namespace kvscope
