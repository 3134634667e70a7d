// Memory-mapped GGUF, versions 2 and 3: metadata as typed values, tensors as views into the file.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include "base/progress.h"
#include "core/model/safetensors.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvscope {

/// An array of metadata, checked and left in the file: `count` elements of one type, which is no array.
struct GgufArray {
    std::uint32_t type = 0;           // GGUF's code of the elements' type
    std::uint64_t count = 0;          // elements
    std::span<const std::byte> bytes; // as in the file: numbers little-endian and unaligned, texts with their lengths
};

/// Whole numbers of any width (those above the range of int64 are refused), f32 and f64, truth values, texts (views
/// into the file, any bytes), arrays.
using GgufValue = std::variant<std::int64_t, double, bool, std::string_view, GgufArray>;

/// Reads and checks the header of one file: counts, lengths, names, types and shapes; tensors are aligned, inside the
/// data, and follow each other in the order of the table. Everything returned lives as long as the bytes.
class GgufFile {
public:
    /// `bytes` outlives the object. @throws Error(BadInput | Unsupported) naming `origin` and the key or tensor;
    /// Error(Cancelled)
    GgufFile(std::span<const std::byte> bytes, std::string origin, const Progress& progress = {},
             const std::stop_token& stop = {});

    const std::string& origin() const { return origin_; }
    const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
    bool has(std::string_view key) const { return metadata_.contains(key); }

    // One value; nothing when the key is absent. @throws Error(BadInput) naming file and key when the value has another
    // type. A whole number is not taken for a real one: only a damaged file has the wrong type there, and the bits of a
    // whole number read as a real one are some other number.
    std::optional<std::string_view> text(std::string_view key) const;
    std::optional<std::int64_t> integer(std::string_view key) const;
    std::optional<double> number(std::string_view key) const; // f32 or f64
    std::optional<bool> flag(std::string_view key) const;
    // All elements; empty when the key is absent. @throws Error(BadInput) for other elements, naming file and key
    std::vector<std::string_view> texts(std::string_view key) const;
    std::vector<std::int64_t> integers(std::string_view key) const;
    std::vector<double> numbers(std::string_view key) const;

    /// Shapes are row-major as everywhere here, slowest dimension first: the reverse of the file's order. The type is
    /// GGUF's name: "F32", "Q4_K", ...
    const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }

    /// How many bytes come behind the last tensor and its padding. Some programs append them; in a damaged file they
    /// say that tensors may be shifted.
    std::size_t bytesBehind() const { return behind_; }

private:
    template <class T> std::optional<T> value(std::string_view key, const char* wanted) const;
    const GgufArray* array(std::string_view key) const;
    [[noreturn]] void wrongType(std::string_view key, const char* wanted) const;

    std::string origin_;
    std::map<std::string_view, GgufValue> metadata_;
    std::map<std::string, TensorView, std::less<>> tensors_;
    std::size_t behind_ = 0;
};

/// Paths of all parts of a split model ("NAME-00001-of-00003.gguf" and so on), in order, or the path alone.
/// @throws Error(BadInput) for a part that is not the first or whose numbers make no sense
std::vector<std::string> ggufParts(const std::string& path);

} // namespace kvscope
